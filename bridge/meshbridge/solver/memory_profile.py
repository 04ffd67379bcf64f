"""The memory profile: the times at which memory can peak, and which holders are alive at each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from meshbridge.solver.problem import Indices, Numbers, Problem


@final
@dataclass(frozen=True, eq=False)
class MemoryProfile:
    """The times at which memory can peak, as steps, and the steps at which each holder is alive.

    A step is a time at which a lifetime begins and after which one ends before another begins: what is alive at any other time is
    alive at one of these. Steps at which even the largest choices fit are left out.
    """

    starts: Indices  # the first step of each holder
    stops: Indices  # the step after the last one of each holder
    times: Indices  # the time of each step

    def usage(self, held: Numbers) -> Numbers:
        """The bytes alive at each step, given the bytes of each holder."""
        changes = np.bincount(self.starts, held, self.times.size + 1) - np.bincount(self.stops, held, self.times.size + 1)
        return np.cumsum(changes)[:-1]

    def highest(self, numbers: Numbers) -> Numbers:
        """For each holder, the highest of the steps' numbers while it is alive; minus infinity if it is alive at none."""
        result = np.full(self.starts.size, -np.inf)
        spans = self.stops - self.starts
        spread, length = numbers, 1  # spread[t]: the highest of `length` steps from t on
        while spread.size:
            fits = (length <= spans) & (spans < 2 * length)
            result[fits] = np.maximum(spread[self.starts[fits]], spread[self.stops[fits] - length])
            spread, length = np.maximum(spread[:-length], spread[length:]), 2 * length
        return result

    def prices(self, multipliers: Numbers) -> Numbers:
        """For each holder, the sum of the multipliers of the steps at which it is alive."""
        sums = np.concatenate(([0.0], np.cumsum(multipliers)))
        return np.asarray(sums[self.stops] - sums[self.starts])


def scarce_steps(problem: Problem, largest: Numbers) -> MemoryProfile:
    """The steps of a problem at which the largest choices of all variables, of so many bytes, do not fit."""
    count = len(problem.costs)
    nothing = np.zeros(count, dtype=np.int64)
    if not problem.bytes or np.isinf(problem.limit):
        return MemoryProfile(nothing, nothing, np.zeros(0, dtype=np.int64))
    spans = np.array(problem.lifetimes, dtype=np.int64).reshape(-1, 2)
    alive = spans[:, 0] < spans[:, 1]
    begins, ends = np.unique(spans[alive, 0]), np.unique(spans[alive, 1])
    before_next = np.append(begins[1:], np.iinfo(np.int64).max)
    times = begins[np.searchsorted(ends, before_next, side="right") > np.searchsorted(ends, begins, side="right")]
    starts, stops = np.searchsorted(times, spans[:, 0]), np.searchsorted(times, spans[:, 1])
    stops = np.where(alive, stops, starts)
    most = MemoryProfile(starts, stops, times).usage(largest)
    times = times[most > problem.limit]
    starts, stops = np.searchsorted(times, spans[:, 0]), np.searchsorted(times, spans[:, 1])
    return MemoryProfile(starts, np.where(alive, stops, starts), times)
