"""`prefetch-gathers`: collective pipelining: gathers operands of an iteration during the previous one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

from meshbridge.analysis.trip_count import CountedLoop
from meshbridge.collectives.hoist_collectives import LOCAL, carried_unchanged
from meshbridge.cost.held import HeldPrice, Sent
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, find, ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.uses import block_of, erase_dead, has_one_use, is_argument
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.ops.composites import CONTRACTIONS
from meshbridge.ops.traits import Trait, ops_with
from meshbridge.overlap.loops.peeled_loops import peel, peelable

HIDDEN_ASIDE = 2**26
"""Values below this many bytes are prefetched on the SparseCores of a TPU, where gathers run one after the other. Values of up to
34 MB shorten the loops of a llama by XLA:TPU for 64 v5p; one of 117 MB costs 2 % of the cycles of an MLP. Nothing in between was
measured."""


@register
@dataclass(frozen=True)
class PrefetchGathers(Pass):
    """Gathers the operands of the first products of an iteration, such as a layer's parameters, during the previous iteration.

    Input:   %0:2 = stablehlo.while(%i = 0, %x = %a) {                    // while %i < 8
               %shard = stablehlo.dynamic_slice %w, %i, ...
               %1 = mesh.all_gather %shard on @m mesh_axes = [0] gather_axis = 0
               %2 = stablehlo.dot_general %x, %1
               stablehlo.return %i + 1, (what is computed of %2)
             }
    Output:  %first = mesh.all_gather (%shard of iteration 0) ...
             %0:3 = stablehlo.while(%i = 0, %x = %a, %1 = %first) {       // while %i < 7
               %2 = stablehlo.dot_general %x, %1
               %next, %_ = stablehlo.optimization_barrier (%shard of iteration %i + 1), %2
               %following = mesh.all_gather %next ...
               stablehlo.return %i + 1, (what is computed of %2), %following
             }
             the last iteration, with %0#2 for %1

    Bytes and collectives do not change. A barrier makes the gather wait for the product that reads its predecessor: the
    predecessor's memory is free from then on, so nothing is copied, and the rest of the iteration overlaps with the gather.
    Therefore only one product may read the gathered value, and no other product of the iteration may precede it: gathers of later
    products overlap with earlier ones anyway. The gathered value depends only on the loop's counter and on loop-invariant values,
    and the trip count is known. The shard waits, not the counter, because XLA:GPU evaluates functions of counters, and fails at a
    barrier.

    With `again`, the last iteration is not peeled, and gathers the last shard a second time: XLA:TPU clears the stacks that a
    loop fills if an iteration follows the loop.
    """

    name: ClassVar[str] = "prefetch-gathers"
    least: int = 2**20
    "The minimum bytes of a gathered value that are worth a copy of the loop's body. Not measured."
    most: int = 2**29
    "The maximum bytes of all prefetched values of a loop. A bound on memory, not a measurement."
    again: bool = False
    "Whether the last iteration stays in the loop and gathers a second time. Without it, the last iteration is peeled."
    largest: float = inf
    "Bytes from which on a value is not prefetched."
    target: CompileTarget | None = None
    "The device whose price of held bytes counts (`cost/held.py`); without one the bounds alone do."

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
class _PrefetchedGather:
    """A value of a loop's body whose only reader is `product`, and its shards."""

    value: ir.Value
    shards: tuple[ir.Value, ...]
    product: ir.Operation

    @property
    def received_bytes(self) -> float:
        """Bytes that an iteration does not wait for if they are gathered before it."""
        return tensor_bytes(self.value) - sum(map(tensor_bytes, self.shards))


@dataclass(frozen=True)
class _PipelinedLoop:
    """A loop, and the values to prefetch, in the order in which products read them."""

    op: ir.Operation
    counting: CountedLoop
    gathered: tuple[_PrefetchedGather, ...]
    again: bool = False
    "Whether the last iteration stays in the loop, and gathers unused values. Without it, it is peeled."

    @property
    def body(self) -> ir.Block:
        body: ir.Block = self.op.regions[1].blocks[0]
        return body

    @staticmethod
    def of(op: ir.Operation, limits: PrefetchGathers) -> _PipelinedLoop | None:
        """The pipelined loop; None if nothing can be prefetched."""
        if (counted := peelable(op)) is None:
            return None
        chosen: list[_PrefetchedGather] = []
        budget: float = limits.most
        price, hidden = HeldPrice.of(limits.target, limits.most), counted.trip_count - 1
        for gathered in _first_read(op, counted.counter):
            size = tensor_bytes(gathered.value)
            waited = Sent(gathered.received_bytes, len(gathered.shards))
            is_paid = price.is_paid(size, waited.times(hidden), Sent(0, 0))
            if limits.least <= size < limits.largest and size <= budget and is_paid:
                chosen.append(gathered)
                budget -= size
        return _PipelinedLoop(op, counted, tuple(chosen), limits.again) if chosen else None


def _first_read(loop: ir.Operation, counter: int) -> Iterable[_PrefetchedGather]:
    """The gathered operands of the first products of an iteration that are known before it."""
    body = loop.regions[1].blocks[0]
    early = {*carried_unchanged(loop, body), body.arguments[counter]}
    varying: set[ir.Value] = {argument for argument in body.arguments if argument not in early}
    late: set[ir.Value] = set()
    "Values that depend on a product of the iteration."
    gathered: dict[ir.Value, tuple[ir.Value, ...]] = {}
    "By gathered value, its shards; none if a value on the way from them has several readers."
    for op in (view.operation for view in body.operations):
        if op.name in CONTRACTIONS and late.isdisjoint(op.operands):
            read = [operand for operand in op.operands if gathered.get(operand) and has_one_use(operand)]
            yield from (_PrefetchedGather(value, gathered[value], op) for value in read)
        for result in op.results:
            sources = _sources(result)
            ahead_sources = [value for value in sources if value in gathered]
            if op.name in CONTRACTIONS | REGION_OPS or not late.isdisjoint(sources):
                late.add(result)
            if op.name not in _MADE_AHEAD or not varying.isdisjoint(sources):
                varying.add(result)
            elif not ahead_sources and op.name in _GATHERING:
                gathered[result] = tuple(sources)
            elif ahead_sources:
                alone = all(gathered[value] and has_one_use(value) for value in ahead_sources)
                gathered[result] = tuple(shard for value in ahead_sources for shard in gathered[value]) if alone else ()


def _sources(value: ir.Value) -> Sequence[ir.Value]:
    """The operands from which the operation computes `value`: a barrier passes on each operand."""
    op = op_of(value)
    return [op.operands[ir.OpResult(value).result_number]] if op.name == BARRIER else list(op.operands)


def _pipeline(loop: _PipelinedLoop) -> None:
    """Carries prefetched values from iteration to iteration. The last iteration gathers again, or is peeled."""
    values = [gathered.value for gathered in loop.gathered]
    first_iteration = _NextIteration(loop.body, dict(enumerate(loop.op.operands)), Builder.before(loop.op))
    initial = [first_iteration.made(value) for value in values]
    wider_loop = _with_carried(loop.op, initial)
    body = wider_loop.regions[1].blocks[0]
    count = len(body.arguments) - len(initial)
    for value, carried in zip(values, list(body.arguments)[count:], strict=True):
        value.replace_all_uses_with(carried)
    last_iteration = [] if loop.again else peel(wider_loop, loop.counting)
    end = list(body.operations)[-1].operation
    product = loop.gathered[-1].product
    builder = Builder.after(product)
    counter = builder.add(body.arguments[loop.counting.counter], loop.counting.values.wrapped(loop.counting.values.step))
    ahead = _NextIteration(body, {loop.counting.counter: counter}, builder)
    ahead.hold([shard for gathered in loop.gathered for shard in gathered.shards], product.results[0])
    following = [ahead.made(value) for value in values]
    for number, value in enumerate(following):
        end.operands[count + number] = value
    # The computation of shards and gathers in the iteration that now receives them.
    for operations in (last_iteration, [view.operation for view in body.operations]):
        erase_dead(op for op in operations if op.name in _MADE_AHEAD)


@dataclass
class _NextIteration:
    """Computes values of the block `body` for other `arguments`, by number."""

    body: ir.Block
    arguments: Mapping[int, ir.Value]
    builder: Builder
    _made: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def hold(self, values: Sequence[ir.Value], until: ir.Value) -> None:
        """Computes `values` and delays their readers until `until` exists."""
        values = list(dict.fromkeys(values))
        waited = [*map(self.made, values), until]
        barrier = self.builder.op(BARRIER, [value.type for value in waited], waited)
        self._made |= dict(zip(values, barrier.results, strict=False))

    def made(self, value: ir.Value) -> ir.Value:
        """A copy of `value`; the value itself if it is loop-invariant or defined outside."""
        if value not in self._made:
            self._made[value] = self._make(value)
        return self._made[value]

    def _make(self, value: ir.Value) -> ir.Value:
        if block_of(value) != self.body:
            return value
        if is_argument(value):
            return self.arguments.get(ir.BlockArgument(value).arg_number, value)
        op, sources = op_of(value), [self.made(source) for source in _sources(value)]
        return sources[0] if op.name == BARRIER else self.builder.again(op, value.type, sources)


def _with_carried(loop: ir.Operation, added: Sequence[ir.Value]) -> ir.Operation:
    """Replaces `loop` by one with further carried values, which start as `added` and do not change."""
    types = [value.type for value in added]
    wider_loop = Builder.before(loop).create(
        loop.name, [*(result.type for result in loop.results), *types], [*loop.operands, *added], dict(loop.attributes.items()), 2
    )
    for narrow, wide_region in zip(loop.regions, wider_loop.regions, strict=True):
        block = narrow.blocks[0]
        block.append_to(wide_region)
        for type_ in types:
            block.add_argument(type_, loop.location)
    for result, wide_result in zip(loop.results, wider_loop.results, strict=False):
        result.replace_all_uses_with(wide_result)
    loop.erase()
    body = wider_loop.regions[1].blocks[0]
    end = list(body.operations)[-1].operation
    handed_on = [*end.operands, *list(body.arguments)[-len(added) :]]
    Builder.before(end).op(end.name, [], handed_on)
    end.erase()
    return wider_loop
