"""Every program of `varied_programs` computes what one device computes, whatever meshbridge makes of it."""

from __future__ import annotations

import jax
import pytest

import meshbridge
from benchmarks.contestants import xla
from benchmarks.measure import placed, relative_error, unsharded
from meshbridge.analysis import hlo
from meshbridge.analysis.hlo_communication import communication
from tests.programs.varied import PROGRAMS

QUICK = ("branches_in_a_scan", "complex_numbers", "partly_manual")
"""Those that check what no other test does; the rest take a minute."""


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PROGRAMS])
def test_equals_one_device(name: str) -> None:
    program = PROGRAMS[name]
    arguments, results = program.jit_shardings(program.mesh())
    partitioned = meshbridge.partition(program.export())
    found = jax.jit(partitioned.call, in_shardings=arguments, out_shardings=results)(*placed(program))
    assert relative_error(found, unsharded(program)) < program.tolerance


@pytest.mark.parametrize("name", ["batched_solve", "bits"])
def test_what_is_independent_along_the_split_stays_local(name: str) -> None:
    program = PROGRAMS[name]
    arguments, results = program.jit_shardings(program.mesh())
    partitioned = meshbridge.partition(program.export())
    compiled = jax.jit(partitioned.call, in_shardings=arguments, out_shardings=results).lower(*program.avals()).compile()
    assert communication(hlo.read(compiled.as_text() or "")).wire_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["low_rank_tuning", "low_rank_tuning_by_sequence", "spatial_gating", "grouped_queries", "both_directions"]
)
def test_sends_no_more_than_xla(name: str) -> None:
    """Programs on which refinement has once ended with more bytes than one of XLA's partitioners."""
    program = PROGRAMS[name]
    arguments, results = program.jit_shardings(program.mesh())
    partitioned = meshbridge.partition(program.export(), machine="bytes")
    compiled = jax.jit(partitioned.call, in_shardings=arguments, out_shardings=results).lower(*program.avals()).compile()
    sent = communication(hlo.read(compiled.as_text() or "")).wire_bytes
    theirs = [communication(hlo.read(xla(program, shardy=shardy).compiled.as_text())) for shardy in (True, False)]
    assert sent <= min(one.scattered_bytes for one in theirs)
