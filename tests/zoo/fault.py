"""One public report of a fault in XLA's sharding, as a small program whose right answer is what one device computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.export
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from meshbridge.tools.trial import compare

FAULTS: dict[str, Fault] = {}
"""All faults by name, in the order of their registration."""


REPLICATED = PartitionSpec()


@dataclass(frozen=True)
class Sharded:
    """An argument: its values, and its sharding as a PartitionSpec."""

    values: np.ndarray[Any, Any]
    spec: PartitionSpec = REPLICATED


@dataclass(frozen=True)
class Fault:
    """A program after a public issue.

    `issue` reads `owner/repository#number`, empty where no public report was found; `shows` says what the issue reports.
    `mesh` gives the axes with their sizes, `results` the PartitionSpec of every result (None leaves them open).
    `tolerance` is the largest difference, relative to the largest value of a result, that the order of additions explains;
    0 asks for equal results.
    """

    name: str
    issue: str
    shows: str
    function: Callable[..., Any]
    mesh: dict[str, int]
    arguments: tuple[Sharded, ...]
    results: Any = None
    tolerance: float = 0.0
    explicit: bool = False
    wide: bool = False
    """Whether 64-bit types are on."""
    reference: Callable[..., Any] | None = None
    """What one device computes, where `function` depends on the mesh."""

    @property
    def url(self) -> str:
        """Where the issue stands; only for those that have one."""
        repository, number = self.issue.split("#")
        return f"https://github.com/{repository}/issues/{number}"

    @contextlib.contextmanager
    def on(self, devices: int) -> Iterator[Mesh]:
        """The program's mesh as the current one: of its own size, or with `devices` 1 of one device."""
        sizes = list(self.mesh.values()) if devices > 1 else [1] * len(self.mesh)
        kind = AxisType.Explicit if self.explicit else AxisType.Auto
        mesh = Mesh(np.array(jax.devices()[: prod(sizes)]).reshape(sizes), tuple(self.mesh), axis_types=(kind,) * len(sizes))
        with jax.enable_x64(self.wide), jax.set_mesh(mesh):
            yield mesh

    @property
    def devices(self) -> int:
        """How many devices the mesh has."""
        return prod(self.mesh.values())

    def jit(self, mesh: Mesh) -> Any:
        """The jitted function with the shardings of arguments and results."""
        return jax.jit(self.function, in_shardings=self.argument_shardings(mesh), out_shardings=self.result_shardings(mesh))

    def argument_shardings(self, mesh: Mesh) -> tuple[NamedSharding, ...]:
        """One for each argument."""
        return tuple(NamedSharding(mesh, argument.spec) for argument in self.arguments)

    def result_shardings(self, mesh: Mesh) -> Any:
        """One for all results, a tree of them, or None where they are open."""
        if self.results is None:
            return None
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.results)

    def placed(self, mesh: Mesh) -> list[jax.Array]:
        """The arguments on `mesh`."""
        return [
            jax.device_put(argument.values, sharding)
            for argument, sharding in zip(self.arguments, self.argument_shardings(mesh), strict=True)
        ]

    def run(self, mesh: Mesh, compiled: Any) -> list[np.ndarray[Any, Any]]:
        """The results of an executable on the arguments."""
        return leaves(compiled(*self.placed(mesh)))

    def expected(self) -> list[np.ndarray[Any, Any]]:
        """The results of the function on one device, by XLA alone."""
        if self.reference is not None:
            with jax.enable_x64(self.wide):
                return leaves(jax.jit(self.reference)(*(argument.values for argument in self.arguments)))
        with self.on(1) as mesh:
            return self.run(mesh, jax.jit(self.function))

    def error(self, found: list[np.ndarray[Any, Any]]) -> float:
        """The largest difference from `expected` of any result, relative to the largest value of that result."""
        pairs = zip(found, self.expected(), strict=True)
        return max(compare(one, other).relative for one, other in pairs)


def leaves(results: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays of a tree, as numpy arrays."""
    return [np.asarray(leaf) for leaf in jax.tree.leaves(results)]


def fault(
    issue: str,
    shows: str,
    mesh: dict[str, int],
    *arguments: Sharded,
    results: Any = None,
    tolerance: float = 0.0,
    explicit: bool = False,
    wide: bool = False,
    reference: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the function below it under its own name."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__
        assert name not in FAULTS, f"two faults are called {name}"
        FAULTS[name] = Fault(name, issue, shows, function, mesh, arguments, results, tolerance, explicit, wide, reference)
        return function

    return register


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Normal float32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(*shape: int, below: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """int32 numbers from 0 to `below`, exclusive."""
    return np.random.default_rng(seed).integers(0, below, shape, dtype=np.int32)


def counting(*shape: int) -> np.ndarray[Any, Any]:
    """float32 0, 1, 2, … in row-major order."""
    return np.arange(prod(shape), dtype=np.float32).reshape(shape)
