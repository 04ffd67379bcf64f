"""Annotation completion: stage 1 to stage 2 (the RFC, "Sharding Propagation Pass")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.decide.annotate import annotate
from meshbridge.decide.decide import decide
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.ir.mlir import MeshError, functions_to_partition, ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import Mesh
from meshbridge.ops.rule import Interface
from meshbridge.upstream import sweep


@register
@dataclass(frozen=True)
class ShardingPropagation(Pass):
    """Completes the sharding annotations of every function, from those that the user gave.

    Input:   %0 = mesh.shard %arg0 to %rows : tensor<8x16xf32>
             %1 = stablehlo.tanh %0 : tensor<8x16xf32>
    Output:  %0 = mesh.shard %arg0 to %rows : tensor<8x16xf32>
             %1 = mesh.shard %0 to %rows annotate_for_users : tensor<8x16xf32>
             %2 = stablehlo.tanh %1 {meshbridge.sharding_option = #mesh.axisarray<[[0], []]>} : tensor<8x16xf32>
             %3 = mesh.shard %2 to %rows : tensor<8x16xf32>

    Annotations of the user are never changed; their open dimensions may be split further. Without a traversal, sweeps go on
    until nothing changes and conflicts are decided by modelled cost; with one, the pass does as upstream's does: one sweep in
    each direction (`upstream/sweep.py`), which annotates what it reaches and no more.
    """

    name: ClassVar[str] = "sharding-propagation"
    traversal: str = ""
    "Upstream's sweeps alone: forward, backward, forward-backward or backward-forward."

    def run(self, module: ir.Module) -> None:
        functions = functions_to_partition(module)
        interface = Interface()
        with module.context, ir.Location.unknown():
            if self.traversal:
                self._sweep(functions, declared_meshes(module.body), interface)
            else:
                annotate(decide(functions, module, interface))

    def _sweep(self, functions: list[ir.Operation], meshes: dict[str, Mesh], interface: Interface) -> None:
        traversals = ", ".join(sweep.TRAVERSALS)
        if self.traversal not in sweep.TRAVERSALS:
            raise MeshError(f"{self.name}: error: traversal is {self.traversal!r}, expected one of {traversals}")
        for function in functions:
            sweep.Sweeper(function, meshes, interface).run(self.traversal)
