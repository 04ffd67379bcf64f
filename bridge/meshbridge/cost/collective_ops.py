"""Seconds that each collective of a partitioned program takes on a machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from math import prod

import numpy as np

from meshbridge.cost.permutes import permute_time, shift_time
from meshbridge.cost.seconds import Time, collective_time
from meshbridge.dialect.ops import AllToAllOp, PermuteOp, ShiftOp, UpdateHaloOp
from meshbridge.ir.device_lists import device_table, positions_of
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.machines.layout import Placement
from meshbridge.machines.machine import Link


def collective_op_time(op: ir.Operation, mesh: Mesh, axes: Axes, placement: Placement, group: int) -> Time:
    """The time of a collective along `axes` of the mesh, in groups of `group` devices. If these are smaller than the axes'
    groups, links are busy for the corresponding share of the bytes."""
    kind = op.name.partition(".")[2]
    if kind in _PERMUTES:
        return _PERMUTES[kind](op, mesh, axes, placement)
    whole = mesh.group_size(axes)
    received = (group - 1, whole - 1) if kind == "all_gather" else (1 - 1 / group, 1 - 1 / whole)
    share = received[0] / received[1] if group != whole else 1.0
    return collective_time(kind, share * sum(map(tensor_bytes, op.operands)), axes, placement)


def uniform_link_time(wire_bytes: float, link: Link) -> Time:
    """The time of a collective that sends so many bytes along an axis of its own, for devices of unknown connections."""
    return Time(link.launch + link.latency, {link.name: wire_bytes / (link.ports * link.rate)})


def _relabelling(op: ir.Operation, mesh: Mesh, axes: Axes, placement: Placement) -> Time:
    sizes = tuple(mesh.shape[axis] for axis in axes)
    numbers = np.arange(prod(sizes))
    targets = numbers.reshape(sizes).transpose([axes.index(axis) for axis in PermuteOp(op).target_axes]).ravel()
    return permute_time(tensor_bytes(op.operands[0]), numbers, targets, axes, placement)


def _shift(op: ir.Operation, _: Mesh, axes: Axes, placement: Placement) -> Time:
    view = ShiftOp(op)
    return shift_time(tensor_bytes(op.operands[0]), axes, view.offset, placement, rotate=view.rotate)


def _send(op: ir.Operation, _: Mesh, axes: Axes, placement: Placement) -> Time:
    """Assumes that the receiver is a neighbour: the receiver's op names the sender."""
    return shift_time(tensor_bytes(op.operands[0]), axes, 1, placement, rotate=False)


def _halo(op: ir.Operation, _: Mesh, __: Axes, placement: Placement) -> Time:
    """A slab from each neighbour, one after the other."""
    view, whole = UpdateHaloOp(op), ir.RankedTensorType(op.operands[0].type)
    split = [(dim, axes) for dim, axes in enumerate(view.split_axes) if axes]
    row = tensor_bytes(op.operands[0])
    return _one_after_the_other(
        shift_time(row * width / whole.shape[dim], axes, offset, placement, rotate=False)
        for (dim, axes), before, after in zip(split, view.halo_sizes[0::2], view.halo_sizes[1::2], strict=False)
        for offset, width in ((1, before), (-1, after))
    )


def _listed(op: ir.Operation, mesh: Mesh, _: Axes, placement: Placement) -> Time:
    sources, targets = positions_of(device_table(op.attributes["source_target_pairs"]), mesh).T
    return permute_time(tensor_bytes(op.operands[0]), sources, targets, tuple(range(mesh.rank)), placement)


def _one_after_the_other(times: Iterable[Time]) -> Time:
    latency, busy = 0.0, defaultdict[str, float](float)
    for time in times:
        latency += time.latency
        for link, seconds in time.busy.items():
            busy[link] += seconds
    return Time(latency, dict(busy))


_PERMUTES: dict[str, Callable[[ir.Operation, Mesh, Axes, Placement], Time]] = {
    "permute": _relabelling,
    "shift": _shift,
    "send": _send,
    "update_halo": _halo,
    "collective_permute": _listed,
}
"""Collectives in which each device sends to one other."""

_LOWERED = {"gather": "all_gather", "reduce": "all_reduce", "scatter": "all_to_all", "broadcast": "collective_broadcast"}


def issued_kind(op: ir.Operation) -> str:
    """The StableHLO name of the collective that a compiler issues for `op`."""
    kind = op.name.partition(".")[2]
    return "collective_permute" if kind in _PERMUTES else _LOWERED.get(kind, kind)


COPY_TRAFFIC = 2.0
"""Bytes that a copy moves per byte of the value: it reads and writes."""


def rearranged_bytes(op: ir.Operation) -> float:
    """Bytes moved by the copies that make the pieces of an all-to-all contiguous before and after it. Pieces along the first
    dimension are contiguous already. Other collectives are assumed to need no copies."""
    if op.name != AllToAllOp.OPERATION_NAME:
        return 0.0
    view, shape = AllToAllOp(op), ir.RankedTensorType(op.operands[0].type).shape
    copies = sum(prod(shape[:dim]) > 1 for dim in (view.split_axis, view.concat_axis))
    return COPY_TRAFFIC * copies * tensor_bytes(op.operands[0])
