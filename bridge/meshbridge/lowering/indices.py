"""Operations that answer with indices: where a device stands, who its neighbours are, how large its shard is.

Their `index` results become `tensor<i32>`; `scalars` carries those through the arithmetic that uses them.
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
from meshbridge.ir.positions import number_along
from meshbridge.ir.sequences import entry
from meshbridge.ir.sharding import DYNAMIC, Axes, Sharding
from meshbridge.lowering.members import Member, linearize
from meshbridge.lowering.site import Site, lowers


@lowers(MeshShapeOp)
def mesh_shape(op: MeshShapeOp, site: Site) -> list[ir.Value]:
    """Constants."""
    return [_constant(site, site.mesh.shape[axis]) for axis in site.axes]


@lowers(ProcessMultiIndexOp)
def process_multi_index(op: ProcessMultiIndexOp, site: Site) -> list[ir.Value]:
    """One division and one remainder per axis."""
    return [site.positions.along(site.mesh, (digit,), site.emit) for digit in site.digits]


@lowers(ProcessLinearIndexOp)
def process_linear_index(op: ProcessLinearIndexOp, site: Site) -> list[ir.Value]:
    """The logical number itself, unless the mesh has a device order of its own."""
    return [site.positions.linear(site.mesh, site.emit)]


@lowers(NeighborsLinearIndicesOp)
def neighbors_linear_indices(op: NeighborsLinearIndicesOp, site: Site) -> list[ir.Value]:
    """The device's linear index one step down and one up along `split_axes`; -1 beyond either end."""
    device = [site.known(value) for value in op.operation.operands]
    if len(device) != site.mesh.rank:
        raise site.error(f"names a device by {len(device)} coordinates on a mesh of rank {site.mesh.rank}")
    emit, axes = site.emit, op.split_axes
    linear = _value(site, linearize(site, device, site.mesh.shape))
    number = _value(site, linearize(site, [device[axis] for axis in axes], [site.mesh.shape[axis] for axis in axes]))
    stays = emit.subtract(linear, _spread(site, number, axes))
    none = emit.scalar(-1)
    neighbours = []
    for step, beyond in ((-1, emit.compare("EQ", number, 0)), (1, _is_last(site, number, axes))):
        moved = emit.add(stays, _spread(site, emit.add(number, step), axes))
        neighbours.append(emit.select(beyond, none, moved))
    return neighbours


def _is_last(site: Site, number: ir.Value, axes: Axes) -> ir.Value:
    return site.emit.compare("EQ", number, site.mesh.group_size(axes) - 1)


def _spread(site: Site, number: ir.Value, axes: Axes) -> ir.Value:
    """What the in-group number along `axes` adds to a linear index: its digits, each times the stride of its axis."""
    emit, digits = site.emit, axis_digits(site.mesh, axes)
    total = emit.scalar(0)
    for index, digit in enumerate(digits):
        value, inner = number, group_size(digits[index + 1 :])
        if inner > 1:
            value = emit.elementwise("divide", value, inner)
        if index:
            value = emit.elementwise("remainder", value, digit.radix)
        total = emit.add(total, emit.multiply(value, digit.stride))
    return total


@lowers(ShardShapeOp)
def shard_shape(op: ShardShapeOp, site: Site) -> list[ir.Value]:
    """Per dimension the size of the device's shard: `sharded_dims_offsets` where given, else ceiling division, plus halos.

    Of a dimension that does not divide, the last shards are short: what partitioning pads them with does not count.
    """
    operands = list(op.operation.operands)
    position = [str(value.type) for value in operands].index(SHARDING_TYPE)
    sharding = sharding_of(op)
    shape = _shape(op, site, operands[:position])
    linear = _device(op, site, operands[position + 1 :])
    offsets, halos = _said_at_run_time(op, site, sharding)
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
        extent = site.emit.add(_extent(site, size, axes, starts, linear), sum(width for width in own if isinstance(width, int)))
        for width in own:
            extent = extent if isinstance(width, int) else site.emit.add(extent, width)
        sizes.append(extent)
    return sizes


def _said_at_run_time(op: ShardShapeOp, site: Site, sharding: Sharding) -> tuple[list[Member], list[Member]]:
    """The offsets and the halo sizes of the sharding, in 32 bits where only a run knows them."""
    operands = iter(list(definition_of_sharding(op).operation.operands))
    index = ir.IntegerType.get_signless(32)

    def filled(entries: Sequence[int]) -> list[Member]:
        members = [site.known(next(operands)) if entry == DYNAMIC else entry for entry in entries]
        return [member if isinstance(member, int) else site.emit.convert(member, index) for member in members]

    return filled(sharding.offsets), filled(sharding.halo_sizes)


def _extent(site: Site, size: Member, axes: Axes, starts: Sequence[Member], linear: ir.Value) -> ir.Value:
    """The size without halos of one dimension's shard on the device at position `linear`."""
    emit = site.emit
    number = number_along(linear, site.mesh, axis_digits(site.mesh, axes), emit)
    known = [start for start in starts if isinstance(start, int)]
    if starts and len(known) == len(starts):
        return entry(emit, np.diff(np.array(known)), number)
    if starts:
        table = emit.concatenate([emit.reshape(_value(site, start), [1]) for start in starts], 0)
        return emit.subtract(emit.entry(table, emit.add(number, 1)), emit.entry(table, number))
    if not isinstance(size, int):
        count = site.mesh.group_size(axes)
        most = emit.elementwise("divide", emit.add(size, count - 1), count)
        return emit.clamp(0, emit.subtract(size, emit.elementwise("multiply", number, most)), most)
    piece = -(-size // site.mesh.group_size(axes))
    if size == piece * site.mesh.group_size(axes):
        return _constant(site, size // site.mesh.group_size(axes))
    left = emit.subtract(emit.scalar(size), emit.multiply(number, piece))
    return emit.clamp(0, left, piece)


def definition_of_sharding(op: ShardShapeOp) -> ShardingOp:
    """The mesh.sharding that defines what shard_shape asks about."""
    operand = next(value for value in op.operation.operands if str(value.type) == SHARDING_TYPE)
    definition = operand.owner
    if isinstance(definition, ir.Block) or not isinstance(definition.opview, ShardingOp):
        raise OpError(op.operation, "needs a sharding that a mesh.sharding defines")
    return definition.opview


def sharding_of(op: ShardShapeOp) -> Sharding:
    """The sharding that shard_shape asks about, which names the mesh too."""
    sharding: Sharding = definition_of_sharding(op).value
    return sharding


def _shape(op: ShardShapeOp, site: Site, dynamic: list[ir.Value]) -> list[Member]:
    """The global tensor's shape, from the dialect's spec's `shape` or LLVM 21's `dims`; DYNAMIC where neither gives a size."""
    entries = iter(dynamic)
    listed = op.shape or op.dims
    shape = [site.known(next(entries, size)) if size == DYNAMIC else size for size in listed]
    known = [size for size in shape if isinstance(size, int)]
    if max(known, default=0) > _LARGEST:
        raise site.error(f"has a dimension of {max(known)}; indices have 32 bits")
    return shape


_LARGEST = 2**31 - 1


def _device(op: ShardShapeOp, site: Site, given: list[ir.Value]) -> ir.Value:
    """The device's linear index: the dialect's spec's operand, or LLVM 21's multi-index `device`."""
    listed = op.device
    if not listed:
        return given[0]
    entries = iter(given)
    index = [site.known(next(entries)) if entry == DYNAMIC else entry for entry in listed]
    if len(index) != site.mesh.rank:
        raise site.error(f"names a device by {len(index)} coordinates on a mesh of rank {site.mesh.rank}")
    return _value(site, linearize(site, index, site.mesh.shape))


def _value(site: Site, number: Member) -> ir.Value:
    return site.emit.scalar(number) if isinstance(number, int) else number


def _constant(site: Site, number: int) -> ir.Value:
    """A constant that dynamic index lists may refer to."""
    value = site.emit.scalar(number)
    site.constants[value] = number
    return value
