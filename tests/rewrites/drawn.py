"""Drawn JAX programs, partitioned and run on virtual devices, and how results are compared with those of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import meshbridge
from meshbridge import pipeline
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.ir.mlir import ir
from meshbridge.machines.compile_target import CompileTarget

P = PartitionSpec
Pin = Callable[[Any, PartitionSpec], Any]
"""Says how a value is sharded; on one device it gives the value as it is."""

AXES = "ab"
WHOLE = P()


@dataclass(frozen=True)
class Argument:
    """An argument of a drawn program."""

    shape: tuple[int, ...]
    dtype: Any
    spec: PartitionSpec = WHOLE
    scale: float = 1.0
    special: bool = True
    "Whether it may hold zeros, infinities and NaN."


@dataclass(frozen=True)
class Program:
    """A function of arrays, and how they are sharded."""

    what: str
    function: Callable[..., Any]
    "Of a `Pin`, and of the arguments."
    arguments: tuple[Argument, ...]
    results: Any = None
    "The specs of its results; None where they are open."
    mesh: tuple[int, ...] = (2, 4)
    options: str = ""
    "Of the pass."
    shortened: bool = False
    "Whether collectives are made fewer before the pass."
    machine: str = "h100"
    "For which it is planned."

    def jitted(self) -> Any:
        """The sharded function."""
        mesh = jax.make_mesh(
            self.mesh,
            tuple(AXES[: len(self.mesh)]),
            axis_types=(AxisType.Auto,) * len(self.mesh),
            devices=jax.devices()[: int(np.prod(self.mesh))],
        )

        def named(spec: PartitionSpec) -> NamedSharding:
            return NamedSharding(mesh, spec)

        def pin(value: Any, spec: PartitionSpec) -> Any:
            return jax.lax.with_sharding_constraint(value, named(spec))

        results = None if self.results is None else jax.tree.map(named, self.results, is_leaf=lambda spec: isinstance(spec, P))
        shardings = tuple(named(each.spec) for each in self.arguments)
        return jax.jit(
            lambda *values: self.function(pin, *values), in_shardings=shardings, out_shardings=results, keep_unused=True
        )

    def partitioned(self) -> ir.Module:
        """One device's program before its collectives are made fewer or hidden."""
        structs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in self.arguments]
        module: ir.Module = meshbridge.partition(self.jitted(), *structs, emit="mesh", machine=self.machine, collectives="off")
        if self.shortened:
            pipeline.run((OptimizeCollectives(combine=0, target=CompileTarget.of(self.machine)),), module)
        return module

    def planned(self, machine: str) -> ir.Module:
        """One device's program as it is planned for a machine."""
        structs = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in self.arguments]
        module: ir.Module = meshbridge.partition(self.jitted(), *structs, emit="mesh", machine=machine)
        return module

    def alone(self, *arguments: Any) -> list[np.ndarray]:
        """What one device computes."""
        return [
            np.asarray(each)
            for each in jax.tree.leaves(jax.jit(lambda *v: self.function(lambda value, _: value, *v))(*arguments))
        ]


def inputs(program: Program, seed: int, count: int) -> Iterator[tuple[str, list[Any]]]:
    """Values of the arguments."""
    for kind, values in filled_with(program.arguments, seed, count):
        yield kind, [jnp.asarray(each) for each in values]


def filled_with(arguments: Sequence[Argument], seed: int, count: int) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Numbers, then zeros, infinities and NaN in some places, rows and columns of them too."""
    for number in range(count):
        random = np.random.default_rng((seed, number))
        kinds = ("numbers", "zeros", "nan", "infinities", "all")
        kind = kinds[number % len(kinds)]
        yield kind, [_values(each, kind if each.special else "numbers", random).astype(each.dtype) for each in arguments]


SPECIAL = {
    "numbers": (),
    "zeros": (0.0,),
    "nan": (np.nan,),
    "infinities": (np.inf, -np.inf),
    "all": (0.0, np.nan, np.inf, -np.inf),
}


def _values(argument: Argument, kind: str, random: np.random.Generator) -> np.ndarray:
    shape = argument.shape
    if jnp.issubdtype(argument.dtype, jnp.bool_):
        values = random.random(shape) < 0.6
        if len(shape) > 1:
            values[tuple(random.integers(size) for size in shape[:-1])] = False
        return values
    if jnp.issubdtype(argument.dtype, jnp.integer):
        return random.integers(0, 4, shape)
    values = argument.scale * random.standard_normal(shape)
    if not SPECIAL[kind] or not shape:
        return values
    for _ in range(2):
        values[tuple(random.integers(size) for size in shape)] = random.choice(SPECIAL[kind])
    if kind in ("zeros", "all") or random.random() < 0.3:
        along = random.integers(len(shape))
        values[tuple(slice(None) if dim == along else random.integers(size) for dim, size in enumerate(shape))] = random.choice(
            SPECIAL[kind]
        )
    return values


def differences(found: Sequence[np.ndarray], right: Sequence[np.ndarray], least: Any = jnp.float32) -> str:
    """How results differ from those of one device: in NaN, infinities, or numbers by more than rounding; empty if they do not."""
    assert len(found) == len(right)
    for number, (ours, other) in enumerate(zip(found, right, strict=True)):
        if (ours.shape, ours.dtype) != (other.shape, other.dtype):
            return f"result {number} is {ours.dtype}{ours.shape}, expected {other.dtype}{other.shape}"
        if said := _difference(ours, other, least):
            return f"result {number} {said}"
    return ""


def _difference(ours: np.ndarray, other: np.ndarray, least: Any) -> str:
    if ours.dtype.kind in "iub":
        return "" if np.array_equal(ours, other) else "differs"
    coarse = max(2e-5 if ours.dtype.itemsize == 4 else 0.0, *(8 * float(jnp.finfo(each).eps) for each in (ours.dtype, least)))
    ours, other = ours.astype(np.float64), other.astype(np.float64)
    for name, is_there in (("NaN", np.isnan), ("inf", np.isposinf), ("-inf", np.isneginf)):
        if not np.array_equal(is_there(ours), is_there(other)):
            place = tuple(int(each) for each in np.argwhere(is_there(ours) != is_there(other))[0])
            return f"at {place} is {ours[place]}, expected {other[place]} ({name})"
    finite = np.isfinite(other)
    largest = np.max(np.abs(other), initial=1e-3, where=finite)
    far = finite & (np.abs(np.where(finite, ours, 0) - np.where(finite, other, 0)) > coarse * largest)
    if far.any():
        place = tuple(int(each) for each in np.argwhere(far)[0])
        return f"at {place} is {ours[place]}, expected {other[place]}"
    return ""


def draw_dtype(random: Random) -> Any:
    """In which a program computes."""
    return random.choice([jnp.float32, jnp.float32, jnp.bfloat16])
