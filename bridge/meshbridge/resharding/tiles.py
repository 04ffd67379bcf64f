"""The exact exchange of tiles, for shards without a common number system: uneven, 2-way against 3-way, with halos or offsets.

Every dimension is cut where a source or a target shard begins or ends. A tile is what one device holds of another's target; it is
sent once, directly: the received bytes are the lower bound. A permute sends tiles of one volume, whatever their shapes, at most
one from and one to each device. So the tiles of each volume are coloured like the edges of a bipartite graph; a colour is a
round.

Mesh axes on which both shardings agree take no part: they are as many independent copies of the same exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from meshbridge.ir.digits import Digits
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.overlaps import Numbers
from meshbridge.resharding.steps import Shape, Step, describe


@dataclass(frozen=True, eq=False)
class Tiles:
    """Boxes of one shape. Entry i moves from device `senders[i]`, at `read_at[i]` in its buffer, to `receivers[i]`, at
    `write_at[i]`."""

    shape: Shape
    senders: Numbers
    receivers: Numbers
    read_at: Numbers
    "One column per dimension; likewise `write_at`."
    write_at: Numbers

    def __len__(self) -> int:
        return len(self.senders)

    @property
    def volume(self) -> int:
        """Elements of one tile."""
        return prod(self.shape)


@dataclass(frozen=True, eq=False)
class Round:
    """Tiles of one volume, at most one from and one to each device. `local` tiles stay on their device."""

    tiles: tuple[Tiles, ...]
    "By shape."
    volume: int
    "Elements of each tile."
    local: bool
    pieces: int = 1
    "The number of permutes: tiles in several pieces have one shape, and are split along its longest dimension."

    @property
    def longest(self) -> int:
        """The dimension along which the tiles are split into pieces."""
        shape = self.tiles[0].shape
        return shape.index(max(shape)) if shape else 0

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of the pieces along that dimension."""
        size = max(self.tiles[0].shape, default=1)
        step = -(-size // self.pieces)
        return tuple(min(step, size - start) for start in range(0, size, step))

    @property
    def piece_volume(self) -> int:
        """Elements of the largest piece."""
        if self.pieces == 1:
            return self.volume
        size = max(self.tiles[0].shape, default=1)
        return self.volume // size * -(-size // self.pieces)


@dataclass(frozen=True, eq=False)
class TileExchange(Step):
    """All rounds: first those that send, the largest tiles first. Devices are numbered along `digits`, which are whole mesh axes
    in mesh order."""

    source: Sharding
    target: Sharding
    dims: tuple[int, ...]
    "The tensor dimensions that take part; a tile spans all of the buffer in the others."
    digits: Digits
    rounds: tuple[Round, ...]

    @cached_property
    def collectives(self) -> int:
        return sum(round_.pieces for round_ in self.rounds if not round_.local)

    def received(self, elements: int) -> float:
        return self._most[1]

    def sent(self, elements: int) -> float:
        return self._most[0]

    def total(self, elements: int, devices: int) -> float:
        copies = devices // prod(digit.radix for digit in self.digits)
        return float(copies * sum(len(tiles) * tiles.volume for tiles in self._moving))

    def peak(self, before: int, after: int) -> int:
        """The first tiles arrive before there is a result; then there are both shards, the tile that is sent and the one that
        arrives."""
        moving = [round_ for round_ in self.rounds if not round_.local]
        buffers, shards = before, before + after
        peak = shards
        for round_ in moving:
            arrived = round_.piece_volume
            sending = 0 if round_.volume == before else arrived
            peak = max(peak, buffers + sending + arrived, shards + arrived)
            buffers = shards
        return peak

    @cached_property
    def _moving(self) -> tuple[Tiles, ...]:
        return tuple(tiles for round_ in self.rounds if not round_.local for tiles in round_.tiles)

    @cached_property
    def _most(self) -> tuple[float, float]:
        """Elements that the busiest sender sends and the busiest receiver receives."""
        if not self._moving:
            return 0.0, 0.0
        volumes = np.concatenate([np.full(len(tiles), tiles.volume) for tiles in self._moving])
        ends = ([tiles.senders for tiles in self._moving], [tiles.receivers for tiles in self._moving])
        sends, receives = (float(np.bincount(np.concatenate(columns), weights=volumes).max()) for columns in ends)
        return sends, receives

    def text(self, mesh: Mesh) -> str:
        return f"exchange tiles in {self.collectives} permutes over {describe(mesh, self.digits)}"
