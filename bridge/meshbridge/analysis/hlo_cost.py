"""The compilers' estimates of a program's cost: the TPU's in cycles, the GPU's scheduler's in microseconds.

Both are models, not measurements. The TPU's does not include communication.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from meshbridge.analysis import hlo
from meshbridge.analysis.hlo import Computation, HloError, Instruction
from meshbridge.analysis.hlo_executions import Executions
from meshbridge.analysis.hlo_kernel_time import Roofline, kernel_time
from meshbridge.analysis.hlo_schedule import HloSchedule
from meshbridge.analysis.ring import WIRE_BYTES

_CYCLES = re.compile(r'"estimated_cycles":"(-?\d+)"')
_NO_ESTIMATE = 2**63 - 1
"""The TPU compiler's value for a missing estimate."""


@dataclass(frozen=True)
class TpuCost:
    """Computation cycles of one device in a step, and the number of executed instructions without an estimate."""

    cycles: float
    without_estimate: int


@dataclass(frozen=True)
class GpuTime:
    """Microseconds of a step according to the GPU's scheduler, and those during which the device waits for communication."""

    total: float
    wasted: float
    outside: float = 0.0
    "The part of the total in computations without asynchronous communication. The scheduler does not time them: kernels do."
    unmodelled: tuple[str, ...] = ()
    "Executed kernels in those computations of which no time is known: they count as 0."


def tpu_cost(text: str) -> TpuCost:
    """Loops count by their trip counts, and the most expensive branch counts. Raises HloError for a text without estimates."""
    module = hlo.read(text)
    estimates = {
        (name, op.name): int(match.group(1))
        for name, computation in module.computations.items()
        if name not in module.inlined
        for op in computation.instructions.values()
        if (match := _CYCLES.search(op.attributes))
    }
    if not estimates:
        raise HloError("no instruction has estimated_cycles: the text does not come from the TPU's compiler")

    def cycles(computation: Computation, op: Instruction) -> int:
        estimate = estimates.get((computation.name, op.name), 0)
        return 0 if estimate == _NO_ESTIMATE else estimate

    total = without = 0
    for computation, op, times in Executions(module).of(cycles):
        total += times * cycles(computation, op)
        without += times * (estimates.get((computation.name, op.name)) == _NO_ESTIMATE)
    return TpuCost(float(total), without)


_PHASE = re.compile(r"Statistics (before|after) scheduling")
_COMPUTATION = re.compile(r"For computation: (\S+), module ([^\s(]+)")
_FIGURE = re.compile(r"(Total wasted cycles|Total cycles): (\S+)")


def gpu_time(text: str, log: str, roofline: Roofline) -> GpuTime:
    """The time of a module according to the log of XLA's latency-hiding scheduler, as TF_CPP_VMODULE=latency_hiding_scheduler=1
    and TF_CPP_MIN_LOG_LEVEL=0 print it. Loop bodies count by their trip count, and the most expensive branch counts.

    The scheduler only times computations with asynchronous communication. Others count the sum of their kernels
    (`hlo_kernel_time`), which overlap nothing.

    Raises HloError if the log lacks a computation with communication to hide.
    """
    module = hlo.read(text)
    times = _scheduled_times(log, module.name)
    schedule = HloSchedule(module)
    unmodelled: dict[str, None] = {}

    def kernels(computation: Computation) -> Iterator[float]:
        _check_nothing_is_hidden(computation)
        for op in computation.instructions.values():
            time = kernel_time(module, computation, op, roofline)
            if time is None and schedule.computes(op):
                unmodelled[op.name] = None
            yield time or 0.0

    @cache
    def whole(name: str) -> GpuTime:
        if name in times:
            return times[name]
        spent = sum(kernels(module.computations[name]))
        return GpuTime(spent, 0.0, spent)

    def total(computation: Computation, op: Instruction) -> float:
        """The time of a whole computation, at its root."""
        return whole(computation.name).total if op is computation.root and computation.name not in module.inlined else 0.0

    totals = wasted = outside = 0.0
    for computation, op, number in Executions(module).of(total):
        if time := total(computation, op):
            totals += number * time
            wasted += number * whole(computation.name).wasted
            outside += number * whole(computation.name).outside
    return GpuTime(totals, wasted, outside, tuple(unmodelled))


def _check_nothing_is_hidden(computation: Computation) -> None:
    for op in computation.instructions.values():
        if op.opcode.removesuffix("-start") in WIRE_BYTES:
            raise HloError(f"the scheduler's log says nothing of %{computation.name}, which has the {op.opcode} %{op.name}")


def _scheduled_times(log: str, module: str) -> dict[str, GpuTime]:
    """By computation, the log's last figures after scheduling."""
    figures_of: dict[str, dict[str, float]] = {}
    figures: dict[str, float] | None = None
    after = False
    for line in log.splitlines():
        if phase := _PHASE.search(line):
            after, figures = phase.group(1) == "after", None
        elif after and (named := _COMPUTATION.search(line)):
            figures = figures_of.setdefault(named.group(1), {}) if named.group(2) == module else None
        elif figures is not None and (figure := _FIGURE.search(line)):
            figures[figure.group(1)] = float(figure.group(2))
    for name, last_figures in figures_of.items():
        if len(last_figures) < 2:
            raise HloError(f"the scheduler's log breaks off in what it says of %{name}")
    return {name: GpuTime(times["Total cycles"], times["Total wasted cycles"]) for name, times in figures_of.items()}
