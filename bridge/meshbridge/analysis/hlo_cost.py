"""What a compiler says that its program costs: the TPU's in cycles, the GPU's scheduler in microseconds.

Both are the compiler's models, not measurements. The TPU's holds no communication.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshbridge.analysis import hlo
from meshbridge.analysis.hlo import Computation, HloError, Instruction
from meshbridge.analysis.hlo_executions import Executions
from meshbridge.analysis.hlo_schedule import Schedule
from meshbridge.analysis.ring import WIRE_BYTES

_CYCLES = re.compile(r'"estimated_cycles":"(-?\d+)"')
_NO_ESTIMATE = 2**63 - 1
"""What the TPU's compiler writes where it has no estimate."""


@dataclass(frozen=True)
class TpuCost:
    """Cycles that one device computes in a step, and how many executed instructions the compiler has no estimate for."""

    cycles: float
    without_estimate: int


@dataclass(frozen=True)
class GpuTime:
    """Microseconds of a step by the GPU's scheduler, and how many of them the device waits for communication."""

    total: float
    wasted: float
    unmodelled: tuple[str, ...] = ()
    "Computations that run and compute, but communicate nothing asynchronously: the scheduler gives them no time."


def tpu_cost(text: str) -> TpuCost:
    """Loop bodies as often as they run, of branches the dearest. Raises HloError for a text without estimates."""
    module = hlo.read(text)
    estimates = {
        (name, op.name): int(found.group(1))
        for name, computation in module.computations.items()
        if name not in module.held
        for op in computation.instructions.values()
        if (found := _CYCLES.search(op.attributes))
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


def gpu_time(text: str, log: str) -> GpuTime:
    """The time of a module by the log of XLA's latency-hiding scheduler, as TF_CPP_VMODULE=latency_hiding_scheduler=1 and
    TF_CPP_MIN_LOG_LEVEL=0 print it. Loop bodies count as often as they run, of branches the dearest.

    Raises HloError if the log says nothing of a computation that has something to hide.
    """
    module = hlo.read(text)
    times = _scheduled_times(log, module.name)
    schedule = Schedule(module)
    unmodelled: dict[str, None] = {}

    def total(computation: Computation, op: Instruction) -> float:
        """The time of a whole computation, at its root."""
        if op is not computation.root or computation.name in module.held:
            return 0.0
        if computation.name in times:
            return times[computation.name].total
        _check_nothing_is_hidden(computation)
        if any(map(schedule.computes, computation.instructions.values())):
            unmodelled[computation.name] = None
        return 0.0

    totals = wasted = 0.0
    for computation, op, number in Executions(module).of(total):
        if time := total(computation, op):
            totals += number * time
            wasted += number * times[computation.name].wasted
    return GpuTime(totals, wasted, tuple(unmodelled))


def _check_nothing_is_hidden(computation: Computation) -> None:
    for op in computation.instructions.values():
        if op.opcode.removesuffix("-start") in WIRE_BYTES:
            raise HloError(f"the scheduler's log says nothing of %{computation.name}, which has the {op.opcode} %{op.name}")


def _scheduled_times(log: str, module: str) -> dict[str, GpuTime]:
    """By computation, the last that the log says of it after scheduling."""
    found: dict[str, dict[str, float]] = {}
    figures: dict[str, float] | None = None
    after = False
    for line in log.splitlines():
        if phase := _PHASE.search(line):
            after, figures = phase.group(1) == "after", None
        elif after and (named := _COMPUTATION.search(line)):
            figures = found.setdefault(named.group(1), {}) if named.group(2) == module else None
        elif figures is not None and (figure := _FIGURE.search(line)):
            figures[figure.group(1)] = float(figure.group(2))
    for name, each in found.items():
        if len(each) < 2:
            raise HloError(f"the scheduler's log breaks off in what it says of %{name}")
    return {name: GpuTime(each["Total cycles"], each["Total wasted cycles"]) for name, each in found.items()}
