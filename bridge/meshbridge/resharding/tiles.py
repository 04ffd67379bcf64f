"""The exact exchange of tiles, for shards without a common number system: uneven, 2-way against 3-way, with halos or offsets.

Cut every dimension where a source or a target shard begins or ends. What one device holds of another's target is then one tile,
which moves once, directly: the received bytes are the lower bound. A permute moves tiles of one shape, at most one from and one
to each device, so the tiles of each shape are coloured like the edges of a bipartite graph; every colour is a round.

Mesh axes on which both shardings agree take no part: they are as many independent copies of the same exchange.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from meshbridge.resharding.boxes import Layout, layout
from meshbridge.resharding.colouring import colour_edges
from meshbridge.resharding.steps import Digits, Shape, Step, axis_digits, describe
from meshbridge.sharding import Axes, Mesh, Sharding


@dataclass(frozen=True)
class Tile:
    """A box that moves from one device of the exchange to another: its shape, and where it begins in their buffers."""

    sender: int
    receiver: int
    shape: Shape
    taken: tuple[int, ...]
    put: tuple[int, ...]


@dataclass(frozen=True)
class Round:
    """Tiles of one shape, at most one from and one to each device. `local` ones stay where they are."""

    shape: Shape
    tiles: tuple[Tile, ...]
    local: bool


@dataclass(frozen=True)
class TileExchange(Step):
    """All rounds. Devices are numbered along `digits`, which are whole mesh axes in mesh order."""

    source: Sharding
    target: Sharding
    dims: tuple[int, ...]
    "The tensor dimensions that take part; a tile has all of the buffer in the others."
    digits: Digits
    rounds: tuple[Round, ...]

    @property
    def collectives(self) -> int:
        return sum(not each.local for each in self.rounds)

    def received(self, elements: int) -> float:
        return _most((tile.receiver, tile) for tile in self._moving())

    def sent(self, elements: int) -> float:
        return _most((tile.sender, tile) for tile in self._moving())

    def total(self, elements: int, devices: int) -> float:
        copies = devices // prod(digit.radix for digit in self.digits)
        return float(copies * sum(prod(tile.shape) for tile in self._moving()))

    def scratch(self, elements: int) -> int:
        return 2 * max((prod(each.shape) for each in self.rounds if not each.local), default=0)

    def _moving(self) -> Iterator[Tile]:
        return (tile for each in self.rounds if not each.local for tile in each.tiles)

    def text(self, mesh: Mesh) -> str:
        return f"exchange tiles in {self.collectives} permutes over {describe(mesh, self.digits)}"


def _most(tiles: Iterable[tuple[int, Tile]]) -> float:
    """Elements of the device with the most of them, given a device for each tile."""
    elements: dict[int, int] = {}
    for device, tile in tiles:
        elements[device] = elements.get(device, 0) + prod(tile.shape)
    return float(max(elements.values(), default=0))


def tile_exchange(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, tight: bool = False) -> TileExchange:
    """The exchange that turns the buffers of `source` into those of `target`, partial axes aside.

    `tight` leaves the padding of dimensions that lie alike before and after behind too, at the price of more tile shapes.
    """
    before, after = layout(shape, mesh, source), layout(shape, mesh, target)
    dims = tuple(d for d, (a, b) in enumerate(zip(before, after, strict=True)) if a != b or (tight and not a.is_uniform))
    axes = tuple(sorted({axis for dim in dims for axis in (*before[dim].axes, *after[dim].axes)}))
    tiles = _Tiles(mesh, dims, axes, before, after).all()
    local = tuple(dim.local for dim in after)
    return TileExchange(local, source, target, dims, axis_digits(mesh, axes), tuple(_rounds(tiles)))


def expected_tiles(mesh: Mesh, source: Sharding, target: Sharding) -> int:
    """About how many tiles all devices of an exchange receive."""
    pairs = [pair for pair in zip(source.split_axes, target.split_axes, strict=True) if pair[0] != pair[1]]
    devices = mesh.group_size(tuple({axis for pair in pairs for axes in pair for axis in axes}))
    return devices * prod(-(-mesh.group_size(before) // mesh.group_size(after)) for before, after in pairs)


@dataclass
class _Tiles:
    """Finds who sends what to whom, on the mesh of the active axes alone."""

    mesh: Mesh
    dims: tuple[int, ...]
    axes: Axes
    before: Layout
    after: Layout

    def all(self) -> list[Tile]:
        """Every tile of every receiver, a device's own ones included."""
        self.strides = {axis: prod(self.mesh.shape[a] for a in self.axes[i + 1 :]) for i, axis in enumerate(self.axes)}
        self.fixed = {axis for dim in self.dims for axis in self.before[dim].axes}
        self.load: dict[tuple[int, Shape], int] = {}
        places = itertools.product(*(range(self.mesh.shape[axis]) for axis in self.axes))
        named = [dict(zip(self.axes, place, strict=True)) for place in places]
        return [tile for number, place in enumerate(named) for tile in self._received(number, place)]

    def _received(self, receiver: int, place: dict[int, int]) -> Iterator[Tile]:
        """The tiles of one receiver: per dimension, the source blocks that its target box meets."""
        meets = [
            self._met(dim, place) if dim in self.dims else [(-1, 0, self.after[dim].local, 0, 0)]
            for dim in range(len(self.after))
        ]
        for parts in itertools.product(*meets):
            shape = tuple(size for _, _, size, _, _ in parts)
            sender = self._sender(receiver, place, [block for block, *_ in parts], shape)
            yield Tile(sender, receiver, shape, tuple(taken for *_, taken, _ in parts), tuple(put for *_, put in parts))

    def _met(self, dim: int, place: dict[int, int]) -> list[tuple[int, int, int, int, int]]:
        """(source block, start, size, index in the sender's buffer, index in the receiver's) along `dim`."""
        before, after = self.before[dim], self.after[dim]
        own = self._block(after.axes, place)
        start, stop = after.kept[own]
        if before == after:  # a tight exchange: what lies alike comes from a device that holds the same block
            return [(own, start, stop - start, start - before.origin[own], start - after.origin[own])] if start < stop else []
        met = []
        for block, (low, high) in enumerate(before.owned):
            a, z = max(start, low), min(stop, high)
            if a < z:
                met.append((block, a, z - a, a - before.origin[block], a - after.origin[own]))
        return met

    def _block(self, axes: Axes, place: dict[int, int]) -> int:
        block = 0
        for axis in axes:
            block = block * self.mesh.shape[axis] + place[axis]
        return block

    def _sender(self, receiver: int, place: dict[int, int], blocks: list[int], shape: Shape) -> int:
        """A device that holds the blocks: the receiver itself, else the least loaded one, the nearest of them."""
        held = dict(place)
        for dim, block in zip(self.before, blocks, strict=True):
            if block >= 0:
                for axis in reversed(dim.axes):
                    block, held[axis] = divmod(block, self.mesh.shape[axis])
        if all(held[axis] == place[axis] for axis in self.fixed):
            return receiver
        nearest = sum(held[axis] * stride for axis, stride in self.strides.items())
        free = [axis for axis in self.axes if axis not in self.fixed]
        holders = [nearest]
        for axis in free:
            stride, size = self.strides[axis], self.mesh.shape[axis]
            turns = [((place[axis] + shift) % size - place[axis]) * stride for shift in range(size)]
            holders = [holder + turn for holder in holders for turn in turns]
        sender = min(holders, key=lambda holder: self.load.get((holder, shape), 0))
        self.load[sender, shape] = self.load.get((sender, shape), 0) + 1
        return sender


def _rounds(tiles: list[Tile]) -> Iterator[Round]:
    by_shape: dict[tuple[bool, Shape], list[Tile]] = {}
    for tile in tiles:
        by_shape.setdefault((tile.sender == tile.receiver, tile.shape), []).append(tile)
    for (local, shape), group in sorted(by_shape.items(), key=lambda item: (not item[0][0], item[0][1])):
        colours = colour_edges([(tile.sender, tile.receiver) for tile in group])
        for colour in range(max(colours) + 1):
            yield Round(shape, tuple(tile for tile, its in zip(group, colours, strict=True) if its == colour), local)
