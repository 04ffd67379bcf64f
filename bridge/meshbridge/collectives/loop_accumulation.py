"""Accumulation in loops: the op that combines a carried value with another one, and the collective that this comes from."""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.collectives import commuting_ops
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.dialect.ops import AllSliceOp, CollectiveOpView, ShiftOp
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import op_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import defining_op
from meshbridge.ops.linear import is_reshape, is_widening
from meshbridge.ops.traits import Trait, ops_with

_COLLECTIVES = ops_with(Trait.COLLECTIVE, dialect="mesh") - ops_with(Trait.ROOTED) - {ShiftOp.OPERATION_NAME}
"""Collectives that commute with combining elements; a shift that is no rotation leaves some elements undefined."""
_REDUCING = _COLLECTIVES & ops_with(Trait.REDUCING)


@dataclass(frozen=True)
class AccumulatingOp:
    """The only op that reads a loop-carried value, and combines it with another one."""

    op: ir.Operation
    operand_number: int
    "The number of the operand that is the carried value."

    @property
    def other(self) -> ir.Value:
        value: ir.Value = self.op.operands[1 - self.operand_number]
        return value


def accumulating_op(loop: ir.Operation, number: int, rewriter: MeshRewriter) -> AccumulatingOp | None:
    """The op by which `loop` accumulates its carried value of that number; None if it uses the value in another way."""
    tested, carried = (region.blocks[0].arguments[number] for region in loop.regions)
    users = rewriter.users(carried)
    if len(users) != 1 or rewriter.uses(tested) or users[0].name not in commuting_ops.NAMES:
        return None
    join = users[0]
    operand_number = list(join.operands).index(carried)
    if (operand_number == 1 and join.name in commuting_ops.ADDITION_OF) or join.block != loop.regions[1].blocks[0]:
        return None
    return AccumulatingOp(join, operand_number) if is_yielded(join.results[0], number, rewriter) else None


def is_yielded(value: ir.Value, number: int, rewriter: MeshRewriter) -> bool:
    """True if the next iteration of the loop carries `value` at that number, and nothing else uses it, not even a branch that
    returns it."""
    users = rewriter.users(value)
    if len(users) != 1 or users[0].name != "stablehlo.return" or users[0].block != op_of(value).block:
        return False
    carried: bool = users[0].operands[number] == value
    return carried


def source_of(value: ir.Value, rewriter: MeshRewriter) -> tuple[ir.Value, tuple[ir.Operation, ...]]:
    """The value from which `value` is computed by rearranging or dropping elements on one device, or widening them, with one
    reader each; and the ops that do so, in order."""
    rearranged: list[ir.Operation] = []
    while (op := defining_op(value)) is not None and rewriter.uses(value) == 1 and _rearranges(op):
        rearranged.append(op)
        value = op.operands[0]
    return value, tuple(reversed(rearranged))


def _rearranges(op: ir.Operation) -> bool:
    return op.name in ("stablehlo.transpose", AllSliceOp.OPERATION_NAME) or is_reshape(op) or is_widening(op)


def kind_of(collective: ir.Operation, combiner: str, element: ir.Type, rewriter: MeshRewriter) -> str:
    """The reduction that `combiner` performs step by step on elements of that type, if it commutes with the collective; "" if
    not. Elements that are widened after the collective can only be reduced."""
    if collective.name not in _COLLECTIVES:
        return ""
    view = CollectiveOpView(collective)
    source, target = (value.type for value in (collective.operands[0], collective.results[0]))
    if isinstance(element, ir.ComplexType) or element_of(source) != element_of(target):
        return ""
    if DYNAMIC in (*rewriter.meshes[view.mesh].shape, *shape_of(source), *shape_of(target)):
        return ""
    kinds = (view.reduction,) if collective.name in _REDUCING else [kind for kind in commuting_ops.COMMUTING if kind != "average"]
    if element != element_of(source):
        kinds = [kind for kind in kinds if kind == "sum" and collective.name in _REDUCING]
    return next((kind for kind in kinds if commuting_ops.commutes(combiner, kind, element)), "")
