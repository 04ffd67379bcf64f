"""Rewrites StableHLO's own collectives from the exported form to the local form. Resharding emits them for groups of devices that
no operation of the mesh dialect can name, and users write them in manual computations.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshbridge.ir.builder import dense
from meshbridge.ir.groups import Groups
from meshbridge.ir.mlir import MeshError, OpError, find, ir, stablehlo, walk_all
from meshbridge.ir.sharding import Mesh
from meshbridge.ops.traits import Trait, ops_with

BY_PARTITION = (ops_with(Trait.COLLECTIVE, dialect="stablehlo")) | {"stablehlo.partition_id"}
"""Operations that number devices by partition if they have a channel, and by replica if they have none."""

NUMBERING = BY_PARTITION | {"stablehlo.replica_id"}
"""Operations that number devices by partition or by replica."""


def find_replicas(module: ir.Module) -> ir.Operation | None:
    """The first operation of a partitioned module that numbers devices by replica; only the form `local` has such operations."""
    for op in walk_all(module):
        if op.name == "stablehlo.replica_id" or (
            op.name in BY_PARTITION and len(op.operands) and "channel_handle" not in op.attributes
        ):
            return op
    return None


def by_replica(op: ir.Operation) -> None:
    """Makes `op`, one of BY_PARTITION, number devices by replica."""
    if op.name == "stablehlo.partition_id":
        _replace_number(op, "stablehlo.replica_id")
        return
    for name in ("channel_handle", "use_global_device_ids"):
        if name in op.attributes:
            del op.attributes[name]


def by_partition(op: ir.Operation, mesh: Mesh) -> None:
    """Makes `op`, of a program that runs once on each device of `mesh`, number devices by partition.

    Raises OpError for devices that the mesh does not have.
    """
    if op.name == "stablehlo.replica_id":
        _replace_number(op, "stablehlo.partition_id")
        return
    if beyond := sorted(device for device in _listed(op) if device >= mesh.size):
        raise OpError(op, f"names device {beyond[0]}, expected one of the {mesh.size} of @{mesh.name}, from 0")
    if "replica_groups" in op.attributes and _means_all(op):
        op.attributes["replica_groups"] = dense(np.arange(mesh.size)[None])
    if len(op.operands):
        op.attributes["channel_handle"] = Groups("exported").channel()
    if _has_flag(op):
        op.attributes["use_global_device_ids"] = ir.UnitAttr.get()


def _replace_number(op: ir.Operation, name: str) -> None:
    """Replaces `op`, which gives the number of its device, by the op `name`."""
    number = ir.Operation.create(name, [op.results[0].type], loc=op.location, ip=ir.InsertionPoint(op))
    op.results[0].replace_all_uses_with(number.results[0])
    op.erase()


def _has_flag(op: ir.Operation) -> bool:
    """True if a collective has a flag that says whether its groups list devices."""
    return hasattr(op.opview, "use_global_device_ids")


def count_devices(module: ir.Module) -> int:
    """The number of devices of a program without a mesh, from the module's attributes or the groups of its collectives.

    Raises MeshError if neither gives a number.
    """
    attributes = module.operation.attributes
    counts = [
        int(ir.IntegerAttr(attributes[name]).value) for name in ("mhlo.num_replicas", "mhlo.num_partitions") if name in attributes
    ]
    named = max((device + 1 for op in find(module.operation, NUMBERING) for device in _listed(op)), default=1)
    if (count := max(int(np.prod(counts)), named)) > 1:
        return count
    hint = "declare them, as in mesh.mesh @mesh(shape = 2x4)"
    raise MeshError(
        f"<module>: error: the program declares no mesh, and nothing in it says how many devices run it\n  hint: {hint}"
    )


def _listed(op: ir.Operation) -> Iterator[int]:
    """The devices in the groups or pairs of a collective."""
    for name in ("replica_groups", "source_target_pairs"):
        if name in op.attributes and isinstance(listed := op.attributes[name], ir.DenseElementsAttr):
            yield from (int(device) for device in np.array(listed).ravel() if device >= 0)


def _means_all(op: ir.Operation) -> bool:
    """True if a collective has one group of all devices: it lists none, or the single replica of all partitions."""
    listed = op.attributes["replica_groups"]
    if not isinstance(listed, ir.DenseElementsAttr):
        return False
    channel = op.attributes.get("channel_handle")
    joins = channel is not None and stablehlo.ChannelHandle(channel).handle > 0 and _has_flag(op)
    devices = list(_listed(op))
    return not devices or (joins and "use_global_device_ids" not in op.attributes and devices == [0])
