"""Checks an exchange of tiles: every element of every target shard arrives once, from a device that holds it."""

from __future__ import annotations

import numpy as np

from meshbridge.ir.digits import group_index, group_size, numbered
from meshbridge.ir.sharding import Axes
from meshbridge.resharding.boxes import DimLayout, Interval, layout
from meshbridge.resharding.factors import PlanError
from meshbridge.resharding.overlaps import Numbers, sorted_by, starts_and_stops
from meshbridge.resharding.plan import ReshardingPlan
from meshbridge.resharding.tiles import TileExchange


def check_tiles(plan: ReshardingPlan, step: TileExchange) -> None:
    """Raises PlanError if the rounds of `step` do not fill the shards of its target from those of its source."""
    columns = _TileColumns(step)
    _check_rounds(step, columns)
    _Boxes(plan, step, columns).check()


class _TileColumns:
    """All tiles of all rounds as columns."""

    def __init__(self, step: TileExchange) -> None:
        none = np.zeros(0, np.int64)
        self.tiles = [tiles for round_ in step.rounds for tiles in round_.tiles]
        self.counts = [len(tiles) for tiles in self.tiles]
        self.senders = np.concatenate([none, *(tiles.senders for tiles in self.tiles)])
        self.receivers = np.concatenate([none, *(tiles.receivers for tiles in self.tiles)])
        self.read_at, self.write_at = (
            np.concatenate([np.zeros((0, len(step.shape)), np.int64), *(getattr(tiles, name) for tiles in self.tiles)])
            for name in ("read_at", "write_at")
        )

    def by_tile(self, numbers: list[int]) -> Numbers:
        """Repeats each number of `numbers` for every tile of its box shape."""
        return np.repeat(np.array(numbers, np.int64), self.counts)


def _check_rounds(step: TileExchange, columns: _TileColumns) -> None:
    """Each round sends tiles of one volume, at most one from and one to each device."""
    for round_ in step.rounds:
        if any(tiles.volume != round_.volume for tiles in round_.tiles) or (round_.pieces > 1 and len(round_.tiles) > 1):
            raise PlanError("a round of permutes sends tiles of several sizes")
    rounds = columns.by_tile([number for number, round_ in enumerate(step.rounds) for _ in round_.tiles])
    for devices in (columns.senders, columns.receivers):
        if np.bincount(rounds * group_size(step.digits) + devices).max(initial=0) > 1:
            raise PlanError("a round of permutes sends twice from or to one device")
    stays = columns.by_tile([round_.local for round_ in step.rounds for _ in round_.tiles])
    if (columns.senders != columns.receivers)[stays > 0].any():
        raise PlanError("a round without a permute sends a tile")


class _Boxes:
    """The boxes of an exchange on its devices. A dimension that takes no part counts as all of the buffer."""

    def __init__(self, plan: ReshardingPlan, step: TileExchange, columns: _TileColumns) -> None:
        self.columns = columns
        self.pairs = list(
            zip(layout(plan.shape, plan.mesh, step.source), layout(plan.shape, plan.mesh, step.target), strict=True)
        )
        self.step = step
        self.digits = numbered(step.digits)
        self.devices = group_size(step.digits)

    def _block(self, axes: Axes, device: Numbers) -> Numbers:
        return group_index(tuple(self.digits[axis] for axis in axes), device)

    def check(self) -> None:
        """Checks that the tiles come from where their elements are, and fill every receiver's box with each element once."""
        wanted = np.ones(self.devices, np.int64)
        boxes = []
        for dim, (a, b) in enumerate(self.pairs):
            if dim in self.step.dims:
                start, stop = starts_and_stops(b.kept)
                wanted = wanted * (stop - start)[self._block(b.axes, np.arange(self.devices))]
            elif a != b:
                raise PlanError(f"dimension {dim} is sharded differently in the target, and its tiles do not say so")
            else:
                wanted = wanted * b.local
            boxes.append(self._interval(dim, a, b))
        volumes = self.columns.by_tile([tiles.volume for tiles in self.columns.tiles])
        filled = np.bincount(self.columns.receivers, weights=volumes, minlength=self.devices)
        if (filled != wanted).any() or not _is_grid(self.columns.receivers, boxes):
            raise PlanError("the tiles of an exchange do not fill the shards of its target")

    def _interval(self, dim: int, a: DimLayout, b: DimLayout) -> tuple[Numbers, Numbers]:
        """The range of elements of every tile along `dim`. Raises PlanError if it does not fit at both ends."""
        size = self.columns.by_tile([tiles.shape[dim] for tiles in self.columns.tiles])
        read_at, write_at = self.columns.read_at[:, dim], self.columns.write_at[:, dim]
        if dim not in self.step.dims:
            source_range = target_range = (np.zeros_like(read_at), np.full_like(read_at, b.local))
        else:
            source_block, target_block = self._block(a.axes, self.columns.senders), self._block(b.axes, self.columns.receivers)
            read_at, write_at = read_at + np.array(a.origin)[source_block], write_at + np.array(b.origin)[target_block]
            source_range, target_range = _at(source_block, a.kept if a == b else a.owned), _at(target_block, b.kept)
        fits = [(low <= read_at) & (read_at + size <= high) for low, high in (source_range, target_range)]
        if not (np.all(fits) and (read_at == write_at).all()):
            raise PlanError("a tile has elements that its sender does not hold or its receiver does not want")
        return read_at, read_at + size


def _at(blocks: Numbers, intervals: tuple[Interval, ...]) -> tuple[Numbers, Numbers]:
    """Starts and stops of the intervals of these blocks."""
    start, stop = starts_and_stops(intervals)
    return start[blocks], stop[blocks]


def _is_grid(receivers: Numbers, boxes: list[tuple[Numbers, Numbers]]) -> bool:
    """Whether no two boxes of one receiver overlap: in each dimension, their intervals are equal or disjoint."""
    corners = [receivers, *(start for start, _ in boxes)]
    corner_order = order = sorted_by(*corners)
    for number, (start, stop) in enumerate(boxes):
        if number:  # the order of all corners is that of the first dimension too
            order = sorted_by(receivers, start)
        where, low, high = receivers[order], start[order], stop[order]
        equal = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
        if not (equal | (low[1:] >= high[:-1]) | (where[1:] != where[:-1])).all():
            return False
    return not np.all([corner[corner_order][1:] == corner[corner_order][:-1] for corner in corners], axis=0).any()
