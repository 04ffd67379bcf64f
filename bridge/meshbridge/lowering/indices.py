"""Lowers operations that return indices: a device's position on the mesh, its neighbours, the size of its shard.

Their `index` results become `tensor<i32>`; `scalars` lowers the arithmetic that uses them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshbridge.dialect.attributes import SHARDING_TYPE
from meshbridge.dialect.ops import (
    MeshShapeOp,
    NeighborsLinearIndicesOp,
    ProcessLinearIndexOp,
    ProcessMultiIndexOp,
    ShardingOp,
    ShardShapeOp,
)
from meshbridge.ir.digits import axis_digits, group_size
from meshbridge.ir.mlir import OpError, ir
from meshbridge.ir.per_device import entry
from meshbridge.ir.positions import number_along
from meshbridge.ir.sharding import DYNAMIC, Axes, Sharding
from meshbridge.lowering.members import Member, linearize
from meshbridge.lowering.site import Site, lowers


@lowers(MeshShapeOp)
def mesh_shape(op: MeshShapeOp, site: Site) -> list[ir.Value]:
    """One constant per axis."""
    return [_constant(site, site.mesh.shape[axis]) for axis in site.axes]


@lowers(ProcessMultiIndexOp)
def process_multi_index(op: ProcessMultiIndexOp, site: Site) -> list[ir.Value]:
    """One division and one remainder per axis."""
    return [site.positions.along(site.mesh, (digit,), site.builder) for digit in site.digits]


@lowers(ProcessLinearIndexOp)
def process_linear_index(op: ProcessLinearIndexOp, site: Site) -> list[ir.Value]:
    """The device's logical number, permuted if the mesh has a device order."""
    return [site.positions.linear(site.mesh, site.builder)]


@lowers(NeighborsLinearIndicesOp)
def neighbors_linear_indices(op: NeighborsLinearIndicesOp, site: Site) -> list[ir.Value]:
    """The linear indices of the previous and the next device along `split_axes`; -1 beyond either end."""
    device = [site.known(value) for value in op.operation.operands]
    if len(device) != site.mesh.rank:
        raise site.error(f"names a device by {len(device)} coordinates on a mesh of rank {site.mesh.rank}")
    builder, axes = site.builder, op.split_axes
    linear = _value(site, linearize(site, device, site.mesh.shape))
    number = _value(site, linearize(site, [device[axis] for axis in axes], [site.mesh.shape[axis] for axis in axes]))
    stays = builder.subtract(linear, _index_offset(site, number, axes))
    none = builder.scalar(-1)
    neighbours = []
    for step, beyond in ((-1, builder.compare("EQ", number, 0)), (1, _is_last(site, number, axes))):
        neighbour = builder.add(stays, _index_offset(site, builder.add(number, step), axes))
        neighbours.append(builder.select(beyond, none, neighbour))
    return neighbours


def _is_last(site: Site, number: ir.Value, axes: Axes) -> ir.Value:
    return site.builder.compare("EQ", number, site.mesh.group_size(axes) - 1)


def _index_offset(site: Site, number: ir.Value, axes: Axes) -> ir.Value:
    """The part of a linear index that the in-group number along `axes` gives: the sum of its digits times the axes' strides."""
    builder, digits = site.builder, axis_digits(site.mesh, axes)
    total = builder.scalar(0)
    for index, digit in enumerate(digits):
        value, inner = number, group_size(digits[index + 1 :])
        if inner > 1:
            value = builder.elementwise("divide", value, inner)
        if index:
            value = builder.elementwise("remainder", value, digit.radix)
        total = builder.add(total, builder.multiply(value, digit.stride))
    return total


@lowers(ShardShapeOp)
def shard_shape(op: ShardShapeOp, site: Site) -> list[ir.Value]:
    """The size of the device's shard in each dimension: from `sharded_dims_offsets`, or by ceiling division, plus halos.

    If a dimension does not divide, the last shards are shorter; the padding that partitioning adds does not count.
    """
    operands = list(op.operation.operands)
    position = [str(value.type) for value in operands].index(SHARDING_TYPE)
    sharding = sharding_of(op)
    shape = _shape(op, site, operands[:position])
    linear = _device(op, site, operands[position + 1 :])
    offsets, halos = _dynamic_entries(op, site, sharding)
    sizes = []
    for size, axes in zip(shape, sharding.padded(len(shape)).split_axes, strict=True):
        count = site.mesh.group_size(axes)
        starts, offsets = (offsets[: count + 1], offsets[count + 1 :]) if axes else ([], offsets)
        if size == DYNAMIC and not starts:
            hint = "give its size by LLVM 21's form, dims = [%size, 8], or its shards by sharded_dims_offsets"
            raise site.error("has a dimension `?` whose size nothing gives", hint)
        if not axes:
            sizes.append(_constant(site, size) if isinstance(size, int) else size)
            continue
        own, halos = halos[:2], halos[2:]
        extent = site.builder.add(
            _extent(site, size, axes, starts, linear), sum(width for width in own if isinstance(width, int))
        )
        for width in own:
            extent = extent if isinstance(width, int) else site.builder.add(extent, width)
        sizes.append(extent)
    return sizes


def _dynamic_entries(op: ShardShapeOp, site: Site, sharding: Sharding) -> tuple[list[Member], list[Member]]:
    """The offsets and halo sizes of the sharding; dynamic ones have 32 bits."""
    operands = iter(list(definition_of_sharding(op).operation.operands))
    index = ir.IntegerType.get_signless(32)

    def filled(entries: Sequence[int]) -> list[Member]:
        members = [site.known(next(operands)) if entry == DYNAMIC else entry for entry in entries]
        return [member if isinstance(member, int) else site.builder.convert(member, index) for member in members]

    return filled(sharding.offsets), filled(sharding.halo_sizes)


def _extent(site: Site, size: Member, axes: Axes, starts: Sequence[Member], linear: ir.Value) -> ir.Value:
    """The size, without halos, of one dimension's shard on the device of linear index `linear`."""
    builder = site.builder
    number = number_along(linear, site.mesh, axis_digits(site.mesh, axes), builder)
    static_starts = [start for start in starts if isinstance(start, int)]
    if starts and len(static_starts) == len(starts):
        return entry(builder, np.diff(np.array(static_starts)), number)
    if starts:
        table = builder.concatenate([builder.reshape(_value(site, start), [1]) for start in starts], 0)
        return builder.subtract(builder.entry(table, builder.add(number, 1)), builder.entry(table, number))
    if not isinstance(size, int):
        count = site.mesh.group_size(axes)
        shard_size = builder.elementwise("divide", builder.add(size, count - 1), count)
        return builder.clamp(0, builder.subtract(size, builder.elementwise("multiply", number, shard_size)), shard_size)
    piece = -(-size // site.mesh.group_size(axes))
    if size == piece * site.mesh.group_size(axes):
        return _constant(site, size // site.mesh.group_size(axes))
    remaining = builder.subtract(builder.scalar(size), builder.multiply(number, piece))
    return builder.clamp(0, remaining, piece)


def definition_of_sharding(op: ShardShapeOp) -> ShardingOp:
    """The mesh.sharding that defines the sharding operand of shard_shape. Raises OpError if it is defined otherwise."""
    operand = next(value for value in op.operation.operands if str(value.type) == SHARDING_TYPE)
    definition = operand.owner
    if isinstance(definition, ir.Block) or not isinstance(definition.opview, ShardingOp):
        raise OpError(op.operation, "needs a sharding that a mesh.sharding defines")
    return definition.opview


def sharding_of(op: ShardShapeOp) -> Sharding:
    """The sharding operand of shard_shape, which also names the mesh."""
    sharding: Sharding = definition_of_sharding(op).value
    return sharding


def _shape(op: ShardShapeOp, site: Site, dynamic: list[ir.Value]) -> list[Member]:
    """The global tensor's shape, from `shape` (the dialect's spec) or `dims` (LLVM 21); DYNAMIC if neither gives a size."""
    entries = iter(dynamic)
    listed = op.shape or op.dims
    shape = [site.known(next(entries, size)) if size == DYNAMIC else size for size in listed]
    static_sizes = [size for size in shape if isinstance(size, int)]
    if max(static_sizes, default=0) > _LARGEST:
        raise site.error(f"has a dimension of {max(static_sizes)}; indices have 32 bits")
    return shape


_LARGEST = 2**31 - 1


def _device(op: ShardShapeOp, site: Site, operands: list[ir.Value]) -> ir.Value:
    """The device's linear index: an operand (the dialect's spec), or from the multi-index `device` (LLVM 21)."""
    listed = op.device
    if not listed:
        return operands[0]
    entries = iter(operands)
    index = [site.known(next(entries)) if entry == DYNAMIC else entry for entry in listed]
    if len(index) != site.mesh.rank:
        raise site.error(f"names a device by {len(index)} coordinates on a mesh of rank {site.mesh.rank}")
    return _value(site, linearize(site, index, site.mesh.shape))


def _value(site: Site, number: Member) -> ir.Value:
    return site.builder.scalar(number) if isinstance(number, int) else number


def _constant(site: Site, number: int) -> ir.Value:
    """A constant, recorded for dynamic index lists."""
    value = site.builder.scalar(number)
    site.constants[value] = number
    return value
