"""Who sends what to whom so that every device gets its window of a split dimension: a few permutes, however many devices.

Device j of a group holds the elements from `j*shard` on. What device i reads of it is an *edge*, a run of elements. A permute
takes edges of which no two share a sender or a receiver, and sends equally many elements for each: the longest edge's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.groups import lists_shifted
from meshbridge.ir.sharding import Axes, Mesh, local_shape
from meshbridge.ir.shifts import received
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.reach import Covered, Numbers, Reach, Shares, Window
from meshbridge.ops.rule import ShardingRule

MOST_SHIFTS = 4
"""Permutes by distance are taken if there are at most so many more than the busiest device's edges need: each of them sends
edges of nearly one length, and their pairs of devices are a shift along the mesh. Not measured: the bytes are the same."""


@dataclass(frozen=True, eq=False)
class Round:
    """Edges of which all pieces are sent at once: per edge the receiver, the sender, where the piece begins in the sender's
    shard, and where it goes in the receiver's window (before its begin, where a piece is longer than what is needed of it).
    Devices keep pieces of their own in a round that sends nothing."""

    width: int
    receivers: Numbers
    senders: Numbers
    taken: Numbers
    put: Numbers

    @property
    def moves(self) -> bool:
        """Whether the pieces change devices."""
        return bool(self.receivers[0] != self.senders[0])

    @property
    def offset(self) -> int:
        """How far all pieces move along the group, if equally far; 0 otherwise."""
        far = self.receivers - self.senders
        return int(far[0]) if (far == far[0]).all() else 0


@lru_cache(maxsize=4096)
def rounds(size: int, count: int, window: Window) -> tuple[Round, ...]:
    """The rounds that give each of `count` devices its window of a dimension of `size` elements; own pieces come first."""
    shard = -(-size // count)
    starts = window.starts(count)
    low, high = np.maximum(starts, 0), np.minimum(starts + window.length, size)
    first, last = low // shard, (high - 1) // shard
    edges = np.where(high > low, last - first + 1, 0)
    receivers = np.repeat(np.arange(count), edges)
    place = np.arange(len(receivers)) - np.repeat(np.cumsum(edges) - edges, edges)
    backward = window.step * window.scale < 0  # the staircase of edges then leads down: count each device's from its end
    senders = (np.repeat(last, edges) - place) if backward else (np.repeat(first, edges) + place)
    begin = np.maximum(low[receivers], senders * shard)
    end = np.minimum(high[receivers], (senders + 1) * shard)
    group = _groups(receivers, senders, count)
    return tuple(
        _round(receivers[group == number], senders[group == number], begin[group == number], end[group == number], shard, starts)
        for number in np.unique(group)
    )


def _groups(receivers: Numbers, senders: Numbers, count: int) -> Numbers:
    """A number for each edge; those of equal numbers are sent at once, those of -1 stay. Edges are ordered by receiver and then
    along the staircase."""
    distance = senders - receivers
    moving = distance != 0
    busiest = max([int(np.bincount(side[moving], minlength=1).max()) for side in (receivers, senders)], default=0)
    shifts, by_shift = np.unique(distance, return_inverse=True)
    if len(shifts) <= busiest + MOST_SHIFTS:
        return np.where(moving, by_shift, -1)
    # Edges of one device are neighbours in the order unless windows overlap, and no device has more than the busiest.
    order = np.cumsum(moving) - 1
    while not all(_are_distinct(side[moving] * len(order) + order[moving] % busiest) for side in (receivers, senders)):
        busiest += 1
    return np.where(moving, order % busiest, -1)


def _are_distinct(numbers: Numbers) -> bool:
    return len(np.unique(numbers)) == len(numbers)


def _round(receivers: Numbers, senders: Numbers, begin: Numbers, end: Numbers, shard: int, starts: Numbers) -> Round:
    width = int((end - begin).max())
    taken = np.minimum(begin - senders * shard, shard - width)
    return Round(width, receivers, senders, taken, senders * shard + taken - starts[receivers])


@lru_cache(maxsize=1 << 16)
def exchanged_bytes(rule: ShardingRule, option: Option, mesh: Mesh) -> float:
    """Bytes that one device receives, on average, while an op runs whose windows reach over the edges of shards.

    Dimensions of one operand are exchanged one after the other, each with what has arrived along the ones before.
    """
    total = 0.0
    local: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for each in rule.exchanges:
        count = mesh.group_size(option[each.loop])
        if count > 1:
            split = tensor_split(rule.operands[each.operand], option)
            shape = local.setdefault((each.operand, each.shape), list(local_shape(each.shape, mesh, split)))
            line = element_bytes(each.dtype) * prod(shape) / max(1, shape[each.dim])
            if isinstance(each.reach, Shares):
                total += line * each.reach.length * (count - 1)
            else:
                elements = 0.0 if lists_shifted(mesh) else line / element_bytes(each.dtype)
                total += line * _received(each.reach, count, mesh, option[each.loop], elements)
                shape[each.dim] = each.reach.window(count).length
    return total


@lru_cache(maxsize=1 << 14)
def _received(reach: Reach | Covered, count: int, mesh: Mesh, axes: Axes, line: float) -> float:
    """Elements that one of `count` devices receives, on average over the group, per line of so many along the dimension; 0 where
    permutes list devices, and lines do not matter."""
    moving = [each for each in rounds(reach.source, count, reach.window(count)) if each.moves]
    if not line:
        return sum(each.width * len(each.receivers) for each in moving) / count
    return sum(
        received(line * each.width, mesh, axes, each.offset) / line if each.offset else each.width * len(each.receivers) / count
        for each in moving
    )
