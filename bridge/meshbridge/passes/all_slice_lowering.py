"""A device's own slice of a tensor, cut out by position: no communication, and no mesh op but those that answer with indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers_attr
from meshbridge.dialect.ops import AllSliceOp, MeshOp
from meshbridge.mlir import OpError, ir, walk_all
from meshbridge.passes.base import Pass, register
from meshbridge.passes.index_arithmetic import binary, constant, linearize, product
from meshbridge.sharding import DYNAMIC, Mesh

_UNEVEN = "Slicing a tensor with axis size that is not exactly divisible by the mesh process group size is not supported."
"""What upstream's assertion says."""


@register
@dataclass(frozen=True)
class AllSliceLowering(Pass):
    """Turns `mesh.all_slice` into `tensor.extract_slice` at this device's place in its group; upstream's pass of this name.

    Input:   mesh.mesh @m(shape = 2x4)
             %0 = mesh.all_slice %x on @m mesh_axes = [1] slice_axis = 0 : tensor<8xf32> -> tensor<2xf32>
    Output:  %1 = mesh.process_multi_index on @m axes = [1] : index
             %2 = arith.constant 2 : index
             %3 = arith.muli %1, %2 : index
             %0 = tensor.extract_slice %x[%3] [2] [1] : tensor<8xf32> to tensor<2xf32>

    A size that is not known to divide is divided at run time by `mesh.mesh_shape`, after a `cf.assert` that it divides.
    """

    name: ClassVar[str] = "test-mesh-all-slice-op-lowering"

    def run(self, module: ir.Module) -> None:
        """Raises OpError where the mesh is not declared."""
        meshes = {op.sym_name: op.value for op in module.body.operations if isinstance(op, MeshOp)}
        with module.context:
            for op in walk_all(module):
                if isinstance(view := op.opview, AllSliceOp):
                    _lower(view, meshes)


def _lower(view: AllSliceOp, meshes: dict[str, Mesh]) -> None:
    op = view.operation
    mesh = meshes.get(view.mesh)
    if mesh is None:
        raise OpError(op, f"names the mesh @{view.mesh}, which the module does not declare")
    with ir.InsertionPoint(op), op.location:
        value = _extract(view, mesh) if view.mesh_axes else op.operands[0]
        value = _as_type(value, op.results[0].type)
    op.results[0].replace_all_uses_with(value)
    op.erase()


def _extract(view: AllSliceOp, mesh: Mesh) -> ir.Value:
    """The slice, of the type that its sizes give."""
    source, axes, dim = view.operation.operands[0], view.mesh_axes, view.slice_axis
    index = build.process_multi_index(mesh, axes)
    counts = [mesh.shape[axis] for axis in axes]
    shape = list(ir.RankedTensorType(source.type).shape)
    if DYNAMIC in (shape[dim], *counts) or shape[dim] % mesh.group_size(axes):
        bases = build.mesh_shape(mesh, axes)
        size = _divided(_size(source, dim), product(bases))
        shape[dim] = DYNAMIC
    else:
        bases = [constant(count) for count in counts] if len(counts) > 1 else index  # one digit needs no base
        shape[dim] //= mesh.group_size(axes)
        size = constant(shape[dim])
    start = binary("muli", linearize(index, bases), size)
    sizes = [size if at == dim else _size(source, at) for at, extent in enumerate(shape) if extent == DYNAMIC]
    return _slice(source, dim, start, shape, sizes)


def _slice(source: ir.Value, dim: int, start: ir.Value, shape: list[int], sizes: list[ir.Value]) -> ir.Value:
    """`shape` elements of `source` from `start` along `dim` and from 0 along all others; `sizes` for what is unknown in it."""
    rank = len(shape)
    result = ir.RankedTensorType.get(shape, ir.RankedTensorType(source.type).element_type)
    attributes = {
        "static_offsets": integers_attr(DYNAMIC if at == dim else 0 for at in range(rank)),
        "static_sizes": integers_attr(shape),
        "static_strides": integers_attr([1] * rank),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, len(sizes), 0]),
    }
    value: ir.Value = ir.Operation.create("tensor.extract_slice", [result], [source, start, *sizes], attributes).results[0]
    return value


def _size(source: ir.Value, dim: int) -> ir.Value:
    """The size of `source` along `dim`, asked for at run time where its type does not say."""
    known = ir.RankedTensorType(source.type).shape[dim]
    if known != DYNAMIC:
        return constant(known)
    value: ir.Value = ir.Operation.create("tensor.dim", [ir.IndexType.get()], [source, constant(dim)]).results[0]
    return value


def _divided(size: ir.Value, count: ir.Value) -> ir.Value:
    """`size / count`, after the assertion that nothing is left over."""
    equal = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
    operands = [binary("remsi", size, count), constant(0)]
    even = ir.Operation.create("arith.cmpi", [ir.IntegerType.get_signless(1)], operands, {"predicate": equal}).results[0]
    ir.Operation.create("cf.assert", [], [even], {"msg": ir.StringAttr.get(_UNEVEN)})
    return binary("divsi", size, count)


def _as_type(value: ir.Value, type_: ir.Type) -> ir.Value:
    """`value` with more or less of its shape in its type."""
    if value.type == type_:
        return value
    cast: ir.Value = ir.Operation.create("tensor.cast", [type_], [value]).results[0]
    return cast
