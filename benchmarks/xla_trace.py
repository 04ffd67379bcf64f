"""How long XLA's partitioner takes inside one compilation, read from the trace that XLA's own profiler writes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

PIPELINES = ("pre-spmd-partitioner", "spmd-partitioner")
"""XLA's pass pipelines up to local shapes: call inlining and the like, then propagation (Shardy or GSPMD) and partitioning."""


def partitioning_seconds(compile_program: Callable[[], Any]) -> tuple[Any, float]:
    """What `compile_program` returns, and the seconds that XLA spent in PIPELINES, both together.

    Raises ValueError if the trace shows no partitioner: then XLA has renamed it.
    """
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # Python frames would cost more than the passes
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            compiled = compile_program()
        (trace,) = Path(folder).rglob("*.xplane.pb")
        spent = [event.duration_ns / 1e9 for event in _events(trace) if event.name.split(" (")[0] in PIPELINES]
    if not spent:
        raise ValueError(f"XLA's trace names none of {', '.join(PIPELINES)}")
    return compiled, sum(spent)


def _events(trace: Path) -> list[Any]:
    planes = jax.profiler.ProfileData.from_file(str(trace)).planes
    return [event for plane in planes for line in plane.lines for event in line.events]
