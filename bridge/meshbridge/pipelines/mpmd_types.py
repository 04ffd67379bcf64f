"""Types and attributes of Shardy's MPMD dialect for which jaxlib has no classes: read from their text, and written as text.

!mpmd.mesh_tensor<"mesh0", tensor<8x4xf32>, sharding=<@mesh, [{"data"}, {}]>>
#mpmd.topology<<"mesh0" : <["data"=2]>>, <"mesh1" : <["data"=2]>>>
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from meshbridge.ir.mlir import ir, mpmd
from meshbridge.pipelines.stacks import Division, Part

FRAGMENT, FRAGMENT_CALL, TRANSFER, RETURN = "mpmd.fragment", "mpmd.fragment_call", "mpmd.transfer", "mpmd.return"

ASSIGN, UNASSIGN, CALL, FOR = "mpmd.assign", "mpmd.unassign", "mpmd.call", "mpmd.for"

TOPOLOGY = "topology"
"""The attribute of a function with the meshes by name."""

SHARDING = "sdy.sharding"
"""The attribute of a function's argument or result with its sharding."""

COUNTER = "call_counter"
"""The attribute of a fragment with the number of its microbatch."""

KEEPS, DROPS = "split_keep_transferred", "split_drop_transferred"
"""The attributes of the two halves of a backward pass: what earlier stages wait for, and the rest."""

PART = "meshbridge.part"
"""The attribute of each argument and result, if some are parts of stacks of layers: the number of the step's argument or result,
the position of the part, and where parts begin and end."""

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_MESH_TENSOR = re.compile(
    rf"!mpmd\.mesh_tensor<{_QUOTED}, (tensor<.*?>)(?:, sharding=(<.*>))?(?:, memory_kind={_QUOTED})?>", re.DOTALL
)
_NAMED_MESH = re.compile(rf"<{_QUOTED} : (<\[.*?\](?:, device_ids=\[.*?\])?>)>")


@dataclass(frozen=True)
class MeshTensor:
    """A `!mpmd.mesh_tensor`: the global type of a tensor on a mesh of the topology."""

    mesh: str
    tensor: ir.Type
    sharding: ir.Attribute | None = None
    "A `#sdy.sharding`; None for a replicated tensor."
    memory_kind: str | None = None

    @classmethod
    def of(cls, kind: ir.Type) -> MeshTensor | None:
        """The fields of a type; None for any other type."""
        match = _MESH_TENSOR.fullmatch(str(kind))
        if match is None:
            return None
        mesh, tensor, sharding, memory_kind = match.groups()
        context = kind.context
        said = None if sharding is None else ir.Attribute.parse(f"#{SHARDING}{sharding}", context)
        return cls(mesh, ir.Type.parse(tensor, context), said, memory_kind)

    @property
    def type(self) -> ir.Type:
        """The type, in the context of its tensor."""
        said = "" if self.sharding is None else f", sharding={str(self.sharding).removeprefix(f'#{SHARDING}')}"
        kept = "" if self.memory_kind is None else f', memory_kind="{self.memory_kind}"'
        return ir.Type.parse(f'!mpmd.mesh_tensor<"{self.mesh}", {self.tensor}{said}{kept}>', self.tensor.context)


def topology_attr(meshes: Mapping[str, ir.Attribute]) -> ir.Attribute:
    """The topology of these meshes, each a `#sdy.mesh`, by name. Needs a current context."""
    listed = ", ".join(f'<"{name}" : {str(mesh).removeprefix("#sdy.mesh")}>' for name, mesh in meshes.items())
    return ir.Attribute.parse(f"#mpmd.topology<{listed}>")


def meshes_of(topology: ir.Attribute) -> dict[str, ir.Attribute]:
    """The meshes of a topology by name, each a `#sdy.mesh`."""
    found = _NAMED_MESH.findall(str(topology))
    return {name: ir.Attribute.parse(f"#sdy.mesh{mesh}", topology.context) for name, mesh in found}


def part_attr(part: Part) -> ir.Attribute:
    """The value of PART. Needs a current context."""
    return ir.DenseI64ArrayAttr.get([part.number, part.position, *part.division.bounds])


def part_of(attribute: ir.Attribute | None) -> Part | None:
    """The part that a value of PART names; None for none, and for one of another form."""
    numbers = list(ir.DenseI64ArrayAttr(attribute)) if isinstance(attribute, ir.DenseI64ArrayAttr) else []
    number, position, *bounds = numbers if len(numbers) > 3 else (0, 0)
    are_bounds = bounds[:1] == [0] and all(start < end for start, end in pairwise(bounds))
    return Part(number, position, Division(tuple(bounds))) if are_bounds and 0 <= position < len(bounds) - 1 else None


def origin_attr(*origins: tuple[str, int]) -> ir.Attribute:
    """The origins of a fragment: names of computations, each with the number of its transpositions. Needs a current context."""
    return ir.ArrayAttr.get([mpmd.UserOriginAttr.get(name, transposed) for name, transposed in origins])


def origins_of(fragment: ir.Operation) -> list[tuple[str, int]]:
    """The origins of a fragment, or of the call of one."""
    attributes = map(mpmd.UserOriginAttr, ir.ArrayAttr(fragment.attributes["origin"]))
    return [(origin.user_name, origin.transpose_count) for origin in attributes]
