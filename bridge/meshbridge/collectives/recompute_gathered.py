"""`recompute-gathered`: what follows element by element from gathered values is computed of these, rather than gathered too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from meshbridge.collectives.rewriter import ELEMENTWISE, MeshPattern, MeshRewriter, PatternPass, in_size
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.dialect.signature import group_size, shape_of
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import resized
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.sharding import DYNAMIC

MOST = 16
"""How many operations are computed again for one gather. An element of a float that comes from another device takes as long as a
thousand multiply-adds; GELU and its kin have about ten operations. Not measured: a bound on time and memory traffic."""


@register
@dataclass(frozen=True)
class RecomputeGathered(PatternPass):
    """Drops an all-gather of what is computed element by element from values that are gathered alike anyway.

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             %1 = stablehlo.tanh %x : tensor<2xf32>
             %2 = mesh.all_gather %1 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
    Output:  %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             %2 = stablehlo.tanh %0 : tensor<4xf32>

    Other operands are the same on all devices of a group, and at every index of the gathered dimension. The gathers stand in one
    block, or the one that stays stands before what encloses the other.
    """

    name: ClassVar[str] = "recompute-gathered"


def recompute(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Replaces the all-gather `op` by computation, if there is another one of everything that its operand is computed from."""
    result = op.results[0].type
    if not isinstance(result, ir.RankedTensorType) or op.operands[0].owner == op.block:
        return False
    gather, mesh = AllGatherOp(op), rewriter.meshes[AllGatherOp(op).mesh]
    if DYNAMIC in (*mesh.shape, *shape_of(result)):
        return False
    found = _Computation(op, group_size(mesh, gather.mesh_axes), rewriter)
    if not found.takes(op.operands[0]) or not found.gathers:
        return False
    rewriter.replace(op, found.written())
    return True


@dataclass
class _Computation:
    """What an all-gather's operand is computed from, as far as it has been looked at."""

    op: ir.Operation
    count: int
    rewriter: MeshRewriter
    gathers: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    "Values that are gathered, each with what does it."
    alike: dict[ir.Value, Callable[[Builder], ir.Value]] = field(default_factory=dict)
    "Values that are the same on all devices, each with what makes it in the gathered size."
    steps: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    "Values that are computed, in order."

    def takes(self, value: ir.Value) -> bool:
        """Whether `value` can be had in the gathered size without being gathered; adds what that takes."""
        if value in self.gathers or value in self.alike or value in self.steps:
            return True
        gather = AllGatherOp(self.op)
        if (other := self._gathering(value)) is not None:
            self.gathers[value] = other
            return True
        if self.rewriter.is_uniform(value, gather.mesh, gather.mesh_axes):
            make = in_size(value, gather.gather_axis, multiply=self.count)
            if make is not None:
                self.alike[value] = make
            return make is not None
        made = self.rewriter.producer(value)
        if made is None or made.name not in ELEMENTWISE or made.block != self.op.block or len(self.steps) >= MOST:
            return False
        if any(shape_of(operand.type) not in ((), shape_of(value.type)) for operand in made.operands):
            return False
        if not all(self.takes(operand) for operand in made.operands):
            return False
        self.steps[value] = made
        return len(self.steps) <= MOST

    def _gathering(self, value: ir.Value) -> ir.Operation | None:
        """Another all-gather of `value` that gives it as this one would, and that something else needs."""
        gather = AllGatherOp(self.op)
        for other in self.rewriter.users(value):
            if other.name != AllGatherOp.OPERATION_NAME or other == self.op:
                continue
            view, is_reached = AllGatherOp(other), other.block == self.op.block or self.rewriter.dominates(other, self.op)
            alike = (view.mesh, view.mesh_axes, view.gather_axis) == (gather.mesh, gather.mesh_axes, gather.gather_axis)
            if is_reached and alike and self.rewriter.uses(other.results[0]):
                return other
        return None

    def written(self) -> ir.Value:
        """The operand in the gathered size, computed in front of the gather."""
        emit, dim = Builder.before(self.op), AllGatherOp(self.op).gather_axis
        for other in self.gathers.values():
            if not self.rewriter.dominates(other, self.op):
                other.move_before(self.op)
        values: dict[ir.Value, ir.Value] = {value: other.results[0] for value, other in self.gathers.items()}
        values |= {value: make(emit) for value, make in self.alike.items()}
        for value, made in self.steps.items():
            wide = resized(ir.RankedTensorType(value.type), dim, multiply=self.count)
            values[value] = emit.again(made, wide, [values[operand] for operand in made.operands])
        return values[self.op.operands[0]]


RecomputeGathered.patterns = (MeshPattern((AllGatherOp.OPERATION_NAME,), recompute),)
