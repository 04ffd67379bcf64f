"""`delay-reductions`: what a loop adds up is reduced once, after the loop, instead of in every trip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.analysis.known_values import is_splat
from meshbridge.analysis.trip_count import trip_count
from meshbridge.collectives import joins
from meshbridge.collectives.all_reduce_reassociate import AllReduceReassociate
from meshbridge.collectives.reduce_scatter_reassociate import ReduceScatterReassociate
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.dialect.ops import AllGatherOp, AllReduceOp, AllToAllOp, CollectiveOpView, PermuteOp, ReduceScatterOp
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import neutral, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.sharding import DYNAMIC


@register
@dataclass(frozen=True)
class DelayReductions(Pass):
    """Moves reductions below linear operations, and those that a loop only accumulates behind the loop.

    Input:   %0:2 = stablehlo.while(%i = %zero, %a = %start) {
               %1 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
               %2 = stablehlo.add %a, %1
               stablehlo.return %i_plus_one, %2
             }
    Output:  %0:2 = stablehlo.while(%i = %zero, %a = %zeros) {
               %2 = stablehlo.add %a, %x
               stablehlo.return %i_plus_one, %2
             }
             %1 = mesh.all_reduce %0#1 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.add %start, %1

    The carried value becomes a partial one; it starts as what the reduction ignores, and what it started as is added in the end.
    Nothing else in the loop may read it. The same goes for `reduce_scatter`, and for what only rearranges data (`all_gather`,
    `all_to_all`, `permute`), whatever the loop accumulates with; for several of them in a row; and for reshapes and transposes
    between them. Inner loops come first, so that their reductions may leave the outer ones too. A loop that surely runs once or
    never stays as it is.
    """

    name: ClassVar[str] = "delay-reductions"
    growth: int = 2**28
    """Bytes by which a carried value may grow on each device: a reduce-scatter's operand is as many times larger as its group.

    Measured (`benchmarks.constants`): with 0, lstm sends 9,454 KB instead of 1,328. 2**28 is a bound on memory, not a
    measurement."""

    def run(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            changed = rewriter.apply((*AllReduceReassociate.patterns, *ReduceScatterReassociate.patterns))
            return delay(rewriter, self.growth) or changed


_MOVING = frozenset((AllGatherOp.OPERATION_NAME, AllToAllOp.OPERATION_NAME, PermuteOp.OPERATION_NAME))
_REDUCING = frozenset((AllReduceOp.OPERATION_NAME, ReduceScatterOp.OPERATION_NAME))
_REARRANGING = frozenset(("stablehlo.reshape", "stablehlo.transpose"))
"""What only rearranges elements on one device, as behind a gather along several dimensions at once."""


@dataclass(frozen=True)
class _Accumulation:
    """A value that a loop carries and changes by `join` alone, with what `collective` gives."""

    loop: ir.Operation
    number: int
    join: ir.Operation
    collective: ir.Operation
    kind: str
    """The reduction that the join is a step of."""
    rearranged: tuple[ir.Operation, ...]
    """What rearranges what the collective gives before it is joined, in order."""

    @property
    def type(self) -> ir.Type:
        """Of what is accumulated before it is communicated."""
        type_: ir.Type = self.collective.operands[0].type
        return type_


def delay(rewriter: MeshRewriter, growth: int) -> bool:
    """Moves what loops accumulate behind them; returns whether there was anything."""
    changed = False
    for loop in reversed(rewriter.loops):
        if trip_count(loop) not in (0, 1):
            while _delay_from(loop, rewriter, growth):  # behind what has moved there may be another collective
                changed = True
    return changed


def _delay_from(loop: ir.Operation, rewriter: MeshRewriter, growth: int) -> bool:
    """Moves the last collective of everything that `loop` accumulates behind it; returns whether there was any."""
    found = [each for number in range(len(loop.results)) if (each := _accumulation(loop, number, rewriter)) is not None]
    found = [each for each in found if type_bytes(each.type) - type_bytes(loop.results[each.number].type) <= growth]
    for each in found:
        _move_behind(each, rewriter)
    return bool(found)


def _accumulation(loop: ir.Operation, number: int, rewriter: MeshRewriter) -> _Accumulation | None:
    """How `loop` accumulates its carried value of that number, if a collective can move behind it."""
    tested, carried = (region.blocks[0].arguments[number] for region in loop.regions)
    users = rewriter.users(carried)
    if len(users) != 1 or rewriter.uses(tested) or users[0].name not in joins.NAMES:
        return None
    join = users[0]
    (sum_,) = join.results
    place = list(join.operands).index(carried)
    other = join.operands[1 - place]
    communicated, rearranged = _communicated(other, rewriter)
    if (place == 1 and join.name in joins.SUM_OF) or communicated is None:
        return None
    handed_on = [op for op in rewriter.users(sum_) if op.name == "stablehlo.return"]
    if rewriter.uses(sum_) != 1 or not handed_on or handed_on[0].operands[number] != sum_:
        return None
    if communicated.block != loop.regions[1].blocks[0] or join.block != communicated.block:
        return None
    kind = _kind(communicated, join, rewriter)
    return _Accumulation(loop, number, join, communicated, kind, rearranged) if kind else None


def _communicated(value: ir.Value, rewriter: MeshRewriter) -> tuple[ir.Operation | None, tuple[ir.Operation, ...]]:
    """What `value` is made from by nothing but rearranging, in one block and for one reader, and what rearranges it."""
    rearranged: list[ir.Operation] = []
    while (op := rewriter.producer(value)) is not None and rewriter.uses(value) == 1:
        if op.name not in _REARRANGING:
            return op, tuple(reversed(rearranged))
        rearranged.append(op)
        value = op.operands[0]
    return None, ()


def _kind(op: ir.Operation, join: ir.Operation, rewriter: MeshRewriter) -> str:
    """The reduction that `join` is a step of, if it commutes with the collective `op`; "" otherwise."""
    if op.name not in _MOVING | _REDUCING:
        return ""
    view = CollectiveOpView(op)
    types, element = (op.operands[0].type, op.results[0].type), element_of(op.operands[0].type)
    if isinstance(element, ir.ComplexType) or element != element_of(types[1]):
        return ""
    if DYNAMIC in (*rewriter.meshes[view.mesh].shape, *shape_of(types[0]), *shape_of(types[1])):
        return ""
    kinds = (view.reduction,) if op.name in _REDUCING else [kind for kind in joins.JOINS if kind != "average"]
    return next((kind for kind in kinds if joins.joins(join.name, kind, element)), "")


def _move_behind(found: _Accumulation, rewriter: MeshRewriter) -> None:
    """Lets the loop accumulate the collective's operand, and communicates the sum."""
    loop, number, type_ = found.loop, found.number, found.type
    start, result = loop.operands[number], loop.results[number]
    ignored = neutral(found.kind, element_of(type_))
    from_nothing = is_splat(start, ignored)
    last = (found.collective, *found.rearranged)[-1]
    place = list(found.join.operands).index(last.results[0])
    rewriter.feed(found.join, place, found.collective.operands[0])
    for op in reversed(found.rearranged):
        rewriter.retire(op)
    found.join.results[0].set_type(type_)
    for region in loop.regions:
        region.blocks[0].arguments[number].set_type(type_)
    if not from_nothing or start.type != type_:
        loop.operands[number] = Builder.before(loop).splat(type_, ignored)
    whole = result.type
    result.set_type(type_)
    emit = Builder(found.collective.location, ir.InsertionPoint.after(loop))
    moved = value = emit.again(found.collective, found.collective.results[0].type, [result])
    for op in found.rearranged:
        value = emit.again(op, op.results[0].type, [value])
    if not from_nothing:
        value = emit.value(joins.SUM_OF.get(found.join.name, found.join.name), whole, [start, value])
    result.replace_all_uses_except(value, op_of(moved))
    rewriter.adopt(moved)
