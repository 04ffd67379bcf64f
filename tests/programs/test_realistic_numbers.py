"""The realistic programs compute what one device computes, in sizes that run in a test."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshbridge
from benchmarks.measure import placed, relative_error, unsharded
from testdata.program import Program
from testdata.realistic import layers
from tests.programs.tiny_realistic import BUILDERS, build

RATE = 1e3
"""A step this long leaves little of a parameter but its gradient, so that a wrong gradient is a wrong result."""

QUICK: tuple[str, ...] = ()
CASES = [
    pytest.param(name, annotated, marks=() if (name, annotated) in QUICK else pytest.mark.slow)
    for name in BUILDERS
    for annotated in (True, False)
]


@pytest.fixture(autouse=True)
def _long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "RATE", RATE)


def partitioned(program: Program) -> tuple[np.ndarray, ...]:
    """The results of `meshbridge.jit`, as a user calls it."""
    mesh = program.mesh()
    arguments, results = program.jit_shardings(mesh)
    function = meshbridge.jit(program.function, in_shardings=arguments, out_shardings=results, donate_argnums=program.donated)
    with jax.set_mesh(mesh):
        return function(*placed(program))


@pytest.mark.parametrize(("name", "annotated"), CASES)
def test_equals_one_device(name: str, annotated: bool) -> None:
    program = build(name, annotated=annotated)
    expected = unsharded(program)
    assert relative_error(partitioned(program), expected) < program.tolerance
