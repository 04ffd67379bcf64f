"""The Lagrangian dual of a sharding problem: a bound on its best cost, from messages along edges and prices on the bytes of each
step.

At any prices of at least 0 for a byte at a step, the least sum of costs and priced bytes, less the price of the whole limit at
all steps, is a bound. Messages bound that sum. Prices follow the mean excess over the limit of the choices that the messages
suggest, from the best prices so far (Barahona and Anbil, The volume algorithm, 2000).
"""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np

from meshbridge.solver.degree_one import DegreeOne
from meshbridge.solver.eliminate import Elimination
from meshbridge.solver.presolve import Presolved
from meshbridge.solver.problem import Indices, Numbers, product
from meshbridge.solver.trws import TRWS

SHARE = 0.3
"""The weight of the latest choices in the mean. Not measured against others."""

AHEAD = 1.2
"""The bound that the step size aims at, relative to the best so far. Not measured against others."""

FASTER = 1.1
"""The growth of the step size while it raises the bound. In 2 s, IOPDDL's G is bounded by 208,000, and with 1.3 and up to 16
sweeps a round by 176,000."""

ENTRIES = 10_000
"""The most entries of a table of the elimination after the messages. On IOPDDL's C, 10,000 and 100,000 give choices of the same
cost, in 1.0 and 2.2 s; on A, a million take 32 s instead of 2.4 s, for 1.0058 instead of 1.2222 of the best published cost."""

FIRST_SWEEPS = 20
"""Sweeps before the first prices, which go astray if the bound is too rough. Not measured against others."""


@final
class LagrangianDual:
    """Rounds that raise the bound."""

    def __init__(self, presolved: Presolved, caution: float = 1.0) -> None:
        """`caution`: the weight of the squared length of the excess against that of its mean, which keeps steps small."""
        self.presolved = presolved
        self._caution = caution
        self.bound = -np.inf
        self.prices = np.zeros(presolved.steps.times.size)
        self.leaves = DegreeOne(presolved.offsets, presolved.edges, range(presolved.count))
        core = set(self.leaves.core)
        self._edges = {pair: matrix for pair, matrix in presolved.edges.items() if core.issuperset(pair)}
        self._messages = TRWS(presolved.offsets, self._edges)
        alone = core - set(self._messages.variables.tolist())
        self._alone = np.array(sorted(alone), dtype=np.int64)
        self._mean: Numbers | None = None
        self._square = 0.0  # the mean of the squared lengths of the excesses in the mean
        self._step = 1.0
        self._failures = 0

    def round(self) -> Indices:
        """Runs one round, which raises the bound or makes later steps smaller. Returns choices near the bound, maybe forbidden
        ones."""
        direction = np.zeros_like(self.prices) if self._mean is None else self._changeable(self._mean, self._mean)
        # Where the excess swings, its mean is short: its own length keeps prices from changing most where least is known.
        length = max(product(direction, direction), self._caution * self._square)
        ahead = max(abs(self.bound) * (AHEAD - 1), 1e-12) if np.isfinite(self.bound) else 0.0
        scale = self._step * ahead / length / self.presolved.unit if length > 0 else 0.0
        prices = np.maximum(0.0, self.prices + scale * direction)
        memory = self.presolved.memory
        costs = memory.priced(self.presolved.costs, memory.steps.prices(prices))
        bound, chosen = self.swept(costs, FIRST_SWEEPS if self._mean is None else 1)
        bound += self.of_limit(prices)
        excess = self._excess(chosen)
        if bound > self.bound:
            self.bound, self.prices, self._failures = bound, prices, 0
            self._step = min(4.0, self._step * FASTER) if product(excess, direction) > 0 else self._step
        else:
            self._failures += 1
            if self._failures % 4 == 0:
                self._step *= 0.66
        share = 1.0 if self._mean is None else SHARE
        self._mean = mean = excess if self._mean is None else (1 - share) * self._mean + share * excess
        free = self._changeable(excess, mean)
        self._square = (1 - share) * self._square + share * product(free, free)
        return chosen

    def of_limit(self, prices: Numbers) -> float:
        """What a bound at these prices gains from the limit, beside the costs and the priced bytes: mostly less than 0."""
        return product(prices, self.presolved.memory.base - self.presolved.limit) if prices.size else 0.0

    def _changeable(self, excess: Numbers, mean: Numbers) -> Numbers:
        """The excess where a price may follow it: a price of 0 only rises, and only where the mean is above the limit."""
        return np.where((mean > 0) | (self.prices > 0), excess, 0.0)

    def _excess(self, chosen: Indices) -> Numbers:
        """The bytes above the limit at each step, in the unit."""
        presolved = self.presolved
        if not presolved.steps.times.size:
            return np.zeros(0)
        return (presolved.usage(chosen) - presolved.limit) / presolved.unit

    def swept(self, costs: Numbers, sweeps: int) -> tuple[float, Indices]:
        """A bound on these costs and all edges after more sweeps, and the best choice of each variable by itself."""
        folded, best = self.leaves.fold(costs)
        bound = max(self._messages.sweep(folded) for _ in range(sweeps))
        bound += float(np.minimum.reduceat(folded, self.presolved.offsets[:-1])[self._alone].sum())
        chosen = self.presolved.cheapest(self._messages.totals(folded))
        self.leaves.unfold(chosen, best)
        return bound, chosen

    def decided(self, costs: Numbers) -> tuple[float, Indices]:
        """A bound on these costs and all edges from elimination after the messages, and choices near it."""
        folded, best = self.leaves.fold(costs)
        bound, chosen = self._elimination.run(self._messages.totals(folded), self._messages.tables())
        self.leaves.unfold(chosen, best)
        return bound, chosen

    def gaps(self, folded: Numbers, chosen: Indices) -> Numbers:
        """About how much more each variable's choice and edges cost than the bound of the messages."""
        return self._messages.gaps(folded, chosen)

    @cached_property
    def _elimination(self) -> Elimination:
        return Elimination(self.presolved.offsets, self._edges, ENTRIES, self.leaves.core)
