"""Real programs end to end: exported, partitioned, run on 8 virtual devices, compared with one device and with XLA."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.export
import pytest

import meshbridge
from benchmarks.measure import placed, relative_error, unsharded
from meshbridge.analysis import hlo
from meshbridge.analysis.hlo_communication import communication
from testdata import export
from testdata.catalogue import MEASURED, build
from testdata.program import Program

QUICK = ("mlp_ws1d", "mlp_ws2d", "moe_fwd", "cp_attn_fwd", "misc_fft2", "misc_sort", "misc_cumsum")


def compiled(program: Program, exported: jax.export.Exported) -> jax.stages.Compiled:
    arguments, results = program.jit_shardings(program.mesh())
    return jax.jit(exported.call, in_shardings=arguments, out_shardings=results).lower(*program.avals()).compile()


def sent(executable: jax.stages.Compiled) -> float:
    return communication(hlo.read(executable.as_text() or "")).wire_bytes


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MEASURED])
def test_program_equals_one_device_and_sends_no_more_than_xla(name: str) -> None:
    """With plans of the fewest bytes, and with those that a user gets, of fewer collectives."""
    program = build(name)
    arguments = placed(program)
    fewest, usual = (meshbridge.partition(program.export(), machine=machine) for machine in ("bytes", "neutral"))
    ours, theirs = compiled(program, fewest), program.lower().compile()
    assert sent(ours) <= sent(theirs)
    plans = [ours] if usual.mlir_module_serialized == fewest.mlir_module_serialized else [ours, compiled(program, usual)]
    found = [plan(*arguments) for plan in plans]
    expected, given = unsharded(program), theirs(*arguments)  # last: it may be given its arguments for good
    for results in found:
        assert relative_error(results, expected) < program.tolerance
        assert relative_error(results, given) < program.tolerance


@pytest.mark.parametrize("name", ["gpt3", pytest.param("llama_scan_fsdp", marks=pytest.mark.slow)])
def test_artifact_from_its_file(name: str, tmp_path: Path) -> None:
    """What a user does: read a file, partition it, write it, read it again, call it from another jitted function."""
    program = build(name)
    artifact = jax.export.deserialize(bytearray((Path(export.__file__).parent / f"{name}.jax_export").read_bytes()))
    path = tmp_path / "partitioned.jax_export"
    path.write_bytes(meshbridge.partition(artifact).serialize())
    again = jax.export.deserialize(bytearray(path.read_bytes()))
    assert again.in_tree == artifact.in_tree
    assert again.out_tree == artifact.out_tree
    results = compiled(program, again)(*placed(program))
    assert relative_error(results, unsharded(program)) < program.tolerance
