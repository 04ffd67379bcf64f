"""Presolve: one variable for those that are tied, one edge for each pair, no choice that another beats.

Every choice that is left out is forbidden, or forbidden with all choices of a neighbour, or dominated: another choice of the same
variable holds no more bytes and costs no more, whatever the neighbours. The best cost stays the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from meshbridge.solver.dominance import Flags, undominated
from meshbridge.solver.memory import HolderMemory, merged_holders
from meshbridge.solver.memory_profile import MemoryProfile, scarce_steps
from meshbridge.solver.merge_tied import Edges, TiedProblem, merge_tied
from meshbridge.solver.problem import Indices, Numbers, Problem

ROUNDS = 2
"""How often tied variables are merged and choices compared: each round removes choices, and so lets others be beaten."""


@final
@dataclass(frozen=True, eq=False)
class Presolved:
    """A presolved problem. Numbers of choices are flat, one variable after the other, from `offsets[v]` on."""

    deciders: Indices  # for each variable of the problem, the variable that decides for it
    choices: list[Indices]  # for each variable of the problem, its choice for each choice of its decider
    offsets: Indices
    owners: Indices  # the variable of each choice
    costs: Numbers
    edges: dict[tuple[int, int], Numbers]  # i < j; equal matrices are one object
    memory: HolderMemory
    limit: float

    @property
    def count(self) -> int:
        return int(self.offsets.size) - 1

    @property
    def steps(self) -> MemoryProfile:
        return self.memory.steps

    @property
    def unit(self) -> float:
        """The scale of numbers of bytes, where their size matters: the limit, if it is not 0."""
        return self.limit or float(self.memory.sizes.max(initial=0.0)) or 1.0

    def sizes(self) -> Indices:
        return np.diff(self.offsets)

    def cost(self, chosen: Indices) -> tuple[int, float]:
        """How many edges of the choices are forbidden, and the cost of the choices and all other edges."""
        pairs = self.pairs(chosen)
        allowed = np.isfinite(pairs)
        return int(pairs.size - allowed.sum()), float(self.alone(chosen).sum()) + float(pairs[allowed].sum())

    def alone(self, chosen: Indices) -> Numbers:
        """The unary cost of each variable's choice."""
        return np.asarray(self.costs[self.offsets[:-1] + chosen])

    def pairs(self, chosen: Indices) -> Numbers:
        """The cost of each edge for these choices."""
        entries, begins, columns = self.tables
        firsts, seconds = self.ends
        return np.asarray(entries[begins + chosen[firsts] * columns + chosen[seconds]])

    @cached_property
    def forbidding(self) -> float:
        """A cost above that of all choices together, for forbidden choices."""
        most = np.maximum.reduceat(self.costs, self.offsets[:-1]).sum() if self.count else 0.0
        largest = {id(matrix): float(matrix[np.isfinite(matrix)].max(initial=0.0)) for matrix in self.edges.values()}
        return float(most) + sum(largest[id(matrix)] for matrix in self.edges.values()) + 1e-300

    def cheapest(self, costs: Numbers) -> Indices:
        """The first choice of least cost of each variable."""
        least = np.minimum.reduceat(costs, self.offsets[:-1])
        places = np.flatnonzero(costs == least[self.owners])
        first_place = np.searchsorted(self.owners[places], np.arange(self.count))
        return np.asarray(places[first_place] - self.offsets[:-1])

    def usage(self, chosen: Indices) -> Numbers:
        """The bytes alive at each step."""
        return self.memory.usage(chosen)

    @cached_property
    def ends(self) -> tuple[Indices, Indices]:
        """The two variables of each edge."""
        pairs = np.array(list(self.edges), dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def tables(self) -> tuple[Numbers, Indices, Indices]:
        """All tables in one array; for each edge, the position of its table, and the number of its columns."""
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
        """The choices of the problem for these choices."""
        choices, begins = self._flat_choices
        return tuple(choices[begins + chosen[self.deciders]].tolist())

    def from_original(self, original: tuple[int, ...]) -> Indices:
        """The choices here for choices of the problem; the first choice where one was left out."""
        chosen = np.zeros(self.count, dtype=np.int64)
        for decider, choices, choice in zip(self.deciders.tolist(), self.choices, original, strict=True):
            place = np.flatnonzero(choices == choice)
            if place.size:
                chosen[decider] = place[0]
        return chosen

    @cached_property
    def _flat_choices(self) -> tuple[Indices, Indices]:
        """All remaining choices in one array, and for each variable of the problem where its own begin."""
        sizes = np.array([choices.size for choices in self.choices], dtype=np.int64)
        return np.concatenate([*self.choices, np.zeros(0, dtype=np.int64)]), np.cumsum(sizes) - sizes


def presolve(problem: Problem) -> Presolved | None:
    """The presolved problem; None if a variable has no choice that each of its neighbours allows with one of its own."""
    costs = [np.array(cost) for cost in problem.costs]
    edges = _merged(problem, costs)
    largest = np.array([sizes.max() for sizes in problem.bytes]) if problem.bytes else np.zeros(len(costs))
    steps = scarce_steps(problem, largest)
    draft = TiedProblem(costs, edges, np.arange(len(costs)), [np.arange(cost.size) for cost in costs])
    for _ in range(ROUNDS):
        tied = _allowed(draft)
        if tied is None:
            return None
        allowed = _allowed(merge_tied(tied))  # contradicting ties forbid more
        if allowed is None:
            return None
        draft = allowed
        holders = _holders(problem, draft, steps)
        holder_sizes = [problem.bytes[v][draft.choices[v]] for v in holders.tolist()]
        _keep(draft, undominated(draft.costs, draft.edges, draft.owners[holders], holder_sizes))
    return _flat(problem, draft, steps)


def _allowed(draft: TiedProblem) -> TiedProblem | None:
    """The draft without choices that nothing allows; None if that leaves a variable without a choice."""
    flags = [np.isfinite(cost) for cost in draft.costs]
    if not _consistent(draft.edges, flags):
        return None
    _keep(draft, flags)
    return draft


def _holders(problem: Problem, draft: TiedProblem, steps: MemoryProfile) -> Indices:
    """The variables of the problem whose bytes differ between choices and count at some step, sorted by their deciders."""
    alive = np.flatnonzero(steps.starts < steps.stops).tolist()
    differ = [v for v in alive if np.ptp(problem.bytes[v][draft.choices[v]]) > 0]
    holders = np.array(differ, dtype=np.int64)
    return np.asarray(holders[np.argsort(draft.owners[holders], kind="stable")])


def _flat(problem: Problem, draft: TiedProblem, steps: MemoryProfile) -> Presolved:
    offsets = np.cumsum([0, *(cost.size for cost in draft.costs)], dtype=np.int64)
    owners = np.repeat(np.arange(len(draft.costs)), np.diff(offsets))
    return Presolved(
        draft.owners,
        draft.choices,
        offsets,
        owners,
        np.concatenate([*draft.costs, np.zeros(0)]),
        draft.edges,
        _memory(problem, draft, steps, offsets),
        problem.limit,
    )


def _memory(problem: Problem, draft: TiedProblem, steps: MemoryProfile, offsets: Indices) -> HolderMemory:
    holders = _holders(problem, draft, steps)
    sizes = [problem.bytes[v][draft.choices[v]] for v in holders.tolist()]
    base = np.zeros(steps.times.size)
    if problem.bytes:
        always = np.array([size[choices[0]] for size, choices in zip(problem.bytes, draft.choices, strict=True)])
        always[holders] = 0.0
        base = steps.usage(always)
    profile = MemoryProfile(steps.starts[holders], steps.stops[holders], steps.times)
    return merged_holders(profile, draft.owners[holders], sizes, base, offsets)


def _keep(draft: TiedProblem, flags: list[Flags]) -> None:
    """Removes the choices that are not flagged."""
    draft.edges = _restricted(draft.edges, flags, draft.costs)
    draft.costs = [cost[flag] for cost, flag in zip(draft.costs, flags, strict=True)]
    draft.choices = [choices[flags[v]] for choices, v in zip(draft.choices, draft.owners.tolist(), strict=True)]


def _merged(problem: Problem, costs: list[Numbers]) -> Edges:
    """One matrix for each pair, i < j; that of a variable with itself is added to its costs. Equal sums are one object."""
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
    """The edges with equal matrices as one object."""
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
        for neighbour, allowed in neighbours[v]:
            allowed_here = flags[neighbour] & allowed[flags[v]].any(axis=0)
            if allowed_here.sum() < flags[neighbour].sum():
                flags[neighbour] = allowed_here
                waiting.add(neighbour)
    return all(flag.any() for flag in flags)


def _restricted(edges: Edges, flags: list[Flags], costs: list[Numbers]) -> Edges:
    """The edges between flagged choices. A matrix that is a sum of a row and a column term is added to the variables' costs."""
    names = [flag.tobytes() for flag in flags]
    restrictions: dict[tuple[int, bytes, bytes], tuple[Numbers, tuple[Numbers, Numbers] | None]] = {}
    remaining = {}
    for (i, j), matrix in edges.items():
        key = (id(matrix), names[i], names[j])
        if key not in restrictions:
            restricted = matrix[np.ix_(flags[i], flags[j])]
            restricted = matrix if restricted.shape == matrix.shape else restricted
            restrictions[key] = restricted, _parts(restricted)
        restricted, parts = restrictions[key]
        if parts is None:
            remaining[i, j] = restricted
        else:
            costs[i][flags[i]] += parts[0]
            costs[j][flags[j]] += parts[1]
    return _interned(remaining)


def _parts(matrix: Numbers) -> tuple[Numbers, Numbers] | None:
    """Rows and columns whose sums are exactly the matrix, none below 0; None if there are none."""
    if matrix.shape[0] == 1:
        return np.zeros(1), matrix[0]
    if matrix.shape[1] == 1:
        return matrix[:, 0], np.zeros(1)
    if not np.isfinite(matrix).all():
        return None
    rows = matrix.min(axis=1)
    columns = (matrix - rows[:, None]).min(axis=0)
    return (rows, columns) if np.array_equal(rows[:, None] + columns, matrix) else None
