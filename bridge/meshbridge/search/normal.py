"""The normal form of a sharding problem: one edge a pair, no choice that is forbidden or that another one beats, memory by steps.

Every choice that is left out is either forbidden, forbidden together with all choices of a neighbour, or dominated: another
choice of the same variable holds no more bytes and costs no more whatever the neighbours take. The best cost stays the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from meshbridge.search.problem import Indices, Numbers, Problem

Flags = np.ndarray[Any, np.dtype[np.bool_]]

DOMINANCE_ENTRIES = 4_000_000
"""Above so many comparisons for one matrix its choices are not compared. Not measured: it keeps the table below 32 MB."""

SMALL = 1000
"""Tables of fewer entries are added up for many variables at once, which takes longer for each entry. Not measured finely."""

DOMINANCE_ROUNDS = 2
"""How often choices are compared: each round leaves out some that let others be beaten. IOPDDL's U takes 3 s a round."""


@final
@dataclass(frozen=True, eq=False)
class Steps:
    """Memory: the times at which it can be highest, as steps, and which of them each variable lives at.

    A step is a time at which something begins to live and after which something ends, before anything else begins: what lives at
    any other time lives at one of these. Steps at which even the largest choices fit are left out.
    """

    first: Indices  # by variable: the first step at which it lives
    last: Indices  # by variable: the step after the last one
    times: Indices  # by step: the time

    def usage(self, held: Numbers) -> Numbers:
        """By step: the bytes that live there, of the bytes that each variable holds."""
        changes = np.bincount(self.first, held, self.times.size + 1) - np.bincount(self.last, held, self.times.size + 1)
        return np.cumsum(changes)[:-1]

    def highest(self, numbers: Numbers) -> Numbers:
        """By variable: the highest of the steps' numbers of the steps at which it lives; minus infinity if it lives at none."""
        result = np.full(self.first.size, -np.inf)
        spans = self.last - self.first
        spread, length = numbers, 1  # spread[t]: the highest of `length` steps from t on
        while spread.size:
            fits = (length <= spans) & (spans < 2 * length)
            result[fits] = np.maximum(spread[self.first[fits]], spread[self.last[fits] - length])
            spread, length = np.maximum(spread[:-length], spread[length:]), 2 * length
        return result

    def prices(self, multipliers: Numbers) -> Numbers:
        """By variable: the sum of the multipliers of the steps at which it lives."""
        sums = np.concatenate(([0.0], np.cumsum(multipliers)))
        return np.asarray(sums[self.last] - sums[self.first])


@final
@dataclass(frozen=True, eq=False)
class Normal:
    """A problem in normal form. What belongs to choices stands flat, one variable behind the other, from `offsets[v]` on."""

    choices: list[Indices]  # by variable: the choices of the problem that are left
    offsets: Indices
    owners: Indices  # by choice: its variable
    costs: Numbers
    held: Numbers
    edges: dict[tuple[int, int], Numbers]  # i < j; alike ones share an object
    steps: Steps
    limit: float

    @property
    def count(self) -> int:
        return len(self.choices)

    @property
    def unit(self) -> float:
        """Bytes that numbers of bytes are relative to, where their size matters: the limit, if it is not 0."""
        return self.limit or float(self.held.max(initial=0.0)) or 1.0

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
        entries, begins, columns = self._tables
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
        return self.steps.usage(self.held[self.offsets[:-1] + chosen])

    @cached_property
    def ends(self) -> tuple[Indices, Indices]:
        """By edge: its two variables."""
        pairs = np.array(list(self.edges), dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def _tables(self) -> tuple[Numbers, Indices, Indices]:
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
        return tuple(int(kept[choice]) for kept, choice in zip(self.choices, chosen, strict=True))


def normal(problem: Problem) -> Normal | None:
    """The normal form; None if a variable has no choice that each of its neighbours allows with one of its own."""
    costs = [np.array(each) for each in problem.costs]
    edges = _merged(problem, costs)
    held = [np.array(each) for each in problem.bytes] or [np.zeros(each.size) for each in costs]
    kept = [np.arange(each.size) for each in costs]
    flags = [np.isfinite(each) for each in costs]
    if not _consistent(edges, flags):
        return None
    steps = _steps(problem, [float(each.max()) for each in held])
    idle = steps.first >= steps.last
    for _ in range(DOMINANCE_ROUNDS):
        edges = _cut(edges, flags, costs, held, kept)
        flags = _undominated(costs, held, edges, idle)
    edges = _cut(edges, flags, costs, held, kept)
    offsets = np.cumsum([0, *(each.size for each in costs)], dtype=np.int64)
    owners = np.repeat(np.arange(len(costs)), np.diff(offsets))
    flat_held = np.concatenate([*held, np.zeros(0)])
    flat_held[idle[owners]] = 0.0
    return Normal(kept, offsets, owners, np.concatenate([*costs, np.zeros(0)]), flat_held, edges, steps, problem.limit)


def _cut(
    edges: dict[tuple[int, int], Numbers], flags: list[Flags], costs: list[Numbers], held: list[Numbers], kept: list[Indices]
) -> dict[tuple[int, int], Numbers]:
    """Leaves out the choices that are not flagged, of the edges that are given back and of all else in place."""
    edges = _restricted(edges, flags, costs)
    for v, flag in enumerate(flags):
        if not flag.all():
            costs[v], held[v], kept[v] = costs[v][flag], held[v][flag], kept[v][flag]
    return edges


def _merged(problem: Problem, costs: list[Numbers]) -> dict[tuple[int, int], Numbers]:
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


def _interned(edges: dict[tuple[int, int], Numbers]) -> dict[tuple[int, int], Numbers]:
    """Matrices of equal contents as one object."""
    by_object: dict[int, Numbers] = {}
    by_contents: dict[tuple[tuple[int, ...], bytes], Numbers] = {}
    for matrix in {id(matrix): matrix for matrix in edges.values()}.values():
        by_object[id(matrix)] = by_contents.setdefault((matrix.shape, matrix.tobytes()), matrix)
    return {pair: by_object[id(matrix)] for pair, matrix in edges.items()}


def _consistent(edges: dict[tuple[int, int], Numbers], flags: list[Flags]) -> bool:
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


def _restricted(
    edges: dict[tuple[int, int], Numbers], flags: list[Flags], costs: list[Numbers]
) -> dict[tuple[int, int], Numbers]:
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


def _undominated(costs: list[Numbers], held: list[Numbers], edges: dict[tuple[int, int], Numbers], idle: Flags) -> list[Flags]:
    """By variable: which choices no other one beats, whatever the neighbours take. Variables of one size are compared at once."""
    groups: dict[int, list[int]] = defaultdict(list)
    rows = np.zeros(len(costs), dtype=np.int64)  # by variable: its place in its group
    for v, each in enumerate(costs):
        rows[v] = len(groups[each.size])
        groups[each.size].append(v)
    excess = {size: _differences([costs[v] for v in group]) for size, group in groups.items()}
    compared = np.ones(len(costs), dtype=np.bool_)
    with np.errstate(invalid="ignore"):
        for matrix, variables in _sides(edges):
            part = _least_excess(matrix)
            if part is None:
                compared[variables] = False
            elif part.size < SMALL:
                np.add.at(excess[matrix.shape[0]], rows[variables], part)
            else:
                for row in rows[variables]:
                    excess[matrix.shape[0]][row] += part
    flags: list[Flags] = [np.ones(each.size, dtype=np.bool_) for each in costs]
    for size, group in groups.items():
        beaten = (excess[size] >= 0) & compared[group, None, None]
        beaten &= (_differences([held[v] for v in group]) >= 0) | idle[group, None, None]
        for v, flag in zip(group, _unbeaten(beaten), strict=True):
            if flag.any():
                flags[v] = flag
    return flags


def _unbeaten(beaten: Flags) -> Flags:
    """`[variable, a]`: whether no choice b beats a, `beaten[variable, a, b]`. Of two that are alike the first one stays."""
    both = beaten & beaten.transpose(0, 2, 1)
    later = np.triu(np.ones(beaten.shape[1:], dtype=np.bool_))
    return np.logical_not((beaten & ~(both & later)).any(axis=2))


def _differences(numbers: list[Numbers]) -> Numbers:
    """`[variable, a, b]`: by how much its number a is above its number b."""
    stacked = np.stack(numbers)
    return np.asarray(stacked[:, :, None] - stacked[:, None, :])


def _sides(edges: dict[tuple[int, int], Numbers]) -> list[tuple[Numbers, list[int]]]:
    """All matrices and transposed ones, each with the variables whose choices its rows are."""
    sides: dict[tuple[int, bool], tuple[Numbers, list[int]]] = {}
    for pair, matrix in edges.items():
        for v, transposed in zip(pair, (False, True), strict=True):
            sides.setdefault((id(matrix), transposed), (matrix.T if transposed else matrix, []))[1].append(v)
    return list(sides.values())


def _least_excess(matrix: Numbers) -> Numbers | None:
    """`[a, b]`: by how much choice a costs more than b at the least, over the neighbour's choices; None for a large matrix."""
    rows, columns = matrix.shape
    if rows * rows * columns > DOMINANCE_ENTRIES:
        return None
    with np.errstate(invalid="ignore"):
        more = matrix[:, None, :] - matrix[None, :, :]
    more[np.broadcast_to(np.isinf(matrix)[:, None, :], more.shape)] = np.inf  # where a is forbidden, b is no worse
    return np.asarray(more.min(axis=2))


def _steps(problem: Problem, largest: list[float]) -> Steps:
    count = len(problem.costs)
    nothing = np.zeros(count, dtype=np.int64)
    if not problem.bytes or np.isinf(problem.limit):
        return Steps(nothing, nothing, np.zeros(0, dtype=np.int64))
    spans = np.array(problem.lifetimes, dtype=np.int64).reshape(-1, 2)
    alive = spans[:, 0] < spans[:, 1]
    begins, ends = np.unique(spans[alive, 0]), np.unique(spans[alive, 1])
    before_next = np.append(begins[1:], np.iinfo(np.int64).max)
    times = begins[np.searchsorted(ends, before_next, side="right") > np.searchsorted(ends, begins, side="right")]
    first, last = np.searchsorted(times, spans[:, 0]), np.searchsorted(times, spans[:, 1])
    last = np.where(alive, last, first)
    most = Steps(first, last, times).usage(np.array(largest))
    times = times[most > problem.limit]
    first, last = np.searchsorted(times, spans[:, 0]), np.searchsorted(times, spans[:, 1])
    return Steps(first, np.where(alive, last, first), times)
