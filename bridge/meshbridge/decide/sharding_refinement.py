"""The pass that propagates shardings and then refines them by search."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from meshbridge.cost.objective import objective
from meshbridge.decide.annotate import annotate
from meshbridge.decide.decide import Propagation, decide
from meshbridge.decide.decisions import Decisions
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.ir.mlir import MeshError, functions_to_partition, ir
from meshbridge.ir.passes import Analyses, Pass, register
from meshbridge.machines.compile_target import BYTES_TARGET, CompileTarget
from meshbridge.ops.rule import Interface


@register
@dataclass(frozen=True)
class ShardingRefinement(Pass):
    """Completes annotations like sharding-propagation, then changes its decisions while that saves communication.

    Input:   %0 = mesh.shard %x to %columns : tensor<512x64xf32>
             %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]
    Output:  %0 = mesh.shard %x to %columns : tensor<512x64xf32>
             %1 = mesh.shard %0 to %rows annotate_for_users : tensor<512x64xf32>    an all-to-all
             %2 = stablehlo.dot_general %1, %w, … {meshbridge.sharding_option = #mesh.axisarray<[[0], [], []]>}

    In this example sharding-propagation alone gathers %0, four times the bytes, and computes all of %2 on every device.

    The pass replaces sharding-propagation and does not run after it: annotated IR does not tell which annotations are the user's,
    and those must stay. Its changes are the RFC's mutations, each for a whole dimension class: another option of an op, a value
    replicated or split differently, a reduction delayed, a resharding on the other side of an op.
    """

    name: ClassVar[str] = "sharding-refinement"
    moves: int = 8000
    """The number of changes of dimension classes to try.

    Measured (`benchmarks.constants`, wire KB): llama_scan_fsdp 41,175 with 0, 25,751 with 500, 25,522 with 2,000, 22,573 with
    8,000 and with 32,000. Deciding takes as long with 32,000: the search ends before."""

    target: CompileTarget = BYTES_TARGET
    "What to minimise: bytes on the wire, or time on a device (see `meshbridge.cost.objective`)."

    memory_factor: float = 1.0
    "A factor on the machine's price of memory."

    hides: bool = False
    "Whether collectives that overlap with products cost less than others."

    keep_queries: bool = False
    "Whether attention keeps the annotated split of its queries, so that keys and values travel around the devices."

    inside_open: bool = False
    "Whether values inside may be split along more axes than their constraints say."

    annotate: bool = True
    "Write the decisions as annotations. If not, they go to `mesh-spmdization`, if that is the next pass."

    def run(self, module: ir.Module) -> None:
        annotate(self._decide(module, None))

    def run_with(self, module: ir.Module, analyses: Analyses) -> None:
        decisions = self._decide(module, analyses.pop(Propagation, None))
        if self.annotate:
            annotate(decisions)
        else:
            analyses[Decisions] = decisions

    def _decide(self, module: ir.Module, propagation: Propagation | None) -> Decisions:
        if self.moves < 0:
            raise MeshError(f"{self.name}: error: moves is {self.moves}, expected 0 or more")
        if self.memory_factor < 0:
            raise MeshError(f"{self.name}: error: memory-factor is {self.memory_factor}, expected 0 or more")
        with module.context, ir.Location.unknown():
            mesh = find_mesh(module) if self.target.devices is not None else None
            weights = objective(self.target, mesh, hides=self.hides)
            weights = replace(weights, memory=self.memory_factor * weights.memory)
            return decide(
                functions_to_partition(module),
                module,
                Interface(),
                moves=self.moves,
                objective=weights,
                keep_queries=self.keep_queries,
                inside_open=self.inside_open,
                propagation=propagation,
            )
