"""Partitions a program: runs the stages of the pipeline, and compares plans in several variants if needed."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from threading import RLock

from meshbridge import pipeline
from meshbridge.dialect import verifier
from meshbridge.dialect.module_mesh import find_mesh, is_partitioned
from meshbridge.ir.garbage import rare_collections
from meshbridge.ir.mlir import MeshError, OpError, ir
from meshbridge.ir.passes import Analyses
from meshbridge.lowering.replicas import find_replicas
from meshbridge.machines.layout import place
from meshbridge.pipeline import DEFAULTS, OnPass, OnStage, Options, Timing
from meshbridge.plan_variants import best_plan_of, fitting_plan
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
    stages, target = pipeline.build(options), options.target
    if is_partitioned(module):
        pipeline.verify(module)
        _refuse_partitioned(module, options)
        stages = stages.starting_at("partitioned")
    timings: list[Timing] = []
    analyses: Analyses = {}
    legal: ir.Module | None = None
    waiting = deque(stages.stages)
    began = time.perf_counter()
    while waiting:
        stage, stage_began = waiting.popleft(), time.perf_counter()
        verified = pipeline.VERIFIED.get(stage.name, "none") if waiting else "last"
        timings += pipeline.run(stage.passes, module, verified=verified, analyses=analyses, on_pass=on_pass)
        if legal is not None and stage.name == "optimised":
            fitting = fitting_plan(module, legal, options, timings, on_pass)
            if fitting is not None:
                replace_content(module, fitting.module)
        if stage.name == "annotated" and target.devices is not None and (mesh := find_mesh(module)) is not None:
            place(mesh, target.devices)
        if on_stage is not None:
            on_stage(stage.name, module)
        LOG.debug("stage '%s' is reached after %.3f s", stage.name, time.perf_counter() - stage_began)
        if stage.name == "legal" and target.devices is None and options.emit != "annotated" and target.implied_limit < inf:
            legal = copy_module(module)
        if stage.name == "legal" and (target.devices is not None or target.written_limit < inf):
            plan = best_plan_of(module, options, timings, on_pass)
            LOG.debug("plans are compared after %.3f s, of them is taken %s", time.perf_counter() - stage_began, plan.variant)
            waiting = deque(pipeline.build(options, plan.variant).starting_at("legal").stages)
            if options.emit != "annotated":
                replace_content(module, plan.module)
                waiting = deque(stages.starting_at("optimised").stages)
                (verifier.verify if waiting else pipeline.verify)(module)
                if on_stage is not None:
                    on_stage("optimised", module)
    took = time.perf_counter() - began
    LOG.info("a program is partitioned to the form '%s' for machine '%s' in %.3f s", options.emit, target.name, took)
    return timings


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
