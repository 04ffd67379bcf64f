"""Imports shardings into the mesh dialect with a converter (see read.formats.Notation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register
from meshbridge.read import formats


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
