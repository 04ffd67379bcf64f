"""Passes on stage 3 IR (local shapes, mesh collectives) that make the collectives fewer or smaller. Importing registers them."""

from meshbridge.collectives.all_gather_move_down import AllGatherMoveDown
from meshbridge.collectives.all_gather_move_up import AllGatherMoveUp
from meshbridge.collectives.all_reduce_folder import AllReduceFolder
from meshbridge.collectives.all_reduce_reassociate import AllReduceReassociate
from meshbridge.collectives.all_reduce_split import AllReduceSplit
from meshbridge.collectives.combine_collectives import CombineCollectives
from meshbridge.collectives.delay_reductions import DelayReductions
from meshbridge.collectives.fold_collectives import FoldCollectives
from meshbridge.collectives.hoist_collectives import HoistCollectives
from meshbridge.collectives.merge_collectives import MergeCollectives
from meshbridge.collectives.mesh_simplifications import MeshSimplifications
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.collectives.reduce_scatter_reassociate import ReduceScatterReassociate
from meshbridge.collectives.ring_matmul import RingMatmul

__all__ = [
    "AllGatherMoveDown",
    "AllGatherMoveUp",
    "AllReduceFolder",
    "AllReduceReassociate",
    "AllReduceSplit",
    "CombineCollectives",
    "DelayReductions",
    "FoldCollectives",
    "HoistCollectives",
    "MergeCollectives",
    "MeshSimplifications",
    "OptimizeCollectives",
    "ReduceScatterReassociate",
    "RingMatmul",
]
