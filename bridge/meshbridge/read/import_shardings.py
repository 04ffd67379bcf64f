"""Imports shardings into the mesh dialect with a converter (see read.formats.Notation)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.mlir import OpError, find, ir, mpmd
from meshbridge.ir.passes import Pass, register
from meshbridge.read import formats

_OF_PIPELINES = tuple(
    kind.OPERATION_NAME for kind in vars(mpmd).values() if getattr(kind, "OPERATION_NAME", "").startswith("mpmd.")
)
"""The ops of Shardy's MPMD dialect."""


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
        """Raises OpError for a sharding that contradicts itself or the program, and for a program on several meshes."""
        if of_pipelines := find(module.operation, _OF_PIPELINES):
            hint = "report, run and verify take programs that are mapped to meshes, others with --stages (docs/pipelines.md)"
            raise OpError(of_pipelines[0], "is of a pipeline on several meshes, expected a program on one", hint)
        notation = formats.find_notation(module)
        if notation is not None:
            notation.to_mesh(module)
