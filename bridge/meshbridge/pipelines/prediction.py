"""What a pipeline costs: the predicted step, the memory of each stage, and what crosses between stages."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.pages.pipeline_page import pipeline_page
from meshbridge.pipelines import schedules
from meshbridge.pipelines.build import StagedPipeline
from meshbridge.pipelines.fragments import Fragment
from meshbridge.pipelines.plan import Call, Slot
from meshbridge.pipelines.schedules import Run, Timeline
from meshbridge.pipelines.topology import transfer_time
from meshbridge.text import Tabular, size_text, table, time_text


@dataclass(frozen=True)
class FragmentCost:
    """A fragment: how often it runs in a step, and what one run costs a device."""

    site: str
    stage: int
    executions: int
    wire_bytes: float
    temporaries: float
    "Bytes."
    seconds: float | None
    "None without a topology."


@dataclass(frozen=True)
class StageCost:
    """A group of devices: bytes of one of them at the peak, and the seconds in which it computes."""

    stage: int
    peak_bytes: float
    live_microbatches: int
    "The most microbatches whose activations it holds, counted once for each chunk."
    busy_seconds: float | None


@dataclass(frozen=True)
class Crossing:
    """What a device sends to that of another group in a step."""

    source: int
    reader: int
    transfers: int
    bytes: float
    seconds: float | None


@dataclass(frozen=True, repr=False)
class PipelineReport(Tabular):
    """The predicted step of a pipeline."""

    schedule: str
    machine: str
    devices_per_stage: int
    chunks: int
    microbatches: int
    fragments: tuple[FragmentCost, ...]
    stages: tuple[StageCost, ...]
    crossings: tuple[Crossing, ...]
    seconds: float | None
    "Of a step, with what is before and after the loop; None without a topology."
    bubble: float | None
    "The share of all devices' time between the first and the last task of the loop in which they run nothing."
    bubble_by_formula: float | None
    "If all tasks of a kind took equally long; None for a schedule without a name."
    runs: tuple[Run, ...]
    """When each task runs on its stage: predicted, in seconds from the start of the step; without a topology in units of time, of
    which a forward pass takes one and a backward pass two."""

    @property
    def headline(self) -> str:
        """The schedule, and the predicted step if there is one."""
        step = "" if self.seconds is None else f", step {time_text(self.seconds)}"
        return f"schedule {self.schedule}, {len(self.stages)} stages{step}"

    def to_json(self) -> str:
        """The report for programs."""
        return json.dumps(asdict(self), indent=2)

    def to_html(self, name: str = "program") -> str:
        """The report as a page, with a picture of the schedule: one file that needs no network."""
        return pipeline_page(asdict(self), name=name, headline=self.headline)

    def table(self) -> str:
        """The report for people."""
        devices = "1 device" if self.devices_per_stage == 1 else f"{self.devices_per_stage} devices"
        where = f"{devices} for each of {len(self.stages)} stages"
        chunks = "" if self.chunks == len(self.stages) else f", {self.chunks} chunks"
        lines = [f"schedule {self.schedule}: {self.microbatches} microbatches{chunks}, {where}, machine {self.machine}"]
        if self.seconds is not None and self.bubble is not None:
            formula = "" if self.bubble_by_formula is None else f", by formula {self.bubble_by_formula:.1%}"
            lines.append(f"predicted step {time_text(self.seconds)}, bubble {self.bubble:.1%}{formula}")
        return "\n".join((*lines, "", self._stage_table(), "", self._crossing_table(), "", self._fragment_table()))

    def _stage_table(self) -> str:
        rows = [("stage", "memory of a device", "live microbatches", "busy")]
        for stage in self.stages:
            rows.append((str(stage.stage), size_text(stage.peak_bytes), str(stage.live_microbatches), _time(stage.busy_seconds)))
        return table(rows, left=(0,))

    def _crossing_table(self) -> str:
        rows = [("from", "to", "transfers", "bytes of a device", "time")]
        for each in self.crossings:
            ends = (str(each.source), str(each.reader))
            rows.append((*ends, str(each.transfers), size_text(each.bytes), _time(each.seconds)))
        return table(rows, left=(0, 1))

    def _fragment_table(self) -> str:
        rows = [("fragment", "stage", "runs", "wire bytes", "temporaries", "time")]
        for each in self.fragments:
            sizes = (size_text(each.wire_bytes), size_text(each.temporaries))
            rows.append((each.site, str(each.stage), str(each.executions), *sizes, _time(each.seconds)))
        return table(rows, left=(0, 1))


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else time_text(seconds)


def report(pipeline: StagedPipeline) -> PipelineReport:
    """Partitions the fragments of a pipeline that have no report yet, and predicts its step. Raises MeshError."""
    return _Prediction(pipeline).report()


class _Prediction:
    def __init__(self, pipeline: StagedPipeline) -> None:
        self.pipeline, self.plan = pipeline, pipeline.plan
        reported = {fragment: pipeline.reports.of(fragment, pipeline.options) for fragment in self.plan.fragments}
        self.reports = {fragment: each.report for fragment, each in reported.items()}
        self.sizes: dict[Slot, float] = {}
        "Bytes of a slot on a device."
        for call in self.plan.calls:
            self.sizes.update(zip(call.inputs, reported[call.fragment].inputs, strict=True))
            self.sizes.update(zip(call.outputs, reported[call.fragment].outputs, strict=True))

    def report(self) -> PipelineReport:
        plan, schedule = self.plan, self.plan.schedule
        executions = dict.fromkeys(plan.fragments, 0)
        for call in plan.calls:
            executions[call.fragment] += 1
        seconds, timeline = self._times()
        busy = None if timeline is None else timeline.busy
        peaks = self._peaks()
        live = schedule.peak_live()
        known = schedule.name in schedules.NAMES
        return PipelineReport(
            schedule.name,
            self.pipeline.whole.name,
            self.pipeline.mesh_size,
            schedule.chunks,
            schedule.microbatches,
            tuple(self._cost(fragment, executions[fragment]) for fragment in plan.fragments),
            tuple(
                StageCost(group, peaks[group], live[group], None if busy is None else busy[group])
                for group in range(schedule.groups)
            ),
            self._crossings(),
            seconds,
            None if timeline is None else timeline.bubble,
            schedules.formula(schedule.name, schedule.groups, schedule.microbatches, schedule.chunks) if known else None,
            (timeline or schedule.even_timeline()).runs,
        )

    def _cost(self, fragment: Fragment, executions: int) -> FragmentCost:
        report = self.reports[fragment]
        return FragmentCost(
            fragment.label,
            fragment.group,
            executions,
            report.wire_bytes,
            report.memory.temporaries,
            report.seconds,
        )

    def _transfer_seconds(self, source: int, reader: int, size: float) -> float:
        mesh = mesh_or_single(self.plan.fragments[0].module)
        return transfer_time(self.pipeline.whole, mesh, self.plan.schedule.groups, source, reader, size).seconds

    def _crossings(self) -> tuple[Crossing, ...]:
        counts: dict[tuple[int, int], int] = defaultdict(int)
        sizes: dict[tuple[int, int], float] = defaultdict(float)
        seconds: dict[tuple[int, int], float] = defaultdict(float)
        timed = self.pipeline.whole.devices is not None
        for send in self.plan.sends:
            ends = (send.slot.group, send.target.group)
            counts[ends] += 1
            sizes[ends] += self.sizes[send.slot]
            seconds[ends] += self._transfer_seconds(*ends, self.sizes[send.slot]) if timed else 0.0
        return tuple(Crossing(*ends, counts[ends], sizes[ends], seconds[ends] if timed else None) for ends in sorted(counts))

    def _times(self) -> tuple[float | None, Timeline | None]:
        """The seconds of a step, and the runs of tasks in it; None without a topology.

        Groups run their calls in the order of dispatch. Transfers between two groups follow each other, beside the calls."""
        if any(report.seconds is None for report in self.reports.values()):
            return None, None
        groups = self.plan.schedule.groups
        free = [0.0] * groups
        links: dict[tuple[int, int], float] = defaultdict(float)
        ready: dict[Slot, float] = defaultdict(float)
        runs: list[Run] = []
        for step in self.plan.steps:
            if isinstance(step, Call):
                group = step.fragment.group
                start = max((free[group], *(ready[slot] for slot in step.inputs)))
                free[group] = start + (self.reports[step.fragment].seconds or 0.0)
                ready.update(dict.fromkeys(step.outputs, free[group]))
                if step.task is not None:
                    runs.append(Run(step.task, group, start, free[group]))
            else:
                ends = (step.slot.group, step.target.group)
                start = max(ready[step.slot], links[ends])
                links[ends] = ready[step.target] = start + self._transfer_seconds(*ends, self.sizes[step.slot])
        return max(free), Timeline(tuple(sorted(runs, key=lambda run: run.start)), groups)

    def _peaks(self) -> Mapping[int, float]:
        """The most bytes that a device of each group holds: what is live between calls, and what a call needs meanwhile."""
        live: dict[int, float] = defaultdict(float)
        for slot in self.plan.arguments:
            live[slot.group] += self.sizes[slot]
        peaks = dict(live)
        for step, freed in zip(self.plan.steps, self.plan.last_uses, strict=True):
            if isinstance(step, Call):
                group = step.fragment.group
                memory = self.reports[step.fragment].memory
                meanwhile = memory.results - memory.donated + memory.temporaries
                peaks[group] = max(peaks.get(group, 0.0), live[group] + meanwhile)
                written = step.outputs
            else:
                written = (step.target,)
                self.sizes.setdefault(step.target, self.sizes[step.slot])
            for slot in written:
                live[slot.group] += self.sizes[slot]
            for slot in freed:
                live[slot.group] -= self.sizes[slot]
        return {group: peaks.get(group, 0.0) for group in range(self.plan.schedule.groups)}
