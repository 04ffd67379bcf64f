"""`prefetch-gathers`: what a trip of a loop would wait for is gathered while the trip before computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import ClassVar

from meshbridge.analysis.trip_count import Counting
from meshbridge.collectives.hoist_collectives import LOCAL, carried_unchanged
from meshbridge.dialect.ops import AllGatherOp, AllToAllOp, PermuteOp
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, find, ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ops.composites import CONTRACTIONS
from meshbridge.overlap.accumulated_sums import COLLECTIVES
from meshbridge.overlap.peeled_loops import peel, peelable
from meshbridge.overlap.unread import erase_unread

WORTH_A_WINDOW = 2**26
"""Bytes of what is gathered from which on it is worth a window on a TPU. By XLA:TPU for 64 v5p, windows of 117 MB make the loops
of an MLP take fewer cycles; those of 8 MB cost the loops of a llama 0.35 million a trip, ten times what the gather takes. In
between nothing was measured, nor without a window but up to 34 MB, which gains, and 117 MB, which costs 2 % of the cycles."""


@register
@dataclass(frozen=True)
class PrefetchGathers(Pass):
    """Gathers what the first products of a trip read, as the shards of a layer's parameters, during the trip before.

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

    With `first`, where %1 is large and a trip ends in %4 = mesh.all_reduce (stablehlo.dot_general ..., ...):
             %0:3 = stablehlo.while(%i = 0, %x = %a, %1 = %first) {       // while %i < 8
               %2 = stablehlo.dot_general %x, %1
               %next, %_ = stablehlo.optimization_barrier (%shard of trip %i + 1), %2
               %3 = stablehlo.dot_general (what is computed of %2), ...
               %sum, %following = stablehlo.optimization_barrier %3, (mesh.all_gather %next ...)
               %4 = mesh.all_reduce %sum ...
               stablehlo.return %i + 1, (what is computed of %4), %following
             }

    As many bytes and collectives as before. The barrier has the gather wait for the product that reads its predecessor: from then
    on that one's memory is free, so that nothing is copied, and what the trip computes after it runs meanwhile. So only one
    product may read what is gathered, and it must wait for no other product of its trip: gathers of later ones have those to hide
    behind. What is gathered is computed of the loop's counter and of what does not change in it, and the loop's text says how
    often it runs. The shard waits, not the counter: XLA:GPU evaluates what loops compute of counters, and fails at a barrier.

    With `first`, for XLA:TPU, the last trip stays in the loop and gathers the last shard once more: a trip behind the loop has it
    clear the stacks that the loop fills. A large gather has a *window*: what reads a product behind it waits for the gather,
    which else ends the trip with nothing beside it, where one gather at a time runs as part of products. So large gathers are
    made ahead for the first product alone, as later ones have those before them to hide behind. For small ones a window costs
    more than they take: they have none, for compilers that gather aside from products.
    """

    name: ClassVar[str] = "prefetch-gathers"
    least: int = 2**20
    "Bytes of what is gathered from which on it is worth a copy of the loop's body. Not measured."
    most: int = 2**29
    "Bytes that a loop may hold more for what is gathered ahead, in all. A bound on memory, not a measurement."
    first: bool = False
    "Whether of large gathers one is made ahead, until another product ends; and all, of any size, once more by the last trip."
    window: int = WORTH_A_WINDOW
    "With `first`, bytes of what is gathered from which on it is worth a window."

    def run(self, module: ir.Module) -> bool:
        with module.context:
            loops = [_Loop.of(op, self) for op in reversed(find(module.operation, ["stablehlo.while"]))]
            for loop in loops:
                if loop is not None:
                    _pipeline(loop)
            return any(loops)


_GATHERING = frozenset((AllGatherOp.OPERATION_NAME, AllToAllOp.OPERATION_NAME, PermuteOp.OPERATION_NAME))
"""Collectives that move shards of one value."""

_LOCAL = LOCAL | {BARRIER, *(f"stablehlo.{name}" for name in ("clamp", "compare", "dynamic_slice", "select"))}
"""What a shard may be computed by."""

_ARRANGING = frozenset(("stablehlo.reshape", "stablehlo.transpose"))
"""What gives the same elements elsewhere."""


@dataclass(frozen=True)
class _Gathered:
    """A value of a loop's body that `product` alone reads, and the shards that it is gathered of."""

    value: ir.Value
    shards: tuple[ir.Value, ...]
    product: ir.Operation


@dataclass(frozen=True)
class _Loop:
    """A loop, and what is to be gathered a trip ahead, in the order in which products read it."""

    op: ir.Operation
    counting: Counting
    gathered: tuple[_Gathered, ...]
    until: ir.Value | None = None
    "The value whose readers wait for them, if any do."
    again: bool = False
    "Whether the last trip stays in the loop and gathers once more what no trip reads; else it stands behind the loop."

    @property
    def body(self) -> ir.Block:
        body: ir.Block = self.op.regions[1].blocks[0]
        return body

    @staticmethod
    def of(op: ir.Operation, limits: PrefetchGathers) -> _Loop | None:
        """None where nothing is to be gathered ahead."""
        if (counted := peelable(op)) is None:
            return None
        taken: list[_Gathered] = []
        left: float = limits.most
        for each in _first_read(op, counted.counter):
            if limits.least <= (size := tensor_bytes(each.value)) <= left:
                taken.append(each)
                left -= size
        large = [each for each in taken if tensor_bytes(each.value) >= limits.window] if limits.first else []
        if large:
            until = _until(large[0].product)
            return None if until is None else _Loop(op, counted, (large[0],), until, again=True)
        return _Loop(op, counted, tuple(taken), again=limits.first) if taken else None


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
            read = [operand for operand in op.operands if gathered.get(operand) and _has_one_reader(operand)]
            yield from (_Gathered(value, gathered[value], op) for value in read)
        for result in op.results:
            sources = _sources(result)
            before = [value for value in sources if value in gathered]
            if op.name in CONTRACTIONS | REGION_OPS or not late.isdisjoint(sources):
                late.add(result)
            if op.name not in _LOCAL | _GATHERING or not varying.isdisjoint(sources):
                varying.add(result)
            elif not before and op.name in _GATHERING:
                gathered[result] = tuple(sources)
            elif before:
                alone = all(gathered[value] and _has_one_reader(value) for value in before)
                gathered[result] = tuple(shard for value in before for shard in gathered[value]) if alone else ()


def _until(product: ir.Operation) -> ir.Value | None:
    """The value of a trip whose readers are to wait for what is gathered behind `product`, so that another product hides it.

    One that stands in memory anyway, so that no kernel is taken apart: the first result of a later product that only collectives
    read, else the first value behind a later product that several products read. Else what the last product gives, and None
    where `product` is that.
    """
    products = [view.operation for view in product.block.operations if view.operation.name in CONTRACTIONS]
    later = products[products.index(product) + 1 :]
    sent = (op.results[0] for op in later if _only_communicated(op.results[0]))
    return next(chain(sent, _shared(later), (op.results[0] for op in reversed(later))), None)


def _only_communicated(value: ir.Value) -> bool:
    readers = [use.owner for use in value.uses]
    return bool(readers) and all(
        op.name in COLLECTIVES or (op.name in _ARRANGING and _only_communicated(op.results[0])) for op in readers
    )


def _shared(products: Sequence[ir.Operation]) -> Iterator[ir.Value]:
    """What is computed behind the first of `products`, in their block, and read by several."""
    for value in (operand for op in products[1:] for operand in op.operands):
        if isinstance(value.owner, ir.Block) or (op := value.owner.operation).block != products[0].block:
            continue
        if products[0].is_before_in_block(op) and sum(use.owner.name in CONTRACTIONS for use in value.uses) > 1:
            yield value


def _sources(value: ir.Value) -> Sequence[ir.Value]:
    """What the operation that gives `value` computes it of: a barrier hands on each operand as it is."""
    op = op_of(value)
    return [op.operands[ir.OpResult(value).result_number]] if op.name == BARRIER else list(op.operands)


def _has_one_reader(value: ir.Value) -> bool:
    return len(list(value.uses)) == 1


def _pipeline(loop: _Loop) -> None:
    """Carries what is gathered ahead from trip to trip. The last trip gathers again, or stands behind the loop."""
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
    for number, value in enumerate(made if loop.until is None else _awaited(made, loop.until)):
        end.operands[count + number] = value
    # What shards were computed and gathered by where they are gathered ahead.
    for operations in (last_trip, [view.operation for view in body.operations]):
        erase_unread(op for op in operations if op.name in _LOCAL | _GATHERING)


def _awaited(values: Sequence[ir.Value], until: ir.Value) -> Sequence[ir.Value]:
    """`values`, for which whatever reads `until` waits."""
    uses = list(until.uses)
    barrier = Builder.after(op_of(until)).op(BARRIER, [value.type for value in (until, *values)], [until, *values])
    for use in uses:
        use.owner.operands[use.operand_number] = barrier.results[0]
    return list(barrier.results)[1:]


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
        owner = value.owner
        if isinstance(owner, ir.Block):
            return self.arguments.get(ir.BlockArgument(value).arg_number, value) if owner == self.body else value
        if owner.operation.block != self.body:
            return value
        made = [self.made(source) for source in _sources(value)]
        return made[0] if owner.operation.name == BARRIER else self.emit.again(owner.operation, value.type, made)


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
