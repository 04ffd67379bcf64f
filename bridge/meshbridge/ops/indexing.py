"""Gather and scatter: embedding look-ups, take_along_axis, batched slices and updates, and the gradients of all.

A dimension that windows cover entirely passes through, and so do batch dimensions. A dimension of which windows cover a part may
be sharded as well: each device reads (writes) what is in its shard.
"""

from __future__ import annotations

from math import prod

from meshbridge.dialect.attributes import integers_attr
from meshbridge.ir.builder import element_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Split
from meshbridge.ops.addressing import Addressing, DimShard, Indices, addressing_of
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.reductions import body_kind, once_per_group
from meshbridge.ops.rule import Dims, RuleBuilder, ShardingRule, shape_of, sharding_rule_of, unsplittable
from meshbridge.ops.spmd import SpmdProgram, default_lowering, spmd_lowering
from meshbridge.ops.traits import Trait


class _Maps:
    """The maps of one gather (scatter) while they are built: of its operand, its indices and its result (updates)."""

    def __init__(self, operand: tuple[int, ...], indices: tuple[int, ...], result: tuple[int, ...], how: Addressing) -> None:
        self.build = RuleBuilder()
        self.shape, self.how = operand, how
        self.operand: list[tuple[int, ...]] = [()] * len(operand)
        self.indices: list[tuple[int, ...]] = [()] * len(indices)
        self.result: list[tuple[int, ...]] = [()] * len(result)
        self._sizes = indices

    def batching(self) -> None:
        """Operand and indices share the loops of batching dimensions."""
        for dim, index_dim in self.how.batching:
            self.operand[dim] = self.indices[index_dim] = self.build.loop(self.shape[dim])

    def free(self, kind: str) -> None:
        """A loop for every other dimension of the indices but their vectors', joined by `kind`."""
        batching = {index_dim for _, index_dim in self.how.batching}
        for dim, size in enumerate(self._sizes):
            if dim != self.how.vector_dim and dim not in batching:
                self.indices[dim] = self.build.loop(size, kind)

    def follow(self) -> None:
        """The result's batch dimensions follow the indices'."""
        walked = [entry for dim, entry in enumerate(self.indices) if dim != self.how.vector_dim]
        for dim, entry in zip(self.how.batch_dims(len(self.result)), walked, strict=True):
            self.result[dim] = entry

    def windows(self, kind: str) -> None:
        """Dimensions covered entirely pass through; one covered in part has a loop of its own on the operand, joined by
        `kind`."""
        for dim, along in self.how.window:
            if self.how.sizes[dim] == self.shape[dim]:
                self.operand[dim] = self.result[along] = self.build.loop(self.shape[dim])
        whole = {dim for dim, _ in (*self.how.batching, *self.how.window) if self.operand[dim]}
        for dim in sorted(set(self.how.addressed) - whole):
            if 0 < self.how.sizes[dim] < self.shape[dim]:
                self.operand[dim] = self.build.loop(self.shape[dim], kind)


def _whole(op: ir.Operation) -> ShardingRule:
    """Indices of no components have no elements: XLA drops what uses them where that leaves windows of one element."""
    return ShardingRule((), unsplittable(op.operands), unsplittable(op.results))


@sharding_rule_of("stablehlo.gather", traits=(Trait.PURE, Trait.MOVEMENT, Trait.SLICING, Trait.FUSIBLE), linear=(0,))
def gather(op: ir.Operation) -> ShardingRule:
    """Result batch dimensions follow the indices; window dimensions taken entirely pass through.

    An indexed dimension of which less is taken is a sum: each shard looks up what it holds and adds zero elsewhere.
    """
    how = addressing_of(op)
    if not how.addressed:
        return _whole(op)
    maps = _Maps(shape_of(op.operands[0]), shape_of(op.operands[1]), shape_of(op.results[0]), how)
    maps.batching()
    maps.free("")
    maps.follow()
    # Bits have no sum: one shard holds the element, the others hold false.
    is_bits = str(element_of(op.results[0])) == "i1"
    maps.windows("bitwise_or" if is_bits else "sum")
    return maps.build.rule([tuple(maps.operand), tuple(maps.indices)], [tuple(maps.result)])


@sharding_rule_of("stablehlo.scatter", traits=(Trait.PURE, Trait.SCALAR_REGION, Trait.IN_PLACE))
def scatter(op: ir.Operation) -> ShardingRule:
    """Window dimensions covered entirely pass through; an indexed dimension is parallel (each shard applies the updates that fall
    into it); the updates' own dimensions are reductions of the body's kind, so sharded updates leave a partial result.

    All operands of one scatter are sharded alike, and so are all updates."""
    count = len(op.results)
    indices, update = op.operands[count], op.operands[count + 1]
    how = addressing_of(op)
    if not how.addressed:
        return _whole(op)
    maps = _Maps(shape_of(op.operands[0]), shape_of(indices), shape_of(update), how)
    maps.batching()
    if kind := body_kind(op):
        maps.free(kind)  # else (e.g. replace) the order of updates may matter, so they stay together
    maps.follow()
    maps.windows("")
    operand, updates = tuple(maps.operand), tuple(maps.result)
    return maps.build.rule([operand] * count + [tuple(maps.indices)] + [updates] * count, [operand] * count)


def _shards(operand: ir.Value, how: Addressing, dims: Dims, windows: Dims, split: Split, at: SpmdProgram) -> dict[int, DimShard]:
    """The split dimensions of `operand` that windows (of the loops `windows`) cover in part only."""
    local, whole = shape_of(operand), at.global_shape(operand)
    batching = {dim for dim, _ in how.batching}
    return {
        dim: DimShard(axes, local[dim], whole[dim], how.sizes[dim])
        for dim, axes in enumerate(split)
        if axes and dim not in batching and dims[dim] not in windows
    }


@spmd_lowering("stablehlo.gather")
def local_gather(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Looks up in the shard. Along an indexed split dimension an element that another shard holds reads as zero: a
    partial sum."""
    how, operand = addressing_of(op), op.operands[0]
    split = tensor_split(rule.operands[0], option)
    shards = _shards(operand, how, rule.operands[0], rule.results[0], split, at)
    op.attributes["slice_sizes"] = integers_attr(map(min, how.sizes, shape_of(operand)))
    if not shards:
        default_lowering(op, rule, option, at)
        return
    wide = [dim for dim, shard in shards.items() if shard.size > 1]
    finer = how.elementwise_along(wide, len(shape_of(op.results[0])))
    indices = Indices(op.operands[1], how, at.emit)
    indices.clamp(shards)
    _unfold(indices, how, finer, wide)
    indices.shift(shards, at)
    inside = indices.inside(shards)
    op.operands[1] = indices.joined()
    op.attributes["slice_sizes"] = integers_attr(map(min, finer.sizes, shape_of(operand)))
    finer.write_to(op)
    _forget(op, "indices_are_sorted")
    default_lowering(op, rule, option, at)
    _mask_result(op, inside, finer, at)


def _unfold(indices: Indices, how: Addressing, finer: Addressing, wide: list[int]) -> None:
    """Walks windows along `wide` element by element, each with a batch dimension at its place among the result's."""
    places = dict(how.window)
    rank = len(indices.shape) + len(how.window)
    for dim in sorted(wide, key=lambda dim: places[dim]):
        indices.unfold(dim, how.sizes[dim], finer.batch_dims(rank).index(places[dim]))


def _forget(op: ir.Operation, *promises: str) -> None:
    """Removes what the program asserts of its indices and what may not be true of a shard's."""
    for promise in promises:
        if promise in op.attributes:
            op.attributes[promise] = ir.BoolAttr.get(False)


def _mask_result(op: ir.Operation, inside: ir.Value, how: Addressing, at: SpmdProgram) -> None:
    """Puts zeros where the index is in another shard."""
    result = op.results[0]
    shape = shape_of(result)
    at.amend(result, lambda found: at.emit.select(at.emit.broadcast(inside, shape, how.batch_dims(len(shape))), found, 0))


@spmd_lowering("stablehlo.scatter")
def local_scatter(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Applies the updates that fall into the shard (StableHLO skips those out of bounds). With split updates every device applies
    its own; the operands then enter on one device of each group and the result is partial."""
    count = len(op.results)
    how, split = addressing_of(op), tensor_split(rule.operands[0], option)
    shards = _shards(op.operands[0], how, rule.operands[0], rule.operands[count + 1], split, at)
    reduced = [(loop, axes) for loop, axes in zip(rule.loops, option, strict=True) if loop.reduction and axes]
    if shards:
        _update_shard(op, how, shards, at)
    if reduced:
        if any(loop.size % at.mesh.group_size(axes) for loop, axes in reduced):
            _forget(op, "indices_are_sorted", "unique_indices")  # the padding of uneven shards points anywhere
        axes = tuple(sorted(axis for _, taken in reduced for axis in taken))
        op.operands[0] = once_per_group(op.operands[0], reduced[0][0].reduction, axes, at)
    default_lowering(op, rule, option, at)


def _update_shard(op: ir.Operation, how: Addressing, shards: dict[int, DimShard], at: SpmdProgram) -> None:
    """Makes the indices of a scatter refer to this device's shard; those of another one are out of bounds."""
    count = len(op.results)
    wide = {dim: shard for dim, shard in shards.items() if shard.size > 1}
    finer = how.elementwise_along(wide, len(shape_of(op.operands[count + 1])))
    indices = Indices(op.operands[count], how, at.emit)
    if wide:  # a window that does not fit into the global operand is skipped entirely
        dim = min(wide)
        indices.drop(indices.fits(wide), dim, wide[dim].size)
    _unfold(indices, how, finer, list(wide))
    indices.shift(shards, at)
    op.operands[count] = indices.joined()
    if prod(indices.shape) == 1:
        # XLA makes dynamic slices of a scatter of one update, and joins them with the one that cuts the shard out: an index out
        # of the shard's bounds would then read from another shard.
        for index in range(count):
            op.operands[index] = at.emit.barrier(op.operands[index])
    finer.write_to(op)
    _forget(op, "indices_are_sorted", *(["unique_indices"] if wide else []))
