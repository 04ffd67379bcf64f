"""Which blocks of two layouts of one tensor dimension overlap, and where the shared elements are in either buffer.

A tile of an exchange is one overlap per dimension. So everything that depends on sizes is computed here, per block of one
dimension and not per pair of devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from meshbridge.ir.sharding import Axes
from meshbridge.resharding.boxes import DimLayout, Interval

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Entry k: `size[k]` elements that source block `source[k]` holds at index `read_at[k]` of its buffer, and the target block
    needs at index `write_at[k]`. Target block b has the entries from `first[b]` to `first[b] + count[b]`."""

    source_axes: Axes
    target_axes: Axes
    source: Numbers
    size: Numbers
    read_at: Numbers
    write_at: Numbers
    first: Numbers
    count: Numbers


def overlaps(before: DimLayout, after: DimLayout) -> Overlaps:
    """Where the elements that the target's blocks keep come from: the blocks that own them, or themselves if the layouts
    agree."""
    starts, stops = starts_and_stops(after.kept)
    if before == after:
        start_block, stop_block = np.arange(len(starts)), np.arange(len(starts)) + 1
        low, high = starts, stops
    else:
        low, high = starts_and_stops(before.owned)
        start_block, stop_block = np.searchsorted(high, starts, "right"), np.searchsorted(low, stops, "left")
    block_count = np.where(stops > starts, np.maximum(stop_block - start_block, 0), 0)
    target = np.repeat(np.arange(len(starts)), block_count)
    source = ranges(start_block, block_count)
    begin, end = np.maximum(low[source], starts[target]), np.minimum(high[source], stops[target])
    met = end > begin  # a source block may be empty
    target, source, begin, end = target[met], source[met], begin[met], end[met]
    count = np.bincount(target, minlength=len(starts))
    read_at, write_at = begin - np.array(before.origin)[source], begin - np.array(after.origin)[target]
    return Overlaps(before.axes, after.axes, source, end - begin, read_at, write_at, np.cumsum(count) - count, count)


def whole_dimension(size: int) -> Overlaps:
    """A dimension that takes no part in the exchange: all of the buffer."""
    zero, ones = np.zeros(1, np.int64), np.ones(1, np.int64)
    return Overlaps((), (), zero, size * ones, zero, zero, zero, ones)


def starts_and_stops(intervals: tuple[Interval, ...]) -> tuple[Numbers, Numbers]:
    """Starts and stops of the intervals."""
    pairs = np.array(intervals, np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def ranges(first: Numbers, count: Numbers) -> Numbers:
    """`count[i]` consecutive numbers from `first[i]` on, for every i."""
    before = np.cumsum(count) - count
    numbers: Numbers = np.arange(int(count.sum())) + np.repeat(first - before, count)
    return numbers


def sorted_by(*columns: Numbers) -> Numbers:
    """The order of rows of non-negative numbers by these columns, the most significant first. Equal rows come in any order.

    One column of combined keys, if their values fit into it, is sorted in a fifth of the time.
    """
    widths = [int(column.max(initial=0)) + 1 for column in columns]
    if prod(widths) >= 2**62:
        return np.lexsort(columns[::-1])
    key = np.zeros(len(columns[0]), np.int64)
    for column, width in zip(columns, widths, strict=True):
        key = key * width + column
    return np.argsort(key)
