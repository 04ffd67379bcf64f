"""Initial choices: by elimination after the messages, at prices of memory near those of the dual."""

from __future__ import annotations

from collections.abc import Iterator

from meshbridge.solver.cutset import CUTSETS, Cutsets
from meshbridge.solver.lagrangian_dual import LagrangianDual
from meshbridge.solver.problem import Indices

FACTORS = (1.3, 1.0)
"""Factors on the dual's prices: above the bound's prices, less is above the limit. Not measured finely."""

SWEEPS = 2
"""Sweeps of messages at these prices. Not measured against others."""


def initial_choices(dual: LagrangianDual) -> Iterator[Indices]:
    """Choices at each of these prices, maybe above the limit: the better of those by themselves and those from elimination.

    Elimination also raises the bound, where its tables lose little.
    """
    presolved, memory = dual.presolved, dual.presolved.memory
    cutsets = Cutsets(presolved, dual.leaves)
    for factor in FACTORS:
        prices = dual.prices * factor
        costs = memory.priced(presolved.costs, memory.steps.prices(prices))
        _, alone = dual.swept(costs, SWEEPS)
        bound, decided = dual.decided(costs)
        dual.bound = max(dual.bound, bound + dual.of_limit(prices))
        candidates = []
        for chosen in (alone, decided):
            for turn in range(CUTSETS):
                chosen = cutsets.improved(chosen, costs, turn)
            forbidden, cost = presolved.cost(chosen)
            candidates.append((forbidden, cost + float((costs - presolved.costs)[presolved.offsets[:-1] + chosen].sum()), chosen))
        yield min(candidates, key=lambda candidate: candidate[:2])[2]
