"""Choices within the memory limit: those that cost least at a price on each variable's bytes, and prices that follow.

The prices begin as those of the dual. Then the price of a variable rises while it lives at a step that is above the limit, and
falls while it does not: unlike prices of steps, these do not add up over a long life, so that one that is too high does not make
all variables that live through its step small.

What differs between the best choices so far and those of a turn falls into parts that no edge connects, a layer or a single leaf.
Each part that costs less and fits is taken over, so that choices above the limit make the best ones better as well.
"""

from __future__ import annotations

from typing import final

import numpy as np

from meshbridge.search.combine import combined
from meshbridge.search.cutset import CUTSETS, Cutsets
from meshbridge.search.dual import Dual
from meshbridge.search.problem import Indices, Numbers

FIRST_SWEEPS = 20
"""Sweeps of messages before the first choices are taken. Not measured against others."""

SWEEPS = 8
"""Sweeps of messages, each time the choices start anew. Not measured against others."""

ANEW = 16
"""Of so many turns, the choices start anew from messages in one, and go on from what costs less. Not measured against others."""

ANEW_WITHOUT, SWEEPS_WITHOUT = 4, 2
"""Of so many turns while no choices within the limit are known, one starts anew at higher prices too, and after how many sweeps.
Not measured against others."""

CHANGE = 0.3
"""By how much prices change at first, relative to them. Not measured against others."""

SLOWER = 20
"""After so many turns the changes are half as large. Not measured against others."""

HIGHER, LOWER = 1.7, 0.7
"""How the factor less 1 changes, by which prices are raised to get within the limit. Not measured against others."""

FACTOR = 1.1
"""The factor at first. Not measured against others."""

LEAST = 0.01
"""Of the middle price: what is added to those that rise, so that 0 does not stay. Not measured against others."""


@final
class Within:
    """Choices that get better from turn to turn, first at given prices, then with prices that follow the limit."""

    def __init__(self, dual: Dual, best: Indices | None) -> None:
        """`best`: choices within the limit, if any are known."""
        self._normal = dual.normal
        self._dual = dual
        self._cutsets = Cutsets(dual.normal, dual.leaves)
        self._most = dual.normal.forbidding / dual.normal.unit / 100
        self._prices = dual.normal.steps.prices(dual.prices)
        self._best = best
        self._more = FACTOR
        self._turn = 0
        self._changes = 0
        self._same = 0
        self.chosen = self._anew(self._priced(), FIRST_SWEEPS)

    @property
    def settled(self) -> bool:
        """No cutset changes the choices any more, and no price does."""
        return self._same >= CUTSETS and not self._normal.steps.times.size

    def turn(self) -> Indices:
        """The best choices after one more turn; while none are within the limit, the ones of the turn."""
        costs = self._priced()
        before = self.chosen
        self.chosen = self._cutsets.improved(before, costs, self._turn)
        if self._turn % ANEW == ANEW - 1:
            others = [self.chosen, self._anew(costs, SWEEPS), *([] if self._best is None else [self._best])]
            self.chosen = min(others, key=lambda chosen: self._merit(chosen, costs))
        self._turn += 1
        self._same = self._same + 1 if np.array_equal(before, self.chosen) else 0
        if self._turn >= CUTSETS:
            self._follow()
        if not self._take(self.chosen):
            fits = self._take(self._smaller())
            self._more = 1 + (self._more - 1) * (LOWER if fits else HIGHER)
        return self.chosen if self._best is None else self._best

    def _take(self, chosen: Indices) -> bool:
        """Makes the best choices better by these; whether these are within the limit themselves."""
        normal = self._normal
        fits = bool(normal.usage(chosen).max(initial=0.0) <= normal.limit)
        forbidden, cost = normal.cost(chosen)
        if self._best is not None:
            self._best = combined(normal, self._best, chosen)
        if fits and not forbidden and (self._best is None or cost < normal.cost(self._best)[1]):
            self._best = chosen
        return fits

    def _smaller(self) -> Indices:
        """Choices at all prices higher by the same factor, which follows what has been within the limit.

        While none within it are known, they start anew at times: what all cutsets hold may be too large at any prices.
        """
        normal = self._normal
        prices = np.minimum(self._prices * self._more, self._most)
        costs = normal.costs + normal.held * prices[normal.owners]
        if self._best is None and self._turn % ANEW_WITHOUT == 0:
            return self._anew(costs, SWEEPS_WITHOUT)
        return self._cutsets.improved(self.chosen, costs, self._turn)

    def _priced(self) -> Numbers:
        normal = self._normal
        return np.asarray(normal.costs + normal.held * self._prices[normal.owners])

    def _anew(self, costs: Numbers, sweeps: int) -> Indices:
        """Choices by messages, each by itself or by elimination, whichever cost less after turns against what is forbidden."""
        _, alone = self._dual.swept(costs, sweeps)
        _, decided = self._dual.decided(costs)
        return min((self._freed(each, costs) for each in (decided, alone)), key=lambda chosen: self._merit(chosen, costs))

    def _freed(self, chosen: Indices, costs: Numbers) -> Indices:
        for turn in range(self._turn, self._turn + CUTSETS):
            if not self._normal.cost(chosen)[0]:
                break
            chosen = self._cutsets.improved(chosen, costs, turn)
        return chosen

    def _merit(self, chosen: Indices, costs: Numbers) -> tuple[int, float]:
        normal = self._normal
        places = normal.offsets[:-1] + chosen
        forbidden, cost = normal.cost(chosen)
        return forbidden, cost + float((costs - normal.costs)[places].sum())

    def _follow(self) -> None:
        """Prices for what is held too much or too little."""
        normal = self._normal
        if not normal.steps.times.size:
            return
        excess = normal.steps.highest((normal.usage(self.chosen) - normal.limit) / normal.unit)
        change = CHANGE / (1 + self._changes / SLOWER)
        self._changes += 1
        above = excess > 0
        paid = self._prices[self._prices > 0]
        middle = float(np.median(paid)) if paid.size else self._most * 1e-6
        strength = change * np.minimum(1.0, 0.1 + 3 * np.abs(np.maximum(excess, -1.0)))
        self._prices *= np.where(above, 1 + strength, 1 - strength)
        self._prices = np.minimum(self._prices + above * LEAST * change * middle, self._most)
