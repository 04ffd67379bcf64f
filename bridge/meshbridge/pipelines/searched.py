"""The result of a search over pipelines: the best one, the next one and why it is slower, and the code to paste."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from math import inf

from meshbridge.pipelines.candidates import Candidate, code_for
from meshbridge.pipelines.prediction import PipelineReport
from meshbridge.text import Tabular, public, size_text, table, time_text

SHOWN = 8
"""The most candidates in a table."""


@dataclass(frozen=True)
class Tried:
    """A candidate with its prediction. Seconds are those of a step, bytes those of a device."""

    candidate: Candidate
    bound_seconds: float
    "The least that was known of its step before it was built."
    seconds: float
    busy_seconds: float
    "In which the busiest stage computes in the loop of microbatches."
    idle_seconds: float
    "In which that stage waits in the loop: the bubble and transfers."
    outside_seconds: float
    "Before and after the loop."
    bubble: float
    peak_bytes: float
    crossing_bytes: float
    "What the device that sends most sends to other stages."

    @classmethod
    def of(cls, candidate: Candidate, bound: float, predicted: PipelineReport) -> Tried:
        """The figures of a report on a machine with a topology."""
        assert predicted.seconds is not None, "a topology"
        assert predicted.bubble is not None, "a topology"
        loop = max(run.end for run in predicted.runs) - min(run.start for run in predicted.runs)
        busy = max(stage.busy_seconds or 0.0 for stage in predicted.stages)
        sent: dict[int, float] = {}
        for each in predicted.crossings:
            sent[each.source] = sent.get(each.source, 0.0) + each.bytes
        peak = max(stage.peak_bytes for stage in predicted.stages)
        figures = (predicted.seconds, busy, loop - busy, predicted.seconds - loop, predicted.bubble, peak)
        return cls(candidate, bound, *figures, max(sent.values(), default=0.0))

    def causes(self) -> dict[str, float]:
        """What its step consists of, in seconds."""
        return {
            "its busiest stage computes": self.busy_seconds,
            "that stage waits for others": self.idle_seconds,
            "what is before and after the loop takes": self.outside_seconds,
        }


@dataclass(frozen=True)
class Refused:
    """What cannot be built, and why."""

    what: str
    why: str


@public
@dataclass(frozen=True, repr=False)
class SearchedPipeline(Tabular):
    """The best pipeline of a search."""

    machine: str
    best: Tried
    runner_up: Tried | None
    "The next one that fits in memory."
    tried: tuple[Tried, ...]
    "All that were predicted, the fastest first."
    refused: tuple[Refused, ...]
    skipped: int
    "The number of candidates that were not predicted."
    least_skipped_seconds: float
    "The least bound of a step among these; infinite if there are none."
    memory_limit: float
    "Bytes."
    sizes: Mapping[str, int] = field(default_factory=dict)
    "The symbols or arguments by which the step has its microbatches."

    @property
    def bound_seconds(self) -> float:
        """The least that the step of any candidate takes, by its products alone if it was not predicted."""
        return min(self.best.seconds, self.least_skipped_seconds)

    @property
    def gap(self) -> float:
        """The most that another candidate could save, as a fraction of the step."""
        return 1 - self.bound_seconds / self.best.seconds

    @property
    def code(self) -> str:
        """Lines to paste, for a function `step`."""
        return code_for(self.best.candidate, self.machine, self.sizes)

    @property
    def why(self) -> str:
        """Why the runner-up is slower; empty if there is none."""
        if self.runner_up is None:
            return ""
        own, other = self.best.causes(), self.runner_up.causes()
        cause = max(own, key=lambda name: other[name] - own[name])
        return f"{cause} {time_text(other[cause])}, that of the best {time_text(own[cause])}"

    @property
    def headline(self) -> str:
        """The best candidate and its predicted step."""
        return f"{self.best.candidate.label} on {self.machine}: a step of {time_text(self.best.seconds)}"

    def table(self) -> str:
        """The best pipeline, the next one, and the code, as text."""
        figures = f"bubble {self.best.bubble:.1%}; {size_text(self.best.peak_bytes)} needed by a device"
        skipped = (
            f", {self.skipped} not, whose steps take at least {time_text(self.least_skipped_seconds)}" if self.skipped else ""
        )
        counts = f"{len(self.tried)} candidates predicted{skipped}; a gap of {self.gap:.1%}"
        lines = [f"{self.headline}, {figures}", counts, "", self._candidate_table(), ""]
        if self.runner_up is not None:
            slower = self.runner_up.seconds / self.best.seconds - 1
            lines += [f"the runner-up takes {slower:.1%} longer: {self.why}", ""]
        refused = [f"cannot be built: {each.what}: {each.why.splitlines()[0]}" for each in self.refused[:SHOWN]]
        return "\n".join((*lines, *refused, *([""] if refused else []), self.code))

    def _candidate_table(self) -> str:
        rows = [("schedule", "stages", "chunks", "mesh of a stage", "microbatches", "step", "at least", "bubble", "memory", "")]
        for each in self.tried[:SHOWN]:
            of = each.candidate
            times = (time_text(each.seconds), time_text(each.bound_seconds), f"{each.bubble:.1%}")
            fits = "" if each.peak_bytes <= self.memory_limit else "does not fit"
            numbers = (str(of.stages), str(of.chunks), of.mesh_text, str(of.microbatches))
            rows.append((of.schedule, *numbers, *times, size_text(each.peak_bytes), fits))
        return table(rows, left=(0, 3, 9))

    def to_json(self) -> str:
        """The result for programs. A limit of memory or a bound that is infinite is null."""
        record = asdict(self)
        for name in ("least_skipped_seconds", "memory_limit"):
            record[name] = None if record[name] == inf else record[name]
        derived = {"bound_seconds": self.bound_seconds, "gap": self.gap, "why": self.why, "code": self.code}
        return json.dumps(record | derived, indent=2)
