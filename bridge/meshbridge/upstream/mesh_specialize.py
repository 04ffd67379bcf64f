"""`mesh-specialize`: sizes for the axes of dynamic meshes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect import attributes
from meshbridge.dialect.module_mesh import declared_meshes, mesh_ops
from meshbridge.dialect.ops import MeshOp
from meshbridge.ir.mlir import MeshError, OpError, ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.upstream.shape_refinement import refine_shapes


@register
@dataclass(frozen=True)
class MeshSpecialize(Pass):
    """Gives a dynamic mesh its sizes, so that what needs them can run.

    With `m=4x2`:
    Input:   mesh.mesh @m(shape = 4x?)
             %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<3xf32> -> tensor<?xf32>
    Output:  mesh.mesh @m(shape = 4x2)
             %0 = mesh.all_gather %x on @m mesh_axes = [1] gather_axis = 0 : tensor<3xf32> -> tensor<6xf32>

    Sizes of tensors that follow are filled in too (`shape_refinement`).
    """

    name: ClassVar[str] = "mesh-specialize"
    main_option: ClassVar[str] = "sizes"

    sizes: str = ""
    "`mesh=4x2`, several with commas between them: `m=4x2,n=8`. A `?` leaves an axis as it is."

    def run(self, module: ir.Module) -> None:
        wanted = dict(_parse(entry) for entry in self.sizes.split(",") if entry.strip())
        with module.context:
            for view in mesh_ops(module.body):
                if (shape := wanted.pop(view.sym_name, None)) is not None:
                    view.attributes["shape"] = attributes.integers_attr(_specialized(view.operation, shape))
        if wanted:
            raise MeshError(f"{self.name}: error: the module declares no mesh @{next(iter(wanted))}")
        refine_shapes(module, declared_meshes(module.body))


_ENTRY = re.compile(r"\s*@?([\w.$-]+)\s*=\s*((?:\?|[1-9]\d{0,17})(?:x(?:\?|[1-9]\d{0,17}))*)\s*")


def _parse(entry: str) -> tuple[str, tuple[int, ...]]:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise MeshError(f"mesh-specialize: error: expected sizes such as m=4x2, found '{entry.strip()}'")
    return match.group(1), tuple(DYNAMIC if size == "?" else int(size) for size in match.group(2).split("x"))


def _specialized(op: ir.Operation, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the mesh with its unknown sizes filled in. Raises OpError if a known size differs."""
    declared = MeshOp(op).shape
    if len(declared) != len(sizes):
        raise OpError(op, f"is of rank {len(declared)}, but is given {len(sizes)} sizes")
    for axis, (declared_size, size) in enumerate(zip(declared, sizes, strict=True)):
        if DYNAMIC not in (declared_size, size) and declared_size != size:
            raise OpError(op, f"has size {declared_size} along axis {axis}, but is given {size}")
    return tuple(size if declared_size == DYNAMIC else declared_size for declared_size, size in zip(declared, sizes, strict=True))
