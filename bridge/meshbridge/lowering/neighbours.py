"""Moves along one axis of the mesh: shift, update_halo."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshbridge.dialect.ops import ShiftOp, UpdateHaloOp
from meshbridge.ir.builder import shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.lowering.site import Site, lowers


@lowers(ShiftOp)
def shift(op: ShiftOp, site: Site) -> list[ir.Value]:
    """One permute, or all-to-alls: device i along `shift_axis` sends to i + offset, modulo the axis with `rotate`.

    Where nothing arrives the result is undefined by the dialect; here it is zero, or the input if nothing moves at all.
    """
    if op.shift_axis not in site.axes:
        raise site.error(f"shift_axis {op.shift_axis} is not one of mesh_axes = {list(site.axes)}")
    along = replace(site, axes=(op.shift_axis,))
    size, offset = along.group_size, op.offset
    if not (offset % size if op.rotate else offset and abs(offset) < size):
        return [op.input]
    return [along.shifted(op.input, offset, rotate=op.rotate)]


@dataclass(frozen=True)
class Halo:
    """One split dimension of a shard: `before` cells of the previous shards, the shard's own `core`, `after` of the next ones."""

    dim: int
    along: Site
    """The site with the mesh axes that split this dimension."""
    before: int
    core: int
    after: int

    @property
    def shards(self) -> int:
        return self.along.group_size


@lowers(UpdateHaloOp)
def update_halo(op: UpdateHaloOp, site: Site) -> list[ir.Value]:
    """Two shifts per dimension, more only for a halo wider than the neighbour's core.

    Dimension by dimension, each with the halos of the ones before it, so that corners arrive over two edges. Cells outside of the
    global tensor keep what they held.
    """
    destination = op.operation.operands[0]
    halos = [halo for halo in _halos(op, site) if halo.before + halo.after]
    shared = [halo for halo in halos if halo.shards > 1]
    if not shared:
        return [destination]
    emit, updated = site.emit, destination
    for halo in shared:
        updated = _exchanged(updated, halo)
    inside = [_inside(halo, shape_of(destination)) for halo in halos]
    mask = inside[0]
    for other in inside[1:]:
        mask = emit.elementwise("and", mask, other)
    return [emit.select(mask, updated, destination)]


def _halos(op: UpdateHaloOp, site: Site) -> list[Halo]:
    """Halo sizes come two for each tensor dimension that is split, in order of dimensions."""
    split = [(dim, axes) for dim, axes in enumerate(op.split_axes) if axes]
    dynamic = iter(list(op.operation.operands)[1:])
    sizes = [site.known(next(dynamic)) if size == DYNAMIC else size for size in op.halo_sizes]
    shape = shape_of(op.operation.operands[0])
    if sizes and len(sizes) != 2 * len(split):
        raise site.error(f"has {len(sizes)} halo sizes for {len(split)} split dimensions; expected two for each")
    halos = []
    for (dim, axes), before, after in zip(split, sizes[0::2], sizes[1::2], strict=False):
        if not isinstance(before, int) or not isinstance(after, int):
            hint = "give the largest sizes as constants, halo_sizes = [1, 2], and slice what is wanted behind it"
            raise site.error("needs constant halo sizes: they decide what XLA's permutes carry", hint)
        core = shape[dim] - before - after if dim < len(shape) else 0
        if min(before, after) < 0 or core < 1:
            raise site.error(f"halos of {before} and {after} leave no core of dimension {dim} in shape {shape}")
        halos.append(Halo(dim, replace(site, axes=axes), before, core, after))
    return halos


def _exchanged(value: ir.Value, halo: Halo) -> ir.Value:
    """`value` with both halos of one dimension received from their owners."""
    emit, dim = halo.along.emit, halo.dim
    core = emit.slice(value, dim, halo.before, halo.core)
    before = [_received(value, core, halo, hop, width) for hop, width in _hops(halo.before, halo.core)]
    after = [_received(value, core, halo, -hop, width) for hop, width in _hops(halo.after, halo.core)]
    return emit.concatenate([*reversed(before), core, *after], dim)


def _hops(halo: int, core: int) -> list[tuple[int, int]]:
    """(distance, cells) of the shards that own a halo, nearest first."""
    return [(1 + start // core, min(core, halo - start)) for start in range(0, halo, core)]


def _received(value: ir.Value, core: ir.Value, halo: Halo, hop: int, width: int) -> ir.Value:
    """The `width` elements of the shard `hop` devices before (after, if negative) that are nearest to this one."""
    emit, dim, shards = halo.along.emit, halo.dim, halo.shards
    if abs(hop) >= shards:  # farther than the mesh reaches: outside of the tensor everywhere
        start = halo.before - halo.core * (hop - 1) - width if hop > 0 else halo.before + halo.core * -hop
        return emit.slice(value, dim, start, width)
    sent = emit.slice(core, dim, halo.core - width if hop > 0 else 0, width)
    return halo.along.shifted(sent, hop)


def _inside(halo: Halo, shape: list[int]) -> ir.Value:
    """Which elements are inside of the global tensor along this dimension."""
    emit, site = halo.along.emit, halo.along
    origin = emit.add(emit.beginning(site.in_group(), halo.shards, halo.core), -halo.before)
    inside = emit.within(emit.count_from(origin, shape[halo.dim]), halo.core * halo.shards)
    return emit.broadcast(inside, shape, [halo.dim])
