"""A sharding problem: variables with a few choices each, the costs of choices and of pairs of choices, and memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from meshbridge.ir.errors import MeshError

Numbers = np.ndarray[Any, np.dtype[np.float64]]
"""An array of float64."""

Indices = np.ndarray[Any, np.dtype[np.int64]]
"""An array of int64."""


def product(a: Numbers, b: Numbers) -> float:
    """The sum of products of two arrays in one thread: `@` starts one thread per core, and these wait for each other."""
    return float((a * b).sum())


@final
@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise the costs of all variables and edges, while the bytes alive at any time stay within the limit.

    Every variable takes one of its choices. An infinite cost forbids a choice, or a pair of choices. A lifetime is the half-open
    interval `[from, to)` of whole times in which a variable holds its bytes; one that ends where it begins holds none. Edges may
    share one matrix object, which is then stored once. `bytes` and `lifetimes` are empty if no memory counts.

    Raises MeshError if the parts do not fit together, or a cost is negative or not a number.
    """

    costs: tuple[Numbers, ...]
    edges: tuple[tuple[int, int, Numbers], ...] = ()
    bytes: tuple[Numbers, ...] = ()
    lifetimes: tuple[tuple[int, int], ...] = ()
    limit: float = float("inf")

    def __post_init__(self) -> None:
        _check(self)

    def cost(self, chosen: Sequence[int]) -> float:
        """The cost of the choices, one for each variable; infinite if they are not allowed together."""
        alone = sum(float(costs[choice]) for costs, choice in zip(self.costs, chosen, strict=True))
        return alone + sum(float(matrix[chosen[i], chosen[j]]) for i, j, matrix in self.edges)

    def usage(self, chosen: Sequence[int]) -> Numbers:
        """The bytes alive at every time from 0 to the end of the last lifetime."""
        steps = np.zeros(self.end + 1)
        if self.bytes:
            sizes = np.array([variable_sizes[choice] for variable_sizes, choice in zip(self.bytes, chosen, strict=True)])
            begins, ends = self._times
            alive = begins < ends
            np.add.at(steps, begins[alive], sizes[alive])
            np.add.at(steps, ends[alive], -sizes[alive])
        return np.cumsum(steps)[:-1]

    def peak(self, chosen: Sequence[int]) -> float:
        """The most bytes alive at any time."""
        return float(self.usage(chosen).max(initial=0.0))

    @cached_property
    def end(self) -> int:
        """The time at which the last lifetime ends."""
        return max((end for begin, end in self.lifetimes if begin < end), default=0)

    @cached_property
    def _times(self) -> tuple[Indices, Indices]:
        pairs = np.array(self.lifetimes, dtype=np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]


def _check(problem: Problem) -> None:
    count = len(problem.costs)
    for index, costs in enumerate(problem.costs):
        _check_costs(f"variable {index}", costs, (max(1, costs.size),))
    for i, j, _ in problem.edges:
        if not (0 <= i < count and 0 <= j < count):
            raise MeshError(f"edge ({i}, {j}): expected two of the variables 0 to {count - 1}")
    matrices = {id(matrix): (i, j, matrix) for i, j, matrix in problem.edges}
    for i, j, matrix in matrices.values():
        _check_costs(f"edge ({i}, {j})", matrix, matrix.shape)
    for i, j, matrix in problem.edges:
        if matrix.shape != (problem.costs[i].size, problem.costs[j].size):
            expected = f"({problem.costs[i].size}, {problem.costs[j].size})"
            raise MeshError(f"edge ({i}, {j}): expected a matrix of shape {expected}, found {matrix.shape}")
    if problem.bytes and not len(problem.bytes) == len(problem.lifetimes) == count:
        counts = f"{len(problem.bytes)} and {len(problem.lifetimes)}"
        raise MeshError(f"memory: expected bytes and a lifetime for each of {count} variables, found {counts}")
    for index, sizes in enumerate(problem.bytes):
        _check_costs(f"the bytes of variable {index}", sizes, problem.costs[index].shape)
        if problem.lifetimes[index][0] < 0:
            raise MeshError(f"variable {index}: expected a lifetime from time 0 on, found {problem.lifetimes[index]}")
        if not np.isfinite(sizes).all():
            raise MeshError(f"the bytes of variable {index}: expected finite numbers")


def _check_costs(name: str, numbers: Numbers, shape: tuple[int, ...]) -> None:
    if numbers.shape != shape or numbers.dtype != np.float64:
        raise MeshError(f"{name}: expected float64 of shape {shape}, found {numbers.dtype} of shape {numbers.shape}")
    if not (numbers >= 0).all():
        raise MeshError(f"{name}: expected numbers of at least 0, found {numbers[~(numbers >= 0)][0]}")
