"""Chooses where the chunks of a step begin: the shortest step that fits in memory, by the prices of segments.

A dynamic programme finds the cut whose slowest chunk is fastest. The schedule is then simulated, and boundaries are moved by one
segment as long as that shortens the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from meshbridge.pipelines.schedules import Schedule
from meshbridge.pipelines.segment_prices import Price

GAIN = 0.01
"""The share of a step that another cut has to save to be taken instead of the even one, of which results are plain arrays.
Nothing was measured: it is less than the error of predictions."""

Begins = tuple[int, ...]
"""The segments at which each chunk but the first begins."""


@dataclass(frozen=True, order=True)
class Estimate:
    """A step under some cut: the bytes that a device needs beyond its memory, and the seconds of the step."""

    excess_bytes: float
    seconds: float


@dataclass(frozen=True, eq=False)
class Boundaries:
    """The cuts of segments into the chunks of a schedule. `transfer` gives the seconds in which so many bytes pass to the next
    group of devices; a device has `memory` bytes."""

    prices: Sequence[Price]
    schedule: Schedule
    transfer: Callable[[float], float]
    memory: float

    def best(self, even: Begins) -> Begins:
        """The cut with the shortest step that fits in memory; `even` unless another one is better by GAIN."""
        start = self.estimate(even)
        found = min((self._moved(begins) for begins in {even, self._most_even()}), key=self.estimate)
        best = self.estimate(found)
        is_better = best.excess_bytes < start.excess_bytes or best.seconds < (1 - GAIN) * start.seconds
        return found if is_better else even

    def estimate(self, begins: Begins) -> Estimate:
        """What a step takes under a cut."""
        chunks = [self._chunk(number, *ends) for number, ends in enumerate(self._ends(begins))]
        return Estimate(max(self._peak_bytes(chunks) - self.memory, 0.0), self._seconds(chunks))

    def _ends(self, begins: Begins) -> Iterator[tuple[int, int]]:
        return pairwise((0, *begins, len(self.prices)))

    def _chunk(self, number: int, start: int, end: int) -> Price:
        """What a chunk of consecutive segments costs."""
        sums = self._sums[end] - self._sums[start]
        forward, backward, weight, outside, fixed, activations = map(float, sums)
        if number == self.schedule.chunks - 1:  # forward and backward in one task
            forward, backward = forward + backward, 0.0
        elif self.schedule.splits_weights and not number:  # nothing waits for its backward pass
            backward, weight = 0.0, backward + weight
        temporaries = max(each.temporaries for each in self.prices[start:end])
        return Price(forward, backward, weight, outside, self.prices[start].entering, fixed, activations, temporaries)

    @cached_property
    def _sums(self) -> np.ndarray:
        """By segment, the sums of those before it."""
        rows = [(p.forward, p.backward, p.weight, p.outside, p.fixed, p.activations) for p in self.prices]
        return np.vstack((np.zeros(6), np.cumsum(np.array(rows), axis=0)))

    def _seconds(self, chunks: Sequence[Price]) -> float:
        """The schedule simulated, with transfers between groups, and what each group computes after the loop."""
        groups = self.schedule.groups
        hops = [self.transfer(chunk.entering) if number else 0.0 for number, chunk in enumerate(chunks)]
        free, ends = [0.0] * groups, [0.0] * len(self._tasks)
        for number, (kind, chunk, needed) in enumerate(self._tasks):
            arrivals = (
                ends[other] + (hops[max(chunk, source)] if source % groups != chunk % groups else 0.0) for other, source in needed
            )
            ready, price = max(arrivals, default=0.0), chunks[chunk]
            seconds = price.forward if kind == "F" else price.backward if kind == "B" else price.weight
            if seconds:
                free[chunk % groups] = ends[number] = max(ready, free[chunk % groups]) + seconds
            else:  # part of another task
                ends[number] = ready
        outside = [sum(chunk.outside for chunk in chunks[group::groups]) for group in range(groups)]
        return max(end + after for end, after in zip(free, outside, strict=True))

    @cached_property
    def _tasks(self) -> list[tuple[str, int, list[tuple[int, int]]]]:
        """The kind and the chunk of each task in the order of dispatch, with the numbers and chunks of those it waits for."""
        order = self.schedule.dispatch_order()
        number = {task: position for position, task in enumerate(order)}
        return [(task.kind, task.chunk, [(number[each], each.chunk) for each in self.schedule.waits_for(task)]) for task in order]

    def _peak_bytes(self, chunks: Sequence[Price]) -> float:
        """The most bytes that a device of any group holds."""
        groups = self.schedule.groups
        return max(self._bytes_of(chunks[group::groups], group) for group in range(groups))

    def _bytes_of(self, own: Sequence[Price], group: int) -> float:
        """The most bytes that a device of a group holds, which has these chunks."""
        schedule = self.schedule
        is_last = group == schedule.groups - 1
        once = is_last and len(own) == 1 and not schedule.splits_weights  # the only task of a microbatch needs its activations
        live = (1 if once else self._live[group]) / len(own)
        return sum(chunk.fixed + live * chunk.activations for chunk in own) + max(chunk.temporaries for chunk in own)

    @cached_property
    def _live(self) -> tuple[int, ...]:
        return self.schedule.peak_live()

    def _most_even(self) -> Begins:
        """The cut whose slowest chunk that fits in memory is fastest; the most even one of any if there is none."""
        count, chunks = len(self.prices), self.schedule.chunks
        best = np.full((chunks + 1, count + 1), np.inf)
        choice = np.zeros((chunks + 1, count + 1), int)
        best[0, 0] = -np.inf
        for number in range(chunks):
            for end in range(number + 1, count - (chunks - number - 1) + 1):
                costs = [max(best[number, start], self._load(number, start, end)) for start in range(number, end)]
                choice[number + 1, end] = number + int(np.argmin(costs))
                best[number + 1, end] = min(costs)
        begins, end = [], count
        for number in range(chunks, 1, -1):
            end = int(choice[number, end])
            begins.append(end)
        return tuple(reversed(begins))

    def _load(self, number: int, start: int, end: int) -> float:
        """The seconds of a microbatch in a chunk; more than any step if its stage has no other and it does not fit in memory."""
        chunk, schedule = self._chunk(number, start, end), self.schedule
        if schedule.chunks == schedule.groups:
            excess = self._bytes_of([chunk], number) - self.memory
            if excess > 0:
                return _FULL + excess
        return chunk.forward + chunk.backward + chunk.weight

    def _moved(self, begins: Begins) -> Begins:
        """The cut with boundaries moved, by one segment at a time, or several boundaries at once, until none makes it better."""
        best = self.estimate(begins)
        while True:
            found = min(self._near(begins), key=self.estimate, default=begins)
            estimate = self.estimate(found)
            if not estimate < best:
                return begins
            begins, best = found, estimate

    def _near(self, begins: Begins) -> Iterator[Begins]:
        for first in range(len(begins)):
            for limit in range(first + 1, len(begins) + 1):
                for step in (-1, 1):
                    moved = (*begins[:first], *(each + step for each in begins[first:limit]), *begins[limit:])
                    if all(start < end for start, end in self._ends(moved)):
                        yield moved


_FULL = 1e9
"""Seconds that no step takes."""
