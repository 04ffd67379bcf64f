"""All variables at once but a cutset: while some variables stay as they are, elimination of all others is exact and small.

Cutsets take turns, so that what one of them holds another one frees. On IOPDDL's A, 9 in 10 variables that are no leaves are free
at a time, and solving for them takes a quarter of a second.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from meshbridge.search.eliminate import Elimination
from meshbridge.search.leaves import DegreeOne
from meshbridge.search.normal import Normal
from meshbridge.search.problem import Indices, Numbers

ENTRIES = 20_000
"""Entries of a table. On IOPDDL's A, 2,000 hold a third more variables, and some pairs are still forbidden after 14 turns."""

CUTSETS = 5
"""Cutsets that take turns. Each later one holds more variables: those that earlier ones free. Not measured against others."""

Pair = tuple[int, int]


@final
class Cutsets:
    """Better choices for all variables, at any costs of these."""

    def __init__(self, normal: Normal, leaves: DegreeOne) -> None:
        self._normal = normal
        self._leaves = leaves
        core = set(leaves.core)
        inner = {pair: matrix for pair, matrix in normal.edges.items() if core.issuperset(pair)}
        finite = {id(matrix): np.where(np.isinf(matrix), normal.forbidding, matrix) for matrix in inner.values()}
        self._edges = {pair: finite[id(matrix)] for pair, matrix in inner.items()}
        self._variables = sorted({v for pair in inner for v in pair})
        self._times_held = np.zeros(normal.count)
        self._random = np.random.default_rng(0)
        self._cutsets: list[_Cutset] = []

    def improved(self, chosen: Indices, costs: Numbers, turn: int) -> Indices:
        """The best choices, at these costs, of all variables but those of a cutset, which stay as they are."""
        folded, best = self._leaves.fold(costs)
        index = turn % CUTSETS
        if index >= len(self._cutsets):
            index = len(self._cutsets)
            self._cutsets.append(self._drawn())
        result = self._normal.cheapest(folded)  # stays for what has no neighbours but leaves
        result[self._variables] = chosen[self._variables]
        self._cutsets[index].solve(result, folded)
        self._leaves.unfold(result, best)
        return result

    def _drawn(self) -> _Cutset:
        held = held_out(self._variables, self._edges, self._normal.sizes(), self._times_held, self._random)
        self._times_held[sorted(held)] += 1
        return _Cutset(self._normal.offsets, [v for v in self._variables if v not in held], self._edges)


def held_out(
    variables: Iterable[int], edges: Iterable[Pair], sizes: Indices, times_held: Numbers, random: np.random.Generator
) -> set[int]:
    """A cutset: variables without which all others can be eliminated with tables of at most `ENTRIES`.

    Where each that is left would need a larger one, the variable of most neighbours is held, more or less as drawn, and those
    rather that were held less often.
    """
    logs = np.log(sizes).tolist()
    most = float(np.log(ENTRIES))
    weights = ((random.random(sizes.size) + 0.3) * 0.3**times_held).tolist()
    near: dict[int, set[int]] = {v: set() for v in variables}
    for i, j in edges:
        near[i].add(j)
        near[j].add(i)

    def extent(v: int) -> float:
        return float(logs[v] + sum(logs[u] for u in near[v]))

    current = {v: extent(v) for v in near}
    heap = [(size, v) for v, size in current.items()]
    heapq.heapify(heap)
    held = set()
    while heap:
        size, v = heapq.heappop(heap)
        if v not in near or current[v] != size:
            continue
        eliminated = size <= most
        if not eliminated:
            heapq.heappush(heap, (size, v))
            v = max((*sorted(near[v]), v), key=lambda u: len(near[u]) * weights[u])
            held.add(v)
        others = near.pop(v)
        for u in others:
            if eliminated:
                near[u] |= others
                near[u].discard(u)
            near[u].discard(v)
        for u in others:
            current[u] = extent(u)
            heapq.heappush(heap, (current[u], u))
    return held


@final
class _Cutset:
    """The elimination of some variables while all others stay as they are."""

    def __init__(self, offsets: Indices, free: list[int], edges: Mapping[Pair, Numbers]) -> None:
        inside = set(free)
        between = {pair: matrix for pair, matrix in edges.items() if inside.issuperset(pair)}
        # Its order may differ from that of the cutset, so that a few tables get larger.
        self._elimination = Elimination(offsets, between, 100 * ENTRIES, free)
        self._free = np.array(free, dtype=np.int64)
        self._boundary: list[tuple[slice, Numbers, int]] = []
        for (i, j), matrix in edges.items():
            if (i in inside) != (j in inside):
                v, u, rows = (i, j, matrix.T) if i in inside else (j, i, matrix)
                self._boundary.append((slice(int(offsets[v]), int(offsets[v + 1])), rows, u))

    def solve(self, chosen: Indices, costs: Numbers) -> None:
        """Writes the best choices of those that are free."""
        theta = costs.copy()
        for place, rows, u in self._boundary:
            theta[place] += rows[chosen[u]]
        chosen[self._free] = self._elimination.run(theta)[1][self._free]
