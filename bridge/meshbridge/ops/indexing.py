"""Gather and scatter: embedding look-ups, take_along_axis, batched slices and updates, and their gradients.

Batch dimensions and dimensions that windows cover entirely pass through. A dimension that windows cover in part may be sharded as
well: each device reads (writes) the elements of its shard.
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
    """The maps of one gather (scatter) under construction: of its operand, its indices and its result (updates)."""

    def __init__(self, operand: tuple[int, ...], indices: tuple[int, ...], result: tuple[int, ...], how: Addressing) -> None:
        self.build = RuleBuilder()
        self.shape, self.how = operand, how
        self.operand: list[tuple[int, ...]] = [()] * len(operand)
        self.indices: list[tuple[int, ...]] = [()] * len(indices)
        self.result: list[tuple[int, ...]] = [()] * len(result)
        self._sizes = indices

    def batching(self) -> None:
        """Gives operand and indices the same loops along batching dimensions."""
        for dim, index_dim in self.how.batching:
            self.operand[dim] = self.indices[index_dim] = self.build.loop(self.shape[dim])

    def free(self, kind: str) -> None:
        """Adds a loop, with reduction `kind`, for every other dimension of the indices except the vectors' dimension."""
        batching = {index_dim for _, index_dim in self.how.batching}
        for dim, size in enumerate(self._sizes):
            if dim != self.how.vector_dim and dim not in batching:
                self.indices[dim] = self.build.loop(size, kind)

    def follow(self) -> None:
        """Gives the result's batch dimensions the loops of the indices."""
        walked = [entry for dim, entry in enumerate(self.indices) if dim != self.how.vector_dim]
        for dim, entry in zip(self.how.batch_dims(len(self.result)), walked, strict=True):
            self.result[dim] = entry

    def windows(self, kind: str) -> None:
        """Adds loops for window dimensions: shared with the result if windows cover them entirely, the operand's own with
        reduction `kind` if they cover a part."""
        for dim, along in self.how.window:
            if self.how.sizes[dim] == self.shape[dim]:
                self.operand[dim] = self.result[along] = self.build.loop(self.shape[dim])
        entire = {dim for dim, _ in (*self.how.batching, *self.how.window) if self.operand[dim]}
        for dim in sorted(set(self.how.addressed) - entire):
            if 0 < self.how.sizes[dim] < self.shape[dim]:
                self.operand[dim] = self.build.loop(self.shape[dim], kind)


def _whole(op: ir.Operation) -> ShardingRule:
    """No loops: indices without components have no elements, and XLA drops the op that uses them if its windows have one
    element."""
    return ShardingRule((), unsplittable(op.operands), unsplittable(op.results))


@sharding_rule_of("stablehlo.gather", traits=(Trait.PURE, Trait.MOVEMENT, Trait.SLICING, Trait.FUSIBLE), linear=(0,))
def gather(op: ir.Operation) -> ShardingRule:
    """Result batch dimensions follow the indices; window dimensions taken entirely pass through.

    An indexed dimension taken in part is a sum: each shard looks up its own elements and adds zero elsewhere.
    """
    how = addressing_of(op)
    if not how.addressed:
        return _whole(op)
    maps = _Maps(shape_of(op.operands[0]), shape_of(op.operands[1]), shape_of(op.results[0]), how)
    maps.batching()
    maps.free("")
    maps.follow()
    # Bits are combined by `or`, because they have no sum.
    is_bits = str(element_of(op.results[0])) == "i1"
    maps.windows("bitwise_or" if is_bits else "sum")
    return maps.build.rule([tuple(maps.operand), tuple(maps.indices)], [tuple(maps.result)])


@sharding_rule_of("stablehlo.scatter", traits=(Trait.PURE, Trait.SCALAR_REGION, Trait.IN_PLACE))
def scatter(op: ir.Operation) -> ShardingRule:
    """Window dimensions covered entirely pass through. An indexed dimension is parallel: each shard applies the updates that fall
    into it. The updates' own dimensions are reductions of the body's kind, so sharded updates leave a partial result.

    All operands of a scatter are sharded alike, and so are all updates."""
    count = len(op.results)
    indices, update = op.operands[count], op.operands[count + 1]
    how = addressing_of(op)
    if not how.addressed:
        return _whole(op)
    maps = _Maps(shape_of(op.operands[0]), shape_of(indices), shape_of(update), how)
    maps.batching()
    if kind := body_kind(op):
        maps.free(kind)  # with another body (e.g. one that replaces) the order of updates may matter, so they stay together
    maps.follow()
    maps.windows("")
    operand, updates = tuple(maps.operand), tuple(maps.result)
    return maps.build.rule([operand] * count + [tuple(maps.indices)] + [updates] * count, [operand] * count)


def _shards(operand: ir.Value, how: Addressing, dims: Dims, windows: Dims, split: Split, at: SpmdProgram) -> dict[int, DimShard]:
    """The split dimensions of `operand` that windows, of the loops `windows`, cover only in part."""
    local, global_shape = shape_of(operand), at.global_shape(operand)
    batching = {dim for dim, _ in how.batching}
    return {
        dim: DimShard(axes, local[dim], global_shape[dim], how.sizes[dim])
        for dim, axes in enumerate(split)
        if axes and dim not in batching and dims[dim] not in windows
    }


@spmd_lowering("stablehlo.gather")
def local_gather(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Looks up in the shard. Along an indexed split dimension, elements of other shards read as zero: the result is a partial
    sum."""
    how, operand = addressing_of(op), op.operands[0]
    split = tensor_split(rule.operands[0], option)
    shards = _shards(operand, how, rule.operands[0], rule.results[0], split, at)
    op.attributes["slice_sizes"] = integers_attr(map(min, how.sizes, shape_of(operand)))
    if not shards:
        default_lowering(op, rule, option, at)
        return
    wide_dims = [dim for dim, shard in shards.items() if shard.size > 1]
    finer = how.elementwise_along(wide_dims, len(shape_of(op.results[0])))
    indices = Indices(op.operands[1], how, at.builder)
    indices.clamp(shards)
    _unfold(indices, how, finer, wide_dims)
    indices.shift(shards, at)
    inside = indices.inside(shards)
    op.operands[1] = indices.joined()
    op.attributes["slice_sizes"] = integers_attr(map(min, finer.sizes, shape_of(operand)))
    finer.write_to(op)
    _forget(op, "indices_are_sorted")
    default_lowering(op, rule, option, at)
    _mask_result(op, inside, finer, at)


def _unfold(indices: Indices, how: Addressing, finer: Addressing, wide_dims: list[int]) -> None:
    """Iterates over windows along `wide_dims` element by element, each with a batch dimension at its position in the result."""
    result_dims = dict(how.window)
    rank = len(indices.shape) + len(how.window)
    for dim in sorted(wide_dims, key=lambda dim: result_dims[dim]):
        indices.unfold(dim, how.sizes[dim], finer.batch_dims(rank).index(result_dims[dim]))


def _forget(op: ir.Operation, *promises: str) -> None:
    """Removes assertions about the indices that may not hold for a shard."""
    for promise in promises:
        if promise in op.attributes:
            op.attributes[promise] = ir.BoolAttr.get(False)


def _mask_result(op: ir.Operation, inside: ir.Value, how: Addressing, at: SpmdProgram) -> None:
    """Replaces results whose index is in another shard by zeros."""
    result = op.results[0]
    shape = shape_of(result)
    at.replace_uses(
        result, lambda values: at.builder.select(at.builder.broadcast(inside, shape, how.batch_dims(len(shape))), values, 0)
    )


@spmd_lowering("stablehlo.scatter")
def local_scatter(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Applies the updates that fall into the shard; StableHLO skips indices out of bounds. With split updates each device applies
    its own, the operands enter on one device of each group, and the result is partial."""
    count = len(op.results)
    how, split = addressing_of(op), tensor_split(rule.operands[0], option)
    shards = _shards(op.operands[0], how, rule.operands[0], rule.operands[count + 1], split, at)
    reduced = [(loop, axes) for loop, axes in zip(rule.loops, option, strict=True) if loop.reduction and axes]
    if shards:
        _update_shard(op, how, shards, at)
    if reduced:
        if any(loop.size % at.mesh.group_size(axes) for loop, axes in reduced):
            _forget(op, "indices_are_sorted", "unique_indices")  # padding of uneven shards holds arbitrary indices
        axes = tuple(sorted(axis for _, loop_axes in reduced for axis in loop_axes))
        op.operands[0] = once_per_group(op.operands[0], reduced[0][0].reduction, axes, at)
    default_lowering(op, rule, option, at)


def _update_shard(op: ir.Operation, how: Addressing, shards: dict[int, DimShard], at: SpmdProgram) -> None:
    """Makes the indices of a scatter relative to this device's shard; those of other shards are out of bounds."""
    count = len(op.results)
    wide_shards = {dim: shard for dim, shard in shards.items() if shard.size > 1}
    finer = how.elementwise_along(wide_shards, len(shape_of(op.operands[count + 1])))
    indices = Indices(op.operands[count], how, at.builder)
    if wide_shards:  # a window that does not fit into the global operand is skipped entirely
        dim = min(wide_shards)
        indices.drop(indices.fits(wide_shards), dim, wide_shards[dim].size)
    _unfold(indices, how, finer, list(wide_shards))
    indices.shift(shards, at)
    op.operands[count] = indices.joined()
    if prod(indices.shape) == 1:
        # XLA turns a scatter of one update into dynamic slices and merges them with the one that takes the shard: an index out
        # of the shard's bounds would then read another shard.
        for index in range(count):
            op.operands[index] = at.builder.barrier(op.operands[index])
    finer.write_to(op)
    _forget(op, "indices_are_sorted", *(["unique_indices"] if wide_shards else []))
