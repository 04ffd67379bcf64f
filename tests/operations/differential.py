"""Differential checks: a JAX function with sharded arguments, partitioned by meshbridge and run on virtual devices, must
equal the
same function run unsharded."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshbridge

Spec = PartitionSpec
SEED = os.environ.get("MESHBRIDGE_SEED", "")
"""What tests that draw without hypothesis draw from; without one, they draw the same in every run."""


def device_mesh(shape: Sequence[int]) -> Mesh:
    """A mesh of virtual devices with axes a, b, c, …"""
    count = int(np.prod(shape))
    return Mesh(np.array(jax.devices()[:count]).reshape(shape), tuple("abcdefgh"[: len(shape)]))


def even_specs(shape: Sequence[int], mesh: Mesh) -> list[Spec]:
    """Every sharding of `shape` that divides evenly, replicated included, axes in any order."""
    axes = mesh.axis_names
    found = []
    for homes in itertools.product(range(-1, len(shape)), repeat=len(axes)):
        for order in itertools.permutations(range(len(axes))):
            entries: list[list[str]] = [[] for _ in shape]
            for axis in order:
                if homes[axis] >= 0:
                    entries[homes[axis]].append(axes[axis])
            sizes = [int(np.prod([mesh.shape[axis] for axis in entry])) for entry in entries]
            spec = Spec(*[tuple(entry) if entry else None for entry in entries])
            if spec not in found and all(size % n == 0 for size, n in zip(shape, sizes, strict=True)):
                found.append(spec)
    return found


def example(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Random values: small integers, or floats (and complex numbers) around 0."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind.kind in "iu":
        return rng.integers(0, 7, shape).astype(kind)
    values = rng.standard_normal(shape)
    if kind.kind == "c":
        return (values + 1j * rng.standard_normal(shape)).astype(kind)
    return values.astype(kind)


def run_sharded(
    function: Callable[..., Any],
    arguments: Sequence[np.ndarray],
    mesh: Mesh,
    in_specs: Sequence[Spec | None],
    out_specs: Any = None,
    compare_with: Callable[..., Any] | None = None,
) -> tuple[Any, Any]:
    """The function's results through meshbridge on `mesh`, and those of `compare_with` (the function itself) without any
    sharding.

    A spec of None leaves the sharding to propagation.
    """

    def named(spec: Spec | None) -> NamedSharding | None:
        return None if spec is None else NamedSharding(mesh, spec)

    sharded = jax.jit(
        function,
        in_shardings=tuple(map(named, in_specs)),
        out_shardings=None
        if out_specs is None
        else jax.tree.map(named, out_specs, is_leaf=lambda s: s is None or isinstance(s, Spec)),
    )
    avals = [jax.ShapeDtypeStruct(argument.shape, argument.dtype) for argument in arguments]
    with jax.set_mesh(mesh):
        exported = jax.export.export(sharded)(*avals)
    partitioned = meshbridge.partition(exported)
    placed = [
        jax.device_put(argument, NamedSharding(mesh, spec or Spec())) for argument, spec in zip(arguments, in_specs, strict=True)
    ]
    got = jax.jit(partitioned.call)(*placed)
    return jax.tree.map(np.asarray, got), jax.tree.map(np.asarray, jax.jit(compare_with or function)(*arguments))


def assert_close(got: Any, want: Any) -> None:
    """Equal up to the rounding of the element type; exactly for integers and booleans."""
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        if mine.dtype.kind in "iub":
            np.testing.assert_array_equal(mine, theirs)
        else:
            wide = np.complex128 if mine.dtype.kind == "c" else np.float64
            tolerance = {2: 3e-2, 4: 5e-5, 8: 5e-5}.get(mine.dtype.itemsize, 1e-10)
            largest = np.max(np.abs(theirs.astype(wide)), initial=1.0, where=np.isfinite(theirs))
            np.testing.assert_allclose(mine.astype(wide), theirs.astype(wide), rtol=tolerance, atol=tolerance * largest)


def check_samples(
    function: Callable[..., Any],
    shapes: Sequence[tuple[Sequence[int], str]],
    *,
    mesh_shape: Sequence[int] = (2, 4),
    samples: int = 3,
    seed: int = 0,
) -> None:
    """Checks `function` under `samples` random combinations of even argument shardings (some left open, some results
    annotated)."""
    mesh = device_mesh(mesh_shape)
    chooser = random.Random(SEED + repr((seed, mesh_shape, shapes)))
    rng = np.random.default_rng(seed)
    arguments = [example(rng, shape, dtype) for shape, dtype in shapes]
    results = jax.tree.leaves(jax.eval_shape(function, *arguments))
    single = len(results) == 1
    for _ in range(samples):
        in_specs = [chooser.choice(even_specs(shape, mesh)) if chooser.random() < 0.85 else None for shape, _ in shapes]
        out_specs = chooser.choice(even_specs(results[0].shape, mesh)) if single and chooser.random() < 0.5 else None
        got, want = run_sharded(function, arguments, mesh, in_specs, out_specs)
        try:
            assert_close(got, want)
        except AssertionError as error:
            raise AssertionError(f"arguments {in_specs}, result {out_specs}: {error}") from None
