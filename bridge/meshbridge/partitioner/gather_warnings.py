"""Warnings about ops whose operands are gathered because they have no sharding rule, with a hint at a pass that was left out.

%0 = stablehlo.dot %all_gather, %arg1 {meshbridge.gathered} …
  warning: 'stablehlo.dot' op has no sharding rule: its operands are gathered
  hint: run --legalize before, which rewrites it into ops that have rules
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from meshbridge.dialect.ops import GATHERED
from meshbridge.ir.builder import integer
from meshbridge.ir.mlir import MeshError, display_name, ir, source_location, walk_all
from meshbridge.ir.passes import Pass
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge.legalize.legalize import Legalize
from meshbridge.read.formats import copy_module

_REWRITING: tuple[tuple[type[Pass], str], ...] = (
    (InlineCalls, "which puts the function's body in its place"),
    (Legalize, "which rewrites it into ops that have rules"),
)
"""Passes that rewrite some ops without rules, in order."""


def gathered_ops(module: ir.Module, passes: Collection[str]) -> list[str]:
    """A warning, `file:line:col: warning: …`, for every op of a partitioned module with gathered operands. A hint names the pass
    that would have rewritten the op, if it is not among the `passes` that have run.
    """
    gathered = _marked(module)
    missing = [(step, effect) for step, effect in _REWRITING if step.name not in passes]
    hints = _hints(module, missing) if gathered and missing else {}
    hint_of = {number: f"\n  hint: {hint}" for number, hint in hints.items()}
    return [
        f"{source_location(op)}: warning: '{display_name(op)}' op has no sharding rule: its operands are gathered"
        + hint_of.get(number, "")
        for number, op in enumerate(gathered)
    ]


def _marked(module: ir.Module) -> list[ir.Operation]:
    return [op for op in walk_all(module) if GATHERED in op.attributes]


def _hints(module: ir.Module, missing: list[tuple[type[Pass], str]]) -> dict[int, str]:
    """By the number of a gathered op, the pass that rewrites it, found by running it on a copy with numbered ops."""
    copy, hints = copy_module(module), dict[int, str]()
    with copy.context, ir.Location.unknown():
        for number, op in enumerate(_marked(copy)):
            op.attributes[GATHERED] = integer(number)
        for step, effect in missing:
            before = _numbers(copy)
            with suppress(MeshError):  # a pass that refuses the program rewrites none of its ops
                step().run(copy)
            hints |= dict.fromkeys(before - _numbers(copy), f"run --{step.name} before, {effect}")
    return hints


def _numbers(module: ir.Module) -> set[int]:
    return {int(ir.IntegerAttr(op.attributes[GATHERED]).value) for op in _marked(module)}
