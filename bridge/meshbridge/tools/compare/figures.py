"""What is known of one contestant on one program."""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.analysis.hlo_figures import HloFigures


@dataclass(frozen=True)
class Figures(HloFigures):
    """All per device. Where `error` says something, nothing else is known."""

    error: str = ""
    argument_bytes: int = 0
    output_bytes: int = 0
    temporary_bytes: int = 0
    "What XLA allocates beside arguments and results."
    peak_bytes: int = 0
    "The most that is held at once, arguments and results with it."
    partition_seconds: float | None = None
    "None where partitioning is a part of compiling."
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    absolute_difference: float | None = None
    "Largest difference of any output from the reference; None for the reference itself, or without one."
    relative_difference: float | None = None
    "The same over the largest magnitude of that output."
