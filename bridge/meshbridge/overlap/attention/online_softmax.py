"""Softmax-weighted sums over gathered keys, computed over blocks of keys that travel around the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect import build
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, find, in_program_order, ir
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.ir.uses import erase_dead, forward_slice
from meshbridge.ops.dimensions import operand_dims, varies_along
from meshbridge.ops.replication import is_divided
from meshbridge.ops.traits import Trait, has, ops_with
from meshbridge.overlap.attention.block_trace import BlockTrace, BlockWriter, producer
from meshbridge.overlap.attention.linear_reductions import LinearReduction, PathOp, lifted, linear_reductions, reduces

EXP, _SUBTRACT = "stablehlo.exponential", "stablehlo.subtract"
_HELD = 4
"""How many shards of keys a device may hold at once beside its own: two each way, one that is read and the next. Not measured."""


@dataclass(frozen=True)
class OnlineSoftmax:
    """Exponentials of scores, the sums over keys that read them, and the gathers whose shards travel instead."""

    exponential: ir.Operation
    keys: int
    "The dimension of the exponentials that runs over keys."
    sums: tuple[LinearReduction, ...]
    largest: tuple[tuple[ir.Operation, int], ...]
    "Maxima over keys, and the dimension that each reduces."
    gathers: tuple[ir.Operation, ...]
    dead: frozenset[ir.Operation]
    "What nothing reads afterwards."
    mesh: Mesh
    axis: int

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return self.mesh.shape[self.axis]

    @property
    def home(self) -> ir.Block:
        """The block of operations that all of it stands in."""
        return self.exponential.block

    @property
    def scores(self) -> ir.Value:
        """What is exponentiated, before the largest one is subtracted."""
        return scores_of(self.exponential, self.keys)[0]

    @property
    def looks(self) -> object:
        """What softmaxes share that cost the same."""
        values = [self.scores, *(each.op.results[0] for each in self.sums), *(op.results[0] for op in self.gathers)]
        return tuple(str(value.type) for value in values), self.axis, str(self.mesh.name)

    @property
    def largest_scores(self) -> list[ir.Operation]:
        """The maxima that are those of the scores."""
        return [
            op for op, dim in self.largest if (op.operands[0], dim) == (self.scores, self.keys) and is_splat(op.operands[1], -inf)
        ]

    @property
    def subtracted_maximum(self) -> ir.Operation | None:
        """The maximum of the scores that is subtracted from them, or of which elementwise operations compute what is."""
        subtracted = scores_of(self.exponential, self.keys)[1]
        waiting, largest = [] if subtracted is None else [subtracted], self.largest_scores
        while waiting and largest:
            op = producer(waiting.pop(), self.home)
            if op in largest:
                return op
            if op is not None and (op.name in ops_with(Trait.ELEMENTWISE, Trait.SHAPING) or op.name == BARRIER):
                waiting += op.operands
        return None

    @cached_property
    def late(self) -> list[ir.Operation]:
        """What stands before the last sum and waits for any of the sums and maxima, these included, in program order."""
        ends = in_program_order({*(each.op for each in self.sums), *(op for op, _ in self.largest)})
        return forward_slice(ends, ends[-1], self.dead)

    def waits_for(self, values: set[ir.Value]) -> bool:
        """Whether any of `values` is computed of the sums."""
        late = set(self.late)
        return any(producer(value, self.home) in late for value in values)

    def rewrite(self, ring: type[Ring]) -> None:
        """Writes the steps of the ring, and drops what they replace."""
        late = self.late
        last = late[-1]
        found = ring(self, Builder.before(last)).run()
        for op in late[:-1]:
            op.move_before(last)
        for op, _ in self.largest:
            op.results[0].replace_all_uses_with(found.maxima[op])
        for each in self.sums:
            each.op.results[0].replace_all_uses_with(_finished(self, each, found))
        erase_dead({*self.dead, *late})


@dataclass(frozen=True)
class SoFar:
    """What the steps until now have found."""

    largest: ir.Value
    "The largest score of each query."
    centre: ir.Value
    "That again, but zero where it is not finite: exponentials are zero where it is -inf, as no key counts yet."
    maxima: Mapping[ir.Operation, ir.Value]
    totals: Mapping[ir.Operation, ir.Value]
    "The sums of exponentials of scores from which `centre` is subtracted, without factors; in float32 if not in float64."
    kept: Mapping[ir.Operation, tuple[ir.Value, ...]]
    """Of sums, for each of their masks, whether it and those after it keep any term. The dimensions are those of what is added
    up, the keys' with size 1."""


class Ring:
    """The steps of one softmax."""

    def __init__(self, softmax: OnlineSoftmax, emit: Builder) -> None:
        self.softmax, self.emit = softmax, emit

    def run(self) -> SoFar:
        """All steps: first the own keys, then those of the devices before and behind, by turns, as they come."""
        own, size = self.own(), shape_of(self.softmax.scores)[self.softmax.keys] // self.softmax.count
        found: list[SoFar] = []
        for keeper, shards in self.visits(own, [op.operands[0] for op in self.softmax.gathers], lambda step: found[step].totals):
            found.append(self.added(found[-1] if found else None, self.emit.multiply(keeper, size), size, shards))
        return found[-1]

    def own(self) -> ir.Value:
        """The position of this device."""
        softmax, emit = self.softmax, self.emit
        index = build.all_slice(emit.iota([softmax.count], 0), softmax.mesh, mesh_axes=[softmax.axis], slice_axis=0, at=emit)
        return emit.reshape(index, [])

    def visits(
        self, own: ir.Value, shards: Sequence[ir.Value], totals: Callable[[int], Mapping[ir.Operation, ir.Value]]
    ) -> Iterator[tuple[ir.Value, Sequence[ir.Value]]]:
        """The shards of each device in the order in which they come, beside its position; `totals` are those of a step."""
        softmax, emit = self.softmax, self.emit
        yield own, shards
        here = {1: shards, -1: shards}
        for step in range(1, softmax.count):
            offset = 1 if step % 2 else -1
            held = here[offset] if step <= _HELD - 2 else self._until(totals(step - (_HELD - 1)), here[offset])
            here[offset] = [self._shifted(each, offset, gather) for each, gather in zip(held, softmax.gathers, strict=True)]
            position = emit.add(own, -offset * ((step + 1) // 2) % softmax.count)
            yield emit.elementwise("remainder", position, softmax.count), here[offset]

    def _until(self, totals: Mapping[ir.Operation, ir.Value], shards: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """`shards`, once a step has these `totals`: else all could be sent at the beginning, and held."""
        least = min(totals.values(), key=tensor_bytes)
        held = [*shards, least]
        return list(self.emit.op(BARRIER, [value.type for value in held], held).results)[:-1]

    def _shifted(self, value: ir.Value, offset: int, gather: ir.Operation) -> ir.Value:
        """What the neighbour holds, where a gather stood: its location says why."""
        mesh, axis = self.softmax.mesh, self.softmax.axis
        at = Builder(gather.location, self.emit.ip)
        return build.shift(value, mesh, mesh_axes=[axis], shift_axis=axis, offset=offset, rotate=True, at=at)

    def added(self, before: SoFar | None, start: ir.Value, size: int, shards: Sequence[ir.Value]) -> SoFar:
        """With what `size` keys from `start` on contribute, of which the gathers would have the `shards`."""
        softmax, emit = self.softmax, self.emit
        moved = zip(softmax.gathers, shards, strict=True)
        given = {(op.results[0], AllGatherOp(op).gather_axis): shard for op, shard in moved}
        blocks = BlockWriter(emit, softmax.home, start, size, given)
        scores = blocks.of(softmax.scores, softmax.keys)
        maxima = {
            op: emit.reduce(blocks.of(op.operands[0], dim), op.operands[1], [dim], "maximum") for op, dim in softmax.largest
        }
        largest = emit.reshape(self._largest(scores, maxima), self._one_key())
        if before is not None:
            maxima = {op: emit.elementwise("maximum", before.maxima[op], each) for op, each in maxima.items()}
            largest = emit.elementwise("maximum", before.largest, largest)
        centre = self.centred(largest)
        shape = shape_of(scores)
        centred = emit.subtract(scores, emit.broadcast(centre, shape, range(len(shape))))
        exponentials = emit.again(softmax.exponential, centred.type, [centred])
        blocks = blocks.knowing({(softmax.exponential.results[0], softmax.keys): exponentials})
        totals = {each.op: self._part(each, blocks) for each in softmax.sums}
        kept = {each.op: self._kept(each, blocks) for each in softmax.sums}
        if before is not None:
            smaller = self._smaller(before, centre)
            for each in softmax.sums:
                total = _scaled(emit, each, before.totals[each.op], smaller)
                totals[each.op] = emit.add(total, totals[each.op])
            kept = {
                op: tuple(emit.elementwise("or", *pair) for pair in zip(before.kept[op], values, strict=True))
                for op, values in kept.items()
            }
        return SoFar(largest, centre, maxima, totals, kept)

    def _largest(self, scores: ir.Value, maxima: Mapping[ir.Operation, ir.Value]) -> ir.Value:
        """The largest score of each query: the maximum that the program subtracts, if it subtracts one. Any other leaves NaN and
        infinities out, which a mask may hide later."""
        emit, subtracted = self.emit, self.softmax.subtracted_maximum
        if subtracted is not None:
            return maxima[subtracted]
        finite = emit.select(emit.is_finite(scores), scores, -inf)
        return emit.reduce(finite, -inf, [self.softmax.keys], "maximum")

    def _smaller(self, before: SoFar, centre: ir.Value) -> ir.Value:
        """By what sums until now become smaller, as `centre` is subtracted from now on. Where no key has counted they are zero,
        infinite or NaN, and stay that."""
        emit = self.emit
        factor = emit.elementwise("exponential", emit.subtract(before.centre, centre))
        return emit.select(emit.compare("EQ", before.largest, -inf), emit.splat(factor.type, 1), factor)

    def centred(self, largest: ir.Value) -> ir.Value:
        """What is subtracted from scores of which that is the largest: `largest`, or zero where it is not finite."""
        return self.emit.select(self.emit.is_finite(largest), largest, 0)

    def _kept(self, each: LinearReduction, blocks: BlockWriter) -> tuple[ir.Value, ...]:
        """For each mask on the way to a sum, whether it and those after it keep any term of a block."""
        emit, bit = self.emit, ir.IntegerType.get_signless(1)
        kept: list[ir.Value] = []
        for step in each.steps:
            shape = _block_shape(step, blocks.size)
            if step.mask is not None:
                mask = blocks.of(step.mask, step.made) if shape_of(step.mask) else emit.broadcast(step.mask, shape)
                kept = [*(emit.elementwise("and", value, mask) for value in kept), mask]
            elif has(step.op.name, Trait.SHAPING):
                kept = [emit.again(step.op, tensor(shape, bit), [value]) for value in kept]
        return tuple(self._any(value, each.read) for value in kept)

    def _any(self, kept: ir.Value, keys: int) -> ir.Value:
        shape = shape_of(kept)
        shape[keys] = 1
        return self.emit.reshape(self.emit.reduce(kept, 0, [keys], "or"), shape)

    def _one_key(self) -> list[int]:
        shape = shape_of(self.softmax.scores)
        shape[self.softmax.keys] = 1
        return shape

    def _part(self, each: LinearReduction, blocks: BlockWriter) -> ir.Value:
        """The sum over a block, without the factors that are the same for all keys."""
        emit = self.emit
        known: dict[tuple[ir.Value, int], ir.Value] = {}
        value, dim = self.softmax.exponential.results[0], self.softmax.keys
        for step in each.steps:
            if step.factor is not None:
                known[step.op.results[0], step.made] = blocks.knowing(known).of(value, dim)
            value, dim = step.op.results[0], step.made
        inner = blocks.knowing(known)
        part = inner.of(value, dim)
        if each.other is None:
            return wide(emit, emit.reduce(part, 0, [dim], "add"))
        other = inner.of(*each.other)
        operands = [part, other] if each.side == 0 else [other, part]
        type_ = tensor(shape_of(each.op.results[0]), wider(element_of(each.op.results[0])))
        return emit.again(each.op, type_, operands)


def _block_shape(step: PathOp, size: int) -> list[int]:
    """The shape of what a step gives of a block of `size` keys."""
    shape = shape_of(step.op.results[0])
    shape[step.made] = size
    return shape


def _scaled(
    emit: Builder, each: LinearReduction, total: ir.Value, factor: ir.Value, first: int = 0, by: str = "multiply"
) -> ir.Value:
    """`total` by a `factor` that has one number for each query, in the shape of what step number `first` reads."""
    return emit.elementwise(by, total, emit.convert(lifted(emit, each, first, factor), element_of(total)))


def _finished(softmax: OnlineSoftmax, each: LinearReduction, found: SoFar) -> ir.Value:
    """The sum over all keys of what the program exponentiates, with its factors. Where the masks after a factor keep no term it
    has no effect: the sum is zero, which a factor of NaN would turn to NaN."""
    emit = Builder.before(each.op)
    kept = [lifted(emit, each, len(each.steps), value) for value in found.kept[each.op]]
    total, masks = found.totals[each.op], 0

    def scaled(factor: ir.Value, first: int = 0, by: str = "multiply") -> ir.Value:
        result = _scaled(emit, each, total, factor, first, by)
        return emit.select(kept[masks], result, total) if masks < len(kept) else result

    missing = found.centre
    subtracted = scores_of(softmax.exponential, softmax.keys)[1]
    if subtracted is not None:
        missing = emit.subtract(missing, BlockWriter(emit, softmax.home, 0, 1, {}).of(subtracted, softmax.keys))
    total = scaled(emit.elementwise("exponential", missing))
    for number, step in enumerate(each.steps):
        if step.factor is not None:
            factor = BlockWriter(emit, softmax.home, 0, 1, {}).of(step.factor, step.made)
            total = scaled(factor, number + 1, step.op.name.removeprefix("stablehlo."))
        masks += step.mask is not None
    return emit.convert(total, element_of(each.op.results[0]))


def wider(element: ir.Type) -> ir.Type:
    """The element type in which parts of `element` are added up."""
    return ir.F32Type.get(element.context) if ir.FloatType(element).width < 32 else element


def wide(emit: Builder, value: ir.Value) -> ir.Value:
    return emit.convert(value, wider(element_of(value)))


def scores_of(exponential: ir.Operation, keys: int) -> tuple[ir.Value, ir.Value | None]:
    """The scores, and what is subtracted from all of a query before they are exponentiated."""
    argument = exponential.operands[0]
    op = producer(argument, exponential.block)
    if op is not None and op.name == _SUBTRACT and not varies_along(op.operands[1], keys):
        return op.operands[0], op.operands[1]
    return argument, None


def online_softmaxes(module: ir.Module, most: int) -> Iterator[OnlineSoftmax]:
    """Those over keys that are gathered along one axis of at most so many devices."""
    meshes = declared_meshes(module.body)
    taken: set[ir.Operation] = set()
    for op in find(module.operation, [EXP]):
        for keys, size in enumerate(shape_of(op.results[0])):
            found = None if size in (1, DYNAMIC) else online_softmax(op, keys, meshes, most)
            if found is not None and taken.isdisjoint(found.gathers):
                taken.update(found.gathers)
                yield found
                break


def online_softmax(exponential: ir.Operation, keys: int, meshes: Mapping[str, Mesh], most: int) -> OnlineSoftmax | None:
    """That of `exponential` over its dimension `keys`, where they are gathered along one axis of at most so many devices."""
    sums = linear_reductions(exponential, keys)
    if sums is None or not any(each.other for each in sums):
        return None
    scores, subtracted = scores_of(exponential, keys)
    if not BlockTrace(exponential.block, frozenset(), until=sums[-1].op).reach(scores, keys):  # found without all earlier layers
        return None
    on_the_way = {exponential, *(each.op for each in sums), *(step.op for each in sums for step in each.steps)}
    if subtracted is not None:
        on_the_way.add(exponential.operands[0].owner.operation)
    sources = [(scores, keys), *_beside(sums)]
    whole: frozenset[ir.Operation] = frozenset()
    while True:
        reached = BlockTrace(exponential.block, whole)
        for value, dim in sources:
            reached.reach(value, dim)
        gathers = dict.fromkeys(op for op, _ in reached.moving if op.name == AllGatherOp.OPERATION_NAME)
        moving = {op for op, _ in reached.moving}
        largest = maxima_over_keys(reached)
        inner = moving | on_the_way | {op for op, _ in largest}
        outside = frozenset(
            gather
            for (op, _), needed in reached.moving.items()
            if any(use.owner.operation not in inner for use in op.results[0].uses)
            for gather in needed
        )
        if not outside:
            break
        whole |= outside
    if not reached.reach(scores, keys):  # all scores would be held
        return None
    axes = {gathered_along(op, meshes, most) for op in gathers}
    if len(axes) != 1 or None in axes:
        return None
    ((mesh, axis),) = (each for each in axes if each is not None)
    dead = frozenset(moving | on_the_way) - {each.op for each in sums}
    found = OnlineSoftmax(exponential, keys, sums, largest, tuple(gathers), dead, mesh, axis)
    read = reached.read | {op.operands[0] for op in gathers} | {op.operands[1] for op, _ in largest}
    if not on_the_way.isdisjoint(producer(value, found.home) for value in read) or found.waits_for(read):
        return None
    return found


def _beside(sums: Sequence[LinearReduction]) -> Iterator[tuple[ir.Value, int]]:
    """What is multiplied with the exponentials that differs between keys, and the dimension that runs over keys."""
    for each in sums:
        if each.other is not None:
            yield each.other
        for step in each.steps:
            along = operand_dims(step.op, step.made) or ()
            for side, (operand, dim) in enumerate(zip(step.op.operands, along, strict=True)):
                if step.factor is None and side != step.side and dim is not None:
                    yield operand, dim


def gathered_along(gather: ir.Operation, meshes: Mapping[str, Mesh], most: int) -> tuple[Mesh, int] | None:
    """The mesh and the one axis of it along which something is gathered."""
    view = AllGatherOp(gather)
    mesh = meshes[view.mesh]
    axes = [axis for axis in view.mesh_axes if mesh.shape[axis] != 1]
    if len(axes) != 1 or DYNAMIC in (*mesh.shape, *shape_of(gather.operands[0])):
        return None
    return (mesh, axes[0]) if mesh.shape[axes[0]] <= most else None


def maxima_over_keys(reached: BlockTrace) -> tuple[tuple[ir.Operation, int], ...]:
    """The maxima over keys of what is computed block by block."""
    found = {}
    for op, dim in reached.moving:
        for use in op.results[0].uses:
            reader = use.owner.operation
            if use.operand_number == 0 and reduces(reader, dim, "stablehlo.maximum") and reader.block == reached.home:
                found[reader] = dim
    return tuple(found.items())


def computes_parts(softmax: OnlineSoftmax) -> bool:
    """True if devices along the axis compute different sums. Sums that all devices compute must stay equal on all of them, which
    rings do not guarantee: each adds up in another order."""
    return is_divided(softmax.scores, softmax.mesh.name, softmax.axis)
