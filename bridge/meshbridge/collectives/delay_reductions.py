"""`delay-reductions`: reduces the sum that a loop accumulates once after the loop, instead of in every iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.analysis.known_values import is_splat
from meshbridge.analysis.trip_count import trip_count
from meshbridge.collectives import commuting_ops
from meshbridge.collectives.all_reduce_reassociate import AllReduceReassociate
from meshbridge.collectives.loop_accumulation import AccumulatingOp, accumulating_op, kind_of, source_of
from meshbridge.collectives.reduce_scatter_reassociate import ReduceScatterReassociate
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.collectives.stacked_collectives import move_stacked_collectives
from meshbridge.cost.held import LARGEST_GROWTH, HeldPrice, Sent
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder, op_of, tensor
from meshbridge.ir.elements import neutral, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.uses import defining_op
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.ops.linear import is_widening


@register
@dataclass(frozen=True)
class DelayReductions(Pass):
    """Moves reductions below linear operations, and reductions that a loop only accumulates after the loop.

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

    The carried value becomes partial: it starts as the neutral element, and the initial value is added after the loop. Nothing
    else in the loop may read it. The pass also moves `reduce_scatter`; collectives that only rearrange data (`all_gather`,
    `all_to_all`, `permute`), for any accumulation; several of them in a row; and reshapes, transposes and slices of a device's
    own shard between them. If the loop accumulates values converted to a wider float, the sum is communicated in that type, if
    that sends less than all iterations do. Inner loops come first, so that their reductions may leave the outer loops too,
    including those of a stack that an inner loop fills row by row (`stacked_collectives`). A loop that certainly runs at most
    once does not change.
    """

    name: ClassVar[str] = "delay-reductions"
    growth: int = LARGEST_GROWTH
    """Bytes by which a carried value may grow on each device: the operand of a reduce-scatter is larger than its result by the
    size of its group.

    Measured (`benchmarks.constants`): with 0, lstm sends 9,454 KB instead of 1,328."""
    target: CompileTarget | None = None
    "The device whose price of held bytes counts (`cost/held.py`); without one `growth` alone does."

    def run(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            changed = rewriter.apply((*AllReduceReassociate.patterns, *ReduceScatterReassociate.patterns))
            return delay(rewriter, HeldPrice.of(self.target, self.growth)) or changed


@dataclass(frozen=True)
class _Accumulation:
    """A value that a loop carries and only changes by combining it with results of `collective`."""

    loop: ir.Operation
    number: int
    join: AccumulatingOp
    collective: ir.Operation
    kind: str
    """The reduction that the combining op performs step by step."""
    rearranged: tuple[ir.Operation, ...]
    """The ops that rearrange the collective's result before it is accumulated, in order."""

    @property
    def type(self) -> ir.Type:
        """The type of the accumulated value before it is communicated."""
        return self.widened(self.collective.operands[0].type)

    def widened(self, type_: ir.Type) -> ir.RankedTensorType:
        """That type with the element type of the accumulated value."""
        return tensor(shape_of(type_), element_of(self.join.other.type))

    @property
    def is_worth_it(self) -> bool:
        """True if communicating after the loop sends less than all iterations do: wider elements have more bytes."""
        source: ir.Type = self.collective.operands[0].type
        count = trip_count(self.loop)
        return element_of(source) == element_of(self.type) or (
            count is not None and count * type_bytes(source) > type_bytes(self.type)
        )

    def is_paid(self, price: HeldPrice, rewriter: MeshRewriter) -> bool:
        """True if communicating after the loop saves what the larger accumulated value costs."""
        sent = Sent.by(self.collective, rewriter.meshes)
        widening = type_bytes(self.type) / type_bytes(self.collective.operands[0].type)
        growth = type_bytes(self.type) - type_bytes(self.loop.results[self.number].type)
        return price.is_paid(growth, sent.times(trip_count(self.loop)), sent.times(1, widening))


def delay(rewriter: MeshRewriter, price: HeldPrice) -> bool:
    """Moves collectives of accumulated values after their loops; returns whether the program changed."""
    changed = False
    for loop in reversed(rewriter.loops):
        if trip_count(loop) not in (0, 1):
            move_stacked_collectives(loop, rewriter, price)
            while _delay_from(loop, rewriter, price):  # another collective may be before the moved one
                changed = True
    return changed


def _delay_from(loop: ir.Operation, rewriter: MeshRewriter, price: HeldPrice) -> bool:
    """Moves the last collective of each value that `loop` accumulates after it; returns whether there was any."""
    accumulations = [
        accumulation for number in range(len(loop.results)) if (accumulation := _accumulation(loop, number, rewriter)) is not None
    ]
    accumulations = [accumulation for accumulation in accumulations if accumulation.is_paid(price, rewriter)]
    for accumulation in accumulations:
        _move_after_loop(accumulation, rewriter)
    return bool(accumulations)


def _accumulation(loop: ir.Operation, number: int, rewriter: MeshRewriter) -> _Accumulation | None:
    """How `loop` accumulates its carried value of that number, if a collective can move after it."""
    join = accumulating_op(loop, number, rewriter)
    if join is None:
        return None
    value, rearranged = source_of(join.other, rewriter)
    collective = defining_op(value)
    if collective is None or collective.block != join.op.block or rewriter.uses(value) != 1:
        return None
    kind = kind_of(collective, join.op.name, element_of(join.other.type), rewriter)
    accumulation = _Accumulation(loop, number, join, collective, kind, rearranged)
    return accumulation if kind and accumulation.is_worth_it else None


def _move_after_loop(accumulation: _Accumulation, rewriter: MeshRewriter) -> None:
    """Makes the loop accumulate the collective's operand, and communicates the sum after it."""
    loop, number, type_, join = accumulation.loop, accumulation.number, accumulation.type, accumulation.join
    start, result = loop.operands[number], loop.results[number]
    ignored = neutral(accumulation.kind, element_of(type_))
    from_nothing = is_splat(start, ignored)
    added = Builder.before(join.op).convert(accumulation.collective.operands[0], element_of(type_))
    rewriter.set_operand(join.op, 1 - join.operand_number, added)
    for op in reversed(accumulation.rearranged):
        rewriter.retire(op)
    join.op.results[0].set_type(type_)
    for region in loop.regions:
        region.blocks[0].arguments[number].set_type(type_)
    if not from_nothing or start.type != type_:
        loop.operands[number] = Builder.before(loop).splat(type_, ignored)
    whole = result.type
    result.set_type(type_)
    builder = Builder(accumulation.collective.location, ir.InsertionPoint.after(loop))
    communicated = value = builder.again(
        accumulation.collective, accumulation.widened(accumulation.collective.results[0].type), [result]
    )
    for op in accumulation.rearranged:
        if not is_widening(op):
            value = builder.again(op, accumulation.widened(op.results[0].type), [value])
    if not from_nothing:
        value = builder.value(commuting_ops.ADDITION_OF.get(join.op.name, join.op.name), whole, [start, value])
    result.replace_all_uses_except(value, op_of(communicated))
    rewriter.adopt(communicated)
