"""Collectives that are StableHLO's already when the lowering comes: resharding writes some whose groups no mesh operation can
name, and users write them in manual computations. They stand in the exported form; here they get the local one.
"""

from __future__ import annotations

from meshbridge.ir.mlir import ir, walk_all

BY_PARTITION = frozenset(
    f"stablehlo.{name}"
    for name in (
        "all_gather",
        "all_reduce",
        "all_to_all",
        "collective_broadcast",
        "collective_permute",
        "partition_id",
        "reduce_scatter",
    )
)
"""Operations that number devices by partition if they have a channel, and by replica if they have none."""


def find_replicas(module: ir.Module) -> ir.Operation | None:
    """The first operation of a partitioned module that numbers devices by replica, as only the form `local` does."""
    for op in walk_all(module):
        if op.name == "stablehlo.replica_id" or (
            op.name in BY_PARTITION and len(op.operands) and "channel_handle" not in op.attributes
        ):
            return op
    return None


def by_replica(op: ir.Operation) -> None:
    """Makes `op`, which BY_PARTITION names, number devices by replica."""
    if op.name == "stablehlo.partition_id":
        number = ir.Operation.create("stablehlo.replica_id", [op.results[0].type], loc=op.location, ip=ir.InsertionPoint(op))
        op.results[0].replace_all_uses_with(number.results[0])
        op.erase()
        return
    for name in ("channel_handle", "use_global_device_ids"):
        if name in op.attributes:
            del op.attributes[name]
