"""Trial rewrites: what shortens the predicted step by a margin is kept, on a copy of the module."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from meshbridge.cost.step import MARGIN, step_seconds
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.read.formats import replace_content


class Trial(NamedTuple):
    """A module, rewritten."""

    module: ir.Module
    rewritten: tuple[object, ...] = ()
    "What has been rewritten in it, for candidates that begin again from the original module."


Candidate = Callable[[Trial], Iterable[Trial]]
"""Rewrites of one kind, such as all layers that are alike: of the trial that is kept so far, the ways to do it as well, each in a
module of its own."""


def keep_faster(
    module: ir.Module,
    target: CompileTarget,
    candidates: Iterable[Candidate],
    *,
    epilogues: bool = False,
    is_kept: Callable[[ir.Module, ir.Module, bool], bool] = lambda before, after, is_faster: is_faster,
) -> bool:
    """Rewrites `module` by the candidates that shorten the predicted step on `target` by MARGIN, one after the other, each in its
    fastest way; returns whether there is one. Nothing is rewritten where no step can be predicted: the report says why.

    `is_kept` decides otherwise, by the modules before and after, and whether the step is shorter. `epilogues` are those of
    `step_seconds`. Raises MeshError for a target that is no device.
    """
    target.check_device()
    kept = Trial(module)
    try:
        shortest = step_seconds(module, target, epilogues=epilogues)
    except MeshError:
        return False
    for candidate in candidates:
        timed = [(step_seconds(trial.module, target, epilogues=epilogues), trial) for trial in candidate(kept)]
        paying = [(seconds, trial) for seconds, trial in timed if is_kept(kept.module, trial.module, seconds * MARGIN < shortest)]
        if paying:
            shortest, kept = min(paying, key=lambda timed_trial: timed_trial[0])
    if kept.module is module:
        return False
    replace_content(module, kept.module)
    return True
