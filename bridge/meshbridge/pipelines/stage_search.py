"""Search over pipelines: the candidate with the shortest predicted step that fits in memory, and the next one.

Candidates are bounded before they are built (`outline`), and predicted in the order of their bounds. Once two fit, and no bound
is below the second one's step, no candidate is left that could be either.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf

from meshbridge.ir.mlir import MeshError
from meshbridge.pipelines.build import PreparedStep, prepare
from meshbridge.pipelines.candidates import Axes, Candidate, SizedStep, StageRequest, StepOf, candidates
from meshbridge.pipelines.fragment_reports import FragmentReports
from meshbridge.pipelines.outline import Outline, product_seconds
from meshbridge.pipelines.prediction import PipelineReport, report
from meshbridge.pipelines.schedules import STACKED
from meshbridge.pipelines.searched import Refused, SearchedPipeline, Tried
from meshbridge.pipelines.stacked import build_stacked
from meshbridge.pipelines.stacked_report import report_stacked
from meshbridge.progress import OnProgress
from meshbridge.sharding_search import clock as clocks
from meshbridge.sharding_search.clock import Clock
from meshbridge.text import size_text

OWN_COUNT = (0,)
"""For a step that is given with the microbatches that it has."""

NEEDED = 2
"""The best candidate and the next one."""


def search_stages(
    step_of: StepOf,
    microbatches: Sequence[int],
    request: StageRequest,
    sizes: Callable[[int], dict[str, int]] = lambda count: {},
    on_progress: OnProgress | None = None,
    clock: Clock | None = None,
) -> SearchedPipeline:
    """The pipeline of a step with the shortest predicted step that fits in memory.

    `step_of` gives the step with one of these numbers of `microbatches`, and `sizes` the symbols or arguments that say so. The
    same steps and request give the same pipeline, unless the time is over before all candidates are bounded or predicted. Raises
    MeshError if no candidate can be built, and if none fits in memory.
    """
    search = _StageSearch(request, [SizedStep(step_of(count)) for count in microbatches], clock or clocks.usual())
    search.run(on_progress or (lambda share, remark: None))
    return search.result(sizes)


@dataclass(eq=False)
class _StageSearch:
    request: StageRequest
    steps: list[SizedStep]
    clock: Clock
    tried: list[Tried] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    errors: list[MeshError] = field(default_factory=list)
    left: list[tuple[float, Candidate]] = field(default_factory=list)
    "Bounds and candidates that are not predicted."
    _by_count: dict[int, SizedStep] = field(default_factory=dict)
    _reports: FragmentReports = field(default_factory=FragmentReports)
    _steps: dict[tuple[int, Axes, int], PreparedStep] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Bytes of memory of a device."""
        return min(self.request.target.written_limit, self.request.target.implied_limit)

    @property
    def fitting(self) -> list[Tried]:
        """The candidates that fit in memory, the fastest first."""
        return sorted((each for each in self.tried if each.peak_bytes <= self.limit), key=lambda each: each.seconds)

    def run(self, on_progress: Callable[[float, str], None]) -> None:
        began = self.clock()
        self.left = sorted(self._bounded(), key=lambda pair: pair[0])
        while self.left:
            bound, candidate = self.left[0]
            fitting = self.fitting
            if len(fitting) >= NEEDED and bound >= fitting[NEEDED - 1].seconds:
                return
            spent = self.clock() - began
            if fitting and spent > self.request.seconds:
                return
            on_progress(min(1.0, spent / self.request.seconds), candidate.label)
            del self.left[0]
            self._try(bound, candidate)

    def _bounded(self) -> list[tuple[float, Candidate]]:
        """All candidates, with the least seconds of their steps."""
        bounded = []
        for step, stages in product(self.steps, self.request.stage_counts):
            devices = self.request.devices // stages
            try:
                given = prepare(step.source, self.request.options, stages)
                found = [*candidates(self.request, step, given)]
            except MeshError as error:
                self._refuse(f"{stages} stages", error)
                continue
            loop = given.undecided_loop(stages)
            self._by_count[loop.microbatches] = step
            outline = Outline(loop, self.request.target.device)
            staged = [candidate for candidate in found if candidate.schedule != STACKED]
            for chunks in dict.fromkeys(candidate.chunks for candidate in staged):
                try:
                    given.check(chunks)
                except MeshError as error:
                    self._refuse(f"{chunks} chunks", error)
                    continue
                own = [candidate for candidate in staged if candidate.chunks == chunks]
                bounded += [(outline.bound(candidate, devices), candidate) for candidate in own]
            bounded += self._stacked(step, [each for each in found if each.schedule == STACKED])
        return bounded

    def _stacked(self, step: SizedStep, found: Sequence[Candidate]) -> list[tuple[float, Candidate]]:
        """Those candidates of a step that are one program, which differ in their meshes alone, with the least seconds."""
        if not found:
            return []
        try:
            built = build_stacked(step.source, self.request.options, found[0].stages)
        except MeshError as error:
            self._refuse(f"{STACKED}, {found[0].stages} stages", error)
            return []
        bound = product_seconds(built.module, self.request.target.device) / self.request.devices
        return [(bound, candidate) for candidate in found]

    def _try(self, bound: float, candidate: Candidate) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of candidates that are not taken
                predicted = self._predict(candidate)
        except MeshError as error:
            self._refuse(candidate.label, error)
            return
        self.tried.append(Tried.of(candidate, bound, predicted))

    def _predict(self, candidate: Candidate) -> PipelineReport:
        if candidate.schedule == STACKED:
            program = self._by_count[candidate.microbatches].on(candidate.mesh)
            return report_stacked(build_stacked(program, self.request.options, candidate.stages))
        return report(self._prepared(candidate).under(candidate.ordered()))

    def _prepared(self, candidate: Candidate) -> PreparedStep:
        key = candidate.microbatches, candidate.mesh, candidate.stages
        if key not in self._steps:
            program = self._by_count[candidate.microbatches].on(candidate.mesh)
            self._steps[key] = prepare(program, self.request.options, candidate.stages, self._reports)
        return self._steps[key]

    def _refuse(self, what: str, error: MeshError) -> None:
        self.errors.append(error)
        if all(each.what != what for each in self.refused):
            self.refused.append(Refused(what, str(error)))

    def result(self, sizes: Callable[[int], dict[str, int]]) -> SearchedPipeline:
        fitting = self.fitting
        if not fitting and self.tried:
            least = min(self.tried, key=lambda each: each.peak_bytes)
            raise MeshError(
                f"error: no pipeline fits in memory: {least.candidate.label}, which needs least, needs "
                f"{size_text(least.peak_bytes)} on a device, {size_text(least.peak_bytes - self.limit)} more than the limit of "
                f"{size_text(self.limit)}"
            )
        if not fitting:
            raise self.errors[0] if self.errors else MeshError("error: there is no pipeline to search among")
        best, *others = fitting
        return SearchedPipeline(
            self.request.target.name,
            best,
            others[0] if others else None,
            tuple(sorted(self.tried, key=lambda each: each.seconds)),
            tuple(self.refused),
            len(self.left),
            min((bound for bound, _ in self.left), default=inf),
            self.limit,
            sizes(best.candidate.microbatches),
        )
