"""Lowers exchanges between neighbours along one mesh axis: shift, update_halo."""

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

    The dialect leaves the result undefined on devices that receive nothing. Here it is zero, or the input if nothing is sent.
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
    """A sharded dimension: `before` cells of the previous shards, `core` cells of its own, `after` cells of the next ones."""

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
    """Two shifts per dimension, and more only if a halo is wider than the neighbour's core.

    Each dimension sends the halos of the dimensions before it, too, so that corners arrive over two edges. Cells outside the
    global tensor keep their values.
    """
    destination = op.operation.operands[0]
    halos = [halo for halo in _halos(op, site) if halo.before + halo.after]
    shared = [halo for halo in halos if halo.shards > 1]
    if not shared:
        return [destination]
    builder, updated = site.builder, destination
    for halo in shared:
        updated = _exchanged(updated, halo)
    inside = [_inside(halo, shape_of(destination)) for halo in halos]
    mask = inside[0]
    for inside_dim in inside[1:]:
        mask = builder.elementwise("and", mask, inside_dim)
    return [builder.select(mask, updated, destination)]


def _halos(op: UpdateHaloOp, site: Site) -> list[Halo]:
    """The halos of a shard; the op has two sizes for each sharded dimension, in order of dimensions."""
    split = [(dim, axes) for dim, axes in enumerate(op.split_axes) if axes]
    dynamic = iter(list(op.operation.operands)[1:])
    sizes = [site.known(next(dynamic)) if size == DYNAMIC else size for size in op.halo_sizes]
    shape = shape_of(op.operation.operands[0])
    if sizes and len(sizes) != 2 * len(split):
        raise site.error(f"has {len(sizes)} halo sizes for {len(split)} split dimensions; expected two for each")
    halos = []
    for (dim, axes), before, after in zip(split, sizes[0::2], sizes[1::2], strict=False):
        if not isinstance(before, int) or not isinstance(after, int):
            hint = "give the largest sizes as constants, halo_sizes = [1, 2], and slice what is wanted after it"
            raise site.error("needs constant halo sizes: they decide what XLA's permutes carry", hint)
        core = shape[dim] - before - after if dim < len(shape) else 0
        if min(before, after) < 0 or core < 1:
            raise site.error(f"halos of {before} and {after} leave no core of dimension {dim} in shape {shape}")
        halos.append(Halo(dim, replace(site, axes=axes), before, core, after))
    return halos


def _exchanged(value: ir.Value, halo: Halo) -> ir.Value:
    """`value` with both halos of one dimension received from their owners."""
    builder, dim = halo.along.builder, halo.dim
    core = builder.slice(value, dim, halo.before, halo.core)
    before = [_received(value, core, halo, hop, width) for hop, width in _hops(halo.before, halo.core)]
    after = [_received(value, core, halo, -hop, width) for hop, width in _hops(halo.after, halo.core)]
    return builder.concatenate([*reversed(before), core, *after], dim)


def _hops(halo: int, core: int) -> list[tuple[int, int]]:
    """The (distance, cells) of each shard that owns part of a halo, nearest first."""
    return [(1 + start // core, min(core, halo - start)) for start in range(0, halo, core)]


def _received(value: ir.Value, core: ir.Value, halo: Halo, hop: int, width: int) -> ir.Value:
    """The nearest `width` elements of the shard `hop` devices before this one (after it, if negative)."""
    builder, dim, shards = halo.along.builder, halo.dim, halo.shards
    if abs(hop) >= shards:  # beyond the mesh: outside the tensor on every device
        start = halo.before - halo.core * (hop - 1) - width if hop > 0 else halo.before + halo.core * -hop
        return builder.slice(value, dim, start, width)
    edge = builder.slice(core, dim, halo.core - width if hop > 0 else 0, width)
    return halo.along.shifted(edge, hop)


def _inside(halo: Halo, shape: list[int]) -> ir.Value:
    """A mask of the elements inside the global tensor along this dimension."""
    builder, site = halo.along.builder, halo.along
    origin = builder.add(builder.beginning(site.in_group(), halo.shards, halo.core), -halo.before)
    inside = builder.within(builder.count_from(origin, shape[halo.dim]), halo.core * halo.shards)
    return builder.broadcast(inside, shape, [halo.dim])
