"""Wraps a local program into one that JAX calls on global arrays. A converter does the work (`read.formats.Notation`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register
from meshbridge.read import formats


@register
@dataclass(frozen=True)
class WrapLocal(Pass):
    """Turns the local program that `lower-collectives` leaves into a callable program on global shapes.

    Input:   func.func @main(%arg0: tensor<4xf32> {meshbridge.global = tensor<8xf32>, …}) …
    Output:  func.func @main(%arg0: tensor<8xf32> {sdy.sharding = …}) … {
               %0 = sdy.manual_computation(%arg0) in_shardings = … manual_axes = {"x"} (%arg1: tensor<4xf32>) { … } }
    """

    name: ClassVar[str] = "wrap-local"

    def run(self, module: ir.Module) -> None:
        """Raises MeshError if no installed converter can write such a program."""
        wrap = formats.wrapping_notation().wrap_local
        assert wrap is not None
        wrap(module)
