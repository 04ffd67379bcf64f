"""The realistic programs compute what one device computes, in sizes that run in a test."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import meshbridge
from benchmarks.measure import placed, relative_error, unsharded
from testdata.program import Program, Tree
from testdata.realistic import layers
from tests.programs.tiny_realistic import BUILDERS, build

RATE = 1e3
"""A step this long leaves little of a parameter but its gradient: a wrong gradient is then a wrong result."""

QUICK = (
    "t5_scan_fsdp_tp",
    "dit_scan",
    "mamba_scan_fsdp_tp",
    "paged_prefill",
    "paged_decode",
    "dropless_fsdp_tp",
    "pipeline_llama",
    "muon_llama_scan_fsdp",
    "grpo_llama_scan_fsdp",
)
"""Those that check with constraints, in `make test`, what no other test does."""

CASES = [
    pytest.param(name, annotated, marks=() if annotated and name in QUICK else pytest.mark.slow)
    for name in BUILDERS
    for annotated in (True, False)
]


@pytest.fixture(autouse=True)
def _long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "RATE", RATE)


def partitioned(program: Program) -> Tree:
    """The results of `meshbridge.jit`, called as a user calls it."""
    mesh = program.mesh()
    arguments, results = program.jit_shardings(mesh)
    function = meshbridge.jit(program.function, in_shardings=arguments, out_shardings=results, donate_argnums=program.donated)
    with jax.set_mesh(mesh):
        return function(*placed(program))


@pytest.mark.parametrize(("name", "annotated"), CASES)
def test_equals_one_device(name: str, annotated: bool) -> None:
    program = build(name, annotated=annotated)
    expected = unsharded(program)
    assert least_change(program, expected) > 50 * program.tolerance
    assert relative_error(partitioned(program), expected) < program.tolerance


def least_change(program: Program, results: Tree) -> float:
    """By how much the results that replace the donated arguments, the last ones, differ from them: the least of them all,
    relative to its largest value."""
    examples = program.example_arguments()
    before = jax.tree.leaves([examples[index] for index in program.donated])
    after = jax.tree.leaves(results)[-len(before) :]
    return min(float(np.max(np.abs(new - old)) / np.max(np.abs(new))) for new, old in zip(after, before, strict=True))


def test_pages_of_sequences_are_distinct() -> None:
    """Otherwise two sequences would write to one page, and either order would be right."""
    *_, table, _ = build("paged_decode", annotated=True).example_arguments()
    assert all(len(set(row.ravel())) == row.size for row in table)
