"""`delay-reductions`: what a loop adds up is reduced once, after the loop, instead of in every trip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.analysis.known_values import is_splat
from meshbridge.analysis.trip_count import trip_count
from meshbridge.collectives import joins
from meshbridge.collectives.accumulations import Joining, joining, kind_of, source_of
from meshbridge.collectives.all_reduce_reassociate import AllReduceReassociate
from meshbridge.collectives.reduce_scatter_reassociate import ReduceScatterReassociate
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.collectives.stacks import communicate_stacks
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder, op_of, tensor
from meshbridge.ir.elements import neutral, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.uses import defining_op
from meshbridge.ops.linear import is_widening


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
    between them, and slices of a device's own shard. Where the loop adds up what was converted to a wider float, the sum is
    communicated in that type, if that is less than all trips communicate. Inner loops come first, so that their reductions may
    leave the outer ones too, also those of a stack into which an inner loop writes row after row (`stacks`). A loop that surely
    runs once or never stays as it is.
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


@dataclass(frozen=True)
class _Accumulation:
    """A value that a loop carries and changes by `join` alone, with what `collective` gives."""

    loop: ir.Operation
    number: int
    join: Joining
    collective: ir.Operation
    kind: str
    """The reduction that the join is a step of."""
    rearranged: tuple[ir.Operation, ...]
    """What rearranges what the collective gives before it is joined, in order."""

    @property
    def type(self) -> ir.Type:
        """Of what is accumulated before it is communicated."""
        return self.widened(self.collective.operands[0].type)

    def widened(self, type_: ir.Type) -> ir.RankedTensorType:
        """That type with the elements that are accumulated."""
        return tensor(shape_of(type_), element_of(self.join.other.type))

    @property
    def is_worth_it(self) -> bool:
        """Whether what is communicated behind the loop is less than what all trips communicate: wider elements are more bytes."""
        given: ir.Type = self.collective.operands[0].type
        trips = trip_count(self.loop)
        return element_of(given) == element_of(self.type) or (
            trips is not None and trips * type_bytes(given) > type_bytes(self.type)
        )


def delay(rewriter: MeshRewriter, growth: int) -> bool:
    """Moves what loops accumulate behind them; returns whether there was anything."""
    changed = False
    for loop in reversed(rewriter.loops):
        if trip_count(loop) not in (0, 1):
            communicate_stacks(loop, rewriter, growth)
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
    join = joining(loop, number, rewriter)
    if join is None:
        return None
    value, rearranged = source_of(join.other, rewriter)
    collective = defining_op(value)
    if collective is None or collective.block != join.op.block or rewriter.uses(value) != 1:
        return None
    kind = kind_of(collective, join.op.name, element_of(join.other.type), rewriter)
    found = _Accumulation(loop, number, join, collective, kind, rearranged)
    return found if kind and found.is_worth_it else None


def _move_behind(found: _Accumulation, rewriter: MeshRewriter) -> None:
    """Lets the loop accumulate the collective's operand, and communicates the sum."""
    loop, number, type_, join = found.loop, found.number, found.type, found.join
    start, result = loop.operands[number], loop.results[number]
    ignored = neutral(found.kind, element_of(type_))
    from_nothing = is_splat(start, ignored)
    added = Builder.before(join.op).convert(found.collective.operands[0], element_of(type_))
    rewriter.feed(join.op, 1 - join.place, added)
    for op in reversed(found.rearranged):
        rewriter.retire(op)
    join.op.results[0].set_type(type_)
    for region in loop.regions:
        region.blocks[0].arguments[number].set_type(type_)
    if not from_nothing or start.type != type_:
        loop.operands[number] = Builder.before(loop).splat(type_, ignored)
    whole = result.type
    result.set_type(type_)
    emit = Builder(found.collective.location, ir.InsertionPoint.after(loop))
    moved = value = emit.again(found.collective, found.widened(found.collective.results[0].type), [result])
    for op in found.rearranged:
        if not is_widening(op):
            value = emit.again(op, found.widened(op.results[0].type), [value])
    if not from_nothing:
        value = emit.value(joins.SUM_OF.get(join.op.name, join.op.name), whole, [start, value])
    result.replace_all_uses_except(value, op_of(moved))
    rewriter.adopt(moved)
