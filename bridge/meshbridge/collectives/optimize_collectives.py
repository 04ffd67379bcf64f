"""`optimize-collectives`: all collective passes in one walk of the module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.all_gather_move_down import AllGatherMoveDown
from meshbridge.collectives.all_gather_move_up import AllGatherMoveUp
from meshbridge.collectives.all_reduce_folder import AllReduceFolder
from meshbridge.collectives.all_reduce_reassociate import AllReduceReassociate
from meshbridge.collectives.all_reduce_split import AllReduceSplit
from meshbridge.collectives.combine_collectives import combine
from meshbridge.collectives.delay_reductions import delay
from meshbridge.collectives.fold_collectives import FoldCollectives
from meshbridge.collectives.hoist_collectives import hoist
from meshbridge.collectives.merge_collectives import MergeCollectives
from meshbridge.collectives.merge_permutes import merge
from meshbridge.collectives.reduce_scatter_reassociate import ReduceScatterReassociate
from meshbridge.collectives.reduce_scatter_redirect import ReduceScatterRedirect
from meshbridge.collectives.rewriter import MeshPattern, MeshRewriter
from meshbridge.cost.held import LARGEST_GROWTH, HeldPrice
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import rewriting
from meshbridge.machines.compile_target import BYTES_TARGET, CompileTarget

PATTERNS: tuple[MeshPattern, ...] = tuple(
    dict.fromkeys(
        (
            *FoldCollectives.patterns,
            *AllReduceFolder.patterns,
            *AllReduceReassociate.patterns,
            *AllReduceSplit.patterns,
            *ReduceScatterReassociate.patterns,
            *ReduceScatterRedirect.patterns,
            *MergeCollectives.patterns,
            *AllGatherMoveDown.patterns,
            *AllGatherMoveUp.patterns,
        )
    )
)
"""The patterns that are tried on each collective, in this order."""


@register
@dataclass(frozen=True)
class OptimizeCollectives(Pass):
    """Makes collectives smaller and fewer: runs all passes of `collectives` until none changes the program.

    Input:   %0 = mesh.all_reduce %x on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %1 = stablehlo.negate %0 : tensor<4xf32>
             %2 = mesh.all_slice %1 on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
    Output:  %0 = mesh.reduce_scatter %x on @m mesh_axes = [0] scatter_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %2 = stablehlo.negate %0 : tensor<2xf32>

    Neither the wire bytes nor the number of executed collectives ever increase.
    """

    name: ClassVar[str] = "optimize-collectives"
    combine: int = 2**16
    "Largest buffer, in bytes, for combined small collectives; see `combine-collectives`."
    target: CompileTarget = BYTES_TARGET
    "The target whose time `merge-permutes` minimizes, and whose price of held bytes counts."
    growth: int = LARGEST_GROWTH
    "Bytes by which loop-carried memory may grow per moved collective; see `delay-reductions`, `hoist-collectives`."

    def run(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            if not rewriter.roots:
                return False
            changed = rewriter.apply(PATTERNS)
            if rewriter.loops:
                changed |= self._move_out_of_loops(rewriter)
            changed |= merge(rewriter, self.combine, self.target)
            return combine(rewriter, self.combine) or changed

    def _move_out_of_loops(self, rewriter: MeshRewriter) -> bool:
        """Moves collectives before and after loops, where they may be combined with others."""
        rewriter.finish()
        price = HeldPrice.of(self.target, self.growth)
        changed = hoist(rewriter.loops, rewriter.meshes, price)
        changed |= delay(rewriter, price)
        return changed and (rewriter.apply(PATTERNS) or changed)
