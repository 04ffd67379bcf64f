"""Sequential tree-reweighted message passing (TRW-S): a bound on the least sum of costs and edges that rises from sweep to sweep.

Messages move costs between variables and edges, so that the sum for every choice of all variables stays the same. Each variable
gives equal shares of its costs to the chains of edges that pass through it in the order of the variables; a sweep backwards
solves all chains exactly, and the sum of their minima is the bound (Kolmogorov, Convergent tree-reweighted message passing,
2006).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import final

import numpy as np

from meshbridge.search.problem import Indices, Numbers

Sends = list[tuple[int, Numbers, int, int]]
"""By edge of a variable: the neighbour, the matrix `[neighbour, variable]`, where the messages to and from the variable stand."""


@final
class Messages:
    """Messages along the edges of a problem, which stay as they are when the costs of the variables change."""

    def __init__(self, offsets: Indices, edges: Mapping[tuple[int, int], Numbers]) -> None:
        """`offsets[v]`: where the costs of variable v begin in the costs that the methods take."""
        self._slices = [slice(first, last) for first, last in pairwise(offsets.tolist())]
        self._later: dict[int, Sends] = defaultdict(list)
        self._earlier: dict[int, Sends] = defaultdict(list)
        self._messages: list[Numbers] = []
        for (i, j), matrix in sorted(edges.items(), key=lambda item: item[0]):
            forward, back = len(self._messages), len(self._messages) + 1
            self._messages += [np.zeros(matrix.shape[1]), np.zeros(matrix.shape[0])]
            self._later[i].append((j, matrix.T, back, forward))
            self._earlier[j].append((i, matrix, forward, back))
        self.variables = sorted(self._later.keys() | self._earlier.keys())
        chains = {v: max(len(self._later[v]), len(self._earlier[v])) for v in self.variables}
        self._shares = {v: 1.0 / count for v, count in chains.items()}
        self._ends = {v: 1.0 - len(self._earlier[v]) / count for v, count in chains.items()}

    def sweep(self, costs: Numbers) -> float:
        """One sweep forwards and one backwards; the bound on what these variables and the edges cost."""
        totals = {v: self._total(v, costs) for v in self.variables}
        self._pass(self.variables, self._later, totals)
        moved = self._pass(self.variables[::-1], self._earlier, totals)
        return moved + sum(float(totals[v].min()) * end for v, end in self._ends.items() if end)

    def _total(self, v: int, costs: Numbers) -> Numbers:
        total = costs[self._slices[v]].copy()
        for sends in (self._later[v], self._earlier[v]):
            for _, _, arriving, _ in sends:
                total += self._messages[arriving]
        return total

    def _pass(self, order: list[int], sends: dict[int, Sends], totals: dict[int, Numbers]) -> float:
        messages = self._messages
        moved = 0.0
        for v in order:
            if sends[v]:
                share = totals[v] * self._shares[v]
                for u, matrix, arriving, leaving in sends[v]:
                    least = (matrix + (share - messages[arriving])).min(axis=1)
                    lowest = float(least.min())
                    moved += lowest
                    least -= lowest
                    totals[u] += least - messages[leaving]
                    messages[leaving] = least
        return moved

    def decode(self, costs: Numbers, chosen: Indices) -> None:
        """Writes choices: each variable's best one by what earlier ones took and by the messages of later ones."""
        taken: dict[int, int] = {}
        for v in self.variables:
            total = costs[self._slices[v]].copy()
            for u, matrix, _, _ in self._earlier[v]:
                total += matrix[taken[u]]
            for _, _, arriving, _ in self._later[v]:
                total += self._messages[arriving]
            taken[v] = int(total.argmin())
        chosen[self.variables] = [taken[v] for v in self.variables]
