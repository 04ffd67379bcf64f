"""The shardings under which each sample runs: drawn once for all, by the sample's name."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax

from tests.operations.cases import Case, Operand
from tests.operations.differential import SEED, Spec
from tests.operations.samples import Sample

EVEN, UNEVEN = (2, 4), (2, 3)
"""Meshes: of the cases drawn for the second one, the first that is uneven is taken."""
MESHES = (EVEN, UNEVEN)
DRAWN = 32


@dataclass(frozen=True)
class SampleCase(Case):
    """A case whose unsharded values may come from an oracle."""

    oracle: Callable[..., Any] | None = None

    def unsharded(self, *values: Any) -> list[Any]:
        return super().unsharded(*values) if self.oracle is None else jax.tree.leaves(self.oracle(*values))


def case(sample: Sample, mesh_shape: tuple[int, ...]) -> SampleCase:
    """The sample with shardings for operands and results."""
    chooser = random.Random(SEED + repr((sample.op, sample.operands, mesh_shape)))
    drawn = [_draw(sample, "abc"[: len(mesh_shape)], chooser) for _ in range(DRAWN)]
    wanted = (one for one in drawn if is_uneven(one, mesh_shape)) if mesh_shape == UNEVEN else iter(drawn)
    return next(wanted, drawn[0])


def is_uneven(case: Case, mesh_shape: tuple[int, ...]) -> bool:
    """Whether some operand lies in shards of different sizes."""
    sizes = dict(zip("abc", mesh_shape, strict=False))
    return any(
        size % prod(sizes[axis] for axis in entry or ())
        for operand in case.operands
        for size, entry in zip(operand.shape, operand.spec or (), strict=False)
    )


def _draw(sample: Sample, axes: str, chooser: random.Random) -> SampleCase:
    values = (*sample.values, *["normal"] * len(sample.operands))
    operands = [
        Operand(shape, dtype, _spec(len(shape), axes, chooser), held)
        for (shape, dtype), held in zip(sample.operands, values, strict=False)
    ]
    results = [_spec(len(shape), axes, chooser) for shape, _ in sample.results]
    return SampleCase(sample.body, sample.function, tuple(operands), tuple(results), 1e-4, oracle=sample.oracle)


def _spec(rank: int, axes: str, chooser: random.Random) -> Spec | None:
    if chooser.random() < 0.15:
        return None
    entries: list[list[str]] = [[] for _ in range(rank)]
    for axis in chooser.sample(axes, len(axes)):
        place = chooser.randrange(-1, rank)
        if place >= 0:
            entries[place].append(axis)
    return Spec(*[tuple(entry) or None for entry in entries])
