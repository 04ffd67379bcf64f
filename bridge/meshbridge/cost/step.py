"""The predicted step: one device's program, scheduled on a machine.

The device runs one kernel at a time, for the maximum of its arithmetic and its memory traffic. Collectives occupy links. Those
that the platform's compiler makes asynchronous overlap with kernels; the device waits for others. A loop's body is scheduled once
and counts once per iteration; of branches the most expensive one counts. Ready operations start in the order of `schedule`, which
approximates latency-hiding schedulers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import NamedTuple, Protocol

from meshbridge.analysis.executions import BRANCHING
from meshbridge.analysis.known_values import branch
from meshbridge.analysis.trip_count import trip_count
from meshbridge.cost.collective_ops import collective_op_time, issued_kind, rearranged_bytes, uniform_link_time
from meshbridge.cost.communication import COMMUNICATING, Collective, communicating
from meshbridge.cost.flops import products
from meshbridge.cost.fusion import Buffers, Fusion, SourceBuffers
from meshbridge.cost.objective import COMBINED_BYTES
from meshbridge.cost.schedule import Task, list_schedule
from meshbridge.cost.seconds import Time, op_time
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.ir.block_index import BlockIndex, BlockOp, ValueNumbers
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, REGION_OPS, OpKey, ir, main_function, op_key
from meshbridge.ir.passes import Analyses, Recomputable
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.layout import place
from meshbridge.machines.machine import Machine
from meshbridge.machines.target import Target

COMPUTE, MEMORY, LOOPS = "compute", "memory", "loops"
"""Resources of a device; LOOPS stands for slices of whole loops. Other resources are links."""

MARGIN = 1.01
"""The ratio below which predicted seconds do not differ significantly. Among such plans the one that sends least is chosen, where
seconds of waiting count as bytes sent in that time.

Measured on the programs of `testdata/realistic`, 93 plans for three targets: with 1 nine send up to 7 % more for a step that is
up to 0.6 % shorter."""


@dataclass(frozen=True)
class ScheduleSlice:
    """An interval in which one resource is busy. A loop lists one execution of its body, at the loop's start."""

    resource: str
    name: str
    "The name of the operation."
    location: ir.Location
    start: float
    "Seconds from the start of the step."
    seconds: float
    executions: int
    "Executions per step."
    iterations: int = 1
    "Of a whole loop: how many it has, of which the slices of the body are the first."


@dataclass(frozen=True)
class PredictedStep:
    """One execution of a program by one device."""

    seconds: float
    compute_seconds: float
    "Seconds in which the device runs kernels."
    communication_seconds: float
    "Seconds of its collectives, one after the other."
    slices: tuple[ScheduleSlice, ...]
    target: Target
    "The devices that it is predicted for."

    @property
    def exposed_seconds(self) -> float:
        """Seconds in which the device waits for communication."""
        return _exposed(self)


class _Seconds(Protocol):
    @property
    def seconds(self) -> float: ...

    @property
    def compute_seconds(self) -> float: ...


def _exposed(run: _Seconds) -> float:
    return max(run.seconds - run.compute_seconds, 0.0)


def predict(module: ir.Module, devices: Target) -> PredictedStep:
    """The step of one device's program (stages 3 to 5) on these devices.

    Takes time linear in the operations, whatever the number of devices, except for permutes. Raises MeshError for a mesh that
    does not fit the devices, and for collectives along no axes of a mesh.
    """
    return predict_with_collectives(module, devices)[0]


def predict_with_collectives(module: ir.Module, devices: Target) -> tuple[PredictedStep, Mapping[ir.Operation, float]]:
    """The same as `predict`, and the seconds of one execution of each collective: one that is combined with another takes no
    launch."""
    prediction = _Prediction(devices.machine, CollectiveTimes.on_links(module, devices), {})
    run = prediction.execution(_body(module))
    step = PredictedStep(run.seconds, run.compute_seconds, run.communication_seconds, tuple(run.slices()), devices)
    return step, prediction.collective_seconds


class OpRun(NamedTuple):
    """The run of an operation in an execution of its block, in seconds."""

    start: float
    seconds: float
    waited: float
    "Seconds for which the device is idle before it."


@dataclass(frozen=True)
class StepSchedule(Recomputable):
    """The predicted step of a module, by operation."""

    seconds: float
    compute_seconds: float
    "Seconds in which the device runs kernels."
    communication_seconds: float
    "Seconds of its collectives, one after the other."
    runs: Mapping[ir.Operation, OpRun]
    "The run of each kernel and collective."
    times: Mapping[ir.Operation, Time]
    "The time of each collective, without what it waits for."

    def among(self, copies: Mapping[ir.Operation, ir.Operation]) -> StepSchedule:
        """The same of a copy of the module."""
        runs = {copies[op]: run for op, run in self.runs.items()}
        return replace(self, runs=runs, times={copies[op]: time for op, time in self.times.items()})

    @property
    def exposed_seconds(self) -> float:
        """Seconds in which the device waits for communication."""
        return _exposed(self)


def schedule(
    module: ir.Module, target: CompileTarget, *, analyses: Analyses | None = None, epilogues: bool = False
) -> StepSchedule:
    """The predicted step of a module; without a topology, all links count as equal. With `epilogues` products write the results
    of elementwise operations on theirs. `analyses` of the module have it, unless with epilogues, or get it.

    Raises MeshError as `predict` does, and for a target without a device.
    """
    if analyses is not None and StepSchedule in analyses and not epilogues:
        known: StepSchedule = analyses[StepSchedule]
        return known
    analyses = {} if analyses is None else analyses
    prediction = _Prediction(target.device, CollectiveTimes.on(module, target), analyses, epilogues)
    run = prediction.execution(_body(module))
    found = StepSchedule(run.seconds, run.compute_seconds, run.communication_seconds, prediction.runs, prediction.times)
    if not epilogues:
        analyses[StepSchedule] = found
    return found


def _body(module: ir.Module) -> ir.Block:
    body: ir.Block = main_function(module).regions[0].blocks[0]
    return body


@dataclass(frozen=True)
class CollectiveTimes:
    """The time of each collective of a module: one computation for all that are alike. Zero on a mesh of one device, which JAX
    declares."""

    meshes: dict[str, Mesh]
    time_of: Callable[[ir.Operation, Mesh, Axes, Collective], Time]
    _known: dict[OpKey, Time] = field(default_factory=dict)

    @staticmethod
    def on(module: ir.Module, target: CompileTarget) -> CollectiveTimes:
        """The times on a target; without a topology, all links count as equal. Raises MeshError as `predict` does."""
        if target.devices is not None:
            return CollectiveTimes.on_links(module, target.devices)
        link = target.device.link
        return CollectiveTimes(
            declared_meshes(module.body), lambda _op, _mesh, _axes, collective: uniform_link_time(collective.wire_bytes, link)
        )

    @staticmethod
    def on_links(module: ir.Module, devices: Target) -> CollectiveTimes:
        """The times on the links of these devices. Raises MeshError as `predict` does."""
        meshes = declared_meshes(module.body)
        placements = {name: place(mesh, devices) for name, mesh in meshes.items() if mesh.size > 1}
        return CollectiveTimes(
            meshes,
            lambda op, mesh, axes, collective: collective_op_time(op, mesh, axes, placements[mesh.name], collective.group_size),
        )

    def of(self, op: ir.Operation) -> Time:
        """The time of one of COMMUNICATING. Raises MeshError as `predict` does."""
        key = op_key(op)
        time = self._known.get(key)
        if time is None:
            ((_, mesh, axes, collective),) = communicating([(op, 1)], self.meshes)
            time = self._known[key] = self.time_of(op, mesh, axes, collective) if mesh.size > 1 else Time()
        return time


_KEPT = REGION_OPS | {BARRIER}
"""Operations that are scheduled even if their results have no buffers. Results of a barrier wait for all of its operands."""


class _Run(NamedTuple):
    """One execution of an operation."""

    op: ir.Operation
    seconds: float = 0.0
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    busy: Mapping[str, float] = MappingProxyType({})
    "The seconds for which it occupies resources."
    shown: Sequence[tuple[str, float]] = ()
    "Resources, and the seconds for which it uses them."
    inside: _BlockRun | None = None
    "One execution of the block of a loop or branch that counts."
    times: int = 1
    "How often that is executed."
    launch: float = 0.0
    "Of a collective: the seconds in which it starts."
    combines: Hashable = None
    "What it has in common with the collectives that the compiler combines it with."

    def without_launch(self) -> _Run:
        """The run of a collective that the compiler combines with another. It copies nothing: all that it occupies, it occupies
        from its start on."""
        return self._replace(
            seconds=self.seconds - self.launch,
            communication_seconds=self.communication_seconds - self.launch,
            busy={resource: seconds - self.launch for resource, seconds in self.busy.items()},
            shown=[(resource, seconds - self.launch) for resource, seconds in self.shown],
            launch=0.0,
        )

    def slices(self, start: float, times: int) -> Iterator[ScheduleSlice]:
        """Its intervals, if it starts at `start`, in a block that is executed so many times."""
        if self.shown or self.inside:
            name, location = self.op.name, self.op.location
            for resource, seconds in self.shown:
                if resource == LOOPS:
                    label = f"{name} of {_iterations_text(trip_count(self.op))}"
                    yield ScheduleSlice(resource, label, location, start, seconds, times, self.times)
                else:
                    yield ScheduleSlice(resource, name, location, start, seconds, times)
        if self.inside:
            yield from self.inside.slices(start, times * self.times)


def _iterations_text(count: int | None) -> str:
    return "unknown iterations, counted once" if count is None else f"{count} iteration{'' if count == 1 else 's'}"


class _BlockRun(NamedTuple):
    """One execution of a block."""

    seconds: float
    compute_seconds: float
    communication_seconds: float
    runs: Sequence[tuple[float, _Run]]
    "The operations, with their starts."

    def slices(self, start: float = 0.0, times: int = 1) -> Iterator[ScheduleSlice]:
        """The intervals in which resources are busy (see `_Run.slices`)."""
        for begun, run in self.runs:
            yield from run.slices(start + begun, times)

    def used(self) -> set[str]:
        """The resources that it occupies."""
        return {resource for _, run in self.runs for resource in run.busy}


@dataclass
class _Prediction:
    machine: Machine
    communication: CollectiveTimes
    analyses: Analyses
    epilogues: bool = False
    runs: dict[ir.Operation, OpRun] = field(default_factory=dict)
    "The runs of the operations of all blocks so far."
    times: dict[ir.Operation, Time] = field(default_factory=dict)
    "The times of the collectives of all blocks so far."
    collective_seconds: dict[ir.Operation, float] = field(default_factory=dict)
    "The seconds of the same, as they are combined."

    def execution(self, block: ir.Block, outside: SourceBuffers | None = None) -> _BlockRun:
        """One execution of a block; `outside` has the buffers of outer values (see `Fusion`)."""
        index = BlockIndex.of(block, self.analyses)
        fusion = Fusion(
            index,
            outside,
            repeats=self.machine.duplicates_expensive_ops,
            slices=self.machine.fuses_slices,
            row_elements=self.machine.row_elements,
            epilogues=self.epilogues,
        )
        tasks: list[Task] = []
        runs: list[_Run] = []
        filled_by: dict[int, int] = {}
        "By buffered value, the number of the task that writes it."
        fused = fusion.sources.keys()
        for block_op in index.operations:
            if block_op.name not in _KEPT and fused >= {*block_op.results}:
                continue
            read = fusion.read(block_op)
            run = self._run(block_op, fusion, read)
            after = tuple(dict.fromkeys([filled_by[value] for value in read if value in filled_by]))
            filled_by.update(dict.fromkeys(block_op.results, len(tasks)))
            tasks.append(Task(run.seconds, run.busy, after, run.launch, run.combines))
            runs.append(run)
        begin, combined = list_schedule(tasks)
        for number in combined:
            runs[number] = runs[number].without_launch()
        self.collective_seconds.update({run.op: run.communication_seconds for run in runs if run.op in self.times})
        self._note(runs, begin)
        seconds = max((start + run.seconds for start, run in zip(begin, runs, strict=True)), default=0.0)
        computing, communicating = sum([run.compute_seconds for run in runs]), sum([run.communication_seconds for run in runs])
        return _BlockRun(seconds, computing, communicating, [*zip(begin, runs, strict=True)])

    def _note(self, runs: Sequence[_Run], begin: Sequence[float]) -> None:
        ended = 0.0
        for number in sorted(range(len(runs)), key=begin.__getitem__):
            run, start = runs[number], begin[number]
            computing = COMPUTE in run.busy
            self.runs[run.op] = OpRun(start, run.seconds, start - ended if computing else 0.0)
            if computing:
                ended = start + run.busy[COMPUTE]

    def _run(self, block_op: BlockOp, fusion: Fusion, read: Buffers) -> _Run:
        """The execution of an operation."""
        if block_op.name == BARRIER:
            return _Run(block_op.op)
        if block_op.name in REGION_OPS:
            return self._regions(block_op.op, fusion)
        if block_op.name in COMMUNICATING:
            time = self.times[block_op.op] = self.communication.of(block_op.op)
            return self._collective(block_op.op, time)
        return self._kernel(block_op, fusion.index.values, sum(read.values()) + fusion.written(block_op))

    def _regions(self, op: ir.Operation, fusion: Fusion) -> _Run:
        """A loop or branch only overlaps with communication on links that it does not use."""
        inside = fusion.inside(op)
        runs = [self.execution(region.blocks[0], inside) for region in op.regions]
        taken_region = branch(op) if op.name in BRANCHING else len(runs) - 1  # of a loop, the body
        run = max(runs, key=lambda run: run.seconds) if taken_region is None else runs[taken_region]
        is_loop = op.name == "stablehlo.while"
        counted = trip_count(op) if is_loop else None
        times = 1 if counted is None else counted
        seconds, compute, communication = (times * part for part in (run.seconds, run.compute_seconds, run.communication_seconds))
        shown = [(LOOPS, seconds)] if is_loop else []
        busy = dict.fromkeys(run.used() | {COMPUTE}, seconds)
        return _Run(op, seconds, compute, communication, busy, shown, run, times)

    def _collective(self, op: ir.Operation, time: Time) -> _Run:
        busy = {link: time.latency + seconds for link, seconds in time.busy.items()}
        copying = rearranged_bytes(op) / self.machine.copy_bandwidth
        shown = (*busy.items(), *(((COMPUTE, copying),) if copying else ()))
        seconds = copying + time.seconds
        if issued_kind(op) not in self.machine.async_collectives:
            busy |= {COMPUTE: seconds}
        elif copying:
            busy |= {COMPUTE: copying}
        combines = _combines(op) if issued_kind(op) in self.machine.combined_kinds else None
        return _Run(op, seconds, copying, time.seconds, busy, shown, launch=time.latency, combines=combines)

    def _kernel(self, block_op: BlockOp, values: ValueNumbers, moved_bytes: float) -> _Run:
        """An operation with its fused operands, which moves so many bytes. Arithmetic on scalars is part of other kernels."""
        results, operands = block_op.results, block_op.operands
        is_small = max(map(values.tensor_bytes, results), default=0.0) <= _SINGLE_BYTES  # which costs less to ask
        if is_small and all(_is_single(values.all[value]) for value in (*results, *operands)):
            return _Run(block_op.op)
        (kind, count), *_ = (*products([(block_op.op, 1)]).items(), ("", 0.0))
        working, moving = (op_time(flops, kind, moved_bytes, self.machine) / self.machine.efficiency for flops in (count, 0.0))
        seconds = self.machine.kernel_launch + working
        return _Run(block_op.op, seconds, seconds, 0.0, {COMPUTE: seconds}, ((COMPUTE, seconds), (MEMORY, moving)))


_GROUPING = ("mesh_axes", "replica_groups", "reduction")
"""Attributes that collectives have in common if they are combined."""


def _combines(op: ir.Operation) -> Hashable:
    """What a collective has in common with those that it is combined with; None for one of too many bytes."""
    if max(map(tensor_bytes, (*op.operands, *op.results))) > COMBINED_BYTES:
        return None
    return op.name, *(op.attributes[name] for name in _GROUPING if name in op.attributes)


_SINGLE_BYTES = 16
"""The most bytes that a single element has."""


def _is_single(value: ir.Value) -> bool:
    return not isinstance(value.type, ir.RankedTensorType) or (
        ir.RankedTensorType(value.type).has_static_shape and prod(ir.RankedTensorType(value.type).shape) == 1
    )
