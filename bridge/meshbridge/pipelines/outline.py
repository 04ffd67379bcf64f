"""A lower bound of a pipeline's step, before the pipeline is built: its products at the peak rate of the devices.

The tasks of a schedule run in a fixed order, so that no task starts earlier if another one takes longer. The step is therefore
no shorter than the schedule simulated with tasks that take their products alone, without transfers, collectives, other ops, and
what is before and after the loop.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from meshbridge.analysis.executions import executed
from meshbridge.cost.flops import amount, products
from meshbridge.cost.seconds import op_time
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.mlir import ancestor_in, ir
from meshbridge.machines.machine import Machine
from meshbridge.pipelines.candidates import Candidate
from meshbridge.pipelines.loop import MicrobatchLoop
from meshbridge.pipelines.plan import SITE_KINDS
from meshbridge.pipelines.positions import positions_of
from meshbridge.pipelines.program import LoopProgram
from meshbridge.pipelines.schedules import Task
from meshbridge.pipelines.sites import Chunks, Site


@dataclass(eq=False)
class Outline:
    """The products of a microbatch, by where they are computed."""

    loop: MicrobatchLoop
    machine: Machine
    _sites: dict[tuple[int, int, bool], dict[Site, float]] = field(default_factory=dict)

    @cached_property
    def _seconds(self) -> dict[ir.Value, float]:
        """The seconds on one device of the ops of a microbatch that have products, by first result."""
        seconds: dict[ir.Value, float] = defaultdict(float)
        module = self.loop.module
        for op, times in executed(module, find_mesh(module), weigh=amount):
            outer = ancestor_in(self.loop.body, op)
            if outer is not None and len(outer.results):
                flops = products([(op, times)])
                seconds[outer.results[0]] += sum(op_time(count, kind, 0.0, self.machine) for kind, count in flops.items())
        return {value: each / self.machine.efficiency / self.loop.microbatches for value, each in seconds.items()}

    def seconds(self, stages: int, chunks: int, *, split_weights: bool) -> dict[Site, float]:
        """The seconds of the products of each site on one device. Ops without a position of their own do not count.

        Raises MeshError for a step that cannot be cut so."""
        key = stages, chunks, split_weights
        if key not in self._sites:
            cut = Chunks(stages, chunks)
            totals: dict[Site, float] = defaultdict(float)
            with self.loop.module.context:
                for value, position in positions_of(LoopProgram(self.loop), cut, split_weights=split_weights).items():
                    totals[cut.site(position)] += self._seconds.get(value, 0.0)
            self._sites[key] = dict(totals)
        return self._sites[key]

    def bound(self, candidate: Candidate, devices: int) -> float:
        """The least seconds of a candidate's step, whose stages have so many devices. Raises MeshError if it cannot be built."""
        ordered = candidate.ordered()
        sites = self.seconds(candidate.stages, candidate.chunks, split_weights=ordered.splits_weights)
        free = [0.0] * candidate.stages
        ends: dict[Task, float] = {}
        for task in ordered.dispatch_order():
            ready = max((ends[needed] for needed in ordered.waits_for(task)), default=0.0)
            seconds = sites.get(Site(SITE_KINDS[task.kind], task.chunk))
            if seconds is None:  # no fragment: the backward pass of the last chunk is part of its forward pass
                ends[task] = ready
            else:
                group = task.chunk % candidate.stages
                free[group] = ends[task] = max(ready, free[group]) + seconds / devices
        return max(free)
