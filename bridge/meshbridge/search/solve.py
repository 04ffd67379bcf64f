"""The solver of sharding problems: choices, and a bound that says how much better any others can be at most.

First the problem is brought into its normal form (`normal`). The dual (`dual`) then raises a bound, and its choices, repaired and
improved region by region (`improve`), are solutions. Small problems are given to HiGHS as well (`exact`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import final

import numpy as np

from meshbridge.ir.errors import MeshError
from meshbridge.search import exact
from meshbridge.search.dual import Dual
from meshbridge.search.improve import Improver
from meshbridge.search.normal import Normal, normal
from meshbridge.search.problem import Indices, Problem
from meshbridge.search.within import Within

ROUNDS = 400
"""Rounds of the dual at most. On IOPDDL's B and G, 40 more after 280 raise the bound by less than half a percent."""

TURNS = 400
"""Turns of all variables but a cutset at most. Not measured against others."""

LARGE = (0.4, 0.7, 1.0)
"""By when, of the time, the bound, the turns of all variables and the regions end. With 0.7, in one
run each, IOPDDL's L is 0.5 % above the best published cost; with 0.85, and turns that differ too, 1.5 %."""

SMALL = (0.2, 0.4, 0.6)
"""The same of small problems, which HiGHS has the rest for. Not measured against others."""

MANY, CAUTION, CAUTION_FEW = 5_000, 1.0, 0.1
"""`Dual`'s caution for that many variables and more, for which few rounds have to do, and for fewer, whose bound rises further
by larger steps. In 60 s, IOPDDL's C (32,894 variables) ends at the best published cost with 1.0 and 15.5 % above it with 0.1, and
V (816) 51 % above it with 1.0 and at it with 0.1."""

REPAIRING = 0.75
"""The share of the time for regions in which choices above the limit are brought within it, where others are known already.
Not measured against others."""

ATTEMPTS = 40
"""Regions for each variable that has several choices, at most: with enough seconds, the same ones in each run."""

EXACTLY = 10
"""Of so many regions one is solved as an integer program, which sees the memory limit itself but takes longer."""

EQUAL = 1e-7
"""Relative differences of bound and cost that are taken for none, by HiGHS too: the messages raise a bound no nearer."""

Progress = Callable[[float, float], None]
"""Called with the best cost so far, infinite before there is one, and the bound."""


@final
@dataclass(frozen=True)
class Solution:
    """Choices within all limits, one for each variable, and no choices cost less than `bound`."""

    chosen: tuple[int, ...]
    cost: float
    bound: float
    peak: float

    @property
    def gap(self) -> float:
        """How much of the cost other choices can save at most, relative to the cost: 0 for the best choices."""
        return max(0.0, (self.cost - self.bound) / self.cost) if self.cost > 0 else 0.0


@final
class LimitError(MeshError):
    """No choices within the memory limit were found. `chosen` are those that were nearest, `peak` their bytes, at `time`."""

    def __init__(self, text: str, chosen: tuple[int, ...], peak: float, time: int) -> None:
        super().__init__(text)
        self.chosen, self.peak, self.time = chosen, peak, time


def solve(
    problem: Problem,
    *,
    seconds: float = 60.0,
    starts: Sequence[Sequence[int]] = (),
    progress: Progress | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Solution:
    """Choices of low cost within the memory limit, with a bound, after about so many seconds or once they are proven best.

    `starts` are choices to begin from besides the solver's own. With seconds enough to end by itself, the solver gives the same
    answer in each run; by the clock, or on KeyboardInterrupt, it gives the best so far. Reading a problem into its normal form is
    not cut short: 10 s for 60,000 variables.

    Raises LimitError if it found no choices within the memory limit, MeshError if none that are allowed together.
    """
    deadline = clock() + seconds
    for index, start in enumerate(starts):
        _check_start(problem, index, start)
    form = normal(problem)
    if form is None:
        raise MeshError("search: no choices are allowed together: some variable has none that each of its neighbours allows")
    search = _Search(problem, form, progress, clock)
    search.check_least()
    with suppress(KeyboardInterrupt):  # the best so far is the answer
        search.run(deadline, starts)
    return search.result()


def _check_start(problem: Problem, index: int, start: Sequence[int]) -> None:
    fits = len(start) == len(problem.costs)
    if not fits or not all(0 <= choice < costs.size for choice, costs in zip(start, problem.costs, strict=True)):
        raise MeshError(f"search: start {index}: expected one of its choices for each of {len(problem.costs)} variables")


@final
class _Search:
    """The best choices so far and the bound."""

    def __init__(self, problem: Problem, form: Normal, progress: Progress | None, clock: Callable[[], float]) -> None:
        self.problem = problem
        self.form = form
        self.progress = progress
        self.clock = clock
        self.bound = 0.0  # costs are not negative
        self.chosen: tuple[int, ...] | None = None
        self.cost = np.inf
        self.nearest: tuple[int, ...] | None = None
        self.least_peak = np.inf

    def check_least(self) -> None:
        """Raises LimitError if even the smallest choices are too large."""
        least = [int(held.argmin()) if held.size else 0 for held in self.problem.bytes]
        if least and self.problem.peak(least) > self.problem.limit:
            raise self._error("even the smallest choices hold", tuple(least))

    def _error(self, what: str, chosen: tuple[int, ...]) -> LimitError:
        usage = self.problem.usage(chosen)
        at, peak = int(usage.argmax()), float(usage.max())
        more = f"{peak - self.problem.limit:,.0f} more than the limit of {self.problem.limit:,.0f}"
        return LimitError(f"search: {what} {peak:,.0f} bytes at time {at}, {more}", chosen, peak, at)

    def offer(self, chosen: tuple[int, ...]) -> None:
        """Takes choices if they are allowed, within the limit and better."""
        cost, peak = self.problem.cost(chosen), self.problem.peak(chosen)
        if not np.isfinite(cost):
            return
        if peak > self.problem.limit:
            if peak < self.least_peak:
                self.least_peak, self.nearest = peak, chosen
        elif cost < self.cost:
            self.cost, self.chosen = cost, chosen

    @property
    def proven(self) -> bool:
        return self.chosen is not None and self.cost - self.bound <= EQUAL * self.cost

    def raise_bound(self, bound: float) -> None:
        self.bound = max(self.bound, bound)
        if self.progress is not None:
            self.progress(self.cost, min(self.bound, self.cost))

    def run(self, deadline: float, starts: Sequence[Sequence[int]]) -> None:
        for start in starts:
            self.offer(tuple(int(choice) for choice in start))
        small = exact.columns(self.form) <= exact.COLUMNS
        dual = Dual(self.form, CAUTION if self.form.count >= MANY else CAUTION_FEW)
        begun = self.clock()
        spans = [begun + (deadline - begun) * part for part in (SMALL if small else LARGE)]
        candidates = self._rounds(dual, spans[0])
        turned, last = self._turns(dual, spans[1])
        if self.chosen is not None:
            if self.form.usage(last).max(initial=0.0) > self.form.limit:
                self._improve(dual, [last], spans[1] + REPAIRING * (spans[2] - spans[1]))
            turned = [*turned, self._known()]
        self._improve(dual, [*candidates, *turned], spans[2])
        if small and not self.proven:
            chosen, bound = exact.solved(self.form, deadline - self.clock(), self.cost if self.chosen else self.bound)
            if chosen is not None:
                self.offer(self.form.original(chosen))
            self.raise_bound(bound)

    def _rounds(self, dual: Dual, until: float) -> list[Indices]:
        """Raises the bound; the choices of the last few rounds."""
        recent: list[Indices] = []
        for _ in range(ROUNDS):
            recent = [*recent[-2:], dual.round()]
            self.offer(self.form.original(recent[-1]))
            self.raise_bound(dual.bound)
            if self.proven or self.clock() > until:
                break
        return recent

    def _turns(self, dual: Dual, until: float) -> tuple[list[Indices], Indices]:
        """All variables but a cutset at once, at prices that follow the limit; the best choices after each of the last few turns.

        The others are those of the last turn at its prices, maybe above the limit.
        """
        within = Within(dual, None if self.chosen is None else self._known())
        recent: list[Indices] = []
        for _ in range(TURNS):
            if self.proven or within.settled or self.clock() > until:
                break
            recent = [*recent[-3:], within.turn()]
            self.offer(self.form.original(recent[-1]))
            self.raise_bound(self.bound)
        return recent, within.chosen

    def _improve(self, dual: Dual, candidates: list[Indices], until: float) -> None:
        """Repairs and improves, from the best start, region by region."""
        improver = Improver(self.form, candidates[-1], dual.prices)
        best = improver.merit, candidates[-1]
        for chosen in candidates[:-1]:
            improver.take(chosen)
            best = min(best, (improver.merit, chosen), key=lambda entry: entry[0])
        improver.take(best[1])
        for number in range(ATTEMPTS * int((self.form.sizes() > 1).sum())):
            if self.proven or self.clock() > until:
                break
            if number % EXACTLY == EXACTLY - 1:
                improver.attempt_exactly(min(2.0, until - self.clock()))
            else:
                improver.attempt(number)
            if number % 50 == 0:
                self._report(improver)
        self._report(improver)

    def _known(self) -> Indices:
        """The best choices so far in the normal form; where one is left out there, the first that is not."""
        assert self.chosen is not None
        places = [np.flatnonzero(kept == choice) for kept, choice in zip(self.form.choices, self.chosen, strict=True)]
        return np.array([int(place[0]) if place.size else 0 for place in places], dtype=np.int64)

    def _report(self, improver: Improver) -> None:
        self.offer(self.form.original(improver.chosen))
        self.raise_bound(self.bound)

    def result(self) -> Solution:
        if self.chosen is not None:
            return Solution(self.chosen, self.cost, min(self.bound, self.cost), self.problem.peak(self.chosen))
        if self.nearest is not None:
            raise self._error("the best choices found hold", self.nearest)
        raise MeshError("search: found no choices that are allowed together; more seconds may help")
