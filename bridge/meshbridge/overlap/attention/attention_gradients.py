"""The backward pass of attention as a ring: gradients of keys and values travel with the blocks of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshbridge.dialect import build
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import AllGatherOp, AllReduceOp, CollectiveOpView, ReduceScatterOp
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, comparison_direction, find, in_program_order, ir
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.ir.uses import erase_dead, forward_slice
from meshbridge.ops.dimensions import REDUCE, result_dim
from meshbridge.ops.einsum import DOT
from meshbridge.overlap.attention.balanced_ring import ring_of as forward_ring_of
from meshbridge.overlap.attention.block_trace import BlockTrace, BlockWriter, producer
from meshbridge.overlap.attention.linear_reductions import LinearReduction, adds_up, sources_of
from meshbridge.overlap.attention.online_softmax import EXP, computes_parts, gathered_along, sum_type, widened
from meshbridge.overlap.attention.rematerialized_forward import RematerializedForward

_ADDING = (ReduceScatterOp.OPERATION_NAME, AllReduceOp.OPERATION_NAME)


@dataclass(frozen=True)
class PartialGradient:
    """A collective that sums gradients of all keys over devices, and the dimension of keys."""

    op: ir.Operation
    keys: int

    def of_own_keys(self, total: ir.Value, mesh: Mesh, axis: int, at: Builder) -> ir.Value:
        """The result of the collective, from the `total` for the keys of this device."""
        if self.op.name == AllReduceOp.OPERATION_NAME:
            return build.all_gather(total, mesh, mesh_axes=[axis], gather_axis=self.keys, at=at)
        scattered_dim = ReduceScatterOp(self.op).scatter_axis
        if scattered_dim == self.keys:
            return total
        return build.all_to_all(total, mesh, mesh_axes=[axis], split_axis=scattered_dim, concat_axis=self.keys, at=at)


@dataclass(frozen=True)
class PathEnds:
    """The operations at which values computed from exponentials stop having a dimension of keys."""

    partial: tuple[PartialGradient, ...]
    "Gradients of keys and values."
    sums: tuple[LinearReduction, ...]
    "Gradients of queries: sums over keys."

    @property
    def operations(self) -> list[ir.Operation]:
        """Both kinds."""
        return [*(end.op for end in self.partial), *(end.op for end in self.sums)]


@dataclass(frozen=True)
class AttentionGradients:
    """The exponentials of scores in a backward pass, and the gradients that are computed from them."""

    exponential: ir.Operation
    keys: int
    ends: PathEnds
    gathers: tuple[ir.Operation, ...]
    mesh: Mesh
    axis: int

    @property
    def scores(self) -> ir.Value:
        """The operand of the exponentials."""
        value: ir.Value = self.exponential.operands[0]
        return value

    @property
    def home(self) -> ir.Block:
        """The block that contains all operations."""
        return self.exponential.block

    @property
    def count(self) -> int:
        """The number of blocks of keys."""
        return self.mesh.shape[self.axis]

    @property
    def cost_key(self) -> object:
        """Equal for backward passes that cost the same."""
        values = [self.scores, *(op.results[0] for op in (*self.ends.operations, *self.gathers))]
        names = tuple(end.op.name for end in self.ends.partial)
        return names, tuple(str(value.type) for value in values), self.axis, str(self.mesh.name)

    def rewrite(self, ring_of: Callable[[AttentionGradients], type[GradientRing]], *, balance: bool) -> None:
        """Replaces the ends by that kind of ring, and erases dead operations. A recomputed forward pass becomes a ring of its
        own, with `balance` a balanced one if possible."""
        self._part_forward_pass(balance=balance)
        late = forward_slice(self.ends.operations, in_program_order(self.ends.operations)[-1])
        trace, travelling = _travelling(self)
        final = late[-1]
        values = ring_of(self)(self, travelling, Builder.before(final)).run()
        for op in late[:-1]:
            op.move_before(final)
        for end, value in values.items():
            end.results[0].replace_all_uses_with(value)
        erase_dead({*late, *(op for op, _ in trace.moving)})

    def _part_forward_pass(self, *, balance: bool) -> None:
        """Separates a forward pass that is recomputed right before the gradients, as in the body of a loop over layers, and makes
        it a ring if possible."""
        sums = self.forward_sums()
        if not sums:
            return
        rematerialized = RematerializedForward.of(self.exponential, self.keys, sums)
        softmax = rematerialized.softmax(self.exponential, self.keys, self.mesh)
        if softmax is not None and computes_parts(softmax):
            softmax.rewrite(forward_ring_of(softmax, balance=balance))
        else:
            rematerialized.undo()

    def forward_sums(self) -> list[LinearReduction]:
        """The sums over keys that are not gradients."""
        gradients = {reduction.op for reduction in self.ends.sums}
        return [reduction for reduction in _leaving(self.exponential, self.keys)[1] if reduction.op not in gradients]


def _sources(ends: PathEnds) -> Iterator[tuple[ir.Value, int]]:
    """The values that the ends read block by block, with the dimension."""
    for gradient in ends.partial:
        yield gradient.op.operands[0], gradient.keys
    yield from sources_of(ends.sums)


def reached_from(home: ir.Block, ends: PathEnds, whole: frozenset[ir.Operation] = frozenset()) -> BlockTrace:
    trace = BlockTrace(home, whole)
    for value, dim in _sources(ends):
        trace.trace(value, dim)
    return trace


def _travelling(attention: AttentionGradients) -> tuple[BlockTrace, tuple[ir.Operation, ...]]:
    """The trace of the blocks, and the gathers that have no other use, whose shards travel; blocks of other gathers are
    slices."""
    trace = reached_from(attention.home, attention.ends)
    inner = {op for op, _ in trace.moving} | set(attention.ends.operations)
    gathered: frozenset[ir.Operation] = frozenset()
    for (op, _), needed in trace.moving.items():
        if any(use.owner.operation not in inner for use in op.results[0].uses):
            gathered |= needed
    return trace, tuple(op for op in attention.gathers if op not in gathered)


class GradientRing:
    """Writes the steps of one backward pass. Gradients of the previous device's keys come first, those of the own keys last, so
    that they are complete when they arrive."""

    def __init__(self, attention: AttentionGradients, travelling: Sequence[ir.Operation], builder: Builder) -> None:
        self.attention, self.travelling, self.builder = attention, travelling, builder

    def run(self) -> dict[ir.Operation, ir.Value]:
        """The value of each end."""
        attention, builder = self.attention, self.builder
        own = build.group_index(attention.mesh, mesh_axes=[attention.axis], at=builder)
        home = [op.operands[0] for op in self.travelling]
        shards, so_far = home, dict[ir.Operation, ir.Value]()
        for step in range(attention.count):
            if step == attention.count - 1:
                shards = home
            else:
                shards = [self.shifted(shard, op) for shard, op in zip(self.until(so_far, shards), self.travelling, strict=True)]
            keeper = builder.elementwise("remainder", builder.add(own, attention.count - 1 - step), attention.count)
            so_far = self._added(so_far, keeper, shards)
        return {op: builder.convert(value, element_of(op.results[0])) for op, value in so_far.items()} | {
            end.op: end.of_own_keys(so_far[end.op], attention.mesh, attention.axis, Builder(end.op.location, builder.ip))
            for end in attention.ends.partial
        }

    def until(self, so_far: Mapping[ir.Operation, ir.Value], shards: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """`shards`, delayed until the totals so far exist: without that all could be sent at the beginning, and held."""
        if not so_far or not shards:
            return shards
        values = [*shards, min(so_far.values(), key=tensor_bytes)]
        return list(self.builder.op(BARRIER, [value.type for value in values], values).results)[:-1]

    def shifted(self, value: ir.Value, replaced: ir.Operation) -> ir.Value:
        """The value of the previous device, with the location of the collective that it replaces."""
        mesh, axis = self.attention.mesh, self.attention.axis
        at = Builder(replaced.location, self.builder.ip)
        return build.shift(value, mesh, mesh_axes=[axis], shift_axis=axis, offset=1, rotate=True, at=at)

    def _added(
        self, earlier: Mapping[ir.Operation, ir.Value], keeper: ir.Value, shards: Sequence[ir.Value]
    ) -> dict[ir.Operation, ir.Value]:
        """Adds the contribution of the keys of device `keeper`."""
        attention, builder = self.attention, self.builder
        size = shape_of(attention.exponential.results[0])[attention.keys] // attention.count
        travelled = zip(self.travelling, shards, strict=True)
        blocks_at = {(op.results[0], AllGatherOp(op).gather_axis): shard for op, shard in travelled}
        blocks = BlockWriter(builder, attention.home, builder.multiply(keeper, size), size, blocks_at)
        totals = {}
        for end in attention.ends.partial:
            part = builder.convert(blocks.of(end.op.operands[0], end.keys), element_of(end.op.results[0]))
            totals[end.op] = builder.add(self.shifted(earlier[end.op], end.op), part) if earlier else part
        for reduction in attention.ends.sums:
            part = part_of(builder, reduction, blocks)
            totals[reduction.op] = builder.add(earlier[reduction.op], part) if earlier else part
        return totals


def part_of(builder: Builder, reduction: LinearReduction, blocks: BlockWriter) -> ir.Value:
    """A sum over one block of keys."""
    block = blocks.of(reduction.op.operands[reduction.side], reduction.read)
    if reduction.other is None:
        return widened(builder, builder.reduce(block, 0, [reduction.read], "add"))
    multiplied = blocks.of(*reduction.other)
    type_ = tensor(shape_of(reduction.op.results[0]), sum_type(element_of(reduction.op.results[0])))
    return builder.again(reduction.op, type_, [block, multiplied] if reduction.side == 0 else [multiplied, block])


def attention_gradients(module: ir.Module, most: int) -> Iterator[AttentionGradients]:
    """The backward passes over keys that are gathered along one axis of at most `most` devices."""
    meshes = declared_meshes(module.body)
    claimed: set[ir.Operation] = set()
    traces = _added_up(module)
    for op in find(module.operation, [EXP]):
        trace = traces.get(op.block)
        for keys, size in enumerate(shape_of(op.results[0])):
            if size in (1, DYNAMIC) or trace is None or not trace.reads_gathers(op.results[0], keys):
                continue
            attention = _matched(op, keys, meshes, most)
            if attention is not None and claimed.isdisjoint(attention.ends.operations):
                claimed.update(attention.ends.operations)
                yield attention
                break


def _added_up(module: ir.Module) -> dict[ir.Block, BlockTrace]:
    """By block, the trace from all values that are summed over devices: each value is visited once, however many layers there
    are."""
    traces: dict[ir.Block, BlockTrace] = {}
    for op in find(module.operation, _ADDING):
        trace = traces.setdefault(op.block, BlockTrace(op.block, frozenset()))
        for dim in range(len(shape_of(op.operands[0]))):
            trace.trace(op.operands[0], dim)
    return traces


def _matched(exponential: ir.Operation, keys: int, meshes: Mapping[str, Mesh], most: int) -> AttentionGradients | None:
    home = exponential.block
    scores = BlockTrace(home, frozenset())
    if not scores.trace(exponential.results[0], keys) or _compared(scores):
        return None
    partial, sums = _leaving(exponential, keys)
    trace = reached_from(home, PathEnds(partial, ()))
    gathers = dict.fromkeys(op for op, _ in trace.moving if op.name == AllGatherOp.OPERATION_NAME)
    axes = {gathered_along(op, meshes, most) for op in gathers}
    if not partial or len(axes) != 1 or None in axes:
        return None
    ((mesh, axis),) = (end for end in axes if end is not None)
    if any(not _adds(end.op, mesh, axis) for end in partial):
        return None
    products = {op for op, _ in trace.moving if op.name == DOT} - {op for op, _ in scores.moving}
    reduced = {end.op for end in partial}
    backward = tuple(
        end
        for end in sums
        if any(op in products for op, _ in reached_from(home, PathEnds((), (end,))).moving)
        and reduced.isdisjoint(forward_slice([end.op], in_program_order(reduced)[-1]))
    )
    ends = PathEnds(partial, backward)
    trace = reached_from(home, ends)
    if {op for op, _ in trace.moving if op.name == AllGatherOp.OPERATION_NAME} != set(gathers):
        return None
    late = set(forward_slice(ends.operations, in_program_order(ends.operations)[-1]))
    if any(producer(value, home) in late for value in trace.read) or any(op in late for op, _ in trace.moving):
        return None
    return AttentionGradients(exponential, keys, ends, tuple(gathers), mesh, axis)


def _compared(scores: BlockTrace) -> bool:
    """True if a score is compared for equality, as in the gradient of a maximum: scores of a block round differently."""
    readers = (use.owner.operation for op, _ in scores.moving for use in op.results[0].uses)
    return any(
        op.name == "stablehlo.compare"
        and isinstance(element_of(op.operands[0]), ir.FloatType)
        and comparison_direction(op) in ("EQ", "NE")
        for op in readers
    )


def _adds(op: ir.Operation, mesh: Mesh, axis: int) -> bool:
    """True if `op` sums along that axis alone."""
    view = CollectiveOpView(op)
    along = [number for number in view.mesh_axes if mesh.shape[number] != 1]
    return (view.mesh, along, view.reduction) == (mesh.name, [axis], "sum") and DYNAMIC not in shape_of(op.operands[0])


def _leaving(exponential: ir.Operation, keys: int) -> tuple[tuple[PartialGradient, ...], tuple[LinearReduction, ...]]:
    """The sums over devices, and over keys, of values computed key by key from the exponentials."""
    partial: dict[ir.Operation, PartialGradient] = {}
    sums: dict[ir.Operation, LinearReduction] = {}
    visited: set[tuple[ir.Value, int]] = set()
    worklist = [(exponential.results[0], keys)]
    while worklist:
        value, dim = worklist.pop()
        if (value, dim) in visited:
            continue
        visited.add((value, dim))
        for use in value.uses:
            op, side = use.owner.operation, use.operand_number
            if op.block != exponential.block:
                continue
            if op.name in _ADDING:
                partial[op] = PartialGradient(op, dim)
            elif op.name in (DOT, REDUCE) and adds_up(op, side, dim):
                sums[op] = LinearReduction(op, side, dim, ())
            elif (moved_dim := result_dim(op, side, dim)) is not None:
                worklist.append((op.results[0], moved_dim))
    return tuple(partial.values()), tuple(sums.values())
