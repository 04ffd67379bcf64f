"""A local program as one that JAX calls on global arrays; a converter does it (see read.formats.Notation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register
from meshbridge.read import formats


@register
@dataclass(frozen=True)
class WrapLocal(Pass):
    """Makes one callable program on global shapes out of the local program that `lower-collectives` leaves.

    Input:   func.func @main(%arg0: tensor<4xf32> {meshbridge.global = tensor<8xf32>, …}) …
    Output:  func.func @main(%arg0: tensor<8xf32> {sdy.sharding = …}) … {
               %0 = sdy.manual_computation(%arg0) in_shardings = … manual_axes = {"x"} (%arg1: tensor<4xf32>) { … } }
    """

    name: ClassVar[str] = "wrap-local"

    def run(self, module: ir.Module) -> None:
        """Raises MeshError where no converter is installed that can write such a program."""
        wrap = formats.wrapping_notation().wrap_local
        assert wrap is not None
        wrap(module)
