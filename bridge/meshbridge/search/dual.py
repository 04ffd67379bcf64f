"""The dual of a sharding problem: a bound on its best cost, by messages along edges and prices on the bytes of each step.

At any prices of at least 0 for a byte at a step, the least of costs and prices of what is held, less the price of the whole limit
at all steps, is a bound. Messages bound that least. Prices follow the mean of what is held too much by the choices that the
messages suggest, from the best prices so far (Barahona and Anbil, The volume algorithm, 2000).
"""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np

from meshbridge.search.eliminate import Elimination
from meshbridge.search.leaves import DegreeOne
from meshbridge.search.messages import Messages
from meshbridge.search.normal import Normal
from meshbridge.search.problem import Indices, Numbers, product

SHARE = 0.3
"""The weight of the last choices in the mean. Not measured against others."""

AHEAD = 1.2
"""The bound that prices aim at, relative to the best so far. Not measured against others."""

FASTER = 1.1
"""By how much the change of prices grows while it raises the bound. In 2 s, IOPDDL's G is bounded by 208,000 so, and with 1.3
and up to 16 sweeps a round by 176,000."""

ENTRIES = 10_000
"""Entries of a table of the elimination that follows messages. On IOPDDL's C, 10,000 and 100,000 give choices of the same cost,
in 1.0 and 2.2 s; on A, a million take 32 s instead of 2.4 s, for 1.0058 in place of 1.2222 of the best published cost."""

FIRST_SWEEPS = 20
"""Sweeps before any prices, which go astray if they follow too rough a bound. Not measured against others."""


@final
class Dual:
    """Rounds that raise a bound."""

    def __init__(self, normal: Normal, caution: float = 1.0) -> None:
        """`caution`: how much of the squared length of what is held counts beside that of its mean: what makes steps small."""
        self.normal = normal
        self._caution = caution
        self.bound = -np.inf
        self.prices = np.zeros(normal.steps.times.size)
        self.leaves = DegreeOne(normal.offsets, normal.edges, range(normal.count))
        core = set(self.leaves.core)
        self._edges = {pair: matrix for pair, matrix in normal.edges.items() if core.issuperset(pair)}
        self._messages = Messages(normal.offsets, self._edges)
        alone = core - set(self._messages.variables.tolist())
        self._alone = np.array(sorted(alone), dtype=np.int64)
        self._mean: Numbers | None = None
        self._square = 0.0  # the mean of the squared lengths of what the mean is of
        self._step = 1.0
        self._failures = 0

    def round(self) -> Indices:
        """One round, which raises the bound, or tries smaller changes from now on; choices near the bound, maybe forbidden."""
        direction = np.zeros_like(self.prices) if self._mean is None else self._changeable(self._mean, self._mean)
        # Where what is held swings, its mean is short: by its own length alone, prices would change most where least is known.
        length = max(product(direction, direction), self._caution * self._square)
        ahead = max(abs(self.bound) * (AHEAD - 1), 1e-12) if np.isfinite(self.bound) else 0.0
        scale = self._step * ahead / length / self.normal.unit if length > 0 else 0.0
        prices = np.maximum(0.0, self.prices + scale * direction)
        memory = self.normal.memory
        costs = memory.priced(self.normal.costs, memory.steps.prices(prices))
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
        """What a bound at these prices of the steps gains by them, beside the costs with what is held: most often less than 0."""
        return product(prices, self.normal.memory.base - self.normal.limit) if prices.size else 0.0

    def _changeable(self, excess: Numbers, mean: Numbers) -> Numbers:
        """The excess where a price may follow it: one of 0 only rises, and only where the mean is above the limit."""
        return np.where((mean > 0) | (self.prices > 0), excess, 0.0)

    def _excess(self, chosen: Indices) -> Numbers:
        """By step: the bytes above the limit, in the unit."""
        normal = self.normal
        if not normal.steps.times.size:
            return np.zeros(0)
        return (normal.usage(chosen) - normal.limit) / normal.unit

    def swept(self, costs: Numbers, sweeps: int) -> tuple[float, Indices]:
        """A bound on the costs and those of all edges after more sweeps with these costs, and each variable's best by itself."""
        folded, best = self.leaves.fold(costs)
        bound = max(self._messages.sweep(folded) for _ in range(sweeps))
        bound += float(np.minimum.reduceat(folded, self.normal.offsets[:-1])[self._alone].sum())
        chosen = self.normal.cheapest(self._messages.totals(folded))
        self.leaves.unfold(chosen, best)
        return bound, chosen

    def decided(self, costs: Numbers) -> tuple[float, Indices]:
        """A bound on the costs and those of all edges by elimination of what messages leave of them, and choices near it."""
        folded, best = self.leaves.fold(costs)
        bound, chosen = self._elimination.run(self._messages.totals(folded), self._messages.tables())
        self.leaves.unfold(chosen, best)
        return bound, chosen

    def gaps(self, folded: Numbers, chosen: Indices) -> Numbers:
        """By variable: about how much more its choice and its edges cost than the messages say they must."""
        return self._messages.gaps(folded, chosen)

    @cached_property
    def _elimination(self) -> Elimination:
        return Elimination(self.normal.offsets, self._edges, ENTRIES, self.leaves.core)
