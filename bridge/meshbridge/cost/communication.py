"""The communication of a partitioned program (stages 3 and 4) in the ring model.

Wire bytes are per device: see `ring`. A permute counts the bytes sent to another device, averaged over all devices. Loop bodies
count once per iteration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from meshbridge.analysis.executions import Execution, Weigh, executed
from meshbridge.analysis.origins import Origin
from meshbridge.analysis.ring import WIRE_BYTES
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import CollectiveOpView, PermuteOp, ShiftOp, UpdateHaloOp
from meshbridge.ir.builder import element_of
from meshbridge.ir.device_lists import axes_within, device_table, positions_of
from meshbridge.ir.digits import axes_of, group_size, groups_along
from meshbridge.ir.elements import element_bytes, tensor_bytes
from meshbridge.ir.groups import read_digits, read_groups
from meshbridge.ir.locations import SourceLocation, location_of, reason_at, requester_at
from meshbridge.ir.mlir import MeshError, OpError, ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ir.shifts import received
from meshbridge.ops.traits import Trait, ops_with


@dataclass(frozen=True)
class Collective:
    """One collective of the program. Bytes are per device and execution; a step executes it `executions` times."""

    kind: str
    "The operation's name without its prefix, in the mesh dialect, or in StableHLO if the dialect has none."
    axes: tuple[str, ...]
    "Mesh axes of a group of devices, by the user's names, outer first."
    group_size: int
    wire_bytes: float
    executions: int
    location: SourceLocation
    "The innermost source line that requires it, which may be in a library."
    why: str = ""
    "The operation, operand and sharding that need it; empty without reasons (see `locations`)."
    asked: str = ""
    """Who requested the sharding that needs it: `your constraint at model.py:42`, `your sharding of result['loss']`, `chosen
    here; next best: …`; empty without reasons."""
    origins: tuple[Origin, ...] = ()
    "Its places in the model, several if it combines several collectives; empty without reports."
    seconds: float | None = None
    "Seconds of one execution, on a machine with a topology, whether or not the device computes meanwhile."

    @property
    def total_bytes(self) -> float:
        """Bytes of all executions of one run."""
        return self.wire_bytes * self.executions

    @property
    def total_seconds(self) -> float | None:
        """Seconds of all executions of one run; None if unknown."""
        return None if self.seconds is None else self.seconds * self.executions

    @property
    def origin(self) -> Origin | None:
        """The origin of most of its bytes; None if unknown."""
        return max(self.origins, key=lambda origin: origin.share, default=None)


@dataclass(frozen=True)
class Communication:
    """A program's collectives in program order."""

    collectives: tuple[Collective, ...]

    @property
    def wire_bytes(self) -> float:
        """Bytes that one device sends in one run."""
        return sum(collective.total_bytes for collective in self.collectives)

    @property
    def executions(self) -> int:
        """The number of collectives that one run starts."""
        return sum(collective.executions for collective in self.collectives)

    def bytes_by_kind(self) -> dict[str, float]:
        """Wire bytes of each kind, most first."""
        totals: dict[str, float] = {}
        for collective in self.collectives:
            totals[collective.kind] = totals.get(collective.kind, 0.0) + collective.total_bytes
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))

    def count_by_kind(self) -> dict[str, int]:
        """The number of collectives of each kind, in the order of `bytes_by_kind`."""
        counts = Counter(collective.kind for collective in self.collectives)
        return {kind: counts[kind] for kind in self.bytes_by_kind()}


def communication(module: ir.Module) -> Communication:
    """The mesh and StableHLO collectives of a module; the latter come from reshardings over factors of axes and from manual
    computations. Of branches, the one with the most wire bytes counts."""
    meshes = declared_meshes(module.body)
    return Communication(tuple(collectives(executed(module, weigh=wire_bytes_on(meshes)), meshes)))


def wire_bytes(module: ir.Module) -> float:
    """`communication(module).wire_bytes`, without saying where they are."""
    weigh = wire_bytes_on(declared_meshes(module.body))
    return weigh(list(executed(module, weigh=weigh)))


def wire_bytes_on(meshes: dict[str, Mesh]) -> Weigh:
    """Weighs operations by wire bytes, to find the most expensive branch."""
    return lambda ops: sum(group.wire_bytes * times for _, times, group in _groups(ops, meshes))


def collectives(ops: Iterable[Execution], meshes: dict[str, Mesh]) -> Iterable[Collective]:
    """The collectives among the ops of a program that runs on `meshes`."""
    return (collective for *_, collective in communicating(ops, meshes))


def communicating(ops: Iterable[Execution], meshes: dict[str, Mesh]) -> Iterable[tuple[ir.Operation, Mesh, Axes, Collective]]:
    """The collectives with their ops, meshes, and the mesh axes of their groups."""
    for op, times, group in _groups(ops, meshes):
        mesh, axes, size, sent = group
        kind, reason, requester = op.name.partition(".")[2], reason_at(op), requester_at(op)
        yield op, mesh, axes, Collective(kind, mesh.labels(axes), size, sent, times, location_of(op), reason, requester)


class _Group(NamedTuple):
    """What a collective sends within a group of devices."""

    mesh: Mesh
    axes: Axes
    size: int
    wire_bytes: float


def _groups(ops: Iterable[Execution], meshes: dict[str, Mesh]) -> Iterator[tuple[ir.Operation, int, _Group]]:
    """The collectives among some ops, with the number of their executions and their groups."""
    grouped, permuted = cache(_grouped), cache(_moved)  # lists of all devices are parsed once
    for op, times in ops:
        if (name := op.name) not in COMMUNICATING:
            continue
        dialect, _, kind = name.partition(".")
        if dialect == "mesh":
            mesh = meshes[CollectiveOpView(op).mesh]
            axes, sent = _MESH[kind](op, mesh)
            size = mesh.group_size(axes)
        elif "replica_groups" in op.attributes:
            mesh = _largest(meshes)
            axes, size = grouped(op.attributes["replica_groups"], mesh)
            sent = sum(_ring(kind, size, *pair) for pair in zip(op.operands, op.results, strict=True))
        else:
            mesh = _largest(meshes)
            axes, share = permuted(op.attributes["source_target_pairs"], mesh)
            size = mesh.group_size(axes)
            sent = share * tensor_bytes(op.operands[0])
        yield op, times, _Group(mesh, axes, size, sent)


AxesAndBytes = tuple[Axes, float]
"""The mesh axes of a collective, and its wire bytes."""


def _in_a_ring(op: ir.Operation, mesh: Mesh) -> AxesAndBytes:
    axes = CollectiveOpView(op).mesh_axes
    return axes, _ring(op.name.removeprefix("mesh."), mesh.group_size(axes), op.operands[0], op.results[0])


_RING_KIND = {
    "gather": "all-gather",
    "reduce": "all-reduce",
    "scatter": "reduce-scatter",
    "broadcast": "collective-broadcast",
}
"""Mesh operations that cost as much as another kind."""


def _ring(kind: str, size: int, operand: ir.Value, result: ir.Value) -> float:
    name = _RING_KIND.get(kind, kind.replace("_", "-"))
    return WIRE_BYTES[name](size, max(tensor_bytes(operand), tensor_bytes(result))) if size else 0.0


def _permute(op: ir.Operation, mesh: Mesh) -> AxesAndBytes:
    """Devices with the same number along both lists of axes keep their values."""
    view = PermuteOp(op)
    axes = view.mesh_axes
    order = tuple(axes.index(axis) for axis in view.target_axes)
    return axes, _relabelled(tuple(mesh.shape[axis] for axis in axes), order) * tensor_bytes(op.operands[0])


@lru_cache(maxsize=256)
def _relabelled(sizes: tuple[int, ...], order: tuple[int, ...]) -> float:
    """The share of the devices of a group whose number changes if its digits, of these sizes, are permuted."""
    numbers = np.arange(prod(sizes)).reshape(sizes)
    return float((numbers.transpose(order).ravel() != numbers.ravel()).mean())


def _shift(op: ir.Operation, mesh: Mesh) -> AxesAndBytes:
    """Without rotation, the devices at one end send nothing."""
    view = ShiftOp(op)
    axes = (view.shift_axis,)
    return axes, _shifted(op.operands[0], 1, mesh, axes, view.offset, rotate=view.rotate)


def _shifted(value: ir.Value, share: float, mesh: Mesh, axes: Axes, offset: int, *, rotate: bool = False) -> float:
    """Bytes that a device receives when `share` of `value` is shifted."""
    size = element_bytes(str(element_of(value)))
    return received(share * tensor_bytes(value) / size, mesh, axes, offset, rotate=rotate) * size


def _send(op: ir.Operation, mesh: Mesh) -> AxesAndBytes:
    """One device of each group sends."""
    axes = CollectiveOpView(op).mesh_axes
    return axes, tensor_bytes(op.operands[0]) / mesh.group_size(axes)


def _halo(op: ir.Operation, mesh: Mesh) -> AxesAndBytes:
    """A slab from each neighbour, dimension by dimension; devices at one end of the mesh send none."""
    view, whole = UpdateHaloOp(op), ir.RankedTensorType(op.operands[0].type)
    split = [(dim, axes) for dim, axes in enumerate(view.split_axes) if axes]
    wire = 0.0
    for (dim, axes), before, after in zip(split, view.halo_sizes[0::2], view.halo_sizes[1::2], strict=False):
        if DYNAMIC in (before, after):
            raise OpError(op, "has halo sizes that only a run knows, expected constants")
        for offset, width in ((1, before), (-1, after)):
            wire += _shifted(op.operands[0], width / whole.shape[dim], mesh, axes, offset)
    return tuple(axis for _, axes in split for axis in axes), wire


_MESH: dict[str, Callable[[ir.Operation, Mesh], AxesAndBytes]] = {
    **dict.fromkeys(("all_gather", "all_reduce", "reduce_scatter", "all_to_all", *_RING_KIND), _in_a_ring),
    "permute": _permute,
    "shift": _shift,
    "send": _send,
    "update_halo": _halo,
}
"""Mesh operations that communicate. `recv` is the other end of a send, `all_slice` is local."""


COMMUNICATING = ops_with(Trait.COLLECTIVE, dialect="stablehlo") | {f"mesh.{kind}" for kind in _MESH}
"""Operations that `communicating` finds."""


def _largest(meshes: dict[str, Mesh]) -> Mesh:
    return max(meshes.values(), key=lambda mesh: mesh.size)


def _grouped(groups: ir.Attribute, mesh: Mesh) -> tuple[Axes, int]:
    """The mesh axes of device groups, and the size of a group. Raises MeshError for groups along unknown axes."""
    if not isinstance(groups, ir.DenseElementsAttr) and (digits := read_digits(groups, mesh)) is not None:
        axes = axes_of(mesh, digits)
        return axes_within(positions_of(groups_along(mesh, digits), mesh), mesh) if axes is None else axes, group_size(digits)
    table = device_table(groups) if isinstance(groups, ir.DenseElementsAttr) else read_groups(groups, mesh)
    if table is None:
        raise MeshError(f"error: expected device groups along axes of @{mesh.name}, found {groups}")
    return axes_within(positions_of(table, mesh), mesh), table.shape[1]


def _moved(pairs: ir.Attribute, mesh: Mesh) -> tuple[Axes, float]:
    """The mesh axes along which a permute sends, and the share of all devices that send to another one."""
    table = device_table(pairs)
    return axes_within(positions_of(table, mesh), mesh), float((table[:, 0] != table[:, 1]).sum()) / mesh.size
