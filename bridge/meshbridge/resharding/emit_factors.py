"""Collectives over factors of mesh axes, which no mesh operation names: StableHLO's, with their device groups written out.

Groups are partition ids, as in the form `exported`; lowering to `local` makes them replicas.
"""

from __future__ import annotations

import numpy as np

from meshbridge.ir import exchange
from meshbridge.ir.builder import dense, element_of, integer, tensor
from meshbridge.ir.exchange import COMBINERS
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.resharding import steps as s
from meshbridge.resharding.place import CHANNEL, Place
from meshbridge.resharding.steps import Digits, group_size


def device_groups(place: Place, digits: Digits) -> ir.Attribute:
    """Partition ids of every group along `digits`, each in group order."""
    return dense(np.array(place.mesh.ordered_devices(), np.int64)[place.groups(digits)])


def slice_over(step: s.Slice, value: ir.Value, place: Place) -> ir.Value:
    """The piece along `step.dim` that this device's number names."""
    size = step.shape[step.dim]
    return place.emit.dynamic_slice(value, step.dim, place.emit.multiply(place.group(step.digits), size), size)


def gather_over(step: s.AllGather, value: ir.Value, place: Place) -> ir.Value:
    """`stablehlo.all_gather`."""
    attrs = {
        "all_gather_dim": integer(step.dim),
        "replica_groups": device_groups(place, step.digits),
        "channel_handle": ir.Attribute.parse(CHANNEL),
        "use_global_device_ids": ir.UnitAttr.get(),
    }
    return place.emit.value("all_gather", tensor(step.shape, element_of(value)), [value], attrs)


def exchange_over(digits: Digits, split: int, concat: int, value: ir.Value, place: Place) -> ir.Value:
    """`stablehlo.all_to_all`."""
    groups = {"replica_groups": device_groups(place, digits), "channel_handle": ir.Attribute.parse(CHANNEL)}
    return exchange.exchange_over(place.emit, value, split, concat, group_size(digits), groups)


def permute_over(step: s.Permute, value: ir.Value, place: Place) -> ir.Value:
    """`stablehlo.collective_permute` between the devices whose numbers along both lists agree."""
    moves = s.Rounds(step.shape, step.sources, step.targets)
    devices = np.arange(place.mesh.size)
    return place.permute(value, np.stack([moves.sender(devices, ()), devices], axis=1))


def reduce_scatter_over(step: s.ReduceScatter, value: ir.Value, place: Place) -> ir.Value:
    """An all-to-all, whose pieces every device combines itself: as many bytes as a reduce-scatter."""
    emit, count = place.emit, group_size(step.digits)
    if step.kind not in COMBINERS:
        raise MeshError(f"reduction '{step.kind}' has no body that could run")
    received = exchange_over(step.digits, step.dim, step.dim, value, place)
    apart = emit.reshape(received, [*step.shape[: step.dim], count, *step.shape[step.dim :]])
    total: ir.Value | None = None
    for term in range(count):
        piece = emit.reshape(emit.slice(apart, step.dim, term, 1), step.shape)
        total = piece if total is None else emit.elementwise(COMBINERS[step.kind], total, piece)
    assert total is not None
    if step.kind == "average":
        return emit.elementwise("divide", total, count)
    return total
