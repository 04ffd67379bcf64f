"""Partitions a program: runs the stages of the pipeline, and compares plans in several variants if needed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from threading import RLock
from types import MappingProxyType

from meshbridge import pipeline
from meshbridge.dialect import verifier
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned
from meshbridge.ir.garbage import rare_collections
from meshbridge.ir.mlir import MeshError, OpError, ir
from meshbridge.ir.passes import Analyses
from meshbridge.lowering.replicas import find_replicas
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.layout import place
from meshbridge.pipeline import DEFAULTS, OnPass, OnStage, Options, Timing
from meshbridge.plan_variants import VariantPlanner
from meshbridge.read.formats import copy_module, replace_content

LOG = logging.getLogger("meshbridge")
"""Logs each partitioned program (INFO) and each stage (DEBUG), with seconds."""

_partitioning = RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Excludes other threads: warnings of a plan are captured, which Python does for all threads at once."""
    with _partitioning:
        yield


@one_at_a_time()
@rare_collections()
def partition_module(
    module: ir.Module,
    options: Options = DEFAULTS,
    *,
    on_pass: OnPass | None = None,
    on_stage: OnStage | None = None,
) -> list[Timing]:
    """Partitions `module` in place up to the form `options.emit`, and returns the time of each pass. If plans are compared, for a
    topology or a memory limit, these include the passes of all plans.

    A module that is already partitioned continues from there. The module, the stages of `pipeline.VERIFIED` and the result are
    verified. `on_pass` is called with the module after each pass, `on_stage` after each stage, with its name. Of compared plans,
    `on_pass` gets all, and `on_stage` the chosen one, once it is optimised. Only one thread partitions at a time. Raises
    MeshError with a source location, also if the mesh does not fit the machine, or no plan fits the memory limit.
    """
    began = time.perf_counter()
    stages, target = pipeline.build(options), options.target
    run = _StageRunner(module, stages.stages[-1].name, on_pass, on_stage)
    if is_partitioned(module):
        pipeline.verify(module)
        _refuse_partitioned(module, options)
        run(stages.starting_at("partitioned"))
    else:
        run(stages.until("legal"), after={"annotated": lambda: _check_mesh(module, target)})
        if target.devices is not None or target.written_limit < inf:
            plan = VariantPlanner(copy_module(module), options, run.timings, on_pass).best()
            LOG.debug("plans are compared after %.3f s, of them is taken %s", time.perf_counter() - began, plan.variant)
            if options.emit == "annotated":
                run(pipeline.build(options, plan.variant).starting_at("legal"))
            else:
                replace_content(module, plan.module)
                run.reach("optimised")
                run(stages.starting_at("optimised"))
        elif target.implied_limit < inf and options.emit != "annotated":
            legal = copy_module(module)
            run(stages.starting_at("legal"), after={"optimised": lambda: _fit(module, legal, options, run.timings, on_pass)})
        else:
            run(stages.starting_at("legal"))
    took = time.perf_counter() - began
    LOG.info("a program is partitioned to the form '%s' for machine '%s' in %.3f s", options.emit, target.name, took)
    return run.timings


@dataclass
class _StageRunner:
    """Runs stages on a module."""

    module: ir.Module
    last: str
    "The stage whose result the caller gets."
    on_pass: OnPass | None
    on_stage: OnStage | None
    timings: list[Timing] = field(default_factory=list)
    _analyses: Analyses = field(default_factory=dict)

    def __call__(self, stages: pipeline.Pipeline, after: Mapping[str, Callable[[], None]] = MappingProxyType({})) -> None:
        """Runs `stages` in order; `after` the stage of a name, something else."""
        for stage in stages.stages:
            began = time.perf_counter()
            verified = "last" if stage.name == self.last else pipeline.VERIFIED.get(stage.name, "none")
            self.timings += pipeline.run(
                stage.passes, self.module, verified=verified, analyses=self._analyses, on_pass=self.on_pass
            )
            if stage.name in after:
                after[stage.name]()
            if self.on_stage is not None:
                self.on_stage(stage.name, self.module)
            LOG.debug("stage '%s' is reached after %.3f s", stage.name, time.perf_counter() - began)

    def reach(self, name: str) -> None:
        """Verifies a module that is there as after the stage `name`."""
        (pipeline.verify if name == self.last else verifier.verify)(self.module)
        if self.on_stage is not None:
            self.on_stage(name, self.module)


def _check_mesh(module: ir.Module, target: CompileTarget) -> None:
    """Raises MeshError if the mesh does not fit the devices of the target."""
    if target.devices is not None and (mesh := find_mesh(module)) is not None:
        place(mesh, target.devices)


def _fit(module: ir.Module, legal: ir.Module, options: Options, timings: list[Timing], on_pass: OnPass | None) -> None:
    """Replaces a plan that does not fit the memory of a device by one that does, if there is one."""
    fitting = VariantPlanner(legal, options, timings, on_pass).fitting(module)
    if fitting is not None:
        replace_content(module, fitting.module)


def _refuse_partitioned(module: ir.Module, options: Options) -> None:
    """Raises MeshError if an already partitioned program has no such form."""
    if options.emit == "annotated":
        raise MeshError(f"<module>: error: the program is partitioned already, it has no form '{options.emit}'")
    if options.target.written_limit < inf:
        raise MeshError("<module>: error: the program is partitioned already, memory-limit has no effect on it")
    if options.emit == "exported" and (op := find_replicas(module)) is not None:
        raise OpError(
            op, "speaks of replicas, as the form 'local' does; no other form is made of that", "start from the form 'mesh'"
        )
