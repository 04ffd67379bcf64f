"""Memory over time: the times at which it can be highest, and what each holder holds at which of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from meshbridge.search.problem import Indices, Numbers, Problem


@final
@dataclass(frozen=True, eq=False)
class MemorySteps:
    """Memory: the times at which it can be highest, as steps, and which of them each holder lives at.

    A step is a time at which something begins to live and after which something ends, before anything else begins: what lives at
    any other time lives at one of these. Steps at which even the largest choices fit are left out.
    """

    first: Indices  # by holder: the first step at which it lives
    last: Indices  # by holder: the step after the last one
    times: Indices  # by step: the time

    def usage(self, held: Numbers) -> Numbers:
        """By step: the bytes that live there, of the bytes that each holder holds."""
        changes = np.bincount(self.first, held, self.times.size + 1) - np.bincount(self.last, held, self.times.size + 1)
        return np.cumsum(changes)[:-1]

    def highest(self, numbers: Numbers) -> Numbers:
        """By holder: the highest of the steps' numbers of the steps at which it lives; minus infinity if it lives at none."""
        result = np.full(self.first.size, -np.inf)
        spans = self.last - self.first
        spread, length = numbers, 1  # spread[t]: the highest of `length` steps from t on
        while spread.size:
            fits = (length <= spans) & (spans < 2 * length)
            result[fits] = np.maximum(spread[self.first[fits]], spread[self.last[fits] - length])
            spread, length = np.maximum(spread[:-length], spread[length:]), 2 * length
        return result

    def prices(self, multipliers: Numbers) -> Numbers:
        """By holder: the sum of the multipliers of the steps at which it lives."""
        sums = np.concatenate(([0.0], np.cumsum(multipliers)))
        return np.asarray(sums[self.last] - sums[self.first])


def scarce(problem: Problem, largest: Numbers) -> MemorySteps:
    """The steps of a problem at which the largest choices of all variables, of so many bytes, do not fit."""
    count = len(problem.costs)
    nothing = np.zeros(count, dtype=np.int64)
    if not problem.bytes or np.isinf(problem.limit):
        return MemorySteps(nothing, nothing, np.zeros(0, dtype=np.int64))
    spans = np.array(problem.lifetimes, dtype=np.int64).reshape(-1, 2)
    alive = spans[:, 0] < spans[:, 1]
    begins, ends = np.unique(spans[alive, 0]), np.unique(spans[alive, 1])
    before_next = np.append(begins[1:], np.iinfo(np.int64).max)
    times = begins[np.searchsorted(ends, before_next, side="right") > np.searchsorted(ends, begins, side="right")]
    first, last = np.searchsorted(times, spans[:, 0]), np.searchsorted(times, spans[:, 1])
    last = np.where(alive, last, first)
    most = MemorySteps(first, last, times).usage(largest)
    times = times[most > problem.limit]
    first, last = np.searchsorted(times, spans[:, 0]), np.searchsorted(times, spans[:, 1])
    return MemorySteps(first, np.where(alive, last, first), times)
