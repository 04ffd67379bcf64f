"""Leaves: variables of one neighbour, and those that become so without them, are folded into their neighbours' costs exactly.

Most variables of a sharding problem are leaves, and most of those are alike: they are folded many at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from meshbridge.search.problem import Indices, Numbers


@final
@dataclass(frozen=True, eq=False)
class Batch:
    """Leaves whose edges have the same matrix, `[leaf, neighbour]`."""

    leaves: Indices
    entries: Indices  # [leaf, choice]: where its costs stand
    targets: Indices  # [leaf, choice of the neighbour]: where its neighbour's costs stand
    neighbours: Indices
    matrix: Numbers


@final
class Leaves:
    """The leaves among some variables, which all edges lie between, in the order in which they are folded."""

    def __init__(self, offsets: Indices, edges: Mapping[tuple[int, int], Numbers], variables: Iterable[int]) -> None:
        self._batches: list[Batch] = []
        neighbours: dict[int, set[int]] = {v: set() for v in variables}
        for i, j in edges:
            neighbours[i].add(j)
            neighbours[j].add(i)
        leaves = [v for v, others in neighbours.items() if len(others) == 1]
        while leaves:
            alike: dict[tuple[int, bool], list[tuple[int, int]]] = defaultdict(list)
            following = set()
            for v in leaves:
                if len(neighbours[v]) == 1:  # else it had only another leaf, which is folded into it
                    (u,) = neighbours.pop(v)
                    neighbours[u].discard(v)
                    alike[id(edges[min(u, v), max(u, v)]), v > u].append((v, u))
                    following.add(u)
            for (_, swapped), pairs in alike.items():
                matrix = edges[min(pairs[0]), max(pairs[0])]
                self._batches.append(_batch(offsets, np.array(pairs), matrix.T if swapped else matrix))
            leaves = sorted(v for v in following if v in neighbours and len(neighbours[v]) == 1)
        self.core = sorted(neighbours)

    def fold(self, costs: Numbers) -> tuple[Numbers, list[Indices]]:
        """The costs with those of the leaves in their neighbours', and by batch the leaves' best choices, for `unfold`."""
        theta = costs.copy()
        best = []
        for batch in self._batches:
            sums = theta[batch.entries][:, :, None] + batch.matrix
            best.append(sums.argmin(axis=1))
            np.add.at(theta, batch.targets, sums.min(axis=1))
        return theta, best

    def unfold(self, chosen: Indices, best: list[Indices]) -> None:
        """Writes the choices of the leaves beside those of the core."""
        for batch, choices in zip(reversed(self._batches), reversed(best), strict=True):
            chosen[batch.leaves] = choices[np.arange(batch.leaves.size), chosen[batch.neighbours]]


def _batch(offsets: Indices, pairs: Indices, matrix: Numbers) -> Batch:
    leaves, neighbours = pairs.T
    entries = offsets[leaves][:, None] + np.arange(matrix.shape[0])
    targets = offsets[neighbours][:, None] + np.arange(matrix.shape[1])
    return Batch(leaves, entries, targets, neighbours, matrix)
