"""Trial rewrites: keeps rewrites of a copy of the module that shorten the predicted step significantly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from meshbridge.cost.step import MARGIN, schedule
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ir.passes import Analyses
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.read.formats import replace_content


class Trial(NamedTuple):
    """A rewritten module."""

    module: ir.Module
    rewritten: tuple[object, ...] = ()
    "The rewritten parts, for candidates that start again from the original module."


Candidate = Callable[[Trial], Iterable[Trial]]
"""Rewrites of one kind, such as all equal layers: for the best trial so far, the possible rewritten modules."""


def keep_faster(
    module: ir.Module,
    target: CompileTarget,
    candidates: Iterable[Candidate],
    *,
    analyses: Analyses | None = None,
    epilogues: bool = False,
    is_kept: Callable[[ir.Module, ir.Module, bool], bool] = lambda before, after, is_faster: is_faster,
) -> bool:
    """Applies to `module`, one after the other, each candidate whose fastest trial shortens the predicted step on `target` by
    MARGIN; returns whether one does. Changes nothing if no step can be predicted: the report says why.

    `is_kept` overrides the decision, given the modules before and after, and whether the step is shorter. For `epilogues` and
    the `analyses` of `module` see `schedule`. Raises MeshError for a target without a device.
    """
    target.check_device()
    best = Trial(module)
    try:
        shortest = schedule(module, target, analyses=analyses, epilogues=epilogues).seconds
    except MeshError:
        return False
    for candidate in candidates:
        timed = [(schedule(trial.module, target, epilogues=epilogues).seconds, trial) for trial in candidate(best)]
        paying = [(seconds, trial) for seconds, trial in timed if is_kept(best.module, trial.module, seconds * MARGIN < shortest)]
        if paying:
            shortest, best = min(paying, key=lambda timed_trial: timed_trial[0])
    if best.module is module:
        return False
    replace_content(module, best.module)
    return True


class Rewrite(Protocol):
    """A rewrite of some operations."""

    @property
    def operations(self) -> Sequence[ir.Operation]:
        """The operations that it replaces."""


RewriteT = TypeVar("RewriteT", bound=Rewrite)


def disjoint(rewrites: Iterable[RewriteT]) -> list[RewriteT]:
    """The rewrites that share no operation with an earlier one of them."""
    claimed: set[ir.Operation] = set()
    chosen: list[RewriteT] = []
    for rewrite in rewrites:
        if claimed.isdisjoint(rewrite.operations):
            claimed.update(rewrite.operations)
            chosen.append(rewrite)
    return chosen
