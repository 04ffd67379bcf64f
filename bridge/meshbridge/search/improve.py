"""Better choices: small regions of the problem are solved exactly, one after the other, while all else stays as it is.

Choices are compared by three numbers, in this order: how many choices or pairs of them are forbidden, how many bytes are above
the limit, summed over all steps, and the cost. A region is solved with a high cost in place of what is forbidden, and with prices
on bytes, from none to many times those of the dual.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import final

import numpy as np

from meshbridge.search import exact
from meshbridge.search.eliminate import Elimination
from meshbridge.search.normal import Normal, Steps
from meshbridge.search.problem import Indices, Numbers

REGION = 80
"""Variables in the largest region. On a loaded machine 300 were no better for IOPDDL's G, and worse for V."""

ENTRIES = 20_000
"""Entries of a table in a region; where more would be needed, the region is not solved exactly."""

REGION_COLUMNS = 3000
"""Choices and allowed pairs in a region that is solved as an integer program. Not measured against others."""

FACTORS = (1.0, 0.0, 0.5, 2.0, 1.5, 8.0)
"""By attempt: what the dual's prices are multiplied by."""

Merit = tuple[float, float, float]


@final
class Improver:
    """Choices for all variables of a problem, which only get better."""

    def __init__(self, normal: Normal, chosen: Indices, prices: Numbers) -> None:
        self.normal = normal
        self.prices = prices
        self._high = high = normal.forbidding
        self._random = np.random.default_rng(0)
        self._costs = np.where(np.isinf(normal.costs), high, normal.costs)
        finite = {id(m): np.where(np.isinf(m), high, m) for m in normal.edges.values()}
        self._edges: list[dict[int, Numbers]] = [{} for _ in range(normal.count)]  # [v][u]: [choice of v, choice of u]
        for (i, j), matrix in normal.edges.items():
            self._edges[i][j] = finite[id(matrix)]
            self._edges[j][i] = finite[id(matrix)].T
        self._sizes = normal.sizes().tolist()
        self._many = np.flatnonzero(normal.sizes() > 1)
        firsts = normal.offsets[:-1]
        self._range = np.maximum.reduceat(normal.held, firsts) - np.minimum.reduceat(normal.held, firsts)
        self.take(chosen)

    def take(self, chosen: Indices) -> None:
        """Goes on from these choices, better or not."""
        self.chosen = chosen.copy()
        self._broken: list[int] = []
        normal = self.normal
        self._usage = normal.steps.usage(normal.held[normal.offsets[:-1] + chosen])
        broken, cost = self._sum(range(normal.count))
        self.merit: Merit = (broken, self._over(self._usage), cost)

    def _over(self, usage: Numbers) -> float:
        return float(np.maximum(0.0, usage - self.normal.limit).sum()) if usage.size else 0.0

    def _sum(self, variables: list[int] | range) -> tuple[float, float]:
        """What is forbidden, and the cost of all else, of some variables and of the edges that they have."""
        inside = set(variables)
        broken, cost = 0, 0.0
        chosen, offsets = self.chosen, self.normal.offsets
        for v in variables:
            terms = [float(self._costs[offsets[v] + chosen[v]])]
            row = int(chosen[v])
            terms += [float(m[row, chosen[u]]) for u, m in self._edges[v].items() if u > v or u not in inside]
            forbidden = sum(term >= self._high for term in terms)
            broken += forbidden
            cost += sum(terms) if not forbidden else sum(term for term in terms if term < self._high)
        return float(broken), cost

    def _one_broken(self) -> int:
        """A variable that is forbidden, by itself or with a neighbour."""
        while True:
            while self._broken:
                v = self._broken.pop()
                if self._sum([v])[0]:
                    return v
            self._broken = self._all_broken()

    def _all_broken(self) -> list[int]:
        """Variables that are forbidden, by themselves or with neighbours, in drawn order."""
        found = {
            v for (i, j), matrix in self.normal.edges.items() if np.isinf(matrix[self.chosen[i], self.chosen[j]]) for v in (i, j)
        }
        alone = self._costs[self.normal.offsets[:-1] + self.chosen] >= self._high
        return [int(v) for v in self._random.permutation(sorted(found | set(np.flatnonzero(alone).tolist())))]

    def attempt(self, number: int) -> bool:
        """Solves one region; True if the choices are better now."""
        if not self._many.size:
            return False
        region = self._region()
        factor = FACTORS[number % len(FACTORS)]
        prices = self.prices * factor
        if self.merit[1] > 0 and not self.merit[0]:
            over = self._usage > self.normal.limit
            least = 1e-2 * self._high / self.normal.unit / over.sum()  # all of it costs less than what is forbidden
            prices = np.where(over, np.maximum(prices, least * factor), prices)
        return self._try(region, self._solved(region, prices))

    def _region(self) -> list[int]:
        """Variables around some: near something forbidden, alive at a step with too much memory or little left, or anywhere."""
        if self.merit[0]:
            seeds = [self._one_broken()]
        elif self.merit[1] > 0:
            seeds = self._alive(np.flatnonzero(self._usage > self.normal.limit))
        elif self._usage.size and self._random.random() < 0.5:
            seeds = self._alive(np.flatnonzero(self._usage >= 0.9 * self._usage.max()))
        else:
            seeds = [int(self._random.choice(self._many))]
        return self._around(seeds, int(self._random.integers(2, REGION + 1)))

    def _alive(self, candidates: Indices) -> list[int]:
        """Some variables of several choices that are alive at one of these steps: with what one frees another may be larger."""
        step, steps = int(self._random.choice(candidates)), self.normal.steps
        alive = self._many[(steps.first[self._many] <= step) & (step < steps.last[self._many])]
        alive = alive[self._range[alive] > 0]
        if not alive.size:
            return [int(self._random.choice(self._many))]
        weights = self._range[alive] / self._range[alive].sum()
        return [int(v) for v in self._random.choice(alive, min(8, alive.size), replace=False, p=weights)]

    def _around(self, seeds: list[int], size: int) -> list[int]:
        """The seeds and what is nearest to them along edges; of many neighbours some, drawn."""
        found = dict.fromkeys(seeds)
        for v in (queue := list(seeds)):
            others = [u for u in self._edges[v] if u not in found and self._sizes[u] > 1]
            if len(others) > 8:
                others = [others[k] for k in sorted(self._random.choice(len(others), 8, replace=False))]
            for u in others:
                if len(found) >= size:
                    return sorted(found)
                found[u] = None
                queue.append(u)
        return sorted(found)

    def _solved(self, region: list[int], prices: Numbers) -> Indices:
        """The region's best choices at these prices, or nearly, for the choices of all others."""
        form = self._part(region)
        price = self.normal.steps.prices(prices)[region]
        costs = form.costs + form.held * price[form.owners]
        return Elimination(form.offsets, form.edges, ENTRIES, range(form.count)).run(costs)[1]

    def _part(self, region: list[int]) -> Normal:
        """The region as a problem, its steps those between which something of it begins or ends to live."""
        normal, offsets = self.normal, self.normal.offsets
        names = {v: index for index, v in enumerate(region)}
        costs, edges = [], {}
        for v in region:
            total = self._costs[offsets[v] : offsets[v + 1]]
            for u, matrix in self._edges[v].items():
                if u not in names:
                    total = total + matrix[:, self.chosen[u]]
                elif u > v:
                    edges[names[v], names[u]] = matrix
            costs.append(total)
        own = np.cumsum([0, *(each.size for each in costs)], dtype=np.int64)
        first, last = normal.steps.first[region], normal.steps.last[region]
        times = np.unique(np.concatenate([first, last]))
        steps = Steps(np.searchsorted(times, first), np.searchsorted(times, last), times)
        return Normal(
            choices=[np.arange(each.size) for each in costs],
            offsets=own,
            owners=np.repeat(np.arange(len(region)), np.diff(own)),
            costs=np.concatenate(costs),
            held=np.concatenate([normal.held[offsets[v] : offsets[v + 1]] for v in region]),
            edges=edges,
            steps=steps,
            limit=normal.limit,
        )

    def attempt_exactly(self, seconds: float) -> bool:
        """Solves one small region within the limit as an integer program; True if the choices are better now."""
        if not self._many.size or self.merit[:2] != (0, 0):
            return False
        region = self._region()
        form = self._part(region)
        while len(region) > 2 and exact.columns(form) > REGION_COLUMNS:
            region = sorted(int(v) for v in self._random.choice(region, len(region) * 2 // 3, replace=False))
            form = self._part(region)
        edges = {pair: np.where(matrix >= self._high, np.inf, matrix) for pair, matrix in form.edges.items()}
        costs = np.where(form.costs >= self._high, np.inf, form.costs)
        form = replace(form, costs=costs, edges=edges)
        least = max(float(np.min(costs[np.isfinite(costs)], initial=np.inf)), 1e-3 * self.merit[2])
        chosen, _ = exact.solved(form, seconds, least, self._left(region, form))
        return chosen is not None and self._try(region, chosen)

    def _left(self, region: list[int], form: Normal) -> Numbers:
        """By step of a region: the bytes that all others leave it."""
        normal = self.normal
        held = np.zeros(normal.count)
        held[region] = normal.held[normal.offsets[region] + self.chosen[region]]
        free = normal.limit - self._usage + normal.steps.usage(held)
        times = form.steps.times
        left = np.full(times.size, np.inf)
        for step, (begin, end) in enumerate(pairwise(times)):
            left[step] = free[begin:end].min()
        return left

    def _try(self, region: list[int], choices: Indices) -> bool:
        """Takes these choices if they are better."""
        changed = [(v, int(choice)) for v, choice in zip(region, choices, strict=True) if choice != self.chosen[v]]
        if not changed:
            return False
        variables = [v for v, _ in changed]
        before = self._sum(variables)
        old = self.chosen[variables]
        usage = self._usage.copy()
        self.chosen[variables] = [choice for _, choice in changed]
        steps, offsets, held = self.normal.steps, self.normal.offsets, self.normal.held
        for v, was in zip(variables, old, strict=True):
            usage[steps.first[v] : steps.last[v]] += held[offsets[v] + self.chosen[v]] - held[offsets[v] + was]
        after = self._sum(variables)
        merit = (self.merit[0] - before[0] + after[0], self._over(usage), self.merit[2] - before[1] + after[1])
        if merit <= self.merit:  # equal ones, too: they lead to places from which others are better
            better = merit < self.merit
            self.merit, self._usage = merit, usage
            return better
        self.chosen[variables] = old
        return False
