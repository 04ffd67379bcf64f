"""A search on one mesh: which plans are tried, in which order, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nsmallest
from math import inf
from typing import NamedTuple

from meshbridge.cost.memory_limit import memory_error
from meshbridge.cost.objective import objective
from meshbridge.decide.choice import pricing_of
from meshbridge.decide.graph import Graph, Tensor
from meshbridge.dialect.names import Names, names_of
from meshbridge.ir.mlir import MeshError, ir, main_function
from meshbridge.ir.sharding import Mesh
from meshbridge.machines.machine import Machine
from meshbridge.pipeline import PlanVariant
from meshbridge.plan_variants import FACTORS
from meshbridge.resharding import ComputeCosts
from meshbridge.sharding_search.boundary import LEFT_OPEN, ShardedBoundary, boundary_of, sharded_as
from meshbridge.sharding_search.constraints import Constraints
from meshbridge.sharding_search.free_graph import FreeGraph
from meshbridge.sharding_search.request import BoundaryPaths, SearchRequest
from meshbridge.sharding_search.sharding_problem import ShardingProblem
from meshbridge.sharding_search.sub_axis_hint import SubAxis, sub_axis_hint
from meshbridge.sharding_search.trial import Trial, attempt, planned, variants
from meshbridge.solver.solve import solve
from meshbridge.text import time_text

REFINED = 5
"""The number of cheapest starting points from which plans are refined at each price of memory."""

FINAL = 3
"""The number of fastest plans that are partitioned with the user's options; once the time is over, one."""

PRICES = (0.0, 0.2, *FACTORS)
"""Prices of memory, as multiples of the machine's."""

LEAST_PRICES = 3
"""Prices of memory that are always tried: plans that hold less are often no slower, and they read less."""

NEIGHBOURS = 12
"""Plans near the fastest that are tried before it is accepted."""

PART, MOST_SECONDS = 0.4, 20.0
"""The part of the remaining time for the relaxed problem, and the most seconds. Measured: in 20 s on a loaded machine, the gap of
a llama step on 64 devices falls to 3 %, and those of smaller programs to less."""

LEAST_PART = 0.1
"""The part of all the time that the relaxed problem always gets: without its bound, nothing is known of other plans."""

FINAL_TRIALS = 3.0
"""The time of partitioning a plan with the user's options, in trials: that much time is reserved for it. Measured: 2.1 for a GPT
of 80 layers, 3.2 for `adam_zero1`."""

EQUAL = 0.01
"""The relative difference in price of plans that may be equally fast."""


@dataclass(frozen=True)
class SearchResult:
    """The best plan on one mesh."""

    mesh: Mesh
    request: SearchRequest
    annotated: ir.Module
    "The program on the mesh dialect, annotated with the plan's shardings."
    best: Trial
    partitioned: ir.Module
    "One device's program of that plan."
    tried: int
    "The number of plans that were partitioned."
    names: Names
    bound: float
    "Seconds: the step, less the most that another plan could save, by prices."
    solving_seconds: float
    "The time to build and solve the relaxed problem."
    legal: ir.Module
    "The program that plans are made of."
    boundary: ShardedBoundary
    "The plan's shardings of arguments and results, also where they are left to `partition`."
    constraints: Constraints | None = None
    "Constraints worth writing into the model, if asked for."
    unconstrained: str = ""
    "Why there are none."
    hint: str = ""
    "What else to ask for."
    divided: str = ""
    "Which axis the search split without being asked, and why."


OnTrial = Callable[[Trial, int], None]


@dataclass
class MeshSearch:
    """A search on one mesh, while it runs."""

    annotated: ir.Module
    legal: ir.Module
    mesh: Mesh
    request: SearchRequest
    until: float
    "The time at which it ends, on the request's clock."
    on_trial: OnTrial
    trials: list[Trial] = field(default_factory=list)
    bound: float = 0.0
    "The least price of any plan."
    solving_seconds: float = 0.0
    plans: dict[ShardedBoundary, _Refined] = field(default_factory=dict)
    "The plan of each boundary that came up."
    variant: PlanVariant | None = None
    "The variant in which plans are tried: at first the one that suits the first plan best."
    tried_boundaries: set[ShardedBoundary] = field(default_factory=set)
    "The boundaries that were tried in it."
    slowest: float = 0.0
    "The longest trial, in seconds."
    own: ShardedBoundary | None = None
    "The boundary that the annotations alone lead to, if there are any."
    say: Callable[[str], None] | None = None
    "Called with how far the search is, in words."
    best_attempt: tuple[Trial, ir.Module] | None = None
    "The fastest plan that fits, of those that are not planned with the user's options."
    is_interrupted: bool = False
    "Whether the user has interrupted it."
    final_plans: dict[ShardedBoundary, tuple[Trial, ir.Module]] = field(default_factory=dict)
    "Plans that are partitioned with the user's options."

    def __post_init__(self) -> None:
        target = self.request.target
        self.limit = min(target.written_limit, target.implied_limit)
        plain = objective(target, self.mesh, hides=True)
        self.pairs = BoundaryPaths.of(main_function(self.legal)).carried_pairs()
        self.free = FreeGraph.of(self.legal, plain, self.pairs, self.request.data_axes)
        self.costs = replace(plain, work=_work(target.device, self.free.graph))
        self.pricing = pricing_of(self.free.mesh, self.costs)
        self.variants = variants(self.request.options, self.free.graph)

    @cached_property
    def sub_axis_hint(self) -> SubAxis | None:
        """A sub-axis that divides what no axis does."""
        return sub_axis_hint(self.free.graph, self.mesh)

    @property
    def fitting(self) -> list[Trial]:
        """The trials that fit in memory."""
        return [trial for trial in self.trials if trial.peak_bytes <= self.limit]

    @property
    def fastest(self) -> Trial:
        """The fastest of these."""
        return min(self.fitting, key=speed)

    @property
    def final_seconds(self) -> float:
        """About the seconds to partition a plan with the user's options."""
        return FINAL_TRIALS * self.slowest

    @property
    def seconds_left(self) -> float:
        """Seconds for further trials, before the best plan is partitioned with the user's options, if there is one."""
        return self.until - self.request.clock() - (self.final_seconds if self.fitting else 0.0)

    @property
    def _has_time_for_trial(self) -> bool:
        """Whether another trial and the final partitioning end in time."""
        return self.request.clock() + self.slowest + self.final_seconds <= self.until

    def run(self) -> None:
        """Tries the plans that starting points and the relaxed problem lead to, at each price of memory, at high ones only until
        a plan fits; then the neighbours of the fastest. First in one variant, and in the others if time is left."""
        if self.free.is_annotated:  # always, whatever the time: the result is never slower
            self._try_annotated()
        starts = nsmallest(REFINED, self.free.starts(), key=lambda tensors: self.free.priced(tensors, self.pricing).total)
        if self.free.is_annotated:
            starts.insert(0, self.free.folded.tensors)
        self._try_refined(starts, 0.0, most=1)  # now there is a plan, and the time of a trial is known
        starts.append(self.relaxed())
        self._search_variant(starts)
        for variant in [v for v in self.variants if v is not self.variant]:
            if self.fitting and self.seconds_left >= self.slowest:
                self.variant, self.tried_boundaries = variant, set()
                self._search_variant(starts)

    def _try_annotated(self) -> None:
        """Tries the boundary of the annotations alone with the user's options: with all else left to `partition`, if that shards
        alike what a step passes on, and else with that written."""
        left_open = None if self.request.data_axes else self._partitioned(LEFT_OPEN)  # `partition` keeps no axis for data
        tensors = self.free.unfolded(self.free.folded.tensors)
        if left_open is not None:
            tensors = sharded_as(left_open[1], self.free.graph, tensors)
        self.own = boundary_of(self.free.graph, tensors, self.pairs)
        is_alike = left_open is not None and self.own == boundary_of(self.free.graph, tensors, ())
        boundary, final_plan = (LEFT_OPEN, left_open) if is_alike else (self.own, self._partitioned(self.own))
        if final_plan is not None:
            self.plans[boundary] = self.plans[self.own] = _Refined(self.free.folded_as(tensors), 0.0)
            self._record(final_plan[0])
            self.final_plans[boundary] = final_plan

    def _partitioned(self, boundary: ShardedBoundary) -> tuple[Trial, ir.Module] | None:
        """A plan with the user's options, without a memory limit; None if it cannot be partitioned."""
        began = self.request.clock()
        final_plan = attempt(self.legal, boundary, self.request.options.limited(inf), None)
        self.slowest = max(self.slowest, (self.request.clock() - began) / FINAL_TRIALS)
        return final_plan

    def _search_variant(self, starts: Sequence[Sequence[Tensor]]) -> None:
        """Runs the search in the current variant."""
        for tensors in starts:  # unrefined, too: trials tell nearly equal plans apart better than prices do
            if self.seconds_left >= self.slowest:
                self._try(_Refined(tensors, 0.0))
        for number, price in enumerate(PRICES):
            if number < LEAST_PRICES or not self.fitting:
                self._try_refined(starts, price * self.costs.memory)
        if self.fitting:
            self.climb()

    def _try_refined(self, starts: Sequence[Sequence[Tensor]], memory: float, most: int | None = None) -> None:
        """Tries the `most` cheapest plans that refinement reaches from the starting points at a price of memory, while time is
        left."""
        if self.trials and self.seconds_left < self.slowest:
            return
        plans = [self.free.refined(tensors, self.pricing, memory) for tensors in starts]
        for plan in sorted(plans, key=lambda plan: plan.total)[:most]:
            if not self.trials or self.seconds_left >= self.slowest:
                self._try(_Refined(plan.graph.tensors, memory))

    def relaxed(self) -> list[Tensor]:
        """The starting point that the relaxed problem leads to. Its bound holds for all plans that shard repeated layers
        alike."""
        began = self.request.clock()
        relaxed = ShardingProblem(replace(self.free.folded, pricing=self.pricing), self.pricing, self.free.axes)
        problem = relaxed.problem()
        seconds = min(MOST_SECONDS, max(LEAST_PART * self.request.seconds, PART * self.seconds_left))
        solution = solve(problem, seconds=seconds, clock=self.request.clock)
        self.bound, self.solving_seconds = solution.bound, self.request.clock() - began
        self._say()
        if solution.is_interrupted:
            raise KeyboardInterrupt
        return relaxed.tensors(solution.chosen)

    def climb(self) -> None:
        """Moves from the fastest plan to the fastest that differs in one dimension class, while there is a faster one: prices are
        not exact for nearly equal plans."""
        centre = None
        while (best := self.fastest) is not centre:
            centre, (tensors, memory) = best, self.plans[best.boundary]
            dearest = (1 + EQUAL) * self.free.priced(tensors, self.pricing, memory).total
            tried = len(self.tried_boundaries)
            for neighbour in self.free.neighbours(tensors, self.pricing, memory):
                if self.seconds_left < self.slowest or len(self.tried_boundaries) - tried >= NEIGHBOURS:
                    break
                trial = self._try(_Refined(neighbour.tensors, memory)) if neighbour.price <= dearest else None
                if trial is not None and trial.peak_bytes <= self.limit and speed(trial) < speed(best):
                    break

    def lower_bound_share(self, best: Trial) -> float:
        """Lower bound on the price of any other plan, as a fraction of this plan's price; 1 if unknown. The price of an unrefined
        starting point counts with the best inside for its arguments and results."""
        tensors = self.plans[best.boundary].tensors
        cost = self.free.priced(tensors, self.pricing).total
        if not self.is_interrupted:
            cost = min(cost, self.free.refined_inside(tensors, self.pricing).total)
        return min(1.0, self.bound / cost) if cost else 1.0

    def _try(self, plan: _Refined) -> Trial | None:
        """Tries a plan, unless its boundary was tried in this variant; None if it cannot be partitioned."""
        boundary = self._boundary(plan.tensors)
        if boundary in self.tried_boundaries:
            return None
        self.tried_boundaries.add(boundary)
        self.plans.setdefault(boundary, plan)
        trials = [
            trial
            for number, variant in enumerate(self.variants if self.variant is None else (self.variant,))
            if (number == 0 or self._has_time_for_trial) and (trial := self._attempt(boundary, variant)) is not None
        ]
        if not trials:
            return None
        trial = min(trials, key=speed)
        self.variant = trial.variant
        self._record(trial)
        return trial

    def _record(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._say()
        self.on_trial(trial, len(self.trials))

    def _say(self) -> None:
        """Says how far the search is, if somebody listens."""
        if self.say is None:
            return
        tried = f"{len(self.trials)} plan{'' if len(self.trials) == 1 else 's'} tried"
        if self.fitting:
            best = self.fastest
            tried += f", the best takes {time_text(best.seconds)}"
            cost = self.free.priced(self.plans[best.boundary].tensors, self.pricing).total if self.bound else 0.0
            if cost:
                tried += f", no other less than {time_text(best.seconds * min(1.0, self.bound / cost))}"
        self.say(tried)

    def _boundary(self, tensors: Sequence[Tensor]) -> ShardedBoundary:
        return boundary_of(self.free.graph, self.free.unfolded(tensors), self.pairs)

    def _attempt(self, boundary: ShardedBoundary, variant: PlanVariant) -> Trial | None:
        began = self.request.clock()
        attempted = attempt(self.legal, boundary, self.request.options.limited(inf), variant)
        self.slowest = max(self.slowest, self.request.clock() - began)
        if attempted is None:
            return None
        trial = attempted[0]
        if trial.peak_bytes <= self.limit and (self.best_attempt is None or speed(trial) < speed(self.best_attempt[0])):
            self.best_attempt = attempted
        return trial

    def result(self, until: float) -> SearchResult:
        """The best plan with the user's options: the faster one of `FINAL`, if there is time for both until then."""
        with self.annotated.context, ir.Location.unknown():
            best, partitioned = self._final_best(until)
            bound = best.seconds * self.lower_bound_share(best)
            best.boundary.annotate(self.annotated)
            written = self.own if self.own is not None and best.boundary == LEFT_OPEN else best.boundary
            names = names_of(self.annotated)
        return SearchResult(
            self.mesh,
            self.request,
            self.annotated,
            best,
            partitioned,
            len(self.trials),
            names,
            bound,
            self.solving_seconds,
            self.legal,
            written,
        )

    def _final_best(self, until: float) -> tuple[Trial, ir.Module]:
        """The best final plan of: the boundary of the annotations alone, the fastest plan, and further ones while time is left.
        Where the first is as fast with all of its shardings written, they are written."""
        options = self.request.options.limited(self.limit)
        fitting = [final_plan for final_plan in self.final_plans.values() if final_plan[0].peak_bytes <= self.limit]
        if self.is_interrupted:
            return self._best_so_far()
        best = min(fitting, key=lambda final_plan: speed(final_plan[0]), default=None)
        order = list(dict.fromkeys(trial.boundary for trial in sorted(self.fitting, key=speed)))
        own = [self.own] if self.own is not None and not {self.own, LEFT_OPEN}.isdisjoint(order) else []
        for boundary in dict.fromkeys((*order[:1], *own, *order[1:FINAL])):
            if boundary in self.final_plans:
                continue
            if boundary != order[0] and best is not None and self.request.clock() + self.final_seconds > until:
                break
            try:
                final_plan = attempt(self.legal, boundary, options, None)
            except KeyboardInterrupt:
                self.is_interrupted = True
                return self._best_so_far()
            if final_plan is not None:
                self.final_plans[boundary] = final_plan
                best = final_plan if best is None or _is_better(final_plan[0], best[0]) else best
        fastest = self.fastest
        if best is None or (fastest.boundary not in self.final_plans and speed(fastest) < speed(best[0])):
            return fastest, planned(self.legal, fastest.boundary, options, fastest.variant)
        return best

    def _best_so_far(self) -> tuple[Trial, ir.Module]:
        """The fastest plan of those that are partitioned already: the user, who has interrupted the search, waits for it."""
        tried = [] if self.best_attempt is None else [self.best_attempt]
        fitting = [plan for plan in (*self.final_plans.values(), *tried) if plan[0].peak_bytes <= self.limit]
        return min(fitting, key=lambda plan: speed(plan[0]))

    def too_large(self) -> MeshError:
        """The error if no plan fits."""
        if not self.trials:
            return MeshError("error: the program cannot be partitioned with any of the shardings that were tried")
        least = min(self.trials, key=lambda trial: trial.peak_bytes)
        options = self.request.options.limited(inf)
        return memory_error(planned(self.legal, least.boundary, options, least.variant), self.limit)


class _Refined(NamedTuple):
    """A refined plan."""

    tensors: Sequence[Tensor]
    "Tensors of the folded graph."
    memory: float
    "The price of a byte under which it was refined."


def _is_better(trial: Trial, reference: Trial) -> bool:
    """Whether it is faster, or as fast with all shardings written."""
    return speed(trial) < speed(reference) or (speed(trial) == speed(reference) and reference.boundary == LEFT_OPEN)


def speed(trial: Trial) -> tuple[float, float]:
    """The order of plans: by seconds, then by memory."""
    return trial.seconds, trial.peak_bytes


def _work(machine: Machine, graph: Graph) -> ComputeCosts:
    """The price of arithmetic on the machine, in bytes on its links, for products of the element type with the most FLOPs."""
    flops: dict[str, float] = {}
    for node in graph.nodes:
        if node.rule.is_contraction:
            dtype = graph.tensors[node.operands[0]].dtype
            flops[dtype] = flops.get(dtype, 0.0) + node.kind.weight * graph.pricing.computed(node.rule)
    dtype = max(flops, key=lambda name: flops[name], default="f32")
    wire = machine.link.ports * machine.link.rate / machine.efficiency
    byte = wire / machine.memory_bandwidth
    return ComputeCosts(2 * wire / machine.peak(dtype), byte, byte)
