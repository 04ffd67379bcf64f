"""Cutset conditioning: elimination solves exactly for all variables outside a cutset, which stay as they are.

Cutsets take turns, so that a variable that is fixed in one is free in another. On IOPDDL's A, 9 in 10 variables that are not
leaves are free at a time, and solving for them takes a quarter of a second.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import final

import numpy as np

from meshbridge.solver.degree_one import DegreeOne
from meshbridge.solver.eliminate import Elimination
from meshbridge.solver.presolve import Presolved
from meshbridge.solver.problem import Indices, Numbers

ENTRIES = 20_000
"""The most entries of a table. On IOPDDL's A, 2,000 fix a third more variables, and some pairs stay forbidden after 14 turns."""

CUTSETS = 5
"""Cutsets that take turns. Each later one fixes more variables: those that earlier ones free. Not measured against others."""

Pair = tuple[int, int]


@final
class Cutsets:
    """Better choices for all variables, at any costs."""

    def __init__(self, presolved: Presolved, leaves: DegreeOne) -> None:
        self._presolved = presolved
        self._leaves = leaves
        core = set(leaves.core)
        inner = {pair: matrix for pair, matrix in presolved.edges.items() if core.issuperset(pair)}
        finite = {id(matrix): np.where(np.isinf(matrix), presolved.forbidding, matrix) for matrix in inner.values()}
        self._edges = {pair: finite[id(matrix)] for pair, matrix in inner.items()}
        self._variables = sorted({v for pair in inner for v in pair})
        self._times_fixed = np.zeros(presolved.count)
        self._random = np.random.default_rng(0)
        self._cutsets: list[_Cutset] = []

    def improved(self, chosen: Indices, costs: Numbers, turn: int) -> Indices:
        """The best choices at these costs of all variables outside of a cutset, which stays as it is."""
        folded, best = self._leaves.fold(costs)
        index = turn % CUTSETS
        if index >= len(self._cutsets):
            index = len(self._cutsets)
            self._cutsets.append(self._drawn())
        result = self._presolved.cheapest(folded)  # variables whose neighbours are all leaves keep these
        result[self._variables] = chosen[self._variables]
        self._cutsets[index].solve(result, folded)
        self._leaves.unfold(result, best)
        return result

    def _drawn(self) -> _Cutset:
        fixed = cutset(self._variables, self._edges, self._presolved.sizes(), self._times_fixed, self._random)
        self._times_fixed[sorted(fixed)] += 1
        return _Cutset(self._presolved.offsets, [v for v in self._variables if v not in fixed], self._edges)


def cutset(
    variables: Iterable[int], edges: Iterable[Pair], sizes: Indices, times_fixed: Numbers, random: np.random.Generator
) -> set[int]:
    """A cutset: without its variables, all others can be eliminated with tables of at most `ENTRIES`.

    When every variable left needs a larger table, the one with the most neighbours is fixed, weighted at random, and by how
    rarely earlier cutsets fixed it.
    """
    logs = np.log(sizes).tolist()
    most = float(np.log(ENTRIES))
    weights = ((random.random(sizes.size) + 0.3) * 0.3**times_fixed).tolist()
    near: dict[int, set[int]] = {v: set() for v in variables}
    for i, j in edges:
        near[i].add(j)
        near[j].add(i)

    def extent(v: int) -> float:
        return float(logs[v] + sum(logs[u] for u in near[v]))

    current = {v: extent(v) for v in near}
    heap = [(size, v) for v, size in current.items()]
    heapq.heapify(heap)
    fixed = set()
    while heap:
        size, v = heapq.heappop(heap)
        if v not in near or current[v] != size:
            continue
        eliminated = size <= most
        if not eliminated:
            heapq.heappush(heap, (size, v))
            v = max((*sorted(near[v]), v), key=lambda u: len(near[u]) * weights[u])
            fixed.add(v)
        neighbours = near.pop(v)
        for u in neighbours:
            if eliminated:
                near[u] |= neighbours
                near[u].discard(u)
            near[u].discard(v)
        for u in neighbours:
            current[u] = extent(u)
            heapq.heappush(heap, (current[u], u))
    return fixed


@final
class _Cutset:
    """The elimination of some variables while the others are fixed."""

    def __init__(self, offsets: Indices, free: list[int], edges: Mapping[Pair, Numbers]) -> None:
        inside = set(free)
        between = {pair: matrix for pair, matrix in edges.items() if inside.issuperset(pair)}
        # its order may differ from that of the cutset, which makes some tables larger
        self._elimination = Elimination(offsets, between, 100 * ENTRIES, free)
        self._free = np.array(free, dtype=np.int64)
        self._boundary: list[tuple[slice, Numbers, int]] = []
        for (i, j), matrix in edges.items():
            if (i in inside) != (j in inside):
                v, u, rows = (i, j, matrix.T) if i in inside else (j, i, matrix)
                self._boundary.append((slice(int(offsets[v]), int(offsets[v + 1])), rows, u))

    def solve(self, chosen: Indices, costs: Numbers) -> None:
        """Writes the best choices of the free variables."""
        theta = costs.copy()
        for entries, rows, u in self._boundary:
            theta[entries] += rows[chosen[u]]
        chosen[self._free] = self._elimination.run(theta)[1][self._free]
