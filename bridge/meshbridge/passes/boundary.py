"""Stage 0 -> stage 1, and local -> exported: the two passes that leave their work to a converter (see formats.Notation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge import formats
from meshbridge.mlir import ir
from meshbridge.passes.base import Pass, register


@register
@dataclass(frozen=True)
class ImportShardings(Pass):
    """Turns the shardings that a StableHLO program carries into annotations of the mesh dialect.

    Input:   sdy.mesh @mesh = <["x"=2]>
             func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) …
    Output:  mesh.mesh @mesh(shape = 2)
             func.func @main(%arg0: tensor<8xf32>) … { %s = mesh.sharding @mesh split_axes = [[0]]
                                                       %0 = mesh.shard %arg0 to %s … }

    A program that carries none, or is mesh IR already, stays as it is.
    """

    name: ClassVar[str] = "import-shardings"

    def run(self, module: ir.Module) -> None:
        """Raises OpError for a sharding that contradicts itself or the program."""
        notation = formats.find_notation(module)
        if notation is not None:
            notation.to_mesh(module)


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
