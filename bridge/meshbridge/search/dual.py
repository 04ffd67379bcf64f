"""The dual of a sharding problem: a bound on its best cost, by messages along edges and prices on the bytes of each step.

At any prices of at least 0 for a byte at a step, the least of costs and prices of what is held, less the price of the whole limit
at all steps, is a bound. Messages bound that least. Prices follow the mean of what is held too much by the choices that the
messages suggest, from the best prices so far (Barahona and Anbil, The volume algorithm, 2000).
"""

from __future__ import annotations

from typing import final

import numpy as np

from meshbridge.search.leaves import Leaves
from meshbridge.search.messages import Messages
from meshbridge.search.normal import Normal
from meshbridge.search.problem import Indices, Numbers

SHARE = 0.3
"""The weight of the last choices in the mean. Not measured against others."""

AHEAD = 1.2
"""The bound that prices aim at, relative to the best so far. Not measured against others."""

FIRST_SWEEPS = 6
"""Sweeps before any prices, which go astray if they follow too rough a bound. Not measured against others."""


@final
class Dual:
    """Rounds that raise a bound."""

    def __init__(self, normal: Normal) -> None:
        self.normal = normal
        self.bound = -np.inf
        self.prices = np.zeros(normal.steps.times.size)
        self._leaves = Leaves(normal.offsets, normal.edges, range(normal.count))
        core = set(self._leaves.core)
        self._messages = Messages(normal.offsets, {pair: m for pair, m in normal.edges.items() if core.issuperset(pair)})
        alone = core - set(self._messages.variables)
        self._alone = np.array(sorted(alone), dtype=np.int64)
        self._mean: Numbers | None = None
        self._step = 1.0
        self._failures = 0

    def round(self) -> Indices:
        """One round, which raises the bound, or tries smaller changes from now on; choices near the bound, maybe forbidden."""
        direction = self._direction()
        length = float(direction @ direction)
        ahead = max(abs(self.bound) * (AHEAD - 1), 1e-12) if np.isfinite(self.bound) else 0.0
        scale = self._step * ahead / length / self.normal.unit if length > 0 else 0.0
        prices = np.maximum(0.0, self.prices + scale * direction)
        bound, chosen = self._bound(prices, FIRST_SWEEPS if self._mean is None else 1)
        excess = self._excess(chosen)
        if bound > self.bound:
            self.bound, self.prices, self._failures = bound, prices, 0
            self._step = min(4.0, self._step * 1.1) if float(excess @ direction) > 0 else self._step
        else:
            self._failures += 1
            if self._failures % 4 == 0:
                self._step *= 0.66
        self._mean = excess if self._mean is None else (1 - SHARE) * self._mean + SHARE * excess
        return chosen

    def _direction(self) -> Numbers:
        if self._mean is None:
            return np.zeros_like(self.prices)
        return np.where((self._mean > 0) | (self.prices > 0), self._mean, 0.0)

    def _excess(self, chosen: Indices) -> Numbers:
        """By step: the bytes above the limit, in the unit."""
        normal = self.normal
        if not normal.steps.times.size:
            return np.zeros(0)
        return (normal.steps.usage(normal.held[normal.offsets[:-1] + chosen]) - normal.limit) / normal.unit

    def _bound(self, prices: Numbers, sweeps: int) -> tuple[float, Indices]:
        normal = self.normal
        priced = normal.costs + normal.held * normal.steps.prices(prices)[normal.owners]
        folded, best = self._leaves.fold(priced)
        bound = max(self._messages.sweep(folded) for _ in range(sweeps))
        least = np.minimum.reduceat(folded, normal.offsets[:-1])
        chosen = first_least(folded, least, normal)
        bound += float(least[self._alone].sum())
        if prices.size:
            bound -= float(prices.sum()) * normal.limit
        self._messages.decode(folded, chosen)
        self._leaves.unfold(chosen, best)
        return bound, chosen


def first_least(costs: Numbers, least: Numbers, normal: Normal) -> Indices:
    """By variable: its first choice of the least cost."""
    places = np.flatnonzero(costs == least[normal.owners])
    first = np.searchsorted(normal.owners[places], np.arange(normal.count))
    return np.asarray(places[first] - normal.offsets[:-1])
