"""Which passes change a module, and pipelines from which a pass is left out.

The passes of `optimize-collectives` count as passes of their own: a pattern counts for the first pass that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from meshbridge import pipeline
from meshbridge.collectives import optimize_collectives
from meshbridge.collectives.canonicalize import Simplify
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.collectives.rewriter import MeshPattern, PatternPass
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.lowering.wrap_local import WrapLocal
from meshbridge.pipeline import Options, Pipeline, PlanVariant

STEPS = {
    "hoist-collectives": "hoist",
    "delay-reductions": "delay",
    "merge-permutes": "merge",
    "combine-collectives": "combine",
}
"""Passes of `optimize-collectives` that are no patterns, and the functions that it calls for them."""


NECESSARY = {Simplify.name, OptimizeCollectives.name, LowerCollectives.name, WrapLocal.name}
"""Passes without which there is no plan, and what holds others that count by themselves."""

_build = pipeline.build


def owners() -> dict[MeshPattern, str]:
    """The pass of each pattern of `optimize-collectives`."""
    found: dict[MeshPattern, str] = {}
    for step in vars(optimize_collectives).values():
        if isinstance(step, type) and issubclass(step, PatternPass) and "patterns" in vars(step):
            for pattern in step.patterns:
                found.setdefault(pattern, step.name)
    assert set(found) == set(optimize_collectives.PATTERNS)
    return found


def optional_passes() -> tuple[str, ...]:
    """What a plan can be without: the passes that shorten its communication and its step."""
    found = {*owners().values(), *STEPS}
    for machine in ("bytes", "neutral", "h100:1x1x8", "v5e:2x4", "v5p:4x4x4"):
        for options in ("default", "best"):
            stages = _build(Options.of(machine=machine, compiler_options=options)).stages
            found |= {step.name for stage in stages if stage.name in ("optimised", "lowered") for step in stage.passes}
    return tuple(sorted(found - NECESSARY))


@contextmanager
def watched(changed: Callable[[str], None], without: Collection[str] = ()) -> Iterator[None]:
    """Plans are made without some passes inside, and `changed` is told of each pass of `optimize-collectives` that finds work."""

    def build(options: Options = pipeline.DEFAULTS, variant: PlanVariant | None = None) -> Pipeline:
        made = _build(options, variant)
        return Pipeline(
            tuple(replace(stage, passes=tuple(s for s in stage.passes if s.name not in without)) for stage in made.stages)
        )

    def told(name: str, function: Callable[..., bool]) -> Callable[..., bool]:
        def run(*arguments: Any) -> bool:
            done = name not in without and function(*arguments)
            if done:
                changed(name)
            return done

        return run

    named = owners()
    patterns = tuple(
        replace(pattern, rewrite=told(named[pattern], pattern.rewrite))
        for pattern in optimize_collectives.PATTERNS
        if named[pattern] not in without
    )
    with ExitStack() as patches:
        patches.enter_context(patch.object(pipeline, "build", build))
        patches.enter_context(patch.object(optimize_collectives, "PATTERNS", patterns))
        for name, function in STEPS.items():
            ours = told(name, getattr(optimize_collectives, function))
            patches.enter_context(patch.object(optimize_collectives, function, ours))
        yield
