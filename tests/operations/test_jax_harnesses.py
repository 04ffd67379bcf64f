"""JAX's own harnesses of its primitives, sharded as drawn: 7,400 calls that nobody wrote with sharding in mind.

`jax._src.internal_test_util.test_harnesses` comes with JAX, and needs absl. Each harness is a function with its arguments.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from jax._src.internal_test_util.test_harnesses import Harness, all_harnesses

from tests.operations.cases import Case, Operand, check
from tests.operations.differential import SEED, Spec

TOGETHER = 16
"""Harnesses in one program."""
MESHES = ((2, 4), (8,), (2, 2, 2), (4, 2))


def _batches() -> Iterator[Any]:
    """Harnesses that JAX runs on CPU, those of one primitive together."""
    usable = [harness for harness in all_harnesses if harness.filter("cpu")]
    by_primitive = sorted(usable, key=lambda harness: harness.group_name)
    for name, group in itertools.groupby(by_primitive, lambda harness: harness.group_name):
        members = list(group)
        for start in range(0, len(members), TOGETHER):
            yield pytest.param(members[start : start + TOGETHER], id=f"{name}-{start // TOGETHER}")


@dataclass(frozen=True)
class Given(Operand):
    """An operand that a harness brings along."""

    array: Any = None

    def example(self, rng: np.random.Generator) -> np.ndarray:
        return np.asarray(self.array)


def _spec(chooser: random.Random, rank: int, axes: int) -> Spec | None:
    """Any axes on any dimensions, even or not; None leaves the sharding to propagation."""
    if chooser.random() < 0.1:
        return None
    entries: list[list[str]] = [[] for _ in range(rank)]
    for axis in chooser.sample("abc"[:axes], axes):
        home = chooser.randrange(-1, rank)
        if home >= 0:
            entries[home].append(axis)
    return Spec(*[tuple(entry) or None for entry in entries])


def _case(harness: Harness, mesh_shape: Sequence[int]) -> Case:
    chooser = random.Random(f"{SEED or 0} {harness.fullname}")
    arguments = harness.dyn_args_maker(np.random.RandomState(zlib.crc32(harness.fullname.encode())))
    operands = [
        Given(value.shape, str(value.dtype), _spec(chooser, value.ndim, len(mesh_shape)), array=value)
        for value in map(np.asarray, arguments)
    ]
    results = jax.tree.leaves(jax.eval_shape(harness.dyn_fun, *arguments))
    specs = tuple(_spec(chooser, result.ndim, len(mesh_shape)) for result in results)
    return Case(harness.fullname, harness.dyn_fun, tuple(operands), specs)


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    """64-bit types, which JAX leaves out by default."""
    with jax.enable_x64(True):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("harnesses", list(_batches()))
def test_equals_unsharded(harnesses: list[Harness]) -> None:
    mesh_shape = random.Random(f"{SEED or 0} {harnesses[0].fullname}").choice(MESHES)
    cases = [_case(harness, mesh_shape) for harness in harnesses]
    try:
        check(cases, mesh_shape)
    except Exception:  # which of them it was, each alone says
        failures = list(filter(None, (_failure(case, mesh_shape) for case in cases)))
        if not failures:
            raise
        pytest.fail("\n\n".join(failures), pytrace=False)


def _failure(case: Case, mesh_shape: Sequence[int]) -> str:
    try:
        check([case], mesh_shape)
    except Exception as error:
        shardings = [operand.spec for operand in case.operands], case.results
        return f"{case.what} on {mesh_shape}, MESHBRIDGE_SEED={SEED}, {shardings}\n{type(error).__name__}: {error}"
    return ""
