"""The figures of one contestant on one program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshbridge.analysis.hlo_figures import HloFigures


@dataclass(frozen=True)
class Modelled:
    """A compiler's own estimate of a step: a TPU's computation only, in cycles, or all work of a GPU, in microseconds."""

    total: float
    wasted: float | None
    "The part in which the device waits for communication; None if the model has no communication."
    unit: Literal["cycles", "microseconds"]
    without_estimate: int
    "How many executed instructions (TPU) or kernels (GPU) have no estimate; they count as 0."
    outside: float = 0.0
    """The part of the total in loops and branches without collectives. A GPU's scheduler does not time them: they count XLA's
    estimates of their fusions, and a roofline of calls of libraries."""


@dataclass(frozen=True)
class Figures(HloFigures):
    """Figures per device. If there is an `error`, nothing else is known."""

    error: str = ""
    argument_bytes: int = 0
    output_bytes: int = 0
    temporary_bytes: int = 0
    "XLA's allocations beside arguments and results."
    peak_bytes: int = 0
    "The most memory at one time, with arguments and results."
    plan: str = ""
    "A hash of the module that XLA compiles, without locations: partitioned, if the contestant is ours."
    partition_seconds: float | None = None
    "None if partitioning is part of compiling."
    compile_seconds: float = 0.0
    run_seconds: float = 0.0
    absolute_difference: float | None = None
    "Largest difference of any output from the reference; None for the reference itself, or without one."
    relative_difference: float | None = None
    "The largest difference divided by the largest magnitude of that output."
    modelled: Modelled | None = None
    "The compiler's estimate for a target."
    unmodelled: str = ""
    "Why there is no estimate."

    @classmethod
    def of(cls, read: Mapping[str, Any]) -> Figures:
        """The figures of which `read` is `dataclasses.asdict`, from JSON."""
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in read.items()}
        return cls(**values | {"modelled": read["modelled"] and Modelled(**read["modelled"])})
