"""Executes an exchange of tiles on the boxes of its devices: every element of every target shard comes once, from where it is."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from math import prod

from meshbridge.resharding.boxes import layout
from meshbridge.resharding.factors import PlanError
from meshbridge.resharding.plan import Plan
from meshbridge.resharding.steps import group_size
from meshbridge.resharding.tiles import Tile, TileExchange
from meshbridge.sharding import Axes

Box = tuple[tuple[int, int], ...]


def check_tiles(plan: Plan, step: TileExchange) -> None:
    """Raises PlanError if the rounds of `step` do not fill the shards of its target from those of its source."""
    _check_rounds(step)
    boxes = _Boxes(plan, step)
    by_receiver: dict[int, list[Tile]] = {}
    for each in step.rounds:
        for tile in each.tiles:
            by_receiver.setdefault(tile.receiver, []).append(tile)
    for number in range(group_size(step.digits)):
        boxes.covered(number, by_receiver.get(number, []))


def _check_rounds(step: TileExchange) -> None:
    for each in step.rounds:
        for ends in ([tile.sender for tile in each.tiles], [tile.receiver for tile in each.tiles]):
            if len(set(ends)) < len(ends) or any(tile.shape != each.shape for tile in each.tiles):
                raise PlanError("a round of permutes sends twice from or to one device")


class _Boxes:
    """The boxes of an exchange, per device of the exchange; a dimension that takes no part counts as all of the buffer."""

    def __init__(self, plan: Plan, step: TileExchange) -> None:
        self.before = layout(plan.shape, plan.mesh, step.source)
        self.after = layout(plan.shape, plan.mesh, step.target)
        radices = [range(digit.radix) for digit in step.digits]
        self.places = [dict(zip((d.axis for d in step.digits), at, strict=True)) for at in product(*radices)]
        self.mesh = plan.mesh
        self.dims = step.dims

    def _block(self, axes: Axes, number: int) -> int:
        block = 0
        for axis in axes:
            block = block * self.mesh.shape[axis] + self.places[number][axis]
        return block

    def covered(self, receiver: int, tiles: list[Tile]) -> None:
        """Checks that `tiles` come from where their elements are and fill the receiver's box, each element once."""
        volume = 1
        for dim, b in enumerate(self.after):
            start, stop = b.kept[self._block(b.axes, receiver)] if dim in self.dims else (0, b.local)
            volume *= stop - start
        boxes = [self._box(tile) for tile in tiles]
        if volume != sum(prod(tile.shape) for tile in tiles) or not _disjoint(boxes):
            raise PlanError(f"the tiles of device {receiver} of the exchange do not fill its shard")

    def _box(self, tile: Tile) -> Box:
        """The elements in `tile`, which both ends must have room for."""
        box: list[tuple[int, int]] = []
        for dim, (a, b) in enumerate(zip(self.before, self.after, strict=True)):
            size, taken, put = tile.shape[dim], tile.taken[dim], tile.put[dim]
            if dim not in self.dims:
                if a != b:
                    raise PlanError(f"dimension {dim} lies differently in the target, and its tiles do not say so")
                ends = [(taken, taken + size), (put, put + size), (0, a.local), (0, b.local)]
            else:
                sent, got = self._block(a.axes, tile.sender), self._block(b.axes, tile.receiver)
                here, there = taken + a.origin[sent], put + b.origin[got]
                ends = [(here, here + size), (there, there + size), a.kept[sent] if a == b else a.owned[sent], b.kept[got]]
            if ends[0] != ends[1] or any(low > ends[0][0] or ends[0][1] > high for low, high in ends[2:]):
                raise PlanError(f"{tile} has elements that its sender does not hold or its receiver does not want")
            box.append(ends[0])
        return tuple(box)


def _disjoint(boxes: list[Box]) -> bool:
    """Whether no two boxes meet. Boxes of a grid are told apart by their intervals, without looking at every pair."""
    columns = [sorted(set(column)) for column in zip(*boxes, strict=True)]
    if all(a[1] <= b[0] for column in columns for a, b in pairwise(column)):
        return len(set(boxes)) == len(boxes)
    return not any(all(p[0] < q[1] and q[0] < p[1] for p, q in zip(x, y, strict=True)) for x, y in combinations(boxes, 2))
