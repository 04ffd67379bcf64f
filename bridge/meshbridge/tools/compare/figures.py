"""What is known of one contestant on one program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshbridge.analysis.hlo_figures import HloFigures


@dataclass(frozen=True)
class Modelled:
    """What a compiler's own model says that a step takes: a TPU's computation alone, in cycles, or all that a GPU does."""

    total: float
    wasted: float | None
    "Of it, how long the device waits for communication; None where the model knows of no communication."
    unit: Literal["cycles", "microseconds"]
    without_estimate: int
    "Of how many executed instructions (TPU) or computations (GPU) the model says nothing: they count as 0."


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
    modelled: Modelled | None = None
    "Of what was compiled for a target."
    unmodelled: str = ""
    "Why that is not known, where it is not."

    @classmethod
    def of(cls, read: Mapping[str, Any]) -> Figures:
        """Those of which JSON holds `dataclasses.asdict`."""
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in read.items()}
        return cls(**values | {"modelled": read["modelled"] and Modelled(**read["modelled"])})
