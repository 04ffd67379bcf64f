"""Bucket elimination: the least sum of unary costs and tables, or a bound on it where the tables would be too large.

To eliminate a variable, all tables that contain it are added up, and its best choice is taken for all choices of the others.
If the sum would have too many entries, the tables are summed in groups, each with a copy of the variable that chooses by
itself: then the result is a lower bound (mini-buckets). Before that, each group gets a share of the variable's costs that makes
all groups rate its choices alike, which improves the bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from meshbridge.solver.degree_one import DegreeOne
from meshbridge.solver.problem import Indices, Numbers

Scope = tuple[int, ...]

Record = Indices | tuple[Numbers, list[Numbers]]
"""How a variable chooses: its best choice for all choices of the others, or its costs and the tables of its groups."""


@final
@dataclass(frozen=True, eq=False)
class TableSum:
    """Tables to add up: where each stands, its shape in the scope's dimensions, and where the result goes."""

    tables: tuple[tuple[int, tuple[int, ...]], ...]
    scope: Scope
    shape: tuple[int, ...]
    axis: int
    result: int  # a table; -1 for the costs of the one remaining variable, -2 for the constant


@final
@dataclass(frozen=True, eq=False)
class Bucket:
    """One variable and the groups of its tables; exact if there is one group."""

    variable: int
    groups: tuple[TableSum, ...]


@final
class Elimination:
    """An order of elimination for given edges, to be run with any costs."""

    def __init__(
        self, offsets: Indices, edges: Mapping[tuple[int, int], Numbers], entries: int, variables: Iterable[int]
    ) -> None:
        """`edges` connect only `variables`; no table gets more than `entries` entries, unless an edge has."""
        self.offsets = offsets
        self.sizes = np.diff(offsets)
        self.buckets: list[Bucket] = []
        self.tables: list[Numbers] = []
        self._pairs: list[tuple[int, int]] = []
        self._count = 0
        self.leaves = DegreeOne(offsets, edges, variables)
        self._order(self.leaves.core, edges, entries)

    @property
    def exact(self) -> bool:
        return all(len(bucket.groups) <= 1 for bucket in self.buckets)

    def _order(self, core: list[int], edges: Mapping[tuple[int, int], Numbers], entries: int) -> None:
        """Orders the remaining variables: next is always the one whose sum of tables has the fewest entries."""
        sizes = self.sizes.tolist()
        at: dict[int, dict[int, Scope]] = {v: {} for v in core}
        for (i, j), matrix in edges.items():
            if i in at and j in at:
                at[i][len(self.tables)] = at[j][len(self.tables)] = (i, j)
                self.tables.append(matrix)
                self._pairs.append((i, j))
        self._count = len(self.tables)

        def size(v: int) -> int:
            result = sizes[v]
            for neighbour in set().union(*at[v].values()) - {v}:
                result *= sizes[neighbour]
            return int(result)

        heap = [(size(v), v) for v in core]
        heapq.heapify(heap)
        current = {v: entry for entry, v in heap}
        while heap:
            entry, v = heapq.heappop(heap)
            if v not in at or current[v] != entry:
                continue
            groups = []
            touched = set()
            for scope, tables in _grouped(at.pop(v), v, sizes, entries):
                group = self._group(v, scope, tables, sizes)
                for u in scope:
                    if u != v:
                        touched.add(u)
                        for table, _ in tables:
                            at[u].pop(table, None)
                        if group.result >= 0:
                            at[u][group.result] = tuple(w for w in scope if w != v)
                groups.append(group)
            self.buckets.append(Bucket(v, tuple(groups)))
            for u in touched:
                current[u] = size(u)
                heapq.heappush(heap, (current[u], u))

    def _group(self, v: int, scope: Scope, tables: list[tuple[int, Scope]], sizes: list[int]) -> TableSum:
        shapes = tuple((table, tuple(sizes[u] if u in of else 1 for u in scope)) for table, of in tables)
        result = {2: -1, 1: -2}.get(len(scope), self._count)
        self._count += result >= 0
        return TableSum(shapes, scope, tuple(sizes[u] for u in scope), scope.index(v), result)

    def run(self, costs: Numbers, edges: Mapping[tuple[int, int], Numbers] | None = None) -> tuple[float, Indices]:
        """The bound for these costs, which are not changed, and choices that follow it; -1 for variables that are not eliminated.

        If the elimination is exact, the bound is the least cost, and the choices have it. `edges` replace those of the order,
        except for the edges of leaves.
        """
        theta, best = self.leaves.fold(costs)
        bound, records = self._forward(theta, self.tables if edges is None else [edges[pair] for pair in self._pairs])
        chosen = self._back(records)
        self.leaves.unfold(chosen, best)
        return bound, chosen

    def _forward(self, theta: Numbers, edge_tables: list[Numbers]) -> tuple[float, list[Record]]:
        tables = dict(enumerate(edge_tables))
        offsets = self.offsets.tolist()
        bound = 0.0
        records: list[Record] = []
        for bucket in self.buckets:
            v = bucket.variable
            own = theta[offsets[v] : offsets[v + 1]]
            if not bucket.groups:
                bound += float(own.min())
                records.append(np.asarray(own.argmin()))
                continue
            if len(bucket.groups) == 1:
                group = bucket.groups[0]
                shape = [1] * len(group.scope)
                shape[group.axis] = own.size
                sums = [self._sum(group, tables, own.reshape(shape))]
                records.append(sums[0].argmin(axis=group.axis).astype(np.int64))
            else:
                sums = [self._sum(group, tables, None) for group in bucket.groups]
                records.append((own, [tables[table] for group in bucket.groups for table, _ in group.tables]))
                sums = _balanced(bucket, sums, own)
            for group, total in zip(bucket.groups, sums, strict=True):
                least = total.min(axis=group.axis)
                for table, _ in group.tables:
                    del tables[table]
                if group.result >= 0:
                    tables[group.result] = least
                elif group.result == -1:
                    (u,) = (u for u in group.scope if u != v)
                    theta[offsets[u] : offsets[u + 1]] += least
                else:
                    bound += float(least)
        return bound, records

    @staticmethod
    def _sum(group: TableSum, tables: dict[int, Numbers], start: Numbers | None) -> Numbers:
        parts = [tables[table].reshape(shape) for table, shape in group.tables]
        total = parts[0] if start is None else parts[0] + start
        for part in parts[1:]:
            total = total + part
        return np.broadcast_to(total, group.shape)

    def _back(self, records: list[Record]) -> Indices:
        chosen = np.full(self.sizes.size, -1, dtype=np.int64)
        for bucket, record in zip(reversed(self.buckets), reversed(records), strict=True):
            v = bucket.variable
            if isinstance(record, tuple):
                own, tables = record
                total = own.copy()
                refs = [(group, shape) for group in bucket.groups for _, shape in group.tables]
                for (group, shape), table in zip(refs, tables, strict=True):
                    where = tuple(
                        slice(None) if u == v else int(chosen[u])
                        for u, extent in zip(group.scope, shape, strict=True)
                        if extent > 1 or self.sizes[u] == 1
                    )
                    total = total + table[where]
                chosen[v] = int(total.argmin())
            elif not bucket.groups:
                chosen[v] = record
            else:
                group = bucket.groups[0]
                chosen[v] = record[tuple(chosen[u] for u in group.scope if u != v)]
        return chosen


def _grouped(at: dict[int, Scope], v: int, sizes: list[int], entries: int) -> list[tuple[Scope, list[tuple[int, Scope]]]]:
    """Tables in groups of at most so many entries, the largest tables first; a larger table is its own group."""

    def extent(scope: Iterable[int]) -> int:
        result = 1
        for u in scope:
            result *= sizes[u]
        return int(result)

    groups: list[tuple[set[int], list[tuple[int, Scope]]]] = []
    if at and extent(set().union(*at.values())) <= entries:
        groups = [(set().union(*at.values()), list(at.items()))]
    else:
        for table, scope in sorted(at.items(), key=lambda item: (-extent(item[1]), item[0])):
            for union, members in groups:
                if extent(union | set(scope)) <= entries:
                    union |= set(scope)
                    members.append((table, scope))
                    break
            else:
                groups.append((set(scope), [(table, scope)]))
    return [(tuple(sorted(union)), members) for union, members in groups]


def _balanced(bucket: Bucket, sums: list[Numbers], own: Numbers) -> list[Numbers]:
    """The groups' sums with the variable's costs shared among them so that the least cost per choice is the same in all."""
    shares = []
    for group, total in zip(bucket.groups, sums, strict=True):
        axes = tuple(axis for axis in range(total.ndim) if axis != group.axis)
        shares.append(total.min(axis=axes))
    mean = (own + sum(shares)) / len(shares)
    result = []
    for group, total, share in zip(bucket.groups, sums, shares, strict=True):
        shape = [1] * total.ndim
        shape[group.axis] = share.size
        change = np.full(share.size, np.inf)
        np.subtract(mean, share, out=change, where=np.isfinite(mean))
        result.append(total + change.reshape(shape))
    return result
