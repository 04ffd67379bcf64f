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
    shape = _static_shape(op, site, operands[:position])
    linear = _device(op, site, operands[position + 1 :])
    halos, offsets = list(sharding.halo_sizes), list(sharding.offsets)
    sizes = []
    for size, axes in zip(shape, sharding.padded(len(shape)).split_axes, strict=True):
        if not axes:
            sizes.append(_constant(site, size))
            continue
        count = site.mesh.group_size(axes)
        starts, offsets = offsets[: count + 1], offsets[count + 1 :]
        halo, halos = sum(halos[:2]), halos[2:]
        sizes.append(site.emit.add(_extent(site, size, axes, starts, linear), halo))
    return sizes


def _extent(site: Site, size: int, axes: Axes, starts: Sequence[int], linear: ir.Value) -> ir.Value:
    """The size without halos of one dimension's shard on the device at position `linear`."""
    emit = site.emit
    number = number_along(linear, site.mesh, axis_digits(site.mesh, axes), emit)
    if starts:
        return entry(emit, np.diff(np.array(starts)), number)
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
    """The sharding that shard_shape asks about, which names the mesh too. Raises OpError if it is not constant."""
    sharding: Sharding = definition_of_sharding(op).value
    if DYNAMIC in sharding.halo_sizes + sharding.offsets:
        raise OpError(op.operation, "needs a sharding with constant halo sizes and offsets")
    return sharding


def _static_shape(op: ShardShapeOp, site: Site, dynamic: list[ir.Value]) -> list[int]:
    """The global tensor's shape, from the dialect's spec's `shape` or LLVM 21's `dims`."""
    entries = iter(dynamic)
    listed = op.shape or op.dims
    shape = [site.known(next(entries, size)) if size == DYNAMIC else size for size in listed]
    known = [size for size in shape if isinstance(size, int) and size != DYNAMIC]
    if len(known) != len(shape):
        raise site.error("needs a constant shape: XLA has no tensors of any other")
    if max(known, default=0) > _LARGEST:
        raise site.error(f"has a dimension of {max(known)}; indices have 32 bits")
    return known


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
