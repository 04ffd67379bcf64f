"""Finds the tiles of an exchange (`tiles`): who sends what to whom, in which round.

Tiles are computed all at once, as columns of numbers: the overlaps of every dimension (`overlaps`), multiplied with each other
and with the devices that need them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np

from meshbridge.ir.digits import axis_digits, group_index, numbered
from meshbridge.ir.sharding import Axes, Mesh, Sharding
from meshbridge.resharding.boxes import layout
from meshbridge.resharding.colouring import colour_edges
from meshbridge.resharding.overlaps import Numbers, Overlaps, overlaps, ranges, sorted_by, whole_dimension
from meshbridge.resharding.steps import Shape
from meshbridge.resharding.tiles import Round, TileExchange, Tiles


@lru_cache(maxsize=1024)
def tile_exchange(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, tight: bool = False) -> TileExchange:
    """The exchange from the buffers of `source` to those of `target`, partial axes aside.

    `tight` also skips the padding of dimensions that are sharded alike before and after, at the price of more tile shapes.
    """
    before, after = layout(shape, mesh, source), layout(shape, mesh, target)
    pairs = list(zip(before, after, strict=True))
    dims = tuple(d for d, (a, b) in enumerate(pairs) if a != b or (tight and not a.is_uniform))
    axes = tuple(sorted({axis for d in dims for axis in (*before[d].axes, *after[d].axes)}))
    met = [overlaps(a, b) if d in dims else whole_dimension(b.local) for d, (a, b) in enumerate(pairs)]
    rounds = tuple(_rounds(_TileSearch(mesh, axes, met)))
    return TileExchange(tuple(dim.local for dim in after), source, target, dims, axis_digits(mesh, axes), rounds)


def split_large_tiles(exchange: TileExchange, before: int) -> TileExchange:
    """Splits large tiles into pieces, so that beside both shards there is never more than a buffer of the smaller one.

    `before` is the number of elements of the source's buffer.
    """
    least = min(before, prod(exchange.shape))
    rounds: list[Round] = []
    for round_ in exchange.rounds:
        if round_.local or not rounds or round_.volume == before or 2 * round_.volume <= least:
            rounds.append(round_)
        else:
            rounds += (_in_pieces(tiles, least) for tiles in round_.tiles)
    return replace(exchange, rounds=tuple(rounds))


def _in_pieces(tiles: Tiles, most: int) -> Round:
    """A round of one tile shape, split along the longest dimension: two pieces have `most` elements, or each is one slice."""
    size = max(tiles.shape)
    length = max(1, most // (2 * tiles.volume // size))
    return Round((tiles,), tiles.volume, local=False, pieces=-(-size // length))


def exchanged_axes(source: Sharding, target: Sharding) -> Axes:
    """The mesh axes that take part, whatever the shape."""
    pairs = zip(source.split_axes, target.split_axes, strict=True)
    return tuple({axis for before, after in pairs if before != after for axis in (*before, *after)})


def tiles_of_a_receiver(mesh: Mesh, source: Sharding, target: Sharding) -> int:
    """About how many tiles make up a device's shard of the target: the number of permutes."""
    pairs = [pair for pair in zip(source.split_axes, target.split_axes, strict=True) if pair[0] != pair[1]]
    return prod(-(-mesh.group_size(before) // mesh.group_size(after)) for before, after in pairs)


@dataclass
class _TileSearch:
    """All tiles, on the mesh of the active axes alone: senders and receivers, and in each dimension the index of the overlap."""

    mesh: Mesh
    axes: Axes
    met: list[Overlaps]

    def __post_init__(self) -> None:
        self.devices = self.mesh.group_size(self.axes)
        self.digits = numbered(axis_digits(self.mesh, self.axes))
        self.receivers: Numbers = np.arange(self.devices)
        self.entries: list[Numbers] = []
        for dim in self.met:
            blocks = self._block(dim.target_axes)[self.receivers]
            count = dim.count[blocks]
            self.receivers, self.entries = np.repeat(self.receivers, count), [np.repeat(e, count) for e in self.entries]
            self.entries.append(ranges(dim.first[blocks], count))
        self.volumes: Numbers = np.ones(len(self.receivers), np.int64)
        for dim, entry in zip(self.met, self.entries, strict=True):
            self.volumes = self.volumes * dim.size[entry]
        self.senders = self._senders()

    def _block(self, axes: Axes) -> Numbers:
        """The number of every device along `axes`."""
        return group_index(tuple(self.digits[axis] for axis in axes), np.arange(self.devices))

    def _senders(self) -> Numbers:
        """For every tile a device that holds it: the receiver if possible, else one of the holders in turn."""
        fixed, devices = [axis for dim in self.met for axis in dim.source_axes], np.arange(self.devices)
        holder = np.zeros(len(self.receivers), np.int64)
        for dim, entry in zip(self.met, self.entries, strict=True):
            block = dim.source[entry]
            for digit in reversed([self.digits[axis] for axis in dim.source_axes]):
                holder += block % digit.radix * digit.stride
                block = block // digit.radix
        own = sum((self.digits[axis].of(devices) * self.digits[axis].stride for axis in fixed), np.zeros_like(devices))
        free = tuple(axis for axis in self.axes if axis not in fixed)
        if not free:
            return holder
        copies = self._block(free)
        number_of_copy = np.zeros(self.mesh.group_size(free), np.int64)
        number_of_copy[copies] = devices - own
        moves = holder != own[self.receivers]
        chosen = copies[self.receivers]
        chosen[moves] = _in_turn(self.volumes[moves], holder[moves], chosen[moves], self.receivers[moves], len(number_of_copy))
        return holder + number_of_copy[chosen]

    def column(self, name: str, tiles: Numbers) -> Numbers:
        """The field `name` of the overlaps of the given tiles, one column per dimension."""
        columns = [getattr(dim, name)[entry[tiles]] for dim, entry in zip(self.met, self.entries, strict=True)]
        return np.stack(columns, axis=1) if columns else np.zeros((len(tiles), 0), np.int64)


def _in_turn(volumes: Numbers, holders: Numbers, nearest: Numbers, receivers: Numbers, copies: int) -> Numbers:
    """Which copy of its holder sends each tile: the nearest to the receiver if that keeps copies equally busy, else in turn."""
    if not len(volumes):
        return nearest
    order = sorted_by(volumes, holders, nearest, receivers)
    begins_group = _changes(volumes[order], holders[order])
    group = np.cumsum(begins_group) - 1
    size = np.bincount(group)[group]
    rank = np.arange(len(order)) - np.flatnonzero(begins_group)[group]
    near = nearest[order]
    pair = np.cumsum(begins_group | _changes(near)) - 1
    crowd = np.zeros(group[-1] + 1, np.int64)
    np.maximum.at(crowd, group, np.bincount(pair)[pair])
    chosen = np.empty_like(nearest)
    chosen[order] = np.where(crowd[group] <= -(-size // copies), near, rank * copies // size)
    return chosen


def _changes(*columns: Numbers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Whether a row differs from the row before; True for row 0."""
    differs = np.ones(len(columns[0]), bool)
    differs[1:] = False
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return differs


def _rounds(search: _TileSearch) -> Iterator[Round]:
    """The tiles that are sent, by volume and colour, the largest first; then those that stay."""
    stays = search.senders == search.receivers
    moving, staying = np.flatnonzero(~stays), np.flatnonzero(stays)
    colours = np.zeros(len(search.receivers), np.int64)
    shapes = _shape_numbers(search)
    volume_of = np.zeros(shapes.max(initial=0) + 1, np.int64)
    volume_of[shapes[moving]] = search.volumes[moving]
    for volume in np.unique(volume_of[volume_of > 0]):
        group = moving[search.volumes[moving] == volume]
        colours[group] = colour_edges(search.senders[group], search.receivers[group])
    order = staying[sorted_by(search.receivers[staying], shapes[staying])]
    begins_run = _changes(search.receivers[order], shapes[order])
    colours[order] = np.arange(len(order)) - np.flatnonzero(begins_run)[np.cumsum(begins_run) - 1] if len(order) else 0
    yield from _grouped(search, moving, (search.volumes.max(initial=0) - search.volumes, colours), shapes, local=False)
    yield from _grouped(search, staying, (shapes, colours), shapes, local=True)


def _shape_numbers(search: _TileSearch) -> Numbers:
    """A number for every tile, equal for equal shapes."""
    number = np.zeros(len(search.receivers), np.int64)
    for dim, entry in zip(search.met, search.entries, strict=True):
        sizes, which = np.unique(dim.size, return_inverse=True)
        number = number * len(sizes) + which[entry]
    return number


def _grouped(search: _TileSearch, tiles: Numbers, keys: tuple[Numbers, Numbers], shapes: Numbers, local: bool) -> Iterator[Round]:
    """A round for each pair of keys, in their order, with its tiles by shape."""
    if not len(tiles):
        return
    columns = [key[tiles] for key in (*keys, shapes)]
    order = sorted_by(*columns, search.receivers[tiles])
    tiles, columns = tiles[order], [column[order] for column in columns]
    senders, receivers = search.senders[tiles], search.receivers[tiles]
    read_at, write_at, sizes = (search.column(name, tiles) for name in ("read_at", "write_at", "size"))
    begins_round = _changes(*columns[:2])
    starts = np.flatnonzero(begins_round | _changes(columns[2]))
    round_starts = np.flatnonzero(begins_round[starts]).tolist()
    bounds = [*starts.tolist(), len(tiles)]
    tile_shapes = [tuple(row) for row in sizes[starts].tolist()]
    parts = [
        Tiles(shape, senders[a:z], receivers[a:z], read_at[a:z], write_at[a:z])
        for shape, (a, z) in zip(tile_shapes, pairwise(bounds), strict=True)
    ]
    for a, z in pairwise([*round_starts, len(parts)]):
        yield Round(tuple(parts[a:z]), parts[a].volume, local)
