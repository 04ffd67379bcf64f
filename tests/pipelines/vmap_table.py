"""Writes the table of `docs/pipelines.md` beside a pipeline as one SPMD program, by `jax.vmap` over stages and `jnp.roll`:
predicted steps, memory, and what devices send to other stages beside the least possible.

From the repository's root: `python -m tests.pipelines.vmap_table`.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from benchmarks import marked
from meshbridge.ir.mlir import context, ir
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import INTERLEAVED, prepare
from meshbridge.pipelines.prediction import report
from meshbridge.pipelines.schedules import STACKED, named
from meshbridge.pipelines.stacked import build_stacked
from meshbridge.pipelines.stacks import STACK_AXIS
from meshbridge.read import formats
from meshbridge.reports import partition_and_report
from meshbridge.text import size_text, time_text
from testdata.program import Program
from testdata.realistic import pipeline as by_vmap
from testdata.realistic.accumulated import accumulated
from testdata.realistic.llama import llama
from tests.house import ROOT

PAGE = ROOT / "docs" / "pipelines.md"
COMMAND = "python -m tests.pipelines.vmap_table"

MACHINE, DEVICES = "v5p:4x4x4", 64
SIZE = by_vmap.SIZE
OPTIONS = Options.of(emit="mesh", machine=MACHINE)
SCHEDULES = ("1f1b", "interleaved", "zero-bubble")


def traced(program: Program) -> formats.Program:
    """The program on its mesh."""
    mesh = program.mesh()
    with jax.set_mesh(mesh):
        return formats.unpack(program.jit(mesh), context(), program.avals())


def own_step() -> Program:
    """The same llama, whose layers are one scan, on as many microbatches of as many sequences, on the devices of one stage."""
    devices = DEVICES // SIZE.stages
    step = llama(
        "dp",
        devices,
        layers=SIZE.stages * SIZE.layers,
        scan=True,
        annotated=True,
        size=SIZE.model,
        tokens=SIZE.sequences * SIZE.length,
        length=SIZE.length,
    )
    return accumulated(step, SIZE.microbatches)


def least_bytes() -> float:
    """What a device of a stage between two others has to send in a step: the activations of each microbatch forward, and as much
    backward."""
    activations = SIZE.sequences * SIZE.length * SIZE.model.width * jnp.dtype("bfloat16").itemsize
    return 2.0 * SIZE.microbatches * activations


def one_program(name: str, module: ir.Module, axis: str) -> Sequence[str]:
    """The row of a program for all stages, which are along an axis."""
    found, _ = partition_and_report(module, OPTIONS)
    sent = sum(each.total_bytes for each in found.collectives if axis in each.axes)
    assert found.seconds is not None
    return name, time_text(found.seconds), size_text(sent), size_text(found.memory.peak)


def rows() -> list[Sequence[str]]:
    """A row for the program by vmap, and for each schedule."""
    own = traced(own_step())
    found: list[Sequence[str]] = [
        one_program("`jax.vmap` and `jnp.roll`", traced(by_vmap.pipeline(DEVICES, annotated=True)).module, "stage"),
        one_program(f"`{STACKED}`", build_stacked(own, OPTIONS, SIZE.stages).module, STACK_AXIS),
    ]
    step = prepare(own, OPTIONS, SIZE.stages)
    for name in SCHEDULES:
        chunks = INTERLEAVED * SIZE.stages if name == "interleaved" else SIZE.stages
        schedule = named(name, SIZE.stages, chunks, SIZE.microbatches)
        each = report(step.under(schedule))
        sent = [0.0] * SIZE.stages
        for crossing in each.crossings:
            sent[crossing.source] += crossing.bytes
        peak = max(stage.peak_bytes for stage in each.stages)
        found.append((f"`{name}`", time_text(each.seconds or 0.0), size_text(max(sent)), size_text(peak)))
    return found


def table() -> str:
    """The table."""
    lines = [f"| {' | '.join(row)} |" for row in rows()]
    head = f"| pipeline | predicted step | sent to other stages (least {size_text(least_bytes())}) | memory of a device |"
    return "\n".join((head, "|---|---:|---:|---:|", *lines))


def refreshed() -> str:
    """The page with the table rewritten."""
    return marked.replaced(PAGE, "vmap", COMMAND, table())


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", DEVICES)
    PAGE.write_text(refreshed())
