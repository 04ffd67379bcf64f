"""MLIR's own passes that work without knowledge of the mesh dialect, under their own names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.mlir import ir, run_stock_passes
from meshbridge.ir.passes import Pass, register


class _Stock(Pass):
    """Runs MLIR's pass of the same name."""

    def run(self, module: ir.Module) -> None:
        run_stock_passes(module, f"builtin.module({self.name})")


@register
@dataclass(frozen=True)
class SymbolDce(_Stock):
    """Removes private functions that nothing refers to.

    Input:   func.func private @unused()
    Output:  (nothing)
    """

    name: ClassVar[str] = "symbol-dce"


@register
@dataclass(frozen=True)
class Sccp(_Stock):
    """Propagates constants through regions and branches, and replaces what they decide.

    Input:   %0 = arith.addi %c1, %c1 : index
    Output:  %0 = arith.constant 2 : index
    """

    name: ClassVar[str] = "sccp"


@register
@dataclass(frozen=True)
class LoopInvariantCodeMotion(_Stock):
    """Moves out of loops what is the same in every iteration; mesh operations stay (`hoist-collectives` moves those).

    Input:   scf.for … { %0 = arith.addi %a, %b : index … }
    Output:  %0 = arith.addi %a, %b : index
             scf.for … { … }
    """

    name: ClassVar[str] = "loop-invariant-code-motion"


@register
@dataclass(frozen=True)
class StripDebuginfo(_Stock):
    """Makes all locations unknown.

    Input:   %0 = arith.addi %a, %b : index loc("f.mlir":1:2)
    Output:  %0 = arith.addi %a, %b : index loc(unknown)
    """

    name: ClassVar[str] = "strip-debuginfo"
