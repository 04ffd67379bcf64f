"""`reduction-move-up`: moves scaling and rearranging after a reduction, where readers fuse them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from meshbridge.collectives.commuting_ops import keeps_type
from meshbridge.collectives.rewriter import ELEMENTWISE, MeshPattern, MeshRewriter, resize_uniform
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
    """Moves reductions above operations that scale their operand, and all-reduces above those that rearrange it.

    Input:   %0 = stablehlo.multiply %x, %c : tensor<4xf32>               // all devices of a group hold the same %c
             %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.subtract %w, %1 : tensor<4xf32>
    Output:  %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %1 = stablehlo.multiply %0, %c : tensor<4xf32>
             %2 = stablehlo.subtract %w, %1 : tensor<4xf32>

    The same holds for reduce_scatter, for divisions by such values and for negations, also if a sum on one device follows them.
    Sums stay unreduced while operations on them are linear, so that several may become one. Where none did, this reduces them
    where the program sums, with its rounding. As many bytes are sent. Readers are elementwise and scale the sum in their own
    kernel; before the reduction, the scaling would take a kernel of its own, as for each statistic of a batch normalization.
    """

    name: ClassVar[str] = "reduction-move-up"
    transposes: bool = True
    """Whether all-reduces move above transposes. XLA:TPU writes a product in any order, but copies the result of a reduction: on
    64 v5p `cp_attention` of `testdata/realistic` takes 10.6 million cycles with it, and 9.9 without."""

    def run(self, module: ir.Module) -> bool:
        rearranged = _REARRANGED if self.transposes else _REARRANGED - {_TRANSPOSE}
        pattern = MeshPattern(_REDUCTIONS, partial(_move_up, rearranged=rearranged))
        with rewriting(MeshRewriter, module) as rewriter:
            return rewriter.apply((pattern,))


_REDUCTIONS = (AllReduceOp.OPERATION_NAME, ReduceScatterOp.OPERATION_NAME)
_NEGATE = "stablehlo.negate"
_SCALED = {**SCALE, _NEGATE: (0,)}
"""By operation, the operands in which it is linear."""

_TRANSPOSE = "stablehlo.transpose"
_REARRANGED = frozenset(("stablehlo.reshape", _TRANSPOSE))

_TAKEN_IN = ELEMENTWISE | _REARRANGED | {"stablehlo.broadcast_in_dim"}
"""Operations whose kernels can include a preceding scaling or rearrangement."""


def _move_up(op: ir.Operation, rewriter: MeshRewriter, *, rearranged: frozenset[str]) -> bool:
    """Moves the reduction `op` above the operation that scales its operand, or that rearranges it in one of these ways."""
    view = AllReduceOp(op) if op.name == AllReduceOp.OPERATION_NAME else ReduceScatterOp(op)
    producer = defining_op(view.input)
    if producer is None or producer.block != op.block:
        return False
    negated = _negated(producer, rewriter)
    if not (negated or producer.name in _SCALED or producer.name in rearranged):
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
    builder = Builder.before(op)
    if negated:
        first_op, producer = negated
        rewriter.set_operand(first_op, 0, producer.operands[0])
        reduced = builder.again(op, op.results[0].type, [view.input])
        operands = [reduced]
    elif producer.name in rearranged:
        if not isinstance(view, AllReduceOp):
            return False
        reduced = builder.again(op, producer.operands[0].type, [producer.operands[0]])
        operands = [reduced]
    else:
        scaled = _scaled(producer, view, builder, rewriter)
        if scaled is None:
            return False
        reduced, operands = scaled
    rewriter.replace(op, builder.again(producer, op.results[0].type, operands))
    rewriter.adopt(reduced)
    return True


def _negated(end: ir.Operation, rewriter: MeshRewriter) -> tuple[ir.Operation, ir.Operation] | None:
    """A negation, and the first of the operations from it to `last`, which only sum on one device and rearrange; None if none of
    them sums. XLA moves a negation after such a sum: before a reduction over devices it is then a kernel of its own."""
    step: ir.Operation | None = end
    first_op, adds_up = end, False
    while step is not None and (is_sum(step) or step.name in _REARRANGED):
        if rewriter.uses(step.results[0]) != 1:
            return None
        first_op, adds_up = step, adds_up or is_sum(step)
        step = defining_op(step.operands[0])
        if step is None or step.block != end.block:
            return None
    return (first_op, step) if adds_up and step is not None and step.name == _NEGATE else None


def _scaled(
    scaling: ir.Operation, view: AllReduceOp | ReduceScatterOp, builder: Builder, rewriter: MeshRewriter
) -> tuple[ir.Value, list[ir.Value]] | None:
    """The reduction of the scaled operand, and the operands of the scaling after it; None if devices may scale by different
    factors."""
    for number in _SCALED[scaling.name]:
        factors = [value for index, value in enumerate(scaling.operands) if index != number]
        replicated = [value for value in factors if rewriter.is_replicated(value, view.mesh, view.mesh_axes)]
        makers = [_in_size_of_result(value, view) for value in replicated]
        operands = [make(builder) for make in makers if make is not None]
        if len(operands) == len(factors):
            reduced = builder.again(view.operation, view.operation.results[0].type, [scaling.operands[number]])
            operands.insert(number, reduced)
            return reduced, operands
    return None


def _in_size_of_result(value: ir.Value, view: AllReduceOp | ReduceScatterOp) -> Callable[[Builder], ir.Value] | None:
    """A builder of `value`, which has the size of the reduction's operand, in the size of its result."""
    if isinstance(view, AllReduceOp):
        return lambda builder: value
    whole, piece = (shape_of(end.type)[view.scatter_axis] for end in (view.input, view.operation.results[0]))
    return resize_uniform(value, view.scatter_axis, divide=whole // piece)
