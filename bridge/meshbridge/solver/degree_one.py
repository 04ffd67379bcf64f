"""Degree-one reduction: folds variables with one neighbour, repeatedly, into their neighbours' costs, exactly.

Most variables of a sharding problem are such leaves, and most of those are alike: many are folded at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from meshbridge.solver.memory import ranges
from meshbridge.solver.problem import Indices, Numbers


@final
@dataclass(frozen=True, eq=False)
class LeafBatch:
    """Leaves whose edges have the same matrix, `[leaf, neighbour]`."""

    leaves: Indices
    entries: Indices  # [leaf, choice]: the positions of its costs
    targets: Indices  # [leaf, choice of the neighbour]: the positions of the neighbour's costs
    neighbours: Indices
    matrix: Numbers


@final
@dataclass(frozen=True, eq=False)
class Tree:
    """Per variable: the variable that it is folded into (-1 for the core), the positions of its best choices and of its
    leaves."""

    parents: Indices
    places: Indices
    children: Indices
    begins: Indices
    counts: Indices


@final
class DegreeOne:
    """The leaves of a graph of variables and edges, in the order in which they are folded."""

    def __init__(self, offsets: Indices, edges: Mapping[tuple[int, int], Numbers], variables: Iterable[int]) -> None:
        self._batches: list[LeafBatch] = []
        self._count = offsets.size - 1
        neighbours: dict[int, set[int]] = {v: set() for v in variables}
        for i, j in edges:
            neighbours[i].add(j)
            neighbours[j].add(i)
        leaves = [v for v, neighbours_of in neighbours.items() if len(neighbours_of) == 1]
        while leaves:
            by_matrix: dict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)
            following = set()
            for v in leaves:
                if len(neighbours[v]) == 1:  # if not, its neighbour was a leaf and is folded into it
                    (u,) = neighbours.pop(v)
                    neighbours[u].discard(v)
                    by_matrix[id(edges[min(u, v), max(u, v)]), v > u].append((v, u))
                    following.add(u)
            for (_, swapped), pairs in by_matrix.items():
                matrix = edges[min(pairs[0]), max(pairs[0])]
                self._batches.append(_batch(offsets, np.array(pairs), matrix.T if swapped else matrix))
            leaves = sorted(v for v in following if v in neighbours and len(neighbours[v]) == 1)
        self.core = sorted(neighbours)

    def root(self, variable: int) -> int:
        """The variable of the core that this one is folded into, or the variable itself."""
        while self._tree.parents[variable] >= 0:
            variable = int(self._tree.parents[variable])
        return variable

    def unfold_some(self, chosen: Indices, variables: Indices, best: Indices) -> Indices:
        """Writes and returns the choices of the leaves of these variables, from `best`, which has all batches in one array."""
        tree, leaves = self._tree, [np.zeros(0, dtype=np.int64)]
        while variables.size:
            places, _ = ranges(tree.begins[variables], tree.counts[variables])
            variables = tree.children[places]
            chosen[variables] = best[tree.places[variables] + chosen[tree.parents[variables]]]
            leaves.append(variables)
        return np.concatenate(leaves)

    @cached_property
    def _tree(self) -> Tree:
        parents = np.full(self._count, -1, dtype=np.int64)
        places = np.zeros(self._count, dtype=np.int64)
        size = 0
        for batch in self._batches:
            width = batch.targets.shape[1]
            parents[batch.leaves] = batch.neighbours
            places[batch.leaves] = size + width * np.arange(batch.leaves.size)
            size += width * batch.leaves.size
        leaves = np.flatnonzero(parents >= 0)
        counts = np.bincount(parents[leaves], minlength=self._count)
        return Tree(parents, places, leaves[np.argsort(parents[leaves], kind="stable")], np.cumsum(counts) - counts, counts)

    def fold(self, costs: Numbers) -> tuple[Numbers, list[Indices]]:
        """The costs with leaves folded into their neighbours, and by batch the leaves' best choices, for `unfold`."""
        theta = costs.copy()
        best = []
        for batch in self._batches:
            sums = theta[batch.entries][:, :, None] + batch.matrix
            best.append(sums.argmin(axis=1))
            np.add.at(theta, batch.targets, sums.min(axis=1))
        return theta, best

    def unfold(self, chosen: Indices, best: list[Indices]) -> None:
        """Writes the choices of the leaves, given those of the core."""
        for batch, choices in zip(reversed(self._batches), reversed(best), strict=True):
            chosen[batch.leaves] = choices[np.arange(batch.leaves.size), chosen[batch.neighbours]]


def _batch(offsets: Indices, pairs: Indices, matrix: Numbers) -> LeafBatch:
    leaves, neighbours = pairs.T
    entries = offsets[leaves][:, None] + np.arange(matrix.shape[0])
    targets = offsets[neighbours][:, None] + np.arange(matrix.shape[1])
    return LeafBatch(leaves, entries, targets, neighbours, matrix)
