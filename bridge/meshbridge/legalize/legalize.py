"""`legalize`: rewrites a program into ops that have sharding rules, in the form that keeps most of it sharded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from meshbridge.ir.mlir import MeshError, find, ir, run_stock_passes
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import Pattern, rewriting
from meshbridge.legalize import (
    arg_reductions,
    branches,
    constants,
    fft,
    lookups,
    padded_windows,
    reads,
    row_lookups,
    tuples,
    unit_reductions,
)
from meshbridge.legalize.expansions import batch_norm, einsum, legacy_calls, scan, shapes
from meshbridge.legalize.table import PATTERNS, STATIC_FORMS, Legalizer
from meshbridge.text import did_you_mean

FAMILIES = (
    branches,
    tuples,
    shapes,
    einsum,
    batch_norm,
    scan,
    legacy_calls,
    lookups,
    row_lookups,
    constants,
    arg_reductions,
    unit_reductions,
    fft,
    reads,
    padded_windows,
)
"""The files of patterns, in the order of the table."""

LAST = ("split-constants",)
"""Patterns that run after all others have settled, because these change the readers of values."""


@register
@dataclass(frozen=True)
class Legalize(Pass):
    """Applies the patterns of `legalize.table` until none applies.

    Input:   %0 = stablehlo.dot %a, %b : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
    Output:  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : …

    The result computes the same, sharded or not.
    """

    name: ClassVar[str] = "legalize"
    main_option: ClassVar[str] = "only"
    only: str = ""
    "The only pattern to apply; empty for all."

    def __post_init__(self) -> None:
        """Raises MeshError for an unknown pattern."""
        if self.only and self.only not in PATTERNS:
            near = did_you_mean(self.only, PATTERNS)
            raise MeshError(f"error: unknown pattern '{self.only}', expected one of {', '.join(sorted(PATTERNS))}{near}")

    def run(self, module: ir.Module) -> bool:
        """Raises OpError for an op that no pattern can rewrite."""
        chosen = [name for name in PATTERNS if self.only in ("", name)]
        patterns = [PATTERNS[name] for name in chosen if name not in LAST]
        late_patterns = [PATTERNS[name] for name in chosen if name in LAST]
        changed = _apply(patterns, module)
        if not self.only and find(module.operation, STATIC_FORMS):
            run_stock_passes(module, "builtin.module(func.func(stablehlo-canonicalize-dynamism))")
            _apply(patterns, module)
            changed = True
        return _apply(late_patterns, module) or changed


def _apply(patterns: list[Pattern[Legalizer]], module: ir.Module) -> bool:
    with rewriting(partial(Legalizer, patterns), module) as rewriter:
        return rewriter.apply(patterns)
