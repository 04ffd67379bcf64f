"""`prefetch-gathers`: collective pipelining: gathers what an iteration would wait for during the iteration before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

from meshbridge.analysis.trip_count import CountedLoop
from meshbridge.collectives.hoist_collectives import LOCAL, carried_unchanged
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, find, ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.uses import block_of, erase_dead, has_one_use, is_argument
from meshbridge.ops.composites import CONTRACTIONS
from meshbridge.ops.traits import Trait, ops_with
from meshbridge.overlap.loops.peeled_loops import peel, peelable

HIDDEN_ASIDE = 2**26
"""Bytes below which a value is gathered ahead on the SparseCores of a TPU, where gathers run one after the other. Values of up to
34 MB make the loops of a llama shorter by XLA:TPU for 64 v5p; one of 117 MB costs 2 % of the cycles of an MLP. In between nothing
was measured."""


@register
@dataclass(frozen=True)
class PrefetchGathers(Pass):
    """Gathers what the first products of an iteration read, such as a layer's parameters, during the iteration before.

    Input:   %0:2 = stablehlo.while(%i = 0, %x = %a) {                    // while %i < 8
               %shard = stablehlo.dynamic_slice %w, %i, ...
               %1 = mesh.all_gather %shard on @m mesh_axes = [0] gather_axis = 0
               %2 = stablehlo.dot_general %x, %1
               stablehlo.return %i + 1, (what is computed of %2)
             }
    Output:  %first = mesh.all_gather (%shard of trip 0) ...
             %0:3 = stablehlo.while(%i = 0, %x = %a, %1 = %first) {       // while %i < 7
               %2 = stablehlo.dot_general %x, %1
               %next, %_ = stablehlo.optimization_barrier (%shard of trip %i + 1), %2
               %following = mesh.all_gather %next ...
               stablehlo.return %i + 1, (what is computed of %2), %following
             }
             the last trip, with %0#2 for %1

    As many bytes and collectives as before. The barrier has the gather wait for the product that reads its predecessor: from then
    on that one's memory is free, so that nothing is copied, and what the trip computes after it runs meanwhile. So only one
    product may read what is gathered, and it must wait for no other product of its trip: gathers of later ones have those to hide
    behind. What is gathered is computed of the loop's counter and of what does not change in it, and the loop's text says how
    often it runs. The shard waits, not the counter: XLA:GPU evaluates what loops compute of counters, and fails at a barrier.

    With `again`, the last iteration is not peeled, and gathers the last shard a second time: XLA:TPU clears the stacks that a
    loop fills if an iteration stands after the loop.
    """

    name: ClassVar[str] = "prefetch-gathers"
    least: int = 2**20
    "Bytes of what is gathered from which on it is worth a copy of the loop's body. Not measured."
    most: int = 2**29
    "Bytes that a loop may hold more for what is gathered ahead, in all. A bound on memory, not a measurement."
    again: bool = False
    "Whether the last iteration stays in the loop and gathers a second time. Without it, the last iteration is peeled."
    largest: float = inf
    "Bytes of a value from which on it is gathered in its own trip."

    def run(self, module: ir.Module) -> bool:
        with module.context:
            loops = [_PipelinedLoop.of(op, self) for op in reversed(find(module.operation, ["stablehlo.while"]))]
            for loop in loops:
                if loop is not None:
                    _pipeline(loop)
            return any(loops)


_GATHERING = ops_with(Trait.COLLECTIVE, dialect="mesh") - ops_with(Trait.REDUCING, Trait.ROOTED)
"""Collectives that move shards of one value."""

_MADE_AHEAD = LOCAL | _GATHERING


@dataclass(frozen=True)
class _Gathered:
    """A value of a loop's body that `product` alone reads, and the shards that it is gathered of."""

    value: ir.Value
    shards: tuple[ir.Value, ...]
    product: ir.Operation


@dataclass(frozen=True)
class _PipelinedLoop:
    """A loop, and what is to be gathered a trip ahead, in the order in which products read it."""

    op: ir.Operation
    counting: CountedLoop
    gathered: tuple[_Gathered, ...]
    again: bool = False
    "Whether the last iteration stays in the loop, and gathers what no iteration reads. Without it, it is peeled."

    @property
    def body(self) -> ir.Block:
        body: ir.Block = self.op.regions[1].blocks[0]
        return body

    @staticmethod
    def of(op: ir.Operation, limits: PrefetchGathers) -> _PipelinedLoop | None:
        """None where nothing is to be gathered ahead."""
        if (counted := peelable(op)) is None:
            return None
        taken: list[_Gathered] = []
        left: float = limits.most
        for each in _first_read(op, counted.counter):
            size = tensor_bytes(each.value)
            if limits.least <= size < limits.largest and size <= left:
                taken.append(each)
                left -= size
        return _PipelinedLoop(op, counted, tuple(taken), limits.again) if taken else None


def _first_read(loop: ir.Operation, counter: int) -> Iterable[_Gathered]:
    """What the first products of a trip read that is gathered of what is known before it."""
    body = loop.regions[1].blocks[0]
    early = {*carried_unchanged(loop, body), body.arguments[counter]}
    varying: set[ir.Value] = {argument for argument in body.arguments if argument not in early}
    late: set[ir.Value] = set()
    "Of what varies, that which waits for a product of the trip."
    gathered: dict[ir.Value, tuple[ir.Value, ...]] = {}
    "What is gathered of what does not vary: its shards, none if anything on the way from them has several readers."
    for op in (view.operation for view in body.operations):
        if op.name in CONTRACTIONS and late.isdisjoint(op.operands):
            read = [operand for operand in op.operands if gathered.get(operand) and has_one_use(operand)]
            yield from (_Gathered(value, gathered[value], op) for value in read)
        for result in op.results:
            sources = _sources(result)
            before = [value for value in sources if value in gathered]
            if op.name in CONTRACTIONS | REGION_OPS or not late.isdisjoint(sources):
                late.add(result)
            if op.name not in _MADE_AHEAD or not varying.isdisjoint(sources):
                varying.add(result)
            elif not before and op.name in _GATHERING:
                gathered[result] = tuple(sources)
            elif before:
                alone = all(gathered[value] and has_one_use(value) for value in before)
                gathered[result] = tuple(shard for value in before for shard in gathered[value]) if alone else ()


def _sources(value: ir.Value) -> Sequence[ir.Value]:
    """What the operation that gives `value` computes it of: a barrier hands on each operand as it is."""
    op = op_of(value)
    return [op.operands[ir.OpResult(value).result_number]] if op.name == BARRIER else list(op.operands)


def _pipeline(loop: _PipelinedLoop) -> None:
    """Carries what is gathered ahead from trip to trip. The last iteration gathers again, or is peeled."""
    values = [each.value for each in loop.gathered]
    before = _Ahead(loop.body, dict(enumerate(loop.op.operands)), Builder.before(loop.op))
    first = [before.made(value) for value in values]
    wider = _with_carried(loop.op, first)
    body = wider.regions[1].blocks[0]
    count = len(body.arguments) - len(first)
    for value, carried in zip(values, list(body.arguments)[count:], strict=True):
        value.replace_all_uses_with(carried)
    last_trip = [] if loop.again else peel(wider, loop.counting)
    end = list(body.operations)[-1].operation
    product = loop.gathered[-1].product
    emit = Builder.after(product)
    counter = emit.add(body.arguments[loop.counting.counter], loop.counting.values.wrapped(loop.counting.values.step))
    ahead = _Ahead(body, {loop.counting.counter: counter}, emit)
    ahead.hold([shard for each in loop.gathered for shard in each.shards], product.results[0])
    made = [ahead.made(value) for value in values]
    for number, value in enumerate(made):
        end.operands[count + number] = value
    # What shards were computed and gathered by where they are gathered ahead.
    for operations in (last_trip, [view.operation for view in body.operations]):
        erase_dead(op for op in operations if op.name in _MADE_AHEAD)


@dataclass
class _Ahead:
    """Computes values of the block `body` for other `arguments`, by number."""

    body: ir.Block
    arguments: Mapping[int, ir.Value]
    emit: Builder
    _made: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def hold(self, values: Sequence[ir.Value], until: ir.Value) -> None:
        """Makes `values` anew, for whom reads them once `until` is there."""
        values = list(dict.fromkeys(values))
        held = [*map(self.made, values), until]
        barrier = self.emit.op(BARRIER, [value.type for value in held], held)
        self._made |= dict(zip(values, barrier.results, strict=False))

    def made(self, value: ir.Value) -> ir.Value:
        """`value` anew; itself if it stands outside of the body or does not change in it."""
        if value not in self._made:
            self._made[value] = self._make(value)
        return self._made[value]

    def _make(self, value: ir.Value) -> ir.Value:
        if block_of(value) != self.body:
            return value
        if is_argument(value):
            return self.arguments.get(ir.BlockArgument(value).arg_number, value)
        op, sources = op_of(value), [self.made(source) for source in _sources(value)]
        return sources[0] if op.name == BARRIER else self.emit.again(op, value.type, sources)


def _with_carried(loop: ir.Operation, more: Sequence[ir.Value]) -> ir.Operation:
    """`loop`, which goes, with more carried values, that start as `more` and stay as they are."""
    types = [value.type for value in more]
    wider = Builder.before(loop).create(
        loop.name, [*(result.type for result in loop.results), *types], [*loop.operands, *more], dict(loop.attributes.items()), 2
    )
    for narrow, wide in zip(loop.regions, wider.regions, strict=True):
        block = narrow.blocks[0]
        block.append_to(wide)
        for type_ in types:
            block.add_argument(type_, loop.location)
    for result, new in zip(loop.results, wider.results, strict=False):
        result.replace_all_uses_with(new)
    loop.erase()
    body = wider.regions[1].blocks[0]
    end = list(body.operations)[-1].operation
    handed_on = [*end.operands, *list(body.arguments)[-len(more) :]]
    Builder.before(end).op(end.name, [], handed_on)
    end.erase()
    return wider
