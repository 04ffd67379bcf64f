"""`merge-permutes`: combines independent permutes in fewer launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np

from meshbridge.collectives.independent_collectives import Candidate, CombinedCollectives, group_independent, replace
from meshbridge.collectives.permute_plans import Edges, LaneExchange, LanePermute, Launch, PermutePairs, Planner
from meshbridge.collectives.rewriter import MeshRewriter
from meshbridge.cost.objective import objective
from meshbridge.cost.permutes import permute_time
from meshbridge.cost.seconds import collective_time
from meshbridge.dialect import build
from meshbridge.dialect.ops import CollectiveOpView, PermuteOp, ShiftOp
from meshbridge.dialect.signature import shape_of as type_shape
from meshbridge.ir.builder import Builder, Shape, element_of, shape_of, tensor
from meshbridge.ir.device_lists import device_table, positions_of
from meshbridge.ir.digits import Numbers, axis_digits, group_index, group_size, groups_along
from meshbridge.ir.elements import is_bytewise, type_bytes
from meshbridge.ir.groups import Groups, lists_devices, lists_shifted, rotated, shifted
from meshbridge.ir.mlir import find, ir, op_key
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.per_device import entry
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.machines.compile_target import BYTES_TARGET, CompileTarget
from meshbridge.machines.layout import place


@register
@dataclass(frozen=True)
class MergePermutes(Pass):
    """Combines independent permutes without sending more bytes: into one permute if no device sends or receives twice, or into
    one all-to-all if each device sends to each.

    Input:   %0 = mesh.shift %x on @m mesh_axes = [0] shift_axis = 0 offset = 1 : tensor<4xf32> -> tensor<4xf32>
             %1 = mesh.shift %y on @m mesh_axes = [0] shift_axis = 0 offset = -1 : tensor<4xf32> -> tensor<4xf32>
    Output:  %sends = stablehlo.compare GE, %number, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
             %sent = stablehlo.select %sends, %y, %x : tensor<i1>, tensor<4xf32>
             %moved = "stablehlo.collective_permute"(%sent) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : …
             %0 = stablehlo.select %sends, %moved, %zeros : tensor<i1>, tensor<4xf32>
             %1 = stablehlo.select %receives, %moved, %zeros : tensor<i1>, tensor<4xf32>

    on two devices, where `%number` is the device's number. Devices that receive nothing get zeros, as before. Permutes of the
    same pairs of devices share a flat buffer. All are in one block and have one element type; the replacement is at the position
    of the last one.
    """

    name: ClassVar[str] = "merge-permutes"
    bytes: int = 2**16
    """The largest buffer that is copied to save a launch, as in `combine-collectives`."""
    target: CompileTarget = BYTES_TARGET
    """The target whose time is minimized (docs/planning.md). Except for `bytes`, more bytes may be sent if that takes less time:
    operands are padded to one size, and an all-to-all also sends for devices with nothing to send; the busiest device sends no
    more than before."""

    def run(self, module: ir.Module) -> bool:
        """Raises MeshError if the mesh does not fit the topology of the target."""
        with rewriting(MeshRewriter, module) as rewriter:
            return merge(rewriter, self.bytes, self.target)


_LISTED = "stablehlo.collective_permute"
_NAMES = frozenset((ShiftOp.OPERATION_NAME, PermuteOp.OPERATION_NAME, _LISTED))


def merge(rewriter: MeshRewriter, limit: float, target: CompileTarget) -> bool:
    """Merges permutes (see the options of `MergePermutes`); returns whether the program changed."""
    changed = False
    while _merge_once(rewriter, limit, target):  # a merged permute may be next to more
        changed = True
    return changed


def _merge_once(rewriter: MeshRewriter, limit: float, target: CompileTarget) -> bool:
    rewriter.finish()
    by_key: dict[object, _GroupPermute | None] = {}
    by_result: dict[ir.Value, _GroupPermute] = {}
    candidates = []
    for op in find(rewriter.module.operation, _NAMES):
        if (key := op_key(op)) not in by_key:
            by_key[key] = _group_permute(op, rewriter.meshes)
        if (pairs := by_key[key]) is not None:
            by_result[op.results[0]] = pairs
            candidates.append(Candidate(op, (pairs.mesh.name, pairs.axes, element_of(op.operands[0])), pairs.moves.size))
    merged = []
    for group in group_independent(candidates, rewriter, np.inf):
        permutes = [by_result[candidate.op.results[0]] for candidate in group]
        launches = _planner(permutes[0], limit, target).plan([candidate.moves for candidate in permutes])
        if len(launches) < len(group):
            merged.append(_replacement([candidate.op for candidate in group], permutes, launches, rewriter))
    return replace(merged, rewriter)


@dataclass(frozen=True, eq=False)
class _GroupPermute:
    """A permute by numbers in each group along mesh axes."""

    mesh: Mesh
    axes: Axes
    moves: PermutePairs
    unmoved: Numbers
    "Members that keep their own value."

    @property
    def count(self) -> int:
        """Members of a group."""
        return self.mesh.group_size(self.axes)


def _group_permute(op: ir.Operation, meshes: dict[str, Mesh]) -> _GroupPermute | None:
    """The permute of `op`; None if devices or sizes are unknown or not listed, and if nothing is sent."""
    type_ = op.operands[0].type
    if not meshes or DYNAMIC in type_shape(type_) or not is_bytewise(type_) or not type_bytes(type_):
        return None
    mesh = max(meshes.values(), key=lambda mesh: mesh.size) if op.name == _LISTED else meshes[CollectiveOpView(op).mesh]
    if DYNAMIC in mesh.shape or (positions := _positions(op, mesh)) is None:
        return None
    axes, steps = _in_groups(positions, mesh)
    moving = steps[:, 0] != steps[:, 1]
    if not moving.any():
        return None
    senders, receivers = steps[moving].T
    return _GroupPermute(mesh, axes, PermutePairs(senders, receivers, int(type_bytes(type_))), steps[~moving, 0])


def _positions(op: ir.Operation, mesh: Mesh) -> Numbers | None:
    """Row-major device positions of senders and receivers, in two columns; None if the permute would not be listed, or names
    devices outside of the mesh."""
    if op.name == _LISTED:
        if "channel_handle" not in op.attributes:  # devices are replicas
            return None
        listed = device_table(op.attributes["source_target_pairs"])
        return positions_of(listed, mesh) if listed.size and int(listed.max()) < mesh.size else None
    if op.name == PermuteOp.OPERATION_NAME:
        if not lists_devices(mesh):
            return None
        ends = PermuteOp(op).mesh_axes, PermuteOp(op).target_axes
        return np.stack([groups_along(mesh, axis_digits(mesh, axes)).ravel() for axes in ends], axis=1)
    view = ShiftOp(op)
    count, offset = mesh.shape[view.shift_axis], view.offset
    if not lists_shifted(mesh) or (not view.rotate and abs(offset) >= count):
        return None
    steps = rotated(count, offset) if view.rotate else shifted(count, offset)
    return groups_along(mesh, axis_digits(mesh, (view.shift_axis,)))[:, steps].reshape(-1, 2)


def _in_groups(positions: Numbers, mesh: Mesh) -> tuple[Axes, Numbers]:
    """The mesh axes along which devices send, and the pairs in each group; all axes if groups differ."""
    ends = np.array(np.unravel_index(positions, mesh.shape))
    varying_axes = tuple(axis for axis in range(mesh.rank) if (ends[axis, :, 0] != ends[axis, :, 1]).any())
    all_axes = tuple(range(mesh.rank))
    for axes in (varying_axes, all_axes):
        digits = axis_digits(mesh, axes)
        steps = Counter(map(tuple, np.stack([group_index(digits, side) for side in positions.T], axis=1).tolist()))
        if set(steps.values()) == {mesh.size // group_size(digits)}:
            return axes, np.array(sorted(steps), np.int64)
    raise AssertionError("all devices are one group")


def _planner(permute: _GroupPermute, limit: float, target: CompileTarget) -> Planner:
    """The planner for permutes along the axes of `permute`. XLA:GPU combines permutes of the same pairs, and XLA:TPU does not
    (jaxlib 0.10.2, three of 4 KB, 8 H100 and 8 v5e)."""
    count, axes, launch = permute.count, permute.axes, objective(target).launch
    if not launch:
        return Planner(count, limit, launch, lambda planned: planned.total_bytes(count))
    compiler_combines = target.machine is not None and target.machine.platform == "gpu"
    if target.devices is None:
        return Planner(count, limit, launch, lambda planned: planned.busiest_bytes + launch, compiler_combines)
    placement = place(permute.mesh, target.devices)

    def seconds(planned: Launch) -> float:
        if isinstance(planned, LaneExchange):
            return collective_time("all_to_all", planned.buffer, axes, placement).seconds
        return permute_time(planned.busiest_bytes, planned.lanes[0].senders, planned.lanes[0].receivers, axes, placement).seconds

    return Planner(count, limit, launch, seconds, compiler_combines)


def _replacement(
    ops: Sequence[ir.Operation], permutes: Sequence[_GroupPermute], launches: Iterable[Launch], rewriter: MeshRewriter
) -> CombinedCollectives:
    """The replacement of the permutes that change."""
    changed = [launch for launch in launches if not _is_one_of(launch, permutes)]
    numbers = sorted({number for launch in changed for edges in _edges_of(launch) for number in edges.permutes.tolist()})
    number_of = {ops[number].results[0]: number for number in numbers}

    def write(members: list[ir.Operation], builder: Builder) -> list[ir.Value]:
        writer = _LaunchWriter(permutes, {number_of[op.results[0]]: op.operands[0] for op in members}, builder, rewriter)
        for launch in changed:
            writer.add(launch)
        return [writer.result(number_of[op.results[0]]) for op in members]

    return CombinedCollectives([ops[number] for number in numbers], len(changed), write)


def _edges_of(launch: Launch) -> Sequence[Edges]:
    return launch.lanes if isinstance(launch, LanePermute) else (launch.edges,)


def _is_one_of(launch: Launch, permutes: Sequence[_GroupPermute]) -> bool:
    """True if a launch is one of the original permutes."""
    if not isinstance(launch, LanePermute) or len(launch.lanes) > 1:
        return False
    (lane,) = launch.lanes
    number = lane.permutes[0]
    return bool((lane.permutes == number).all()) and len(lane.permutes) == len(permutes[number].moves.senders)


@dataclass
class _LaunchWriter:
    """Builds launches, and the results of the permutes that they replace."""

    permutes: Sequence[_GroupPermute]
    operands: dict[int, ir.Value]
    "The operand of each replaced permute, by number."
    builder: Builder
    rewriter: MeshRewriter
    arrived: dict[int, list[tuple[Numbers, ir.Value]]] = field(default_factory=dict)
    "By permute, the receivers, and the value that holds what they receive."

    def __post_init__(self) -> None:
        site = self.permutes[0]
        self.mesh, self.axes, self.count = site.mesh, site.axes, site.count
        self.number = build.group_index(self.mesh, mesh_axes=self.axes, at=self.builder)
        self._conditions: dict[bytes, ir.Value] = {}

    def add(self, launch: Launch) -> None:
        """Builds one launch."""
        if isinstance(launch, LanePermute):
            self._permute(launch)
        else:
            self._exchange(launch)

    def result(self, number: int) -> ir.Value:
        """The result of the permute of that number, with zeros on devices that receive nothing."""
        operand = self.operands[number]
        value = self.builder.splat(operand.type, 0)
        for devices, received in [*self.arrived[number], (self.permutes[number].unmoved, operand)]:
            value = self._select(devices, received, value)
        return value

    def _permute(self, launch: LanePermute) -> None:
        numbers = {number for lane in launch.lanes for number in lane.permutes.tolist()}
        shapes = {tuple(shape_of(self.operands[number])) for number in numbers}
        flat = len(launch.lanes) > 1 or len(shapes) > 1
        lengths = [self._elements(lane) for lane in launch.lanes]
        buffers = [self._sent(lane, [length] if flat else None) for lane, length in zip(launch.lanes, lengths, strict=True)]
        value = self.builder.concatenate(buffers, 0) if flat else buffers[0]
        pairs = np.stack([launch.lanes[0].senders, launch.lanes[0].receivers], axis=1)
        attrs = Groups().permute(self.mesh, axis_digits(self.mesh, self.axes), pairs)
        received = self.builder.value("collective_permute", value.type, [value], attrs)
        start = 0
        for lane, length in zip(launch.lanes, lengths, strict=True):
            piece = self.builder.slice(received, 0, start, length) if flat else received
            start += length
            for number in sorted({*lane.permutes.tolist()}):
                arrived = self._of_shape(piece, shape_of(self.operands[number])) if flat else piece
                self._arrives(number, lane.receivers[lane.permutes == number], arrived)

    def _exchange(self, launch: LaneExchange) -> None:
        """Sends row `slot` for each member to it, and reads row `slot` from each member."""
        edges, slots, length = launch.edges, launch.slots, self._elements(launch.edges)
        unused = self.builder.splat(tensor([1, length], element_of(next(iter(self.operands.values())))), 0)
        rows = []
        for receiver in range(self.count):
            for slot in range(slots):
                chosen = edges.where((edges.receivers == receiver) & (launch.slot == slot))
                rows.append(self._sent(chosen, [1, length]) if len(chosen.senders) else unused)
        buffer = self.builder.concatenate(rows, 0)
        received = build.all_to_all(buffer, self.mesh, mesh_axes=self.axes, split_axis=0, concat_axis=0, at=self.builder)
        self.rewriter.adopt(received)
        for number in sorted({*edges.permutes.tolist()}):
            own = edges.permutes == number
            receivers, row = edges.receivers[own], edges.senders[own] * slots + launch.slot[own]
            if (row == row[0]).all():
                piece = self.builder.slice(received, 0, int(row[0]), 1)
            else:
                column = np.full(self.count, row[0])
                column[receivers] = row
                piece = self.builder.dynamic_slice(received, 0, entry(self.builder, column, self.number), 1)
            self._arrives(
                number, receivers, self._of_shape(self.builder.reshape(piece, [length]), shape_of(self.operands[number]))
            )

    def _arrives(self, number: int, receivers: Numbers, value: ir.Value) -> None:
        self.arrived.setdefault(number, []).append((receivers, value))

    def _elements(self, edges: Edges) -> int:
        """The number of elements that an edge carries."""
        number = int(edges.permutes[0])
        unit = self.permutes[number].moves.size // prod(shape_of(self.operands[number]))
        return edges.size // unit

    def _sent(self, edges: Edges, shape: Shape | None) -> ir.Value:
        """The value that this device sends along one of the edges, padded to `shape` if given; arbitrary if it sends nothing."""
        senders: dict[ir.Value, list[int]] = {}
        for number, sender in zip(edges.permutes.tolist(), edges.senders.tolist(), strict=True):
            senders.setdefault(self.operands[number], []).append(sender)
        values = [value if shape is None else self._flat(value, shape) for value in senders]
        value = values[0]
        for devices, alternative in list(zip(senders.values(), values, strict=True))[1:]:
            value = self._select(np.array(devices), alternative, value)
        return value

    def _flat(self, value: ir.Value, shape: Shape) -> ir.Value:
        total = prod(shape_of(value))
        return self.builder.reshape(
            self.builder.pad_along(self.builder.reshape(value, [total]), 0, 0, 0, shape[-1] - total), shape
        )

    def _of_shape(self, flat: ir.Value, shape: Shape) -> ir.Value:
        return self.builder.reshape(self.builder.slice(flat, 0, 0, prod(shape)), shape)

    def _select(self, devices: Numbers, selected: ir.Value, elsewhere: ir.Value) -> ir.Value:
        """`selected` on these members of each group, `elsewhere` on the others."""
        if len(devices) in (0, self.count):
            return selected if len(devices) else elsewhere
        devices = np.sort(devices)
        key = devices.tobytes()
        if key not in self._conditions:
            self._conditions[key] = self._is_among(devices)
        return self.builder.select(self._conditions[key], selected, elsewhere)

    def _is_among(self, devices: Numbers) -> ir.Value:
        """True on `devices`, which are some but not all members of a group, in order."""
        low, high = int(devices[0]), int(devices[-1])
        if high - low + 1 == len(devices):
            bounds = [("GE", low)] if low else []
            bounds += [("LE", high)] if high < self.count - 1 else []
            return self.builder.all_of(self.builder.compare(direction, self.number, bound) for direction, bound in bounds)
        column = np.zeros(self.count, np.int64)
        column[devices] = 1
        return self.builder.compare("EQ", entry(self.builder, column, self.number), 1)
