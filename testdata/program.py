"""A test program: a JAX function, its mesh, its arguments with their shardings, and the communication of an expert's plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from testdata.ring import Term, total

Tree = Any
"""A pytree: nested dicts, lists and tuples."""


@dataclass(frozen=True)
class Argument:
    """One array that a program takes: its shape, how it lies on the mesh, and what a seeded example holds.

    `element` is its type; a bound `below` makes it int32. Floating-point examples are normal with standard deviation `scale`
    around `centre`; integer ones are below `below`, and with `distinct` each row of the first dimension has none of them twice.
    """

    shape: tuple[int, ...]
    spec: PartitionSpec
    scale: float = 1.0
    centre: float = 0.0
    below: int = 0
    element: str = "float32"
    distinct: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        """int32 below a bound, otherwise what `element` says."""
        return jnp.dtype("int32" if self.below else self.element)

    @property
    def bytes(self) -> int:
        """Size of the whole array."""
        return prod(self.shape) * self.dtype.itemsize

    def example(self, rng: np.random.Generator) -> np.ndarray:
        if self.distinct:
            rows = [rng.permutation(self.below)[: prod(self.shape[1:])] for _ in range(self.shape[0])]
            return np.array(rows, np.int32).reshape(self.shape)
        if self.below:
            return rng.integers(0, self.below, self.shape, dtype=np.int32)
        is_complex = self.dtype.kind == "c"
        parts = rng.standard_normal((2 if is_complex else 1, *self.shape))
        return (self.centre + self.scale * (parts[0] + 1j * parts[1] if is_complex else parts[0])).astype(self.dtype)


@dataclass(frozen=True)
class Program:
    """A sharded JAX program. `arguments` is a tuple of pytrees of Argument; `out_specs` is a pytree prefix of the results.

    `ideal` is a communication plan derived by hand: what the intended scheme costs, not a proven lower bound.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    function: Callable[..., Tree]
    arguments: tuple[Tree, ...]
    out_specs: Tree
    ideal: tuple[Term, ...] = ()
    tolerance: float = 1e-4
    """Largest error of an output, relative to its largest value, that rounding may explain."""
    donated: tuple[int, ...] = ()
    """Which arguments give their memory to the results."""

    @property
    def devices(self) -> int:
        return prod(size for _, size in self.axes)

    @property
    def ideal_bytes(self) -> float:
        """Wire bytes per device of the hand-derived plan."""
        return total(self.ideal)

    def mesh(self) -> Mesh:
        """The mesh over the first devices of the default backend. Raises ValueError if there are too few."""
        devices = jax.devices()
        if len(devices) < self.devices:
            raise ValueError(f"{self.name} needs {self.devices} devices, {devices[0].platform} has {len(devices)}")
        return self._mesh(np.array(devices[: self.devices]).reshape([size for _, size in self.axes]))

    def one_device_mesh(self) -> Mesh:
        """A mesh with the same axes and one device: what the program computes without any partitioning."""
        return self._mesh(np.array(jax.devices()[:1]).reshape([1] * len(self.axes)))

    def _mesh(self, devices: np.ndarray) -> Mesh:
        return Mesh(devices, tuple(name for name, _ in self.axes))

    def jit_shardings(self, mesh: Mesh | AbstractMesh) -> tuple[Tree, Tree]:
        """The shardings of the arguments and of the results on `mesh`."""
        arguments = jax.tree.map(lambda argument: NamedSharding(mesh, argument.spec), self.arguments)
        return arguments, jax.tree.map(lambda spec: NamedSharding(mesh, spec), self.out_specs)

    def jit(self, mesh: Mesh | AbstractMesh) -> Any:
        """The jitted function with its shardings on `mesh`; lower it under `jax.set_mesh`: constraints name axes."""
        arguments, results = self.jit_shardings(mesh)
        return jax.jit(self.function, in_shardings=arguments, out_shardings=results, donate_argnums=self.donated)

    def avals(self) -> tuple[Tree, ...]:
        """Shapes and types of the arguments."""
        return tuple(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), self.arguments))

    def lower(self, mesh: Mesh | None = None) -> Any:
        """The lowered program on `mesh`, its own if none is given."""
        mesh = mesh or self.mesh()
        with jax.set_mesh(mesh):
            return self.jit(mesh).lower(*self.avals())

    def export(self) -> jax.export.Exported:
        """The program as a jax.export artifact for its mesh."""
        mesh = self.mesh()
        with jax.set_mesh(mesh):
            return jax.export.export(self.jit(mesh))(*self.avals())

    def export_for(self, platform: str) -> jax.export.Exported:
        """The same for a mesh of devices of `platform` that need not be there, however many."""
        names, sizes = zip(*self.axes, strict=True)
        mesh = AbstractMesh(sizes, names, axis_types=(AxisType.Auto,) * len(names))
        with jax.sharding.use_abstract_mesh(mesh):
            return jax.export.export(self.jit(mesh), platforms=(platform,))(*self.avals())

    def example_arguments(self, seed: int = 0) -> tuple[Tree, ...]:
        """Seeded numpy arrays, the same on every machine."""
        rng = np.random.default_rng(seed)
        return tuple(jax.tree.map(lambda argument: argument.example(rng), self.arguments))
