"""The normal form of a sharding problem: one variable for those that are tied, one edge a pair, no choice that another beats.

Every choice that is left out is either forbidden, forbidden together with all choices of a neighbour, or dominated: another
choice of the same variable holds no more bytes and costs no more whatever the neighbours take. The best cost stays the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from meshbridge.search.dominance import Flags, undominated
from meshbridge.search.memory import HolderMemory, joined
from meshbridge.search.problem import Indices, Numbers, Problem
from meshbridge.search.steps import MemorySteps, scarce
from meshbridge.search.ties import Edges, TiedProblem, contracted

ROUNDS = 2
"""How often tied variables are made one and choices are compared: each round leaves out some that let others be beaten."""


@final
@dataclass(frozen=True, eq=False)
class Normal:
    """A problem in normal form. What belongs to choices stands flat, one variable behind the other, from `offsets[v]` on."""

    deciders: Indices  # by variable of the problem: the one that decides for it
    choices: list[Indices]  # by variable of the problem: its choice for each of the one that decides for it
    offsets: Indices
    owners: Indices  # by choice: its variable
    costs: Numbers
    edges: dict[tuple[int, int], Numbers]  # i < j; alike ones share an object
    memory: HolderMemory
    limit: float

    @property
    def count(self) -> int:
        return int(self.offsets.size) - 1

    @property
    def steps(self) -> MemorySteps:
        return self.memory.steps

    @property
    def unit(self) -> float:
        """Bytes that numbers of bytes are relative to, where their size matters: the limit, if it is not 0."""
        return self.limit or float(self.memory.held.max(initial=0.0)) or 1.0

    def sizes(self) -> Indices:
        return np.diff(self.offsets)

    def cost(self, chosen: Indices) -> tuple[int, float]:
        """How many edges of the choices are forbidden, and what the choices and all other edges cost."""
        pairs = self.pairs(chosen)
        allowed = np.isfinite(pairs)
        return int(pairs.size - allowed.sum()), float(self.alone(chosen).sum()) + float(pairs[allowed].sum())

    def alone(self, chosen: Indices) -> Numbers:
        """By variable: what its choice costs alone."""
        return np.asarray(self.costs[self.offsets[:-1] + chosen])

    def pairs(self, chosen: Indices) -> Numbers:
        """By edge: what the choices of its variables cost together."""
        entries, begins, columns = self.tables
        firsts, seconds = self.ends
        return np.asarray(entries[begins + chosen[firsts] * columns + chosen[seconds]])

    @cached_property
    def forbidding(self) -> float:
        """A cost above those of all choices together, for what is forbidden."""
        most = np.maximum.reduceat(self.costs, self.offsets[:-1]).sum() if self.count else 0.0
        largest = {id(matrix): float(matrix[np.isfinite(matrix)].max(initial=0.0)) for matrix in self.edges.values()}
        return float(most) + sum(largest[id(matrix)] for matrix in self.edges.values()) + 1e-300

    def cheapest(self, costs: Numbers) -> Indices:
        """By variable: its first choice of the least cost."""
        least = np.minimum.reduceat(costs, self.offsets[:-1])
        places = np.flatnonzero(costs == least[self.owners])
        first = np.searchsorted(self.owners[places], np.arange(self.count))
        return np.asarray(places[first] - self.offsets[:-1])

    def usage(self, chosen: Indices) -> Numbers:
        """By step: the bytes that live there."""
        return self.memory.usage(chosen)

    @cached_property
    def ends(self) -> tuple[Indices, Indices]:
        """By edge: its two variables."""
        pairs = np.array(list(self.edges), dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def tables(self) -> tuple[Numbers, Indices, Indices]:
        """All tables behind one another; by edge, where its own begins, and how many columns it has."""
        places: dict[int, int] = {}
        entries: list[Numbers] = []
        size = 0
        for matrix in self.edges.values():
            if id(matrix) not in places:
                places[id(matrix)] = size
                entries.append(matrix.ravel())
                size += matrix.size
        begins = np.array([places[id(matrix)] for matrix in self.edges.values()], dtype=np.int64)
        columns = np.array([matrix.shape[1] for matrix in self.edges.values()], dtype=np.int64)
        return np.concatenate([*entries, np.zeros(0)]), begins, columns

    def original(self, chosen: Indices) -> tuple[int, ...]:
        """The choices of the problem that those of the normal form stand for."""
        kept, begins = self._kept
        return tuple(kept[begins + chosen[self.deciders]].tolist())

    def known(self, original: tuple[int, ...]) -> Indices:
        """The choices that stand for those of the problem; where one is left out here, the first that is not."""
        chosen = np.zeros(self.count, dtype=np.int64)
        for decider, kept, choice in zip(self.deciders.tolist(), self.choices, original, strict=True):
            place = np.flatnonzero(kept == choice)
            if place.size:
                chosen[decider] = place[0]
        return chosen

    @cached_property
    def _kept(self) -> tuple[Indices, Indices]:
        """All kept choices behind one another, and by variable of the problem where its own begin."""
        sizes = np.array([each.size for each in self.choices], dtype=np.int64)
        return np.concatenate([*self.choices, np.zeros(0, dtype=np.int64)]), np.cumsum(sizes) - sizes


def normal(problem: Problem) -> Normal | None:
    """The normal form; None if a variable has no choice that each of its neighbours allows with one of its own."""
    costs = [np.array(each) for each in problem.costs]
    edges = _merged(problem, costs)
    largest = np.array([each.max() for each in problem.bytes]) if problem.bytes else np.zeros(len(costs))
    steps = scarce(problem, largest)
    draft = TiedProblem(costs, edges, np.arange(len(costs)), [np.arange(each.size) for each in costs])
    for _ in range(ROUNDS):
        tied = _allowed(draft)
        if tied is None:
            return None
        allowed = _allowed(contracted(tied))  # ties that contradict each other forbid more
        if allowed is None:
            return None
        draft = allowed
        holders = _holders(problem, draft, steps)
        held = [problem.bytes[v][draft.kept[v]] for v in holders.tolist()]
        _cut(draft, undominated(draft.costs, draft.edges, draft.owners[holders], held))
    return _flat(problem, draft, steps)


def _allowed(draft: TiedProblem) -> TiedProblem | None:
    """The draft without choices that nothing allows; None if a variable has no others."""
    flags = [np.isfinite(each) for each in draft.costs]
    if not _consistent(draft.edges, flags):
        return None
    _cut(draft, flags)
    return draft


def _holders(problem: Problem, draft: TiedProblem, steps: MemorySteps) -> Indices:
    """The variables of the problem whose bytes differ between choices and count at some step, by those that decide for them."""
    alive = np.flatnonzero(steps.first < steps.last).tolist()
    differ = [v for v in alive if np.ptp(problem.bytes[v][draft.kept[v]]) > 0]
    holders = np.array(differ, dtype=np.int64)
    return np.asarray(holders[np.argsort(draft.owners[holders], kind="stable")])


def _flat(problem: Problem, draft: TiedProblem, steps: MemorySteps) -> Normal:
    offsets = np.cumsum([0, *(each.size for each in draft.costs)], dtype=np.int64)
    owners = np.repeat(np.arange(len(draft.costs)), np.diff(offsets))
    return Normal(
        draft.owners,
        draft.kept,
        offsets,
        owners,
        np.concatenate([*draft.costs, np.zeros(0)]),
        draft.edges,
        _memory(problem, draft, steps, offsets),
        problem.limit,
    )


def _memory(problem: Problem, draft: TiedProblem, steps: MemorySteps, offsets: Indices) -> HolderMemory:
    holders = _holders(problem, draft, steps)
    held = [problem.bytes[v][draft.kept[v]] for v in holders.tolist()]
    base = np.zeros(steps.times.size)
    if problem.bytes:
        always = np.array([each[kept[0]] for each, kept in zip(problem.bytes, draft.kept, strict=True)])
        always[holders] = 0.0
        base = steps.usage(always)
    return joined(MemorySteps(steps.first[holders], steps.last[holders], steps.times), draft.owners[holders], held, base, offsets)


def _cut(draft: TiedProblem, flags: list[Flags]) -> None:
    """Leaves out the choices that are not flagged."""
    draft.edges = _restricted(draft.edges, flags, draft.costs)
    draft.costs = [each[flag] for each, flag in zip(draft.costs, flags, strict=True)]
    draft.kept = [kept[flags[v]] for kept, v in zip(draft.kept, draft.owners.tolist(), strict=True)]


def _merged(problem: Problem, costs: list[Numbers]) -> Edges:
    """One matrix for each pair, i < j; that of a variable with itself is added to its costs. Like sums are one object."""
    parts: dict[tuple[int, int], list[tuple[int, bool]]] = defaultdict(list)
    matrices: dict[int, Numbers] = {}
    for i, j, matrix in problem.edges:
        matrices[id(matrix)] = matrix
        if i == j:
            costs[i] += np.diagonal(matrix)
        else:
            parts[min(i, j), max(i, j)].append((id(matrix), i > j))
    sums: dict[tuple[tuple[int, bool], ...], Numbers] = {}
    merged = {}
    for pair, terms in parts.items():
        key = tuple(sorted(terms))
        if key not in sums:
            arrays = [matrices[name].T if swapped else matrices[name] for name, swapped in key]
            sums[key] = np.ascontiguousarray(np.sum(arrays, axis=0))
        merged[pair] = sums[key]
    return _interned(merged)


def _interned(edges: Edges) -> Edges:
    """Matrices of equal contents as one object."""
    by_object: dict[int, Numbers] = {}
    by_contents: dict[tuple[tuple[int, ...], bytes], Numbers] = {}
    for matrix in {id(matrix): matrix for matrix in edges.values()}.values():
        by_object[id(matrix)] = by_contents.setdefault((matrix.shape, matrix.tobytes()), matrix)
    return {pair: by_object[id(matrix)] for pair, matrix in edges.items()}


def _consistent(edges: Edges, flags: list[Flags]) -> bool:
    """Clears the flags of choices that are forbidden with all choices of a neighbour; False if a variable has none left."""
    finite = {id(matrix): np.isfinite(matrix) for matrix in edges.values()}
    strict = {pair: finite[id(matrix)] for pair, matrix in edges.items() if not finite[id(matrix)].all()}
    neighbours: dict[int, list[tuple[int, Flags]]] = defaultdict(list)
    for (i, j), allowed in strict.items():
        neighbours[i].append((j, allowed))
        neighbours[j].append((i, allowed.T))
    waiting = set(neighbours)
    while waiting:
        v = waiting.pop()
        for other, allowed in neighbours[v]:
            left = flags[other] & allowed[flags[v]].any(axis=0)
            if left.sum() < flags[other].sum():
                flags[other] = left
                waiting.add(other)
    return all(flag.any() for flag in flags)


def _restricted(edges: Edges, flags: list[Flags], costs: list[Numbers]) -> Edges:
    """The edges between the flagged choices. What is a sum of two parts, one a variable, is added to their costs instead."""
    names = [flag.tobytes() for flag in flags]
    cuts: dict[tuple[int, bytes, bytes], tuple[Numbers, tuple[Numbers, Numbers] | None]] = {}
    left = {}
    for (i, j), matrix in edges.items():
        key = (id(matrix), names[i], names[j])
        if key not in cuts:
            cut = matrix[np.ix_(flags[i], flags[j])]
            cut = matrix if cut.shape == matrix.shape else cut
            cuts[key] = cut, _parts(cut)
        cut, parts = cuts[key]
        if parts is None:
            left[i, j] = cut
        else:
            costs[i][flags[i]] += parts[0]
            costs[j][flags[j]] += parts[1]
    return _interned(left)


def _parts(matrix: Numbers) -> tuple[Numbers, Numbers] | None:
    """Rows and columns whose sums are the matrix exactly, and all of them at least 0; None if there are none."""
    if matrix.shape[0] == 1:
        return np.zeros(1), matrix[0]
    if matrix.shape[1] == 1:
        return matrix[:, 0], np.zeros(1)
    if not np.isfinite(matrix).all():
        return None
    rows = matrix.min(axis=1)
    columns = (matrix - rows[:, None]).min(axis=0)
    return (rows, columns) if np.array_equal(rows[:, None] + columns, matrix) else None
