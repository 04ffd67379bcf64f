"""`canonicalize` and `cse`, as mlir-opt has them, for modules that hold mesh operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from meshbridge.dialect import folds
from meshbridge.ir.mlir import ir, run_stock_passes
from meshbridge.ir.passes import Pass, register


def _alternate(module: ir.Module, stock: str, ours: Callable[[ir.Module], bool]) -> None:
    """Alternates MLIR's passes with our step until the step changes nothing: each creates work for the other."""
    run_stock_passes(module, f"builtin.module({stock})")
    while ours(module):
        run_stock_passes(module, f"builtin.module({stock})")


@register
@dataclass(frozen=True)
class Canonicalize(Pass):
    """Folds mesh operations and erases dead ones, together with MLIR's own canonicalization of all others.

    Input:   %0 = mesh.all_reduce %x on @m : tensor<4xf32> -> tensor<4xf32>
             "use"(%0)
    Output:  "use"(%x)
    """

    name: ClassVar[str] = "canonicalize"
    aliases: ClassVar[tuple[str, ...]] = ("test-constant-fold", "test-single-fold")

    def run(self, module: ir.Module) -> None:
        _alternate(module, "canonicalize", partial(folds.simplify, merge=False))


@register
@dataclass(frozen=True)
class Cse(Pass):
    """Merges mesh operations that compute the same and erases dead ones, together with MLIR's own elimination of common
    subexpressions.

    Input:   %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
             %t = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
    Output:  %s = mesh.sharding @m split_axes = [[0]] : !mesh.sharding
    """

    name: ClassVar[str] = "cse"

    def run(self, module: ir.Module) -> None:
        _alternate(module, "cse", partial(folds.simplify, fold=False))


@register
@dataclass(frozen=True)
class Simplify(Pass):
    """Does the work of `canonicalize` and `cse` at once, for pipelines: one run of MLIR's passes, one verification.

    Input:   %0 = mesh.all_reduce %x on @m : tensor<4xf32> -> tensor<4xf32>
             %1 = mesh.all_gather %0 on @m mesh_axes = [0] gather_axis = 0 : tensor<4xf32> -> tensor<8xf32>
             %2 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<4xf32> -> tensor<8xf32>
             "use"(%1, %2)
    Output:  %1 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<4xf32> -> tensor<8xf32>
             "use"(%1, %1)
    """

    name: ClassVar[str] = "simplify"

    def run(self, module: ir.Module) -> None:
        _alternate(module, "canonicalize,cse", folds.simplify)
