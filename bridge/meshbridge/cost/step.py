"""The predicted step: one device's program, scheduled on a machine.

The device runs one kernel at a time, as long as its arithmetic or its traffic with memory takes, whichever is more. Collectives
occupy links. Those that the platform's compiler makes asynchronous run beside kernels; for others the device waits. A loop's body
is scheduled by itself, and takes its time once for each iteration; of branches the dearest counts. What is ready starts in the
order of `schedule`: compilers that hide latency aim at that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import NamedTuple

from meshbridge.analysis.executions import BRANCHING
from meshbridge.analysis.known_values import branch
from meshbridge.analysis.trip_count import trip_count
from meshbridge.cost.collective_ops import alike_time, arranged_bytes, issued_kind, time_of
from meshbridge.cost.communication import Collective, communicating
from meshbridge.cost.flops import products
from meshbridge.cost.fusion import Buffers, Fusion, Known
from meshbridge.cost.schedule import Task, starts
from meshbridge.cost.seconds import Time, op_time
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, ir, main_function, walk
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.layout import place
from meshbridge.machines.machine import Machine
from meshbridge.machines.target import Target

COMPUTE, MEMORY, LOOPS = "compute", "memory", "loops"
"""Resources of a device, and what slices of whole loops have instead of one. Other resources are links."""

MARGIN = 1.01
"""Predicted seconds that differ by less say nothing: of such plans the one is taken that sends least, where the seconds in which
the device waits for bytes count as if it sent so many more.

Measured on the programs of `testdata/realistic`, 93 plans for three targets: with 1 nine send up to 7 % more for a step that is
up to 0.6 % shorter."""


@dataclass(frozen=True)
class ScheduleSlice:
    """What one resource does for a while. Of a loop, one execution of the body is listed, where the loop starts."""

    resource: str
    name: str
    "Of the operation."
    location: ir.Location
    start: float
    "Seconds from the start of the step."
    seconds: float
    executions: int
    "How often the step does it."


@dataclass(frozen=True)
class Execution:
    """One execution of a block by one device."""

    seconds: float
    compute_seconds: float
    "In which the device runs kernels."
    communication_seconds: float
    "That its collectives take, one after the other."
    slices: tuple[ScheduleSlice, ...]

    @property
    def exposed_seconds(self) -> float:
        """In which it waits for communication."""
        return max(self.seconds - self.compute_seconds, 0.0)

    def repeated(self, times: int) -> Execution:
        """So many executions one after the other."""
        slices = tuple(replace(each, executions=times * each.executions) for each in self.slices)
        seconds, compute, communication = (
            times * each for each in (self.seconds, self.compute_seconds, self.communication_seconds)
        )
        return Execution(seconds, compute, communication, slices)

    def after(self, seconds: float) -> Iterable[ScheduleSlice]:
        """Its slices, if it starts later."""
        return (replace(each, start=seconds + each.start) for each in self.slices)


@dataclass(frozen=True)
class PredictedStep(Execution):
    """One execution of a program."""

    target: Target
    "The devices."


def predict(module: ir.Module, devices: Target) -> PredictedStep:
    """The step of one device's program (stages 3 to 5) on these devices.

    Takes time in operations, whatever the number of devices, but for permutes. Raises MeshError for a mesh that does not fit the
    devices, and for collectives along no axes of a mesh.
    """
    run = _Prediction(devices.machine, times_on_links(module, devices)).execution(_body(module))
    seconds = (run.seconds, run.compute_seconds, run.communication_seconds)
    return PredictedStep(*seconds, run.slices, devices)


class OpRun(NamedTuple):
    """When an operation runs in an execution of its block, in seconds."""

    start: float
    seconds: float
    waited: float
    "For which the device runs nothing before it."


def runs(module: ir.Module, target: CompileTarget, times: Mapping[ir.Operation, Time]) -> dict[ir.Operation, OpRun]:
    """The predicted run of each operation that is a kernel or a collective, of which `times` are those of `collective_times`.
    Raises MeshError as `predict` does."""
    prediction = _Prediction(target.device, times)
    prediction.execution(_body(module))
    return prediction.runs


def step_seconds(module: ir.Module, target: CompileTarget, *, epilogues: bool = False) -> float:
    """The seconds of the predicted step, as if all links were alike where the `target` has no topology; by
    `epilogues` as if products wrote what elementwise operations make of their results. Raises MeshError as `predict` does."""
    times = collective_times(module, target)
    return _Prediction(target.device, times, epilogues=epilogues).execution(_body(module)).seconds


def _body(module: ir.Module) -> ir.Block:
    body: ir.Block = main_function(module).regions[0].blocks[0]
    return body


def collective_times(module: ir.Module, target: CompileTarget) -> Mapping[ir.Operation, Time]:
    """The time of each collective, as if all links were alike where the `target` has no topology; none on a mesh of one device,
    which JAX declares. Raises MeshError as `predict` does."""
    if target.devices is not None:
        return times_on_links(module, target.devices)
    link = target.device.link
    return {op: alike_time(each.wire_bytes, link) if mesh.size > 1 else Time() for op, mesh, _, each in _communicating(module)}


def times_on_links(module: ir.Module, devices: Target) -> Mapping[ir.Operation, Time]:
    """The time of each collective on the links that connect these devices; none on a mesh of one device. Raises MeshError as
    `predict` does."""
    placements = {name: place(mesh, devices) for name, mesh in declared_meshes(module.body).items() if mesh.size > 1}
    return {
        op: time_of(op, mesh, axes, placements[mesh.name], each.group_size) if mesh.size > 1 else Time()
        for op, mesh, axes, each in _communicating(module)
    }


def _communicating(module: ir.Module) -> Iterable[tuple[ir.Operation, Mesh, Axes, Collective]]:
    return communicating(((op, 1) for op in walk(main_function(module))), declared_meshes(module.body))


_KEPT = REGION_OPS | {BARRIER}
"""Are scheduled although their results may have no buffers. What a barrier hands on waits for all of its operands."""


@dataclass
class _Prediction:
    machine: Machine
    communication: Mapping[ir.Operation, Time]
    runs: dict[ir.Operation, OpRun] = field(default_factory=dict)
    "Of the operations of all blocks so far."
    epilogues: bool = False

    def execution(self, block: ir.Block, outside: Known | None = None) -> Execution:
        """One execution of a block, of which `outside` says what `Fusion` knows of values around it."""
        operations = [view.operation for view in block.operations]
        fusion = Fusion(
            operations,
            outside,
            repeats=self.machine.duplicates_expensive_ops,
            slices=self.machine.fuses_slices,
            epilogues=self.epilogues,
        )
        tasks: list[Task] = []
        executions: list[Execution] = []
        of_tasks: list[ir.Operation] = []
        filled_by: dict[ir.Value, int] = {}
        "By the value in a buffer, the number of the task that fills it."
        for op in operations:
            if op.name not in _KEPT and all(result in fusion.sources for result in op.results):
                continue
            read = fusion.read(op)
            run, busy = self._run(op, fusion, read)
            after = tuple({filled_by[value]: None for value in read if value in filled_by})
            filled_by.update(dict.fromkeys(op.results, len(tasks)))
            tasks.append(Task(run.seconds, busy, after))
            executions.append(run)
            of_tasks.append(op)
        begin = starts(tasks)
        self._note(of_tasks, tasks, begin)
        begun = list(zip(begin, executions, strict=True))
        slices = tuple(part for start, run in begun for part in run.after(start))
        seconds = max((start + run.seconds for start, run in begun), default=0.0)
        computing, communicating = (
            sum(getattr(run, part) for run in executions) for part in ("compute_seconds", "communication_seconds")
        )
        return Execution(seconds, computing, communicating, slices)

    def _note(self, operations: Sequence[ir.Operation], tasks: Sequence[Task], begin: Sequence[float]) -> None:
        ended = 0.0
        for start, _, op, task in sorted(
            zip(begin, range(len(tasks)), operations, tasks, strict=True), key=lambda each: each[:2]
        ):
            computing = COMPUTE in task.busy
            self.runs[op] = OpRun(start, task.seconds, start - ended if computing else 0.0)
            if computing:
                ended = start + task.busy[COMPUTE]

    def _run(self, op: ir.Operation, fusion: Fusion, read: Buffers) -> tuple[Execution, Mapping[str, float]]:
        """What executing `op` is, and how long it occupies resources."""
        if op.name == BARRIER:
            return Execution(0.0, 0.0, 0.0, ()), {}
        if op.name in REGION_OPS:
            return self._regions(op, fusion)
        if op in self.communication:
            return self._collective(op, self.communication[op])
        return self._kernel(op, sum(read.values()) + fusion.written(op))

    def _regions(self, op: ir.Operation, fusion: Fusion) -> tuple[Execution, Mapping[str, float]]:
        """A loop or branch lets nothing run beside it but communication along links that it does not use."""
        inside = fusion.inside(op)
        runs = [self.execution(region.blocks[0], inside) for region in op.regions]
        known = branch(op) if op.name in BRANCHING else len(runs) - 1  # of a loop, the body
        run = max(runs, key=lambda each: each.seconds) if known is None else runs[known]
        if op.name == "stablehlo.while":
            times = trip_count(op)
            times = 1 if times is None else times
            run = run.repeated(times)
            whole = ScheduleSlice(LOOPS, f"{op.name} of {times} iterations", op.location, 0.0, run.seconds, 1)
            run = replace(run, slices=(whole, *run.slices))
        used = {each.resource for each in run.slices} - {MEMORY, LOOPS} | {COMPUTE}
        return run, dict.fromkeys(used, run.seconds)

    def _collective(self, op: ir.Operation, time: Time) -> tuple[Execution, Mapping[str, float]]:
        busy = {link: time.latency + seconds for link, seconds in time.busy.items()}
        copying = arranged_bytes(op) / self.machine.copy_bandwidth
        parts = (*busy.items(), *(((COMPUTE, copying),) if copying else ()))
        slices = tuple(ScheduleSlice(resource, op.name, op.location, 0.0, seconds, 1) for resource, seconds in parts)
        seconds = copying + time.seconds
        if issued_kind(op) not in self.machine.async_collectives:
            busy |= {COMPUTE: seconds}
        elif copying:
            busy |= {COMPUTE: copying}
        return Execution(seconds, copying, time.seconds, slices), busy

    def _kernel(self, op: ir.Operation, moved: float) -> tuple[Execution, Mapping[str, float]]:
        """An operation that computes, and with it what it computes of its operands on the way; it moves so many bytes. Arithmetic
        of single numbers is part of other kernels."""
        if all(map(_is_single, (*op.operands, *op.results))):
            return Execution(0.0, 0.0, 0.0, ()), {}
        (kind, count), *_ = (*products([(op, 1)]).items(), ("", 0.0))
        working, moving = (op_time(flops, kind, moved, self.machine) / self.machine.efficiency for flops in (count, 0.0))
        seconds = self.machine.kernel_launch + working
        parts = ((COMPUTE, seconds), (MEMORY, moving))
        slices = tuple(ScheduleSlice(resource, op.name, op.location, 0.0, each, 1) for resource, each in parts)
        return Execution(seconds, seconds, 0.0, slices), {COMPUTE: seconds}


def _is_single(value: ir.Value) -> bool:
    return not isinstance(value.type, ir.RankedTensorType) or (
        ir.RankedTensorType(value.type).has_static_shape and prod(ir.RankedTensorType(value.type).shape) == 1
    )
