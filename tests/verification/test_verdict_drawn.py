"""Drawn programs, verified exactly: also on more devices than run here, and after each pass."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest
from hypothesis import given, settings
from jax.sharding import AbstractMesh, AxisType

import meshbridge
from meshbridge import partitioning
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass
from meshbridge.read import formats
from meshbridge.verification.verdict import verify
from tests.operations import families
from tests.operations.cases import Case, export
from tests.operations.drawing import FAMILIES, MESHES, batches

assert families.__all__

MANY = ((4, 4, 4), (8, 8, 8), (2, 4, 2, 4), (3, 5))
"""Meshes of up to 512 devices, of which XLA has none here."""

TOGETHER = 6
"""Cases in one program at most."""

QUICK = ("reduce", "dot_general", "scatter", "slices", "while_loop", "sort")

REFUSED = ("rare",)
"""Families that draw tuples, which have no exact evaluation."""

FEW = ("shard_map",)
"""Families whose shapes fit the usual meshes alone."""

Drawn = tuple[tuple[int, ...], list[Case]]


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    """64-bit types, which JAX leaves out by default."""
    with jax.enable_x64(True):
        yield


def source(drawn: Drawn) -> ir.Module:
    """The drawn cases as one program."""
    shape, cases = drawn
    mesh = AbstractMesh(shape, tuple("abcd"[: len(shape)]), axis_types=(AxisType.Auto,) * len(shape))
    return formats.unpack(export(cases, mesh), mlir.context()).module


def marked(names: tuple[str, ...]) -> list[object]:
    evaluated = [name for name in FAMILIES if name not in REFUSED]
    return [name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in evaluated]


@pytest.mark.parametrize("name", marked(QUICK))
def test_partitioned_programs_are_their_sources(name: str) -> None:
    meshes = MESHES if name in FEW else (*MESHES, *MANY)

    @settings(max_examples=3)
    @given(drawn=batches(FAMILIES[name], TOGETHER, meshes))
    def run(drawn: Drawn) -> None:
        program = source(drawn)
        verdict = verify(program, meshbridge.partition(program))
        assert verdict.equal, f"{verdict}\n{drawn}"

    run()


@pytest.mark.parametrize("name", marked(()))
def test_every_pass_keeps_the_meaning(name: str) -> None:
    @settings(max_examples=1)
    @given(drawn=batches(FAMILIES[name], TOGETHER))
    def run(drawn: Drawn) -> None:
        program = source(drawn)

        def check(step: Pass, changed: ir.Module) -> None:
            if mlir.to_bytecode(changed) != last[0]:
                last[0] = mlir.to_bytecode(changed)
                assert verify(program, changed, runs=1).equal, f"{step.name}: {drawn}"

        last = [mlir.to_bytecode(program)]
        partitioning.partition_module(formats.copy_module(program), on_pass=check)

    run()
