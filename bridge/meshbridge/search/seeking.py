"""A search on one mesh: which plans are tried, in which order, and the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nsmallest
from math import inf
from typing import NamedTuple

from meshbridge.cost.memory_limit import UNLIMITED, does_not_fit
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
from meshbridge.search.asked import Asked, BoundaryPaths
from meshbridge.search.boundary import LEFT_OPEN, ShardedBoundary, boundary_of, sharded_as
from meshbridge.search.constraints import Constraints
from meshbridge.search.free_graph import FreeGraph
from meshbridge.search.parts import AxisPart, unused_part
from meshbridge.search.sharding_problem import ShardingProblem
from meshbridge.search.solve import solve
from meshbridge.search.trial import Trial, attempt, planned, ways

REFINED = 5
"""Starting points, the cheapest ones, from which plans are refined under each price of memory."""

WHOLE = 3
"""Plans, the fastest of those that were tried, that are partitioned as users get them; once the time is over, one that can be."""

PRICES = (0.0, 0.2, *FACTORS)
"""Prices of memory, as many times what the machine says."""

LEAST_PRICES = 3
"""Prices of memory that are tried in any case: plans that hold less are often no slower, and they read less."""

NEIGHBOURS = 12
"""Plans beside the fastest one that are tried before it is taken to be the best."""

PART, MOST_SECONDS = 0.4, 20.0
"""Of the time that is left, the part in which the relaxed problem is solved, and the most seconds. Measured: in 20 s on a loaded
machine, the gap of a llama step on 64 devices falls to 3 %, and those of smaller programs to less."""

LEAST_PART = 0.1
"""Of all the time, the part that the relaxed problem gets in any case: without its bound, nothing is known of other plans."""

AS_A_WHOLE = 3.0
"""How many times as long as a trial it takes to partition a plan as users get it: that much of the time is kept for it.
Measured: 2.1 for a GPT of 80 layers, 3.2 for `adam_zero1`."""

EQUAL = 0.01
"""The part by which prices of plans differ that may be equally fast."""


@dataclass(frozen=True)
class Searched:
    """The best plan on one mesh."""

    mesh: Mesh
    asked: Asked
    annotated: ir.Module
    "The program on the mesh dialect, annotated with the shardings that were found."
    best: Trial
    partitioned: ir.Module
    "One device's program of that plan."
    tried: int
    "Plans that were partitioned."
    names: Names
    bound: float
    "Seconds: the step, less what prices say that another plan could save at most."
    solving_seconds: float
    "That it took to make the relaxed problem and to solve it."
    legal: ir.Module
    "The program that plans are made of."
    boundary: ShardedBoundary
    "How the plan shards arguments and results, also where that is left to `partition`."
    constraints: Constraints | None = None
    "Those worth writing into the model, if they are asked for."
    unconstrained: str = ""
    "Why none could be looked for."
    hint: str = ""
    "What else to ask for."
    divided: str = ""
    "Which axis is in parts, though nobody has asked for that, and why."


OnTrial = Callable[[Trial, int], None]


@dataclass
class Seeking:
    """A search on one mesh, under way."""

    annotated: ir.Module
    legal: ir.Module
    mesh: Mesh
    asked: Asked
    until: float
    "On the clock that is asked for."
    on_trial: OnTrial
    trials: list[Trial] = field(default_factory=list)
    bound: float = 0.0
    "What all plans cost at least, by prices."
    solving_seconds: float = 0.0
    plans: dict[ShardedBoundary, _Refined] = field(default_factory=dict)
    "By the boundaries that have been met, what they are those of."
    way: PlanVariant | None = None
    "In which plans are tried: of those that there are, at first the one that suits the first plan best."
    met: set[ShardedBoundary] = field(default_factory=set)
    "What has been tried in it."
    slowest: float = 0.0
    "Seconds that a trial has taken at most."
    own: ShardedBoundary | None = None
    "What the annotations alone lead to, if there are any."
    is_interrupted: bool = False
    "Whether the user has ended it."
    wholes: dict[ShardedBoundary, tuple[Trial, ir.Module]] = field(default_factory=dict)
    "Plans that are partitioned already as users get them."

    def __post_init__(self) -> None:
        target = self.asked.options.target
        assert target is not None
        self.limit = min(self.asked.options.written_limit, self.asked.options.implied_limit)
        plain = objective(self.asked.machine, self.mesh, self.asked.layout, hides=True)
        self.pairs = BoundaryPaths.of(main_function(self.legal)).alike()
        self.free = FreeGraph.of(self.legal, plain, self.pairs, self.asked.data_axes)
        self.costs = replace(plain, work=_work(target.machine, self.free.graph))
        self.pricing = pricing_of(self.free.mesh, self.costs)
        self.ways = ways(self.asked.options, self.free.graph)

    @cached_property
    def unused_part(self) -> AxisPart | None:
        """Of an axis, which would divide what no axis does."""
        return unused_part(self.free.graph, self.mesh)

    @property
    def fitting(self) -> list[Trial]:
        """What was tried and fits in memory."""
        return [trial for trial in self.trials if trial.peak_bytes <= self.limit]

    @property
    def fastest(self) -> Trial:
        """The fastest of these."""
        return min(self.fitting, key=speed)

    @property
    def as_a_whole(self) -> float:
        """Seconds that it takes about to partition a plan as users get it."""
        return AS_A_WHOLE * self.slowest

    @property
    def left(self) -> float:
        """Seconds in which plans can be looked for, before the best is partitioned as users get it, if there is one."""
        return self.until - self.asked.clock() - (self.as_a_whole if self.fitting else 0.0)

    @property
    def _has_time_beside_the_whole(self) -> bool:
        """Whether another trial and that partitioning end in time."""
        return self.asked.clock() + self.slowest + self.as_a_whole <= self.until

    def run(self) -> None:
        """Tries the plans that starting points and the relaxed problem lead to, under each price of memory, under high ones only
        until one fits; then the neighbours of the fastest. All in one way, and with the time that is left in the others."""
        if self.free.is_annotated:  # whatever time there is: none that is found is to be slower
            self._take_annotated()
        starts = nsmallest(REFINED, self.free.starts(), key=lambda tensors: self.free.priced(tensors, self.pricing).total)
        if self.free.is_annotated:
            starts.insert(0, self.free.folded.tensors)
        self._try_refined(starts, 0.0, most=1)  # there is a plan, and it is known how long a trial takes
        starts.append(self.relaxed())
        self._seek(starts)
        for other in [way for way in self.ways if way is not self.way]:
            if self.fitting and self.left >= self.slowest:
                self.way, self.met = other, set()
                self._seek(starts)

    def _take_annotated(self) -> None:
        """Takes what the annotations alone lead to, as users get it: all else left to `partition`, if what a step hands on is
        sharded alike then, and otherwise with that."""
        left_open = None if self.asked.data_axes else self._partitioned(LEFT_OPEN)  # which keeps no axis for data
        tensors = self.free.unfolded(self.free.folded.tensors)
        if left_open is not None:
            tensors = sharded_as(left_open[1], self.free.graph, tensors)
        self.own = boundary_of(self.free.graph, tensors, self.pairs)
        is_alike = left_open is not None and self.own == boundary_of(self.free.graph, tensors, ())
        boundary, found = (LEFT_OPEN, left_open) if is_alike else (self.own, self._partitioned(self.own))
        if found is not None:
            self.plans[boundary] = self.plans[self.own] = _Refined(self.free.folded_as(tensors), 0.0)
            self._take(found[0])
            self.wholes[boundary] = found

    def _partitioned(self, boundary: ShardedBoundary) -> tuple[Trial, ir.Module] | None:
        """A plan as users get it who set no limit of memory; None where it cannot be partitioned."""
        began = self.asked.clock()
        found = attempt(self.legal, boundary, replace(self.asked.options, memory_limit=UNLIMITED), None)
        self.slowest = max(self.slowest, (self.asked.clock() - began) / AS_A_WHOLE)
        return found

    def _seek(self, starts: Sequence[Sequence[Tensor]]) -> None:
        """Does so in one way."""
        for tensors in starts:  # as they are, too: prices tell nearly equal plans apart less well than trials do
            if self.left >= self.slowest:
                self._try(_Refined(tensors, 0.0))
        for number, price in enumerate(PRICES):
            if number < LEAST_PRICES or not self.fitting:
                self._try_refined(starts, price * self.costs.memory)
        if self.fitting:
            self.from_neighbours()

    def _try_refined(self, starts: Sequence[Sequence[Tensor]], memory: float, most: int | None = None) -> None:
        """Tries what starting points lead to at a price of memory, the cheapest `most` of them, while there is time."""
        if self.trials and self.left < self.slowest:
            return
        plans = [self.free.refined(tensors, self.pricing, memory) for tensors in starts]
        for plan in sorted(plans, key=lambda plan: plan.total)[:most]:
            if not self.trials or self.left >= self.slowest:
                self._try(_Refined(plan.graph.tensors, memory))

    def relaxed(self) -> list[Tensor]:
        """The starting point that the relaxed problem leads to. Its bound holds for all plans in which repeated layers are
        alike."""
        began = self.asked.clock()
        relaxed = ShardingProblem(replace(self.free.folded, pricing=self.pricing), self.pricing, self.free.axes)
        problem = relaxed.problem()
        seconds = min(MOST_SECONDS, max(LEAST_PART * self.asked.seconds, PART * self.left))
        solution = solve(problem, seconds=seconds, clock=self.asked.clock)
        self.bound, self.solving_seconds = solution.bound, self.asked.clock() - began
        return relaxed.tensors(solution.chosen)

    def from_neighbours(self) -> None:
        """Goes on from the fastest plan to the fastest that differs from it in one dimension class, as long as there is a faster
        one: what prices say of nearly equal plans is not exact."""
        centre = None
        while (best := self.fastest) is not centre:
            centre, (tensors, memory) = best, self.plans[best.boundary]
            dearest = (1 + EQUAL) * self.free.priced(tensors, self.pricing, memory).total
            met = len(self.met)
            for neighbour in self.free.neighbours(tensors, self.pricing, memory):
                if self.left < self.slowest or len(self.met) - met >= NEIGHBOURS:
                    break
                trial = self._try(_Refined(neighbour.tensors, memory)) if neighbour.price <= dearest else None
                if trial is not None and trial.peak_bytes <= self.limit and speed(trial) < speed(best):
                    break

    def least_part(self, best: Trial) -> float:
        """The part of what a plan costs by prices that any other costs at least; all of it where that is not known. Of a
        starting point that was tried as it is, the inside costs what is best with its arguments and results."""
        tensors = self.plans[best.boundary].tensors
        cost = min(self.free.priced(tensors, self.pricing).total, self.free.refined_inside(tensors, self.pricing).total)
        return min(1.0, self.bound / cost) if cost else 1.0

    def _try(self, plan: _Refined) -> Trial | None:
        """What comes of a plan, if it has not been met before in this way, and can be partitioned."""
        boundary = self._boundary(plan.tensors)
        if boundary in self.met:
            return None
        self.met.add(boundary)
        self.plans.setdefault(boundary, plan)
        found = [
            trial
            for number, way in enumerate(self.ways if self.way is None else (self.way,))
            if (number == 0 or self._has_time_beside_the_whole) and (trial := self._attempt(boundary, way)) is not None
        ]
        if not found:
            return None
        trial = min(found, key=speed)
        self.way = trial.way
        self._take(trial)
        return trial

    def _take(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.on_trial(trial, len(self.trials))

    def _boundary(self, tensors: Sequence[Tensor]) -> ShardedBoundary:
        return boundary_of(self.free.graph, self.free.unfolded(tensors), self.pairs)

    def _attempt(self, boundary: ShardedBoundary, way: PlanVariant) -> Trial | None:
        began = self.asked.clock()
        found = attempt(self.legal, boundary, replace(self.asked.options, memory_limit=UNLIMITED), way)
        self.slowest = max(self.slowest, self.asked.clock() - began)
        return None if found is None else found[0]

    def found(self, until: float) -> Searched:
        """The best plan as users get it: the faster one of `WHOLE`, if there is time for both until then."""
        with self.annotated.context, ir.Location.unknown():
            best, partitioned = self._best_as_a_whole(until)
            bound = best.seconds * self.least_part(best)
            best.boundary.annotate(self.annotated)
            written = self.own if self.own is not None and best.boundary == LEFT_OPEN else best.boundary
            names = names_of(self.annotated)
        return Searched(
            self.mesh,
            self.asked,
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

    def _best_as_a_whole(self, until: float) -> tuple[Trial, ir.Module]:
        """Of what the annotations alone lead to, the fastest plan, and further ones for which there is time. Where the former is
        as fast with all of its shardings written, they are."""
        options = replace(self.asked.options, memory_limit=self.limit if self.limit < inf else UNLIMITED)
        known = [found for found in self.wholes.values() if found[0].peak_bytes <= self.limit]
        best = min(known, key=lambda found: speed(found[0]), default=None)
        order = list(dict.fromkeys(trial.boundary for trial in sorted(self.fitting, key=speed)))
        own = [self.own] if self.own is not None and not {self.own, LEFT_OPEN}.isdisjoint(order) else []
        for boundary in dict.fromkeys((*order[:1], *own, *order[1:WHOLE])):
            if boundary in self.wholes:
                continue
            if boundary != order[0] and best is not None and self.asked.clock() + self.as_a_whole > until:
                break
            try:
                found = attempt(self.legal, boundary, options, None)
            except KeyboardInterrupt:  # the best so far is the answer
                break
            if found is not None:
                self.wholes[boundary] = found
                best = found if best is None or _is_better(found[0], best[0]) else best
        fastest = self.fastest
        if best is None or (fastest.boundary not in self.wholes and speed(fastest) < speed(best[0])):
            return fastest, planned(self.legal, fastest.boundary, options, fastest.way)
        return best

    def too_large(self) -> MeshError:
        """What is said where nothing fits."""
        if not self.trials:
            return MeshError("error: the program cannot be partitioned with any of the shardings that were tried")
        least = min(self.trials, key=lambda trial: trial.peak_bytes)
        options = replace(self.asked.options, memory_limit=UNLIMITED)
        return does_not_fit(planned(self.legal, least.boundary, options, least.way), self.limit)


class _Refined(NamedTuple):
    """A plan by prices."""

    tensors: Sequence[Tensor]
    "Those of the folded graph."
    memory: float
    "The price of a byte under which it was found."


def _is_better(trial: Trial, other: Trial) -> bool:
    """Whether it is faster, or as fast with all shardings written."""
    return speed(trial) < speed(other) or (speed(trial) == speed(other) and other.boundary == LEFT_OPEN)


def speed(trial: Trial) -> tuple[float, float]:
    """By what the fastest is found: of two equally fast, that which needs less memory."""
    return trial.seconds, trial.peak_bytes


def _work(machine: Machine, graph: Graph) -> ComputeCosts:
    """What arithmetic takes on the machine, in bytes of its links: of products of the type that computes most."""
    flops: dict[str, float] = {}
    for node in graph.nodes:
        if node.rule.is_contraction:
            dtype = graph.tensors[node.operands[0]].dtype
            flops[dtype] = flops.get(dtype, 0.0) + node.kind.weight * graph.pricing.computed(node.rule)
    dtype = max(flops, key=lambda name: flops[name], default="f32")
    wire = machine.link.ports * machine.link.rate / machine.efficiency
    byte = wire / machine.memory_bandwidth
    return ComputeCosts(2 * wire / machine.peak(dtype), byte, byte)
