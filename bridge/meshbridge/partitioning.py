"""Partitions a program: runs the stages of the pipeline, and plans by the best variant where plans are compared."""

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
"""Says when a program is partitioned (INFO), and when each of its stages is reached (DEBUG), with seconds."""

_partitioning = RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Lets other threads wait: the warnings of a plan are looked through, which Python catches for all threads."""
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
    """Partitions `module` in place as far as `options.emit` says, and returns how long each pass took; where plans are compared,
    for a topology or a memory limit, the passes of all of them.

    A module that is partitioned already goes on from there. It is verified, and so are the stages of `pipeline.VERIFIED` and the
    result. `on_pass` sees the module after each pass, `on_stage` after each stage, with its name. Of plans that are compared,
    `on_pass` sees all, and `on_stage` the one that is taken, once it is optimised. Threads wait for each other. Raises MeshError
    with a located diagnostic, also if the mesh does not fit the machine, or no plan fits the memory limit.
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
    """Raises MeshError where a program that is partitioned already has no such form."""
    if options.emit == "annotated":
        raise MeshError(f"<module>: error: the program is partitioned already, it has no form '{options.emit}'")
    if options.target.written_limit < inf:
        raise MeshError("<module>: error: the program is partitioned already, memory-limit has no effect on it")
    if options.emit == "exported" and (op := find_replicas(module)) is not None:
        raise OpError(
            op, "speaks of replicas, as the form 'local' does; no other form is made of that", "start from the form 'mesh'"
        )
