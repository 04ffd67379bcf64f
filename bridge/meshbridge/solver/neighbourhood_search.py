"""Large neighbourhood search: solves regions of the problem, one after the other, while all else stays as it is.

Choices are compared by their cost. A forbidden choice or pair costs more than all allowed ones; each byte above the limit has a
price that rises until there is none. Choices within the limit stay there. A region is solved at prices of memory, from none to
twice those of the dual, except for a cutset of it; each part of the change that improves the choices is taken. Regions of the
size and the prices that have gained most for their work come most often.
"""

from __future__ import annotations

from typing import final

import numpy as np

from meshbridge.solver.cutset import cutset
from meshbridge.solver.eliminate import Elimination
from meshbridge.solver.lagrangian_dual import LagrangianDual
from meshbridge.solver.memory import ranges
from meshbridge.solver.memory_profile import MemoryProfile
from meshbridge.solver.problem import Indices, Numbers, product

SIZES = (4, 16, 64, 256, 1024)
"""The number of variables of a region, leaves not counted."""

FACTORS = (1.0, 0.0, 0.5, 2.0)
"""The factors on the dual's prices."""

ENTRIES = 2_000_000
"""The most entries of a table in a region. Its cutset is drawn for fewer: the order of the elimination may differ."""

NEIGHBOURS = 8
"""So many neighbours, drawn at random, join a region for a variable with more."""

RARELY = 0.2
"""How often the size and the prices are drawn at random instead of by gain."""

FORGET = 0.85
"""The weight of the earlier gains of a size and prices against the latest."""

AGAIN = 100
"""After so many attempts the gaps are computed again."""

RISING, RISE = 20, 1.5
"""After so many attempts above the limit, the prices of the excess rise by this factor."""

PATIENCE, LITTLE = 50, 2e-3
"""Choices within the limit whose cost has fallen by at most this share in so many attempts may go above it. On IOPDDL's R, 10 s
with 100 and 1e-4 end 2.7 % above the best published cost, 14 s with these 0.5 %, from the same start."""


@final
class NeighbourhoodSearch:
    """Choices for all variables of a problem, which only improve."""

    def __init__(self, dual: LagrangianDual, chosen: Indices) -> None:
        self.presolved = presolved = dual.presolved
        self._dual = dual
        self._random = np.random.default_rng(0)
        self._high = presolved.forbidding
        self._costs = np.where(np.isinf(presolved.costs), self._high, presolved.costs)
        entries, self._begins, self._columns = presolved.tables
        self._entries = np.where(np.isinf(entries), self._high, entries)
        ends = np.concatenate(presolved.ends)
        self._edges = np.argsort(ends, kind="stable") % max(1, len(presolved.edges))  # by variable, then
        self._degrees = np.bincount(ends, minlength=presolved.count)
        self._sizes = presolved.sizes()
        self._core = np.array([v for v in dual.leaves.core if self._sizes[v] > 1], dtype=np.int64)
        core = set(dual.leaves.core)
        finite = {id(matrix): np.where(np.isinf(matrix), self._high, matrix) for matrix in presolved.edges.values()}
        self._near: dict[int, dict[int, Numbers]] = {v: {} for v in self._core.tolist()}  # [v][u]: [choice of v, choice of u]
        for (i, j), matrix in presolved.edges.items():
            if i in core and j in core:
                self._near[i][j] = finite[id(matrix)]
                self._near[j][i] = finite[id(matrix)].T
        most = max(1, self._core.size)
        sizes = [size for size in SIZES if size < most] + [most] * (most <= SIZES[-1])
        self._gains: dict[tuple[int, float], float] = {(size, factor): np.inf for size in sizes for factor in FACTORS}
        self._attempts = 0
        self._seeds = np.ones(self._core.size)
        self.take(chosen)

    def take(self, chosen: Indices) -> None:
        """Continues from these choices, better or not."""
        self.chosen = chosen.copy()
        self._usage = self.presolved.usage(chosen)
        self.cost = self._cost_of(chosen)
        self._strength = 1.0
        self._since = 0  # attempts since the choices left or entered the limit
        self._cost_then = self.cost
        self._changed_limit()
        self._strict = self.within
        self.best = (self.cost, self.chosen.copy()) if self._strict else (np.inf, self.chosen.copy())

    def merit_of(self, chosen: Indices) -> float:
        """The cost of choices, with the penalties for forbidden choices and for bytes above the limit."""
        return self._cost_of(chosen) + self._penalty(self.presolved.usage(chosen))

    def _cost_of(self, chosen: Indices) -> float:
        firsts, seconds = self.presolved.ends
        pairs = self._entries[self._begins + chosen[firsts] * self._columns + chosen[seconds]]
        return float(self._costs[self.presolved.offsets[:-1] + chosen].sum() + pairs.sum())

    @property
    def within(self) -> bool:
        """Whether the choices are within the limit."""
        return not self._over.size

    def _changed_limit(self) -> None:
        """Updates the prices of the steps that are above the limit now."""
        self._over = np.flatnonzero(self._usage > self.presolved.limit)
        prices = self._dual.prices
        least = prices.sum() / max(1, prices.size) + 1e-9 * max(self.cost, 1e-300) / self.presolved.unit
        self._above = self._strength * np.maximum(prices, least)
        self._folds: dict[float, tuple[Numbers, Indices]] = {}

    def _penalty(self, usage: Numbers) -> float:
        return product(self._above, np.maximum(0.0, usage - self.presolved.limit))

    def attempt(self) -> None:
        """Solves one region."""
        if not self._core.size:
            return
        self._swing()
        if self._attempts % AGAIN == 0:
            theta, _ = self._folded(1.0)
            self._seeds = self._dual.gaps(theta, self.chosen)[self._core]
        self._attempts += 1
        arms = list(self._gains)
        rarely = self._random.random() < RARELY
        size, factor = arms[int(self._random.integers(len(arms)))] if rarely else max(arms, key=lambda arm: self._gains[arm])
        before = self.cost + self._penalty(self._usage)
        region = self._around(self._seed(), size)
        theta, best = self._folded(factor)
        self._take_better(np.array(region), self._solved(region, theta), best)
        gain = max(0.0, before - self.cost - self._penalty(self._usage)) / (size + 10)
        self._keep_best()
        earlier_gain = self._gains[size, factor]
        self._gains[size, factor] = gain if np.isinf(earlier_gain) else FORGET * earlier_gain + (1 - FORGET) * gain

    def _swing(self) -> None:
        """Lets the choices exceed the limit when they stop improving within it, and returns at rising prices.

        What one region saves then can pay for what another needs, far from it.
        """
        self._since += 1
        if not self._strict and self._since % RISING == 0:
            self._strength *= RISE
            self._changed_limit()
            if self.within:
                self._strict, self._since, self._cost_then = True, 0, self.cost
                self._keep_best()
        elif self._strict and self._since % PATIENCE == 0:
            if self._cost_then - self.cost <= LITTLE * self.cost and self.presolved.steps.times.size:
                self.take(self.best[1])
                self._strict = False
            self._cost_then = self.cost

    def _keep_best(self) -> None:
        if self._strict and self.cost < self.best[0]:
            self.best = self.cost, self.chosen.copy()

    def _folded(self, factor: float) -> tuple[Numbers, Indices]:
        """The costs at these prices with leaves folded into their neighbours, and the leaves' best choices."""
        if factor not in self._folds:
            prices = self._dual.prices * factor
            prices[self._over] = np.maximum(prices[self._over], self._above[self._over])
            memory = self.presolved.memory
            theta, best = self._dual.leaves.fold(memory.priced(self._costs, memory.steps.prices(prices)))
            self._folds[factor] = (
                theta,
                np.concatenate([*(batch_best.ravel() for batch_best in best), np.zeros(0, dtype=np.int64)]),
            )
        return self._folds[factor]

    def _seed(self) -> int:
        """A variable at a step above the limit, or where the choices cost more than the bound."""
        if self._over.size:
            step, memory = int(self._random.choice(self._over)), self.presolved.memory
            alive = np.flatnonzero((memory.steps.starts <= step) & (step < memory.steps.stops))
            if alive.size:
                saved = memory.most_saved[alive]
                return self._dual.leaves.root(int(memory.owners[self._random.choice(alive, p=saved / saved.sum())]))
        weights = self._seeds + self._seeds.mean() * 0.3 + 1e-300
        return int(self._random.choice(self._core, p=weights / weights.sum()))

    def _around(self, seed: int, size: int) -> list[int]:
        """The seed and the variables nearest to it along edges; at most `NEIGHBOURS` of a variable, drawn at random."""
        region = {seed: None}
        for v in (queue := [seed]):
            neighbours = [u for u in self._near.get(v, ()) if u not in region]
            if len(neighbours) > NEIGHBOURS and size < self._core.size:
                neighbours = [neighbours[k] for k in self._random.choice(len(neighbours), NEIGHBOURS, replace=False).tolist()]
            for u in neighbours:
                if len(region) >= size:
                    return sorted(region)
                region[u] = None
                queue.append(u)
        return sorted(region)

    def _solved(self, region: list[int], theta: Numbers) -> Indices:
        """The region's best choices at these costs, with a cutset of it and all other variables fixed."""
        names = {v: k for k, v in enumerate(region)}
        offsets, chosen = self.presolved.offsets, self.chosen
        costs: list[Numbers] = []
        inner: dict[tuple[int, int], Numbers] = {}
        for k, v in enumerate(region):
            total = theta[offsets[v] : offsets[v + 1]]
            for u, matrix in self._near.get(v, {}).items():
                if u not in names:
                    total = total + matrix[:, chosen[u]]
                elif names[u] > k:
                    inner[k, names[u]] = matrix
            costs.append(total)
        sizes = self._sizes[region]
        fixed = cutset(range(len(region)), inner, sizes, np.zeros(len(region)), self._random)
        between = {}
        for (k, j), matrix in inner.items():
            if k in fixed:
                costs[j] = costs[j] + matrix[chosen[region[k]]]
            elif j in fixed:
                costs[k] = costs[k] + matrix[:, chosen[region[j]]]
            else:
                between[k, j] = matrix
        free = [k for k in range(len(region)) if k not in fixed]
        own = np.cumsum([0, *sizes], dtype=np.int64)
        best = Elimination(own, between, ENTRIES, free).run(np.concatenate(costs))[1]
        return np.where(best < 0, chosen[region], best)

    def _take_better(self, region: Indices, solved: Indices, best: Indices) -> None:
        """Takes each part of the region's new choices, with those of its leaves, that improves the choices."""
        candidate = self.chosen.copy()
        candidate[region] = solved
        leaves = self._dual.leaves.unfold_some(candidate, region, best)
        touched = np.concatenate([region, leaves])
        changed = touched[candidate[touched] != self.chosen[touched]]
        if changed.size:
            self._merge(candidate, changed)

    def _merge(self, candidate: Indices, changed: Indices) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        presolved, chosen = self.presolved, self.chosen
        edge_starts = np.cumsum(self._degrees) - self._degrees
        edges = np.unique(self._edges[ranges(edge_starts[changed], self._degrees[changed])[0]])
        names = np.full(presolved.count, -1)
        names[changed] = np.arange(changed.size)
        ends = presolved.ends[0][edges], presolved.ends[1][edges]
        a, b = names[ends[0]], names[ends[1]]
        both_changed = (a >= 0) & (b >= 0)
        links = coo_array(
            (np.ones(int(both_changed.sum())), (a[both_changed], b[both_changed])), shape=(changed.size, changed.size)
        )
        count, parts = connected_components(links, directed=False)
        begins, columns = self._begins[edges], self._columns[edges]
        pair_change = self._entries[begins + candidate[ends[0]] * columns + candidate[ends[1]]]
        pair_change = pair_change - self._entries[begins + chosen[ends[0]] * columns + chosen[ends[1]]]
        places = presolved.offsets[:-1][changed]
        costs = np.zeros(count)
        costs += np.bincount(parts[np.where(a >= 0, a, b)], pair_change, count)  # integers if there are no edges
        costs += np.bincount(parts, self._costs[places + candidate[changed]] - self._costs[places + chosen[changed]], count)
        order = np.argsort(parts, kind="stable")
        groups = np.split(changed[order], np.flatnonzero(np.diff(parts[order])) + 1)
        least = costs + self._least_penalty(candidate, changed, parts, count)
        for part in np.argsort(least, kind="stable")[: int((least < 0).sum())].tolist():
            self._take_part(groups[part], candidate[groups[part]], float(costs[part]))

    def _least_penalty(self, candidate: Indices, changed: Indices, parts: Indices, count: int) -> Numbers:
        """Per part, the least change of the penalty, which is convex, by its change of memory."""
        over = self._usage > self.presolved.limit
        if self._strict or not over.any():
            return np.zeros(count)
        memory = self.presolved.memory
        holders, which = memory.of(changed)
        byte_change = memory.sizes[memory.begins[holders] + candidate[changed][which]] - memory.held_by(self.chosen)[holders]
        prices = np.where(over, self._above, 0.0)
        return np.asarray(np.bincount(parts[which], byte_change * memory.steps.prices(prices)[holders], count), dtype=np.float64)

    def _take_part(self, group: Indices, choices: Indices, cost: float) -> None:
        """Takes these choices of a part, which add `cost`, if that improves the total."""
        memory, limit = self.presolved.memory, self.presolved.limit
        holders, which = memory.of(group)
        begins = memory.begins[holders]
        byte_change = memory.sizes[begins + choices[which]] - memory.sizes[begins + self.chosen[group][which]]
        usage = self._usage
        if byte_change.any():
            steps = memory.steps
            usage = usage + MemoryProfile(steps.starts[holders], steps.stops[holders], steps.times).usage(byte_change)
            if not self._strict:
                cost_of_limit = self._penalty(usage) - self._penalty(self._usage)
            else:
                cost_of_limit = np.inf if (usage > limit).any() else 0.0
        else:
            cost_of_limit = 0.0
        if cost + cost_of_limit < 0:
            self.chosen[group] = choices
            self._usage = usage
            self.cost += cost
