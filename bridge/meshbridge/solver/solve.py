"""The solver of sharding problems: choices, and a bound on how much better any others can be.

First the problem is presolved (`presolve`). The dual (`lagrangian_dual`) then raises a bound. Its choices, and those from
elimination (`initial_choices`), are repaired and improved region by region (`neighbourhood_search`). Small problems are also
solved by HiGHS (`milp`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from meshbridge.ir.errors import MeshError
from meshbridge.solver import milp
from meshbridge.solver.clock import WALL, Clock, Work
from meshbridge.solver.initial_choices import initial_choices
from meshbridge.solver.lagrangian_dual import LagrangianDual
from meshbridge.solver.neighbourhood_search import NeighbourhoodSearch
from meshbridge.solver.presolve import Presolved, presolve
from meshbridge.solver.problem import Indices, Problem

ROUNDS = 400
"""The most rounds of the dual. On IOPDDL's B and G, 40 more after 280 raise the bound by less than half a percent."""

LARGE = (0.4, 1.0)
"""The fractions of the time at which the bound and the regions end. Not measured against others."""

SMALL = (0.2, 0.6)
"""The same for small problems, where HiGHS gets the rest. Not measured against others."""

MANY, CAUTION, CAUTION_FEW = 5_000, 1.0, 0.1
"""The dual's `caution` for that many variables and more, which get few rounds, and for fewer, whose bound rises further by larger
steps. Before tied variables were merged, IOPDDL's C (32,894 variables) ended in 60 s at the best published cost with 1.0, and
15.5 % above it with 0.1, and V (816) 51 % above it with 1.0 and at it with 0.1."""

ATTEMPTS = 40
"""The most regions for each variable that has several choices: with enough seconds, every run takes the same ones."""

EQUAL = 1e-7
"""Relative differences of bound and cost that count as none, for HiGHS too: the messages raise a bound no nearer."""

Progress = Callable[[float, float], None]
"""Called with the best cost so far, infinite before there is one, and the bound."""


@final
@dataclass(frozen=True)
class Solution:
    """Choices within all limits, one for each variable; no choices cost less than `bound`."""

    chosen: tuple[int, ...]
    cost: float
    bound: float
    peak: float
    is_interrupted: bool = False
    "Whether the user has interrupted the solver."

    @property
    def gap(self) -> float:
        """The most that other choices can save, relative to the cost: 0 for the best choices."""
        return max(0.0, (self.cost - self.bound) / self.cost) if self.cost > 0 else 0.0


@final
class LimitError(MeshError):
    """No choices within the memory limit were found. `chosen` came nearest, with `peak` bytes at `time`."""

    def __init__(self, text: str, chosen: tuple[int, ...], peak: float, time: int) -> None:
        super().__init__(text)
        self.chosen, self.peak, self.time = chosen, peak, time


def solve(
    problem: Problem,
    *,
    seconds: float = 60.0,
    starts: Sequence[Sequence[int]] = (),
    progress: Progress | None = None,
    clock: Clock = WALL,
) -> Solution:
    """Choices of low cost within the memory limit, with a bound, after about so many seconds or once they are proven best.

    `starts` are choices to begin from besides the solver's own. With enough seconds, every run returns the same choices; at the
    deadline, or on KeyboardInterrupt, the best so far. Presolve is not cut short: 10 s for 60,000 variables.

    Raises LimitError if it found no choices within the memory limit, MeshError if no choices are allowed together.
    """
    deadline = clock() + seconds
    for index, start in enumerate(starts):
        _check_start(problem, index, start)
    presolved = presolve(problem)
    if presolved is None:
        raise MeshError("search: no choices are allowed together: some variable has none that each of its neighbours allows")
    search = _Search(problem, presolved, progress, clock)
    search.check_least()
    try:
        search.run(deadline, starts)
    except KeyboardInterrupt:
        return replace(search.result(), is_interrupted=True)
    return search.result()


def _check_start(problem: Problem, index: int, start: Sequence[int]) -> None:
    fits = len(start) == len(problem.costs)
    if not fits or not all(0 <= choice < costs.size for choice, costs in zip(start, problem.costs, strict=True)):
        raise MeshError(f"search: start {index}: expected one of its choices for each of {len(problem.costs)} variables")


@final
class _Search:
    """The best choices so far and the bound."""

    def __init__(self, problem: Problem, presolved: Presolved, progress: Progress | None, clock: Clock) -> None:
        self.problem = problem
        self.presolved = presolved
        self.progress = progress
        self.clock = clock
        self.bound = 0.0  # costs are not negative
        self.chosen: tuple[int, ...] | None = None
        self.cost = np.inf
        self.nearest: tuple[int, ...] | None = None
        self.least_peak = np.inf

    def check_least(self) -> None:
        """Raises LimitError if even the smallest choices are too large."""
        least = [int(sizes.argmin()) if sizes.size else 0 for sizes in self.problem.bytes]
        if least and self.problem.peak(least) > self.problem.limit:
            raise self._error("even the smallest choices hold", tuple(least))

    def _error(self, description: str, chosen: tuple[int, ...]) -> LimitError:
        usage = self.problem.usage(chosen)
        at, peak = int(usage.argmax()), float(usage.max())
        excess = f"{peak - self.problem.limit:,.0f} more than the limit of {self.problem.limit:,.0f}"
        return LimitError(f"search: {description} {peak:,.0f} bytes at time {at}, {excess}", chosen, peak, at)

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
        small = milp.is_small(self.presolved)
        dual = LagrangianDual(self.presolved, CAUTION if self.presolved.count >= MANY else CAUTION_FEW)
        begun = self.clock()
        spans = [begun + (deadline - begun) * part for part in (SMALL if small else LARGE)]
        candidates = self._rounds(dual, spans[0])
        if not self.proven:
            self._improve(dual, candidates, spans[1])
        if small and not self.proven:
            scale = self.cost if self.chosen else self.bound
            nodes = self.clock.nodes if isinstance(self.clock, Work) else None
            chosen, bound = milp.solve_milp(self.presolved, deadline - self.clock(), scale, nodes=nodes)
            if chosen is not None:
                self.offer(self.presolved.original(chosen))
            self.raise_bound(bound)

    def _rounds(self, dual: LagrangianDual, until: float) -> list[Indices]:
        """Raises the bound. Returns the choices of the latest rounds."""
        recent: list[Indices] = []
        for _ in range(ROUNDS):
            recent = [*recent[-2:], dual.round()]
            self.offer(self.presolved.original(recent[-1]))
            self.raise_bound(dual.bound)
            if self.proven or self.clock() > until:
                break
        return recent

    def _improve(self, dual: LagrangianDual, candidates: list[Indices], until: float) -> None:
        """Repairs choices above the limit while they cost less than the best, and improves the best, region by region."""
        for chosen in initial_choices(dual):
            candidates.append(chosen)
            self.offer(self.presolved.original(chosen))
            self.raise_bound(dual.bound)
            if self.clock() > until:
                break
        improver = NeighbourhoodSearch(dual, candidates[0])
        attempts = ATTEMPTS * int((self.presolved.sizes() > 1).sum())
        above = [chosen for chosen in candidates if not self._fits(chosen)]
        if above:
            improver.take(min(above, key=improver.merit_of))
            self._attempts(improver, attempts, until, lambda: not improver.within and improver.cost < self.cost)
        if self.chosen is not None and (not improver.within or self.cost < improver.cost):
            improver.take(self._presolved_choices())
        self._attempts(improver, attempts, until, lambda: True)

    def _attempts(self, improver: NeighbourhoodSearch, most: int, until: float, going: Callable[[], bool]) -> None:
        for number in range(most):
            if self.proven or self.clock() > until or not going():
                break
            improver.attempt()
            if number % 50 == 0:
                self._report(improver)
        self._report(improver)

    def _fits(self, chosen: Indices) -> bool:
        return bool(self.presolved.usage(chosen).max(initial=0.0) <= self.presolved.limit)

    def _presolved_choices(self) -> Indices:
        """The best choices so far in the presolved problem; the first choice where one was left out."""
        assert self.chosen is not None
        return self.presolved.from_original(self.chosen)

    def _report(self, improver: NeighbourhoodSearch) -> None:
        cost, chosen = improver.best
        if cost < self.cost or not improver.within:
            self.offer(self.presolved.original(chosen if cost < self.cost else improver.chosen))
        self.raise_bound(self.bound)

    def result(self) -> Solution:
        if self.chosen is not None:
            return Solution(self.chosen, self.cost, min(self.bound, self.cost), self.problem.peak(self.chosen))
        if self.nearest is not None:
            raise self._error("the best choices found hold", self.nearest)
        raise MeshError("search: found no choices that are allowed together; more seconds may help")
