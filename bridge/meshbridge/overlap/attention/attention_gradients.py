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
from meshbridge.overlap.attention.online_softmax import EXP, computes_parts, gathered_along, wide, wider
from meshbridge.overlap.attention.rematerialized_forward import RematerializedForward

_ADDING = (ReduceScatterOp.OPERATION_NAME, AllReduceOp.OPERATION_NAME)


@dataclass(frozen=True)
class PartialGradient:
    """A collective that adds up gradients of all keys over devices, and the dimension that runs over keys."""

    op: ir.Operation
    keys: int

    def of_own_keys(self, total: ir.Value, mesh: Mesh, axis: int, at: Builder) -> ir.Value:
        """What the collective gives, of the `total` for the keys of this device."""
        if self.op.name == AllReduceOp.OPERATION_NAME:
            return build.all_gather(total, mesh, mesh_axes=[axis], gather_axis=self.keys, at=at)
        kept = ReduceScatterOp(self.op).scatter_axis
        if kept == self.keys:
            return total
        return build.all_to_all(total, mesh, mesh_axes=[axis], split_axis=kept, concat_axis=self.keys, at=at)


@dataclass(frozen=True)
class PathEnds:
    """Where what is computed of exponentials along keys leaves them."""

    partial: tuple[PartialGradient, ...]
    "Gradients of keys and values."
    sums: tuple[LinearReduction, ...]
    "Gradients of queries: sums over keys."

    @property
    def operations(self) -> list[ir.Operation]:
        """All of them."""
        return [*(each.op for each in self.partial), *(each.op for each in self.sums)]


@dataclass(frozen=True)
class AttentionGradients:
    """Exponentials of scores in a backward pass, and what is left of them once they are multiplied with gradients."""

    exponential: ir.Operation
    keys: int
    ends: PathEnds
    gathers: tuple[ir.Operation, ...]
    mesh: Mesh
    axis: int

    @property
    def scores(self) -> ir.Value:
        """What is exponentiated."""
        value: ir.Value = self.exponential.operands[0]
        return value

    @property
    def home(self) -> ir.Block:
        """The block of operations that all of it stands in."""
        return self.exponential.block

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return self.mesh.shape[self.axis]

    @property
    def looks(self) -> object:
        """What backward passes share that cost the same."""
        values = [self.scores, *(op.results[0] for op in (*self.ends.operations, *self.gathers))]
        names = tuple(each.op.name for each in self.ends.partial)
        return names, tuple(str(value.type) for value in values), self.axis, str(self.mesh.name)

    def rewrite(self, ring_of: Callable[[AttentionGradients], type[GradientRing]], *, balance: bool) -> None:
        """Writes the ring of that kind in place of the last end, and drops what nothing reads any more. A forward pass that
        becomes a ring of its own is a balanced one, if that is asked for and can be."""
        self._part_forward_pass(balance=balance)
        late = forward_slice(self.ends.operations, in_program_order(self.ends.operations)[-1])
        reached, travelling = _travelling(self)
        last = late[-1]
        found = ring_of(self)(self, travelling, Builder.before(last)).run()
        for op in late[:-1]:
            op.move_before(last)
        for end, value in found.items():
            end.results[0].replace_all_uses_with(value)
        erase_dead({*late, *(op for op, _ in reached.moving)})

    def _part_forward_pass(self, *, balance: bool) -> None:
        """Makes a ring of its own of a forward pass that is computed again right before the gradients, as in the body of a loop
        over layers, if it can be one."""
        sums = self.forward_sums()
        if not sums:
            return
        apart = RematerializedForward.of(self.exponential, self.keys, sums)
        found = apart.softmax(self.exponential, self.keys, self.mesh)
        if found is not None and computes_parts(found):
            found.rewrite(forward_ring_of(found, balance=balance))
        else:
            apart.undo()

    def forward_sums(self) -> list[LinearReduction]:
        """The sums over keys that are no gradients."""
        gradients = {each.op for each in self.ends.sums}
        return [each for each in _leaving(self.exponential, self.keys)[1] if each.op not in gradients]


def _sources(ends: PathEnds) -> Iterator[tuple[ir.Value, int]]:
    """What the ends read block by block, and along which dimension."""
    for each in ends.partial:
        yield each.op.operands[0], each.keys
    yield from sources_of(ends.sums)


def reached_from(home: ir.Block, ends: PathEnds, whole: frozenset[ir.Operation] = frozenset()) -> BlockTrace:
    reached = BlockTrace(home, whole)
    for value, dim in _sources(ends):
        reached.reach(value, dim)
    return reached


def _travelling(found: AttentionGradients) -> tuple[BlockTrace, tuple[ir.Operation, ...]]:
    """What blocks are computed of, and the gathers that nothing else needs, whose shards travel; of others a block is a slice."""
    reached = reached_from(found.home, found.ends)
    inner = {op for op, _ in reached.moving} | set(found.ends.operations)
    held: frozenset[ir.Operation] = frozenset()
    for (op, _), needed in reached.moving.items():
        if any(use.owner.operation not in inner for use in op.results[0].uses):
            held |= needed
    return reached, tuple(op for op in found.gathers if op not in held)


class GradientRing:
    """The steps of one backward pass: gradients of the keys before come first, those of the own keys last, so that they are at
    home once all devices have added to them."""

    def __init__(self, found: AttentionGradients, travelling: Sequence[ir.Operation], emit: Builder) -> None:
        self.found, self.travelling, self.emit = found, travelling, emit

    def run(self) -> dict[ir.Operation, ir.Value]:
        """What each end gives."""
        found, emit = self.found, self.emit
        index = build.all_slice(emit.iota([found.count], 0), found.mesh, mesh_axes=[found.axis], slice_axis=0, at=emit)
        own = emit.reshape(index, [])
        home = [op.operands[0] for op in self.travelling]
        shards, so_far = home, dict[ir.Operation, ir.Value]()
        for step in range(found.count):
            if step == found.count - 1:
                shards = home
            else:
                shards = [self.shifted(each, op) for each, op in zip(self.until(so_far, shards), self.travelling, strict=True)]
            keeper = emit.elementwise("remainder", emit.add(own, found.count - 1 - step), found.count)
            so_far = self._added(so_far, keeper, shards)
        return {op: emit.convert(value, element_of(op.results[0])) for op, value in so_far.items()} | {
            each.op: each.of_own_keys(so_far[each.op], found.mesh, found.axis, Builder(each.op.location, emit.ip))
            for each in found.ends.partial
        }

    def until(self, so_far: Mapping[ir.Operation, ir.Value], shards: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """`shards`, once what is there so far is: else all could be sent at the beginning, and held."""
        if not so_far or not shards:
            return shards
        held = [*shards, min(so_far.values(), key=tensor_bytes)]
        return list(self.emit.op(BARRIER, [value.type for value in held], held).results)[:-1]

    def shifted(self, value: ir.Value, replaced: ir.Operation) -> ir.Value:
        """What the device before holds, at the location of the collective in whose place it is sent."""
        mesh, axis = self.found.mesh, self.found.axis
        at = Builder(replaced.location, self.emit.ip)
        return build.shift(value, mesh, mesh_axes=[axis], shift_axis=axis, offset=1, rotate=True, at=at)

    def _added(
        self, before: Mapping[ir.Operation, ir.Value], keeper: ir.Value, shards: Sequence[ir.Value]
    ) -> dict[ir.Operation, ir.Value]:
        """With what the keys contribute that the device of position `keeper` keeps."""
        found, emit = self.found, self.emit
        size = shape_of(found.exponential.results[0])[found.keys] // found.count
        moved = zip(self.travelling, shards, strict=True)
        given = {(op.results[0], AllGatherOp(op).gather_axis): shard for op, shard in moved}
        blocks = BlockWriter(emit, found.home, emit.multiply(keeper, size), size, given)
        after = {}
        for end in found.ends.partial:
            part = emit.convert(blocks.of(end.op.operands[0], end.keys), element_of(end.op.results[0]))
            after[end.op] = emit.add(self.shifted(before[end.op], end.op), part) if before else part
        for each in found.ends.sums:
            part = part_of(emit, each, blocks)
            after[each.op] = emit.add(before[each.op], part) if before else part
        return after


def part_of(emit: Builder, each: LinearReduction, blocks: BlockWriter) -> ir.Value:
    """A sum over one block of keys."""
    block = blocks.of(each.op.operands[each.side], each.read)
    if each.other is None:
        return wide(emit, emit.reduce(block, 0, [each.read], "add"))
    other = blocks.of(*each.other)
    type_ = tensor(shape_of(each.op.results[0]), wider(element_of(each.op.results[0])))
    return emit.again(each.op, type_, [block, other] if each.side == 0 else [other, block])


def attention_gradients(module: ir.Module, most: int) -> Iterator[AttentionGradients]:
    """Those over keys that are gathered along one axis of at most so many devices."""
    meshes = declared_meshes(module.body)
    taken: set[ir.Operation] = set()
    behind = _added_up(module)
    for op in find(module.operation, [EXP]):
        reached = behind.get(op.block)
        for keys, size in enumerate(shape_of(op.results[0])):
            if size in (1, DYNAMIC) or reached is None or not reached.moves(op.results[0], keys):
                continue
            found = _matched(op, keys, meshes, most)
            if found is not None and taken.isdisjoint(found.ends.operations):
                taken.update(found.ends.operations)
                yield found
                break


def _added_up(module: ir.Module) -> dict[ir.Block, BlockTrace]:
    """By block, all that what is added up over devices there is computed of block by block: each value is walked once, however
    many layers stand before it."""
    found: dict[ir.Block, BlockTrace] = {}
    for op in find(module.operation, _ADDING):
        reached = found.setdefault(op.block, BlockTrace(op.block, frozenset()))
        for dim in range(len(shape_of(op.operands[0]))):
            reached.reach(op.operands[0], dim)
    return found


def _matched(exponential: ir.Operation, keys: int, meshes: Mapping[str, Mesh], most: int) -> AttentionGradients | None:
    home = exponential.block
    scores = BlockTrace(home, frozenset())
    if not scores.reach(exponential.results[0], keys) or _compared(scores):
        return None
    partial, sums = _leaving(exponential, keys)
    reached = reached_from(home, PathEnds(partial, ()))
    gathers = dict.fromkeys(op for op, _ in reached.moving if op.name == AllGatherOp.OPERATION_NAME)
    axes = {gathered_along(op, meshes, most) for op in gathers}
    if not partial or len(axes) != 1 or None in axes:
        return None
    ((mesh, axis),) = (each for each in axes if each is not None)
    if any(not _adds(each.op, mesh, axis) for each in partial):
        return None
    products = {op for op, _ in reached.moving if op.name == DOT} - {op for op, _ in scores.moving}
    added = {each.op for each in partial}
    backward = tuple(
        each
        for each in sums
        if any(op in products for op, _ in reached_from(home, PathEnds((), (each,))).moving)
        and added.isdisjoint(forward_slice([each.op], in_program_order(added)[-1]))
    )
    ends = PathEnds(partial, backward)
    reached = reached_from(home, ends)
    if {op for op, _ in reached.moving if op.name == AllGatherOp.OPERATION_NAME} != set(gathers):
        return None
    late = set(forward_slice(ends.operations, in_program_order(ends.operations)[-1]))
    if any(producer(value, home) in late for value in reached.read) or any(op in late for op, _ in reached.moving):
        return None
    return AttentionGradients(exponential, keys, ends, tuple(gathers), mesh, axis)


def _compared(scores: BlockTrace) -> bool:
    """Whether a score is asked to equal another number, as where the largest one has a gradient: scores of a block round
    differently, so that none may."""
    readers = (use.owner.operation for op, _ in scores.moving for use in op.results[0].uses)
    return any(
        op.name == "stablehlo.compare"
        and isinstance(element_of(op.operands[0]), ir.FloatType)
        and comparison_direction(op) in ("EQ", "NE")
        for op in readers
    )


def _adds(op: ir.Operation, mesh: Mesh, axis: int) -> bool:
    """Whether `op` adds up along that axis alone."""
    view = CollectiveOpView(op)
    along = [each for each in view.mesh_axes if mesh.shape[each] != 1]
    return (view.mesh, along, view.reduction) == (mesh.name, [axis], "sum") and DYNAMIC not in shape_of(op.operands[0])


def _leaving(exponential: ir.Operation, keys: int) -> tuple[tuple[PartialGradient, ...], tuple[LinearReduction, ...]]:
    """What adds up over devices, and the sums over keys, of anything that is computed of the exponentials key by key."""
    partial: dict[ir.Operation, PartialGradient] = {}
    sums: dict[ir.Operation, LinearReduction] = {}
    seen: set[tuple[ir.Value, int]] = set()
    waiting = [(exponential.results[0], keys)]
    while waiting:
        value, dim = waiting.pop()
        if (value, dim) in seen:
            continue
        seen.add((value, dim))
        for use in value.uses:
            op, side = use.owner.operation, use.operand_number
            if op.block != exponential.block:
                continue
            if op.name in _ADDING:
                partial[op] = PartialGradient(op, dim)
            elif op.name in (DOT, REDUCE) and adds_up(op, side, dim):
                sums[op] = LinearReduction(op, side, dim, ())
            elif (made := result_dim(op, side, dim)) is not None:
                waiting.append((op.results[0], made))
    return tuple(partial.values()), tuple(sums.values())
