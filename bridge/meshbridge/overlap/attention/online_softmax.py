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
"""The maximum number of shards of keys that a device holds beside its own: two each way, the one that is read and the next. Not
measured."""


@dataclass(frozen=True)
class OnlineSoftmax:
    """Exponentials of scores, the sums over keys that read them, and the gathers whose shards travel."""

    exponential: ir.Operation
    keys: int
    "The dimension of keys of the exponentials."
    sums: tuple[LinearReduction, ...]
    largest: tuple[tuple[ir.Operation, int], ...]
    "Maxima over keys, and the dimension that each reduces."
    gathers: tuple[ir.Operation, ...]
    dead: frozenset[ir.Operation]
    "Operations that become dead."
    mesh: Mesh
    axis: int

    @property
    def count(self) -> int:
        """The number of blocks of keys."""
        return self.mesh.shape[self.axis]

    @property
    def home(self) -> ir.Block:
        """The block that contains all operations."""
        return self.exponential.block

    @property
    def scores(self) -> ir.Value:
        """The scores, before a maximum is subtracted."""
        return scores_of(self.exponential, self.keys)[0]

    @property
    def cost_key(self) -> object:
        """Equal for softmaxes that cost the same."""
        values = [self.scores, *(reduction.op.results[0] for reduction in self.sums), *(op.results[0] for op in self.gathers)]
        return tuple(str(value.type) for value in values), self.axis, str(self.mesh.name)

    @property
    def largest_scores(self) -> list[ir.Operation]:
        """The maxima over the scores themselves."""
        return [
            op for op, dim in self.largest if (op.operands[0], dim) == (self.scores, self.keys) and is_splat(op.operands[1], -inf)
        ]

    @property
    def subtracted_maximum(self) -> ir.Operation | None:
        """The maximum of the scores that is subtracted from them, perhaps after elementwise operations."""
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
        """The operations before the last sum that depend on the sums and maxima, and these, in program order."""
        ends = in_program_order({*(reduction.op for reduction in self.sums), *(op for op, _ in self.largest)})
        return forward_slice(ends, ends[-1], self.dead)

    def waits_for(self, values: set[ir.Value]) -> bool:
        """True if any of `values` depends on the sums."""
        late = set(self.late)
        return any(producer(value, self.home) in late for value in values)

    def rewrite(self, ring: type[Ring]) -> None:
        """Replaces the sums and maxima by the steps of a ring, and erases dead operations."""
        late = self.late
        final = late[-1]
        state = ring(self, Builder.before(final)).run()
        for op in late[:-1]:
            op.move_before(final)
        for op, _ in self.largest:
            op.results[0].replace_all_uses_with(state.maxima[op])
        for reduction in self.sums:
            reduction.op.results[0].replace_all_uses_with(_finished(self, reduction, state))
        erase_dead({*self.dead, *late})


@dataclass(frozen=True)
class OnlineState:
    """The state after some steps."""

    largest: ir.Value
    "The largest score of each query."
    centre: ir.Value
    "The same, but zero if it is not finite: while it is -inf, no key counts and exponentials are zero."
    maxima: Mapping[ir.Operation, ir.Value]
    totals: Mapping[ir.Operation, ir.Value]
    "The sums of exponentials of scores minus `centre`, without factors, in float32 or float64."
    keeps_any: Mapping[ir.Operation, tuple[ir.Value, ...]]
    """For each mask of a sum, whether it and the masks after it keep any term, in the shape of the sum's operand with one key."""


class Ring:
    """Writes the steps of one softmax."""

    def __init__(self, softmax: OnlineSoftmax, builder: Builder) -> None:
        self.softmax, self.builder = softmax, builder

    def run(self) -> OnlineState:
        """All steps: the own keys, then those of devices before and after it in turn."""
        own = build.group_index(self.softmax.mesh, mesh_axes=[self.softmax.axis], at=self.builder)
        size = shape_of(self.softmax.scores)[self.softmax.keys] // self.softmax.count
        states: list[OnlineState] = []
        for keeper, shards in self.visits(own, [op.operands[0] for op in self.softmax.gathers], lambda step: states[step].totals):
            states.append(self.added(states[-1] if states else None, self.builder.multiply(keeper, size), size, shards))
        return states[-1]

    def visits(
        self, own: ir.Value, shards: Sequence[ir.Value], totals: Callable[[int], Mapping[ir.Operation, ir.Value]]
    ) -> Iterator[tuple[ir.Value, Sequence[ir.Value]]]:
        """The shards of each device in order of arrival, with its position; `totals` returns those of a step."""
        softmax, builder = self.softmax, self.builder
        yield own, shards
        current = {1: shards, -1: shards}
        for step in range(1, softmax.count):
            offset = 1 if step % 2 else -1
            waited = current[offset] if step <= _HELD - 2 else self._until(totals(step - (_HELD - 1)), current[offset])
            current[offset] = [
                self._shifted(shard, offset, gather) for shard, gather in zip(waited, softmax.gathers, strict=True)
            ]
            position = builder.add(own, -offset * ((step + 1) // 2) % softmax.count)
            yield builder.elementwise("remainder", position, softmax.count), current[offset]

    def _until(self, totals: Mapping[ir.Operation, ir.Value], shards: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """`shards`, delayed until a step has these `totals`: without that all could be sent at the beginning, and held."""
        least = min(totals.values(), key=tensor_bytes)
        values = [*shards, least]
        return list(self.builder.op(BARRIER, [value.type for value in values], values).results)[:-1]

    def _shifted(self, value: ir.Value, offset: int, gather: ir.Operation) -> ir.Value:
        """The neighbour's value, at the location of a gather, which has the reason."""
        mesh, axis = self.softmax.mesh, self.softmax.axis
        at = Builder(gather.location, self.builder.ip)
        return build.shift(value, mesh, mesh_axes=[axis], shift_axis=axis, offset=offset, rotate=True, at=at)

    def added(self, earlier: OnlineState | None, start: ir.Value, size: int, shards: Sequence[ir.Value]) -> OnlineState:
        """The state after `size` keys from `start` on, for which the `shards` replace results of the gathers."""
        softmax, builder = self.softmax, self.builder
        travelled = zip(softmax.gathers, shards, strict=True)
        blocks_at = {(op.results[0], AllGatherOp(op).gather_axis): shard for op, shard in travelled}
        blocks = BlockWriter(builder, softmax.home, start, size, blocks_at)
        scores = blocks.of(softmax.scores, softmax.keys)
        maxima = {
            op: builder.reduce(blocks.of(op.operands[0], dim), op.operands[1], [dim], "maximum") for op, dim in softmax.largest
        }
        largest = builder.reshape(self._largest(scores, maxima), self._one_key())
        if earlier is not None:
            maxima = {op: builder.elementwise("maximum", earlier.maxima[op], reduction) for op, reduction in maxima.items()}
            largest = builder.elementwise("maximum", earlier.largest, largest)
        centre = self.centred(largest)
        shape = shape_of(scores)
        centred = builder.subtract(scores, builder.broadcast(centre, shape, range(len(shape))))
        exponentials = builder.again(softmax.exponential, centred.type, [centred])
        blocks = blocks.knowing({(softmax.exponential.results[0], softmax.keys): exponentials})
        totals = {reduction.op: self._part(reduction, blocks) for reduction in softmax.sums}
        keeps_any = {reduction.op: self._keeps_any(reduction, blocks) for reduction in softmax.sums}
        if earlier is not None:
            smaller = self._smaller(earlier, centre)
            for reduction in softmax.sums:
                total = _scaled(builder, reduction, earlier.totals[reduction.op], smaller)
                totals[reduction.op] = builder.add(total, totals[reduction.op])
            keeps_any = {
                op: tuple(builder.elementwise("or", *pair) for pair in zip(earlier.keeps_any[op], values, strict=True))
                for op, values in keeps_any.items()
            }
        return OnlineState(largest, centre, maxima, totals, keeps_any)

    def _largest(self, scores: ir.Value, maxima: Mapping[ir.Operation, ir.Value]) -> ir.Value:
        """The largest score of each query: the maximum that the program subtracts, if any. Otherwise the largest finite one,
        because a mask may hide NaN and infinities later."""
        builder, subtracted = self.builder, self.softmax.subtracted_maximum
        if subtracted is not None:
            return maxima[subtracted]
        finite = builder.select(builder.is_finite(scores), scores, -inf)
        return builder.reduce(finite, -inf, [self.softmax.keys], "maximum")

    def _smaller(self, before: OnlineState, centre: ir.Value) -> ir.Value:
        """The factor for sums so far, from which `centre` is subtracted from now on. While no key has counted they are zero,
        infinite or NaN, and do not change."""
        builder = self.builder
        factor = builder.elementwise("exponential", builder.subtract(before.centre, centre))
        return builder.select(builder.compare("EQ", before.largest, -inf), builder.splat(factor.type, 1), factor)

    def centred(self, largest: ir.Value) -> ir.Value:
        """The value to subtract from scores: their maximum `largest`, or zero if it is not finite."""
        return self.builder.select(self.builder.is_finite(largest), largest, 0)

    def _keeps_any(self, reduction: LinearReduction, blocks: BlockWriter) -> tuple[ir.Value, ...]:
        """For each mask on the path to a sum, whether it and the masks after it keep any term of a block."""
        builder, bit = self.builder, ir.IntegerType.get_signless(1)
        masks: list[ir.Value] = []
        for step in reduction.steps:
            shape = _block_shape(step, blocks.size)
            if step.mask is not None:
                mask = blocks.of(step.mask, step.result_dim) if shape_of(step.mask) else builder.broadcast(step.mask, shape)
                masks = [*(builder.elementwise("and", value, mask) for value in masks), mask]
            elif has(step.op.name, Trait.SHAPING):
                masks = [builder.again(step.op, tensor(shape, bit), [value]) for value in masks]
        return tuple(self._any(value, reduction.read) for value in masks)

    def _any(self, mask: ir.Value, keys: int) -> ir.Value:
        shape = shape_of(mask)
        shape[keys] = 1
        return self.builder.reshape(self.builder.reduce(mask, 0, [keys], "or"), shape)

    def _one_key(self) -> list[int]:
        shape = shape_of(self.softmax.scores)
        shape[self.softmax.keys] = 1
        return shape

    def _part(self, reduction: LinearReduction, blocks: BlockWriter) -> ir.Value:
        """The sum over a block, without factors that are the same for all keys."""
        builder = self.builder
        blocks_at: dict[tuple[ir.Value, int], ir.Value] = {}
        value, dim = self.softmax.exponential.results[0], self.softmax.keys
        for step in reduction.steps:
            if step.factor is not None:
                blocks_at[step.op.results[0], step.result_dim] = blocks.knowing(blocks_at).of(value, dim)
            value, dim = step.op.results[0], step.result_dim
        inner = blocks.knowing(blocks_at)
        part = inner.of(value, dim)
        if reduction.other is None:
            return widened(builder, builder.reduce(part, 0, [dim], "add"))
        multiplied = inner.of(*reduction.other)
        operands = [part, multiplied] if reduction.side == 0 else [multiplied, part]
        type_ = tensor(shape_of(reduction.op.results[0]), sum_type(element_of(reduction.op.results[0])))
        return builder.again(reduction.op, type_, operands)


def _block_shape(step: PathOp, size: int) -> list[int]:
    """The shape of a step's result on a block of `size` keys."""
    shape = shape_of(step.op.results[0])
    shape[step.result_dim] = size
    return shape


def _scaled(
    builder: Builder, reduction: LinearReduction, total: ir.Value, factor: ir.Value, first_step: int = 0, by: str = "multiply"
) -> ir.Value:
    """`total` scaled by `factor`, which has one number per query in the shape of the operand of step `first_step`."""
    return builder.elementwise(by, total, builder.convert(lifted(builder, reduction, first_step, factor), element_of(total)))


def _finished(softmax: OnlineSoftmax, reduction: LinearReduction, state: OnlineState) -> ir.Value:
    """The program's sum over all keys, with its factors. A factor has no effect if the masks after it keep no term: the sum is
    zero, which a factor of NaN would turn to NaN."""
    builder = Builder.before(reduction.op)
    keeps_any = [lifted(builder, reduction, len(reduction.steps), value) for value in state.keeps_any[reduction.op]]
    total, masks = state.totals[reduction.op], 0

    def scaled(factor: ir.Value, first_step: int = 0, by: str = "multiply") -> ir.Value:
        result = _scaled(builder, reduction, total, factor, first_step, by)
        return builder.select(keeps_any[masks], result, total) if masks < len(keeps_any) else result

    missing = state.centre
    subtracted = scores_of(softmax.exponential, softmax.keys)[1]
    if subtracted is not None:
        missing = builder.subtract(missing, BlockWriter(builder, softmax.home, 0, 1, {}).of(subtracted, softmax.keys))
    total = scaled(builder.elementwise("exponential", missing))
    for number, step in enumerate(reduction.steps):
        if step.factor is not None:
            factor = BlockWriter(builder, softmax.home, 0, 1, {}).of(step.factor, step.result_dim)
            total = scaled(factor, number + 1, step.op.name.removeprefix("stablehlo."))
        masks += step.mask is not None
    return builder.convert(total, element_of(reduction.op.results[0]))


def sum_type(element: ir.Type) -> ir.Type:
    """The element type in which values of type `element` are summed."""
    return ir.F32Type.get(element.context) if ir.FloatType(element).width < 32 else element


def widened(builder: Builder, value: ir.Value) -> ir.Value:
    return builder.convert(value, sum_type(element_of(value)))


def scores_of(exponential: ir.Operation, keys: int) -> tuple[ir.Value, ir.Value | None]:
    """The scores, and the value that is subtracted from them before the exponential, which is the same for all keys."""
    argument = exponential.operands[0]
    op = producer(argument, exponential.block)
    if op is not None and op.name == _SUBTRACT and not varies_along(op.operands[1], keys):
        return op.operands[0], op.operands[1]
    return argument, None


def online_softmaxes(module: ir.Module, most: int) -> Iterator[OnlineSoftmax]:
    """The softmaxes over keys that are gathered along one axis of at most `most` devices."""
    meshes = declared_meshes(module.body)
    claimed: set[ir.Operation] = set()
    for op in find(module.operation, [EXP]):
        for keys, size in enumerate(shape_of(op.results[0])):
            softmax = None if size in (1, DYNAMIC) else online_softmax(op, keys, meshes, most)
            if softmax is not None and claimed.isdisjoint(softmax.gathers):
                claimed.update(softmax.gathers)
                yield softmax
                break


def online_softmax(exponential: ir.Operation, keys: int, meshes: Mapping[str, Mesh], most: int) -> OnlineSoftmax | None:
    """The softmax of `exponential` over dimension `keys`, if keys are gathered along one axis of at most `most` devices."""
    sums = linear_reductions(exponential, keys)
    if sums is None or not any(reduction.other for reduction in sums):
        return None
    scores, subtracted = scores_of(exponential, keys)
    if not BlockTrace(exponential.block, frozenset(), until=sums[-1].op).trace(scores, keys):  # quick
        return None
    on_the_way = {
        exponential,
        *(reduction.op for reduction in sums),
        *(step.op for reduction in sums for step in reduction.steps),
    }
    if subtracted is not None:
        on_the_way.add(exponential.operands[0].owner.operation)
    sources = [(scores, keys), *_varying_factors(sums)]
    whole: frozenset[ir.Operation] = frozenset()
    while True:
        trace = BlockTrace(exponential.block, whole)
        for value, dim in sources:
            trace.trace(value, dim)
        gathers = dict.fromkeys(op for op, _ in trace.moving if op.name == AllGatherOp.OPERATION_NAME)
        moving = {op for op, _ in trace.moving}
        largest = maxima_over_keys(trace)
        inner = moving | on_the_way | {op for op, _ in largest}
        outside = frozenset(
            gather
            for (op, _), needed in trace.moving.items()
            if any(use.owner.operation not in inner for use in op.results[0].uses)
            for gather in needed
        )
        if not outside:
            break
        whole |= outside
    if not trace.trace(scores, keys):  # all scores would be held
        return None
    axes = {gathered_along(op, meshes, most) for op in gathers}
    if len(axes) != 1 or None in axes:
        return None
    ((mesh, axis),) = (reduction for reduction in axes if reduction is not None)
    dead = frozenset(moving | on_the_way) - {reduction.op for reduction in sums}
    softmax = OnlineSoftmax(exponential, keys, sums, largest, tuple(gathers), dead, mesh, axis)
    read = trace.read | {op.operands[0] for op in gathers} | {op.operands[1] for op, _ in largest}
    if not on_the_way.isdisjoint(producer(value, softmax.home) for value in read) or softmax.waits_for(read):
        return None
    return softmax


def _varying_factors(sums: Sequence[LinearReduction]) -> Iterator[tuple[ir.Value, int]]:
    """The operands multiplied with the exponentials that vary along keys, with the dimension of keys."""
    for reduction in sums:
        if reduction.other is not None:
            yield reduction.other
        for step in reduction.steps:
            along = operand_dims(step.op, step.result_dim) or ()
            for side, (operand, dim) in enumerate(zip(step.op.operands, along, strict=True)):
                if step.factor is None and side != step.side and dim is not None:
                    yield operand, dim


def gathered_along(gather: ir.Operation, meshes: Mapping[str, Mesh], most: int) -> tuple[Mesh, int] | None:
    """The mesh and its only axis along which a value is gathered."""
    view = AllGatherOp(gather)
    mesh = meshes[view.mesh]
    axes = [axis for axis in view.mesh_axes if mesh.shape[axis] != 1]
    if len(axes) != 1 or DYNAMIC in (*mesh.shape, *shape_of(gather.operands[0])):
        return None
    return (mesh, axes[0]) if mesh.shape[axes[0]] <= most else None


def maxima_over_keys(trace: BlockTrace) -> tuple[tuple[ir.Operation, int], ...]:
    """The maxima over keys of values that are computed block by block."""
    maxima = {}
    for op, dim in trace.moving:
        for use in op.results[0].uses:
            reader = use.owner.operation
            if use.operand_number == 0 and reduces(reader, dim, "stablehlo.maximum") and reader.block == trace.home:
                maxima[reader] = dim
    return tuple(maxima.items())


def computes_parts(softmax: OnlineSoftmax) -> bool:
    """True if devices along the axis compute different sums. Sums that all devices compute must stay equal on all of them, which
    rings do not guarantee, because each device sums in another order."""
    return is_divided(softmax.scores, softmax.mesh.name, softmax.axis)
