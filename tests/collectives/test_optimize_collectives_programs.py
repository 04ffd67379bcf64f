"""The collective passes in the pipeline: real programs with them and without them, compiled and run by XLA."""

from __future__ import annotations

from typing import Any

import jax
import pytest

from benchmarks.measure import placed, relative_error, unsharded
from meshbridge import partitioning, pipeline
from meshbridge.analysis import hlo
from meshbridge.analysis.hlo_communication import communication
from meshbridge.ir.mlir import context
from meshbridge.read import formats
from testdata.catalogue import build
from testdata.program import Program

NAMES = ("accumulation", "adam_zero1", "decode_seq", "mlp_ws1d")


def compiled(program: Program, collectives: pipeline.Collectives) -> jax.stages.Compiled:
    opened = formats.unpack(program.export(), context())
    # For the fewest bytes: a price of memory gathers weights in their loop, where nothing can be combined.
    partitioning.partition_module(opened.module, pipeline.Options.of(machine="bytes", collectives=collectives))
    arguments, results = program.jit_shardings(program.mesh())
    exported: Any = formats.pack(opened)
    return jax.jit(exported.call, in_shardings=arguments, out_shardings=results).lower(*program.avals()).compile()


@pytest.mark.parametrize("name", NAMES)
def test_fewer_collectives_of_no_more_bytes(name: str) -> None:
    program = build(name)
    with_them, without = compiled(program, "on"), compiled(program, "off")
    assert relative_error(with_them(*placed(program)), unsharded(program)) < program.tolerance
    assert relative_error(without(*placed(program)), unsharded(program)) < program.tolerance
    ours, before = (communication(hlo.read(each.as_text() or "")) for each in (with_them, without))
    assert ours.wire_bytes <= before.wire_bytes
    assert ours.executed <= before.executed
    if name != "mlp_ws1d":  # which has one collective before each product and one after
        assert ours.executed < before.executed
