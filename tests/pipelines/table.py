"""Writes the table of schedules of `docs/pipelines.md`: bubbles by formula, simulated and predicted, and memory.

From the repository's root: `python -m tests.pipelines.table`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import marked
from meshbridge.ir.mlir import context
from meshbridge.pipeline import Options
from meshbridge.pipelines import schedules
from meshbridge.pipelines.build import build
from meshbridge.pipelines.prediction import PipelineReport, report
from meshbridge.read import formats
from meshbridge.text import size_text, time_text
from tests.house import ROOT
from tests.pipelines.steps import accumulating, mlp_loss

PAGE = ROOT / "docs" / "pipelines.md"
COMMAND = "python -m tests.pipelines.table"

STAGES, LAYERS, MICROBATCHES, MACHINE, WIDTH = 4, 8, 8, "v5p:4x2x4", 16384


def predicted(schedule: str) -> PipelineReport:
    """The report on a chain of layers, on a quarter of the machine for each stage."""
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    kernel, bias = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16), jax.ShapeDtypeStruct((WIDTH,), jnp.bfloat16)
    params = {"layers": [{"w": kernel, "b": bias} for _ in range(LAYERS)]}
    rows = NamedSharding(mesh, P("fsdp"))
    shardings = jax.tree.map(lambda leaf: rows if len(leaf.shape) > 1 else NamedSharding(mesh, P()), params)
    batch = jax.ShapeDtypeStruct((4 * WIDTH, WIDTH), jnp.bfloat16)
    step = jax.jit(
        accumulating(mlp_loss, LAYERS, microbatches=MICROBATCHES),
        in_shardings=(shardings, rows),
        out_shardings=(shardings, None),
        donate_argnums=0,
    )
    program = formats.unpack(step, context(), (params, (batch, batch)))
    return report(build(program, Options.of(emit="mesh", machine=MACHINE), STAGES, schedule))


def table() -> str:
    """A row for each schedule."""
    rows = []
    for name in schedules.NAMES:
        chunks = LAYERS if name == "interleaved" else STAGES
        schedule = schedules.named(name, STAGES, chunks, MICROBATCHES)
        found = predicted(name)
        bubbles = (schedules.formula(name, STAGES, MICROBATCHES, chunks), schedule.even_timeline().bubble, found.bubble or 0.0)
        live = ", ".join(map(str, schedule.peak_live()))
        memory = size_text(max(stage.peak_bytes for stage in found.stages))
        cells = (f"`{name}`", *(f"{bubble:.1%}" for bubble in bubbles), time_text(found.seconds or 0.0), live, memory)
        rows.append(f"| {' | '.join(cells)} |")
    bubbles = "bubble by formula | simulated | predicted | predicted step"
    head = f"| schedule | {bubbles} | live microbatches of stages | memory of a device |"
    return "\n".join((head, "|---|---:|---:|---:|---:|---|---:|", *rows))


def refreshed() -> str:
    """The page with the table rewritten."""
    return marked.replaced(PAGE, "schedules", COMMAND, table())


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    PAGE.write_text(refreshed())
