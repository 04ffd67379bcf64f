"""The table of legalization patterns. The functions in `legalize` register themselves with the ops that they rewrite."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshbridge.ir.mlir import ir
from meshbridge.ir.registry import Registry, docstring
from meshbridge.ir.rewrite import Pattern, Rewriter
from meshbridge.ops.traits import Trait, has, ops_with

STATIC_FORMS = ops_with(Trait.SIZED)
"""Ops with sizes as operands. If these are constants, StableHLO's own pass replaces them by static ops."""


class Legalizer(Rewriter):
    """Rewrites a program on global shapes."""

    def __init__(self, patterns: Sequence[Pattern[Legalizer]], module: ir.Module) -> None:
        self.names = frozenset(name for pattern in patterns for name in pattern.names)
        super().__init__(module)

    def is_erasable(self, name: str) -> bool:
        """True for pure ops, which are erased once they have no readers."""
        return has(name, Trait.PURE)


PATTERNS: Registry[str, Pattern[Legalizer]] = Registry("pattern", lambda pattern: docstring(pattern.rewrite))
"""Patterns by name, in the order in which they are tried on an op."""

Rewrite = Callable[[ir.Operation, Legalizer], bool]
Replacement = Callable[[ir.Operation], Sequence[ir.Value] | None]


def rewrites(
    *names: str, readers: frozenset[str] | None = None, where: Callable[[ir.Operation], bool] | None = None
) -> Callable[[Rewrite], Rewrite]:
    """Registers a function that changes an op of one of `names`, or a reader of it (see `Pattern`), and returns whether it did.

    The pattern has the function's name. The insertion point is before the changed op, at its location. `where` is a cheap
    test that rejects most ops.
    """

    def enter(function: Rewrite) -> Rewrite:
        def rewrite(op: ir.Operation, rewriter: Legalizer) -> bool:
            if where is not None and not where(op):
                return False
            with ir.InsertionPoint(op), op.location:
                return function(op, rewriter)

        rewrite.__doc__ = function.__doc__
        PATTERNS.add(function.__name__.replace("_", "-"), Pattern(names, rewrite, readers))
        return function

    return enter


def replaces(*names: str, where: Callable[[ir.Operation], bool] | None = None) -> Callable[[Replacement], Replacement]:
    """Registers a function that returns the values to replace an op's results, or None to keep the op."""

    def enter(function: Replacement) -> Replacement:
        def rewrite(op: ir.Operation, rewriter: Legalizer) -> bool:
            values = function(op)
            if values is not None:
                rewriter.replace(op, *values)
            return values is not None

        rewrite.__name__, rewrite.__doc__ = function.__name__, function.__doc__
        rewrites(*names, where=where)(rewrite)
        return function

    return enter
