"""What loops accumulate: the op that joins a carried value with another one, and what that is made from."""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.collectives import joins
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
"""Those that commute with joining elements: a shift that is no rotation leaves some undefined."""
_REDUCING = _COLLECTIVES & ops_with(Trait.REDUCING)


@dataclass(frozen=True)
class Joining:
    """The only op that reads a value which a loop carries, and what it joins it with."""

    op: ir.Operation
    place: int
    "The operand that the carried value is."

    @property
    def other(self) -> ir.Value:
        value: ir.Value = self.op.operands[1 - self.place]
        return value


def joining(loop: ir.Operation, number: int, rewriter: MeshRewriter) -> Joining | None:
    """How `loop` accumulates its carried value of that number; None if it does something else with it."""
    tested, carried = (region.blocks[0].arguments[number] for region in loop.regions)
    users = rewriter.users(carried)
    if len(users) != 1 or rewriter.uses(tested) or users[0].name not in joins.NAMES:
        return None
    join = users[0]
    place = list(join.operands).index(carried)
    if (place == 1 and join.name in joins.SUM_OF) or join.block != loop.regions[1].blocks[0]:
        return None
    return Joining(join, place) if is_handed_on(join.results[0], number, rewriter) else None


def is_handed_on(value: ir.Value, number: int, rewriter: MeshRewriter) -> bool:
    """Whether the next trip of the loop whose body makes `value` carries it at that number, and nothing else uses it, not even
    a branch that returns it."""
    users = rewriter.users(value)
    if len(users) != 1 or users[0].name != "stablehlo.return" or users[0].block != op_of(value).block:
        return False
    carried: bool = users[0].operands[number] == value
    return carried


def source_of(value: ir.Value, rewriter: MeshRewriter) -> tuple[ir.Value, tuple[ir.Operation, ...]]:
    """What `value` is made from by rearranging or leaving out elements on one device, or writing them in a wider type, each for
    one reader; and what does so, in order."""
    rearranged: list[ir.Operation] = []
    while (op := defining_op(value)) is not None and rewriter.uses(value) == 1 and _rearranges(op):
        rearranged.append(op)
        value = op.operands[0]
    return value, tuple(reversed(rearranged))


def _rearranges(op: ir.Operation) -> bool:
    return op.name in ("stablehlo.transpose", AllSliceOp.OPERATION_NAME) or is_reshape(op) or is_widening(op)


def kind_of(collective: ir.Operation, join: str, element: ir.Type, rewriter: MeshRewriter) -> str:
    """The reduction of elements of that type that an op named `join` is a step of, if it commutes with the collective; ""
    otherwise. Elements that are widened behind it are only reduced."""
    if collective.name not in _COLLECTIVES:
        return ""
    view = CollectiveOpView(collective)
    given, made = (value.type for value in (collective.operands[0], collective.results[0]))
    if isinstance(element, ir.ComplexType) or element_of(given) != element_of(made):
        return ""
    if DYNAMIC in (*rewriter.meshes[view.mesh].shape, *shape_of(given), *shape_of(made)):
        return ""
    kinds = (view.reduction,) if collective.name in _REDUCING else [kind for kind in joins.JOINS if kind != "average"]
    if element != element_of(given):
        kinds = [kind for kind in kinds if kind == "sum" and collective.name in _REDUCING]
    return next((kind for kind in kinds if joins.joins(join, kind, element)), "")
