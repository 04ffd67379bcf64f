"""Drawn cases: functions of a few operands with a sharding for every operand and every result, many in one program.

Cases do not touch each other, so a program of several computes what each alone computes, and XLA compiles it in far less time
than one program for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

import meshbridge
from tests.operations.differential import Spec, device_mesh

FLOATS = ("float32", "float64", "bfloat16", "float16")
NARROW_FLOATS = ("float8_e4m3fn", "float8_e5m2")
COMPLEX = ("complex64", "complex128")
SIGNED = ("int8", "int16", "int32", "int64", "int4")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64", "uint4")
INTEGERS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTEGERS + COMPLEX
ALL = (*NUMBERS, *NARROW_FLOATS, "bool")

SPECIAL = (np.nan, np.inf, -np.inf, -0.0)
"""Floats that are no ordinary numbers."""

SPECIAL_SHARE = 0.08
"""How many elements of a special operand they are: some rows and columns stay without."""

POISON = 7
"""An integer that no operand holds, and that every dtype does."""


@dataclass(frozen=True)
class Operand:
    """One array: its shape, its dtype, how it lies (None: left to propagation) and what it holds.

    `values` is "normal" (around 0), "whole" (small whole numbers, of which every dtype holds the sums exactly), "positive", or
    the number of indices to choose from, of which some lie a little outside.
    """

    shape: tuple[int, ...]
    dtype: str
    spec: Spec | None
    values: str | int = "normal"
    special: bool = False
    """Whether some elements are NaN, infinities and negative zeros, where the dtype has them, and padding is NaN too."""

    def example(self, rng: np.random.Generator) -> np.ndarray:
        kind = jnp.dtype(self.dtype)
        if self.dtype == "bool":
            return rng.integers(0, 2, self.shape).astype(bool)
        if isinstance(self.values, int):
            return rng.integers(0 if self.dtype in UNSIGNED else -2, self.values + 2, self.shape).astype(kind)
        if self.dtype in INTEGERS:
            return rng.integers(0 if self.dtype in UNSIGNED or self.values == "positive" else -4, 7, self.shape).astype(kind)
        if self.values == "whole":
            chances = [0.1, 0.8, 0.1] if self.dtype in NARROW_FLOATS else [0.3, 0.4, 0.3]
            parts = rng.choice([-1.0, 0.0, 1.0], (2, *self.shape), p=chances)
        else:
            parts = rng.standard_normal((2, *self.shape))
        if self.values == "positive":
            parts = np.abs(parts) + 0.1
        if self.special:
            parts[0] = np.where(rng.random(self.shape) < SPECIAL_SHARE, rng.choice(SPECIAL, self.shape), parts[0])
        return (parts[0] + 1j * parts[1] if self.dtype in COMPLEX else parts[0]).astype(kind)


@dataclass(frozen=True)
class Case:
    """A function of `operands`; `results` are the shardings of its results in order (None: left to propagation).

    `what` names the op with its attributes. `tolerance` is for results that are rounded, relative to the largest value or to 1,
    the size of the operands, if that is more; None asks for what the dtype can hold.
    """

    what: str
    function: Callable[..., Any]
    operands: tuple[Operand, ...]
    results: tuple[Spec | None, ...] = ()
    tolerance: float | None = None
    manual: bool = False
    """Whether it names axes of the mesh, so that one device cannot compute it: XLA does, on the mesh, from whole arguments."""

    def constrained(self, mesh: Mesh) -> Callable[..., list[Any]]:
        """The function under its shardings. Constraints say them all: an argument's own sharding would have to be even."""

        def run(*values: Any) -> list[Any]:
            placed = [_placed_operand(value, operand, mesh) for value, operand in zip(values, self.operands, strict=True)]
            results = jax.tree.leaves(self.function(*placed))
            specs = [*self.results, *[None] * len(results)]
            return [_placed(result, spec, mesh) for result, spec in zip(results, specs, strict=False)]

        return run

    def unsharded(self, *values: Any) -> list[Any]:
        return jax.tree.leaves(self.function(*values))


def _placed(value: Any, spec: Spec | None, mesh: Mesh) -> Any:
    return value if spec is None else jax.lax.with_sharding_constraint(value, NamedSharding(mesh, spec))


def _placed_operand(value: Any, operand: Operand, mesh: Mesh) -> Any:
    """`value` under its sharding. A special operand has NaN (in integers, a number that is drawn nowhere) in the padding of its
    uneven shards, so that an op that reads it is found out."""
    value = _placed(value, operand.spec, mesh)
    if not operand.special or is_even(value.shape, operand.spec, mesh):
        return value
    inside = jnp.ones(value.shape, bool)
    for dim, size in enumerate(value.shape):
        inside &= jax.lax.broadcasted_iota("int32", value.shape, dim) < size
    is_inexact = jnp.issubdtype(value.dtype, jnp.inexact)
    poison = jnp.full(value.shape, np.nan if is_inexact else 1 if value.dtype == bool else POISON, value.dtype)
    return _placed(jnp.where(inside, value, poison), operand.spec, mesh)


def is_even(shape: Sequence[int], spec: Spec | None, mesh: Mesh) -> bool:
    """Whether every device holds an equal part."""
    entries = () if spec is None else spec
    sizes = [int(np.prod([mesh.shape[axis] for axis in entry or ()], dtype=int)) for entry in entries]
    return all(size % count == 0 for size, count in zip(shape, sizes, strict=False))


def examples(cases: Sequence[Case]) -> list[np.ndarray]:
    """The arguments of all cases one after the other, the same in every run."""
    rng = np.random.default_rng(7)
    return [operand.example(rng) for case in cases for operand in case.operands]


def export(cases: Sequence[Case], mesh: Mesh | AbstractMesh) -> jax.export.Exported:
    """All cases as one program. Arguments come in as their spec says where that is even, else replicated.

    The devices of an abstract mesh need not be there.
    """

    def program(*values: Any) -> list[list[Any]]:
        return [case.constrained(mesh)(*mine) for case, mine in _shares(cases, values)]

    operands = [operand for case in cases for operand in case.operands]
    shardings = tuple(_argument_sharding(operand, mesh) for operand in operands)
    avals = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
    abstract = isinstance(mesh, AbstractMesh)
    with jax.sharding.use_abstract_mesh(mesh) if abstract else jax.set_mesh(mesh):
        jitted = jax.jit(program, in_shardings=shardings)
        return jax.export.export(jitted, platforms=("cpu",) if abstract else None)(*avals)


def _argument_sharding(operand: Operand, mesh: Mesh) -> NamedSharding | None:
    if operand.spec is None:
        return None
    return NamedSharding(mesh, operand.spec if is_even(operand.shape, operand.spec, mesh) else Spec())


def _shares(cases: Sequence[Case], values: Sequence[Any]) -> list[tuple[Case, Sequence[Any]]]:
    shares, used = [], 0
    for case in cases:
        shares.append((case, values[used : used + len(case.operands)]))
        used += len(case.operands)
    return shares


def expected(cases: Sequence[Case], mesh: Mesh) -> list[list[np.ndarray]]:
    """What one device computes; on `mesh` if a case needs one."""

    def program(*values: Any) -> list[list[Any]]:
        return [case.unsharded(*mine) for case, mine in _shares(cases, values)]

    with jax.set_mesh(mesh) if any(case.manual for case in cases) else nullcontext():
        return jax.tree.map(np.asarray, jax.jit(program)(*examples(cases)))


def check(cases: Sequence[Case], mesh_shape: Sequence[int]) -> None:
    """Partitions all cases in one program, runs it on the mesh, and compares every result with the unsharded one."""
    mesh = device_mesh(mesh_shape)
    exported = export(cases, mesh)
    partitioned = meshbridge.partition(exported)
    operands = [operand for case in cases for operand in case.operands]
    placed = [
        jax.device_put(value, _argument_sharding(operand, mesh) or NamedSharding(mesh, Spec()))
        for value, operand in zip(examples(cases), operands, strict=True)
    ]
    with nullcontext() if placed else jax.set_mesh(mesh):  # nothing else says on how many devices it runs
        found = jax.tree.map(np.asarray, jax.jit(partitioned.call)(*placed))
    for case, mine, theirs in zip(cases, found, expected(cases, mesh), strict=True):
        compare(case, mine, theirs)


TOLERANCES = {"float64": 1e-11, "complex128": 1e-11, "float32": 2e-5, "complex64": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""Relative to the largest value: a few units in the last place, in which sums in another order may differ."""


def compare(case: Case, found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Equal but for rounding, NaNs and infinities at the same places; AssertionError names the case."""
    for index, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert mine.shape == theirs.shape, case
        assert mine.dtype == theirs.dtype, case
        name = str(theirs.dtype)
        wide = np.complex128 if name in COMPLEX else np.float64 if jnp.issubdtype(theirs.dtype, jnp.floating) else None
        if wide is None:
            np.testing.assert_array_equal(mine, theirs, err_msg=f"result {index} of {case}")
            continue
        tolerance = case.tolerance if case.tolerance is not None else TOLERANCES.get(name, 0.0)
        mine, theirs = mine.astype(wide), theirs.astype(wide)
        largest = np.max(
            np.abs(theirs), initial=1.0, where=np.isfinite(theirs)
        )  # what cancels keeps the rounding of operands near 1
        np.testing.assert_allclose(mine, theirs, tolerance, tolerance * largest, err_msg=f"result {index} of {case}")
