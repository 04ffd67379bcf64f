"""`reduction-move-up`: sums over devices are scaled and rearranged behind the reduction, by what reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from meshbridge.collectives.joins import keeps_type
from meshbridge.collectives.rewriter import ELEMENTWISE, MeshPattern, MeshRewriter, in_size
from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import defining_op
from meshbridge.ops.linear import SCALE
from meshbridge.ops.reductions import is_sum


@register
@dataclass(frozen=True)
class ReductionMoveUp(Pass):
    """Moves reductions above what scales what they add up, and all-reduces above what rearranges it.

    Input:   %0 = stablehlo.multiply %x, %c : tensor<4xf32>               // all devices of a group hold the same %c
             %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.subtract %w, %1 : tensor<4xf32>
    Output:  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %1 = stablehlo.multiply %0, %c : tensor<4xf32>
             %2 = stablehlo.subtract %w, %1 : tensor<4xf32>

    The same for reduce_scatter, for divisions by such values and for what is negated, also before a device adds it up. Sums
    are left unreduced as long as what follows is linear, which is how several become one; where none did, they are reduced where
    the program adds them up, and rounded as it rounds them. As many bytes are sent. What reads the sum computes element by
    element, and scales it in the same kernel; before it, the scaling of a sum that a reduction gives would be a kernel of its
    own, as of each statistic of a batch normalisation.
    """

    name: ClassVar[str] = "reduction-move-up"
    transposes: bool = True
    """Whether all-reduces move above transposes. XLA:TPU writes a product in any order, and copies what it has reduced: on 64 v5p
    `cp_attention` of `testdata/realistic` takes 10.6 million cycles with it, and 9.9 without."""

    def run(self, module: ir.Module) -> bool:
        rearranged = _REARRANGED if self.transposes else _REARRANGED - {_TRANSPOSE}
        pattern = MeshPattern(_REDUCTIONS, partial(_move_up, rearranged=rearranged))
        with rewriting(MeshRewriter, module) as rewriter:
            return rewriter.apply((pattern,))


_REDUCTIONS = (AllReduceOp.OPERATION_NAME, ReduceScatterOp.OPERATION_NAME)
_NEGATE = "stablehlo.negate"
_SCALED = {**SCALE, _NEGATE: (0,)}
"""By operation, which operands it is linear in."""

_TRANSPOSE = "stablehlo.transpose"
_REARRANGED = frozenset(("stablehlo.reshape", _TRANSPOSE))

_TAKEN_IN = ELEMENTWISE | _REARRANGED | {"stablehlo.broadcast_in_dim"}
"""Operations of whose kernels those before them are a part that scale or rearrange."""


def _move_up(op: ir.Operation, rewriter: MeshRewriter, *, rearranged: frozenset[str]) -> bool:
    """Moves the reduction `op` above what scales its operand, or rearranges it in one of these ways."""
    view = AllReduceOp(op) if op.name == AllReduceOp.OPERATION_NAME else ReduceScatterOp(op)
    before = defining_op(view.input)
    if before is None or before.block != op.block:
        return False
    negated = _negated(before, rewriter)
    if not (negated or before.name in _SCALED or before.name in rearranged):
        return False
    if (
        view.reduction not in ("sum", "average")
        or not keeps_type(view)
        or is_integer(element_of(view.input.type))
        or DYNAMIC in shape_of(op.results[0].type)
        or rewriter.uses(view.input) != 1
        or any(user.name not in _TAKEN_IN for user in rewriter.users(op.results[0]))
    ):
        return False
    emit = Builder.before(op)
    if negated:
        first, before = negated
        rewriter.feed(first, 0, before.operands[0])
        reduced = emit.again(op, op.results[0].type, [view.input])
        operands = [reduced]
    elif before.name in rearranged:
        if not isinstance(view, AllReduceOp):
            return False
        reduced = emit.again(op, before.operands[0].type, [before.operands[0]])
        operands = [reduced]
    else:
        found = _scaled(before, view, emit, rewriter)
        if found is None:
            return False
        reduced, operands = found
    rewriter.replace(op, emit.again(before, op.results[0].type, operands))
    rewriter.adopt(reduced)
    return True


def _negated(last: ir.Operation, rewriter: MeshRewriter) -> tuple[ir.Operation, ir.Operation] | None:
    """The first of the operations up to `last` that do nothing but add up on a device and rearrange what is negated, and that
    negation; None where none of them adds up. XLA adds up what is not negated there, and negates each sum: before a reduction
    over devices that is a kernel of its own."""
    step: ir.Operation | None = last
    first, adds_up = last, False
    while step is not None and (is_sum(step) or step.name in _REARRANGED):
        if rewriter.uses(step.results[0]) != 1:
            return None
        first, adds_up = step, adds_up or is_sum(step)
        step = defining_op(step.operands[0])
        if step is None or step.block != last.block:
            return None
    return (first, step) if adds_up and step is not None and step.name == _NEGATE else None


def _scaled(
    scaling: ir.Operation, view: AllReduceOp | ReduceScatterOp, emit: Builder, rewriter: MeshRewriter
) -> tuple[ir.Value, list[ir.Value]] | None:
    """The reduction of what `scaling` scales, and its operands behind that; None where devices may scale by different factors."""
    for number in _SCALED[scaling.name]:
        factors = [value for other, value in enumerate(scaling.operands) if other != number]
        replicated = [value for value in factors if rewriter.is_replicated(value, view.mesh, view.mesh_axes)]
        makers = [_in_size_of_result(value, view) for value in replicated]
        operands = [make(emit) for make in makers if make is not None]
        if len(operands) == len(factors):
            reduced = emit.again(view.operation, view.operation.results[0].type, [scaling.operands[number]])
            operands.insert(number, reduced)
            return reduced, operands
    return None


def _in_size_of_result(value: ir.Value, view: AllReduceOp | ReduceScatterOp) -> Callable[[Builder], ir.Value] | None:
    """How to make `value`, of the size of what is reduced, in that of what the reduction gives."""
    if isinstance(view, AllReduceOp):
        return lambda emit: value
    whole, piece = (shape_of(each.type)[view.scatter_axis] for each in (view.input, view.operation.results[0]))
    return in_size(value, view.scatter_axis, divide=whole // piece)
