"""`merge-permutes`: permutes that do not wait for one another travel in fewer launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

import numpy as np

from meshbridge.collectives.independent import Candidate, CombinedCollectives, independent, replace
from meshbridge.collectives.permute_plans import Edges, LaneExchange, LanePermute, Launch, Moves, Planner
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
    """Lets permutes that do not need one another share launches, of no more bytes: where no device sends or receives twice one
    permute does what several do, and one all-to-all what several do in which each device sends to each.

    Input:   %0 = mesh.shift %x on @m mesh_axes = [0] shift_axis = 0 offset = 1 : tensor<4xf32> -> tensor<4xf32>
             %1 = mesh.shift %y on @m mesh_axes = [0] shift_axis = 0 offset = -1 : tensor<4xf32> -> tensor<4xf32>
    Output:  %sends = stablehlo.compare GE, %number, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
             %sent = stablehlo.select %sends, %y, %x : tensor<i1>, tensor<4xf32>
             %moved = "stablehlo.collective_permute"(%sent) <{source_target_pairs = dense<[[0, 1], [1, 0]]> : …
             %0 = stablehlo.select %sends, %moved, %zeros : tensor<i1>, tensor<4xf32>
             %1 = stablehlo.select %receives, %moved, %zeros : tensor<i1>, tensor<4xf32>

    on two devices, of which `%number` says which one this is. What arrives is what it was, zeros where nothing does. Permutes of
    the same pairs of devices share a flat buffer. They stand in one block and have one element type; what replaces them stands
    where the last one does.
    """

    name: ClassVar[str] = "merge-permutes"
    bytes: int = 2**16
    """Up to as many bytes are copied into one buffer to spare a launch, as in `combine-collectives`."""
    target: CompileTarget = BYTES_TARGET
    """For whose time to plan (docs/targets.md). On any but `bytes` more bytes may be sent where it takes less time: operands are
    padded to one size, and an all-to-all also sends for devices that had nothing to send; the busiest device sends no more."""

    def run(self, module: ir.Module) -> bool:
        """Raises MeshError where the mesh does not fit the topology of the target."""
        with rewriting(MeshRewriter, module) as rewriter:
            return merge(rewriter, self.bytes, self.target)


_LISTED = "stablehlo.collective_permute"
_NAMES = frozenset((ShiftOp.OPERATION_NAME, PermuteOp.OPERATION_NAME, _LISTED))


def merge(rewriter: MeshRewriter, limit: float, target: CompileTarget) -> bool:
    """Merges what it can (see the options of `MergePermutes`); returns whether there was anything."""
    changed = False
    while _merge_once(rewriter, limit, target):  # what has been merged may stand beside more
        changed = True
    return changed


def _merge_once(rewriter: MeshRewriter, limit: float, target: CompileTarget) -> bool:
    rewriter.finish()
    known: dict[object, _Pairs | None] = {}
    found: dict[ir.Value, _Pairs] = {}
    candidates = []
    for op in find(rewriter.module.operation, _NAMES):
        if (key := op_key(op)) not in known:
            known[key] = _pairs_of(op, rewriter.meshes)
        if (pairs := known[key]) is not None:
            found[op.results[0]] = pairs
            candidates.append(Candidate(op, (pairs.mesh.name, pairs.axes, element_of(op.operands[0])), pairs.moves.size))
    merged = []
    for group in independent(candidates, rewriter, np.inf):
        permutes = [found[each.op.results[0]] for each in group]
        launches = _planner(permutes[0], limit, target).plan([each.moves for each in permutes])
        if len(launches) < len(group):
            merged.append(_replacement([each.op for each in group], permutes, launches, rewriter))
    return replace(merged, rewriter)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Who sends to whom in each group along mesh axes: numbers in the group."""

    mesh: Mesh
    axes: Axes
    moves: Moves
    kept: Numbers
    "Who has what it gives."

    @property
    def count(self) -> int:
        """Members of a group."""
        return self.mesh.group_size(self.axes)


def _pairs_of(op: ir.Operation, meshes: dict[str, Mesh]) -> _Pairs | None:
    """None where devices or sizes are not known or not listed, and where nothing moves."""
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
    return _Pairs(mesh, axes, Moves(senders, receivers, int(type_bytes(type_))), steps[~moving, 0])


def _positions(op: ir.Operation, mesh: Mesh) -> Numbers | None:
    """Row-major numbers of the devices that send and of those that receive, in two columns; None where no permute would list
    them, and for devices that the mesh has not."""
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
    """The mesh axes along which devices send, and what the members of each group do: those of all axes where groups differ."""
    ends = np.array(np.unravel_index(positions, mesh.shape))
    moved = tuple(axis for axis in range(mesh.rank) if (ends[axis, :, 0] != ends[axis, :, 1]).any())
    every = tuple(range(mesh.rank))
    for axes in (moved, every):
        digits = axis_digits(mesh, axes)
        steps = Counter(map(tuple, np.stack([group_index(digits, side) for side in positions.T], axis=1).tolist()))
        if set(steps.values()) == {mesh.size // group_size(digits)}:
            return axes, np.array(sorted(steps), np.int64)
    raise AssertionError("all devices are one group")


def _planner(pairs: _Pairs, limit: float, target: CompileTarget) -> Planner:
    """What plans for permutes along the axes of `pairs`. XLA:GPU joins permutes of the same pairs, and XLA:TPU does not (jaxlib
    0.10.2, three of 4 KB, 8 H100 and 8 v5e)."""
    count, axes, launch = pairs.count, pairs.axes, objective(target).launch
    if not launch:
        return Planner(count, limit, launch, lambda each: each.sent(count))
    joins = target.machine is not None and target.machine.platform == "gpu"
    if target.devices is None:
        return Planner(count, limit, launch, lambda each: each.longest + launch, joins)
    placement = place(pairs.mesh, target.devices)

    def seconds(each: Launch) -> float:
        if isinstance(each, LaneExchange):
            return collective_time("all_to_all", each.buffer, axes, placement).seconds
        return permute_time(each.longest, each.lanes[0].senders, each.lanes[0].receivers, axes, placement).seconds

    return Planner(count, limit, launch, seconds, joins)


def _replacement(
    ops: Sequence[ir.Operation], permutes: Sequence[_Pairs], launches: Iterable[Launch], rewriter: MeshRewriter
) -> CombinedCollectives:
    """What replaces those of the permutes that do not stay as they are."""
    changed = [launch for launch in launches if not _is_one_of(launch, permutes)]
    numbers = sorted({number for launch in changed for edges in _edges_of(launch) for number in edges.permutes.tolist()})
    number_of = {ops[number].results[0]: number for number in numbers}

    def write(members: list[ir.Operation], emit: Builder) -> list[ir.Value]:
        written = _Written(permutes, {number_of[op.results[0]]: op.operands[0] for op in members}, emit, rewriter)
        for launch in changed:
            written.add(launch)
        return [written.result(number_of[op.results[0]]) for op in members]

    return CombinedCollectives([ops[number] for number in numbers], len(changed), write)


def _edges_of(launch: Launch) -> Sequence[Edges]:
    return launch.lanes if isinstance(launch, LanePermute) else (launch.edges,)


def _is_one_of(launch: Launch, permutes: Sequence[_Pairs]) -> bool:
    """Whether a launch is one of the permutes as it was."""
    if not isinstance(launch, LanePermute) or len(launch.lanes) > 1:
        return False
    (lane,) = launch.lanes
    first = lane.permutes[0]
    return bool((lane.permutes == first).all()) and len(lane.permutes) == len(permutes[first].moves.senders)


@dataclass
class _Written:
    """Launches that are written, and what of each permute has arrived."""

    permutes: Sequence[_Pairs]
    operands: dict[int, ir.Value]
    "Of each permute that is replaced, by its number."
    emit: Builder
    rewriter: MeshRewriter
    arrived: dict[int, list[tuple[Numbers, ir.Value]]] = field(default_factory=dict)
    "Of each permute, who receives something, and a value which they have that in."

    def __post_init__(self) -> None:
        site = self.permutes[0]
        self.mesh, self.axes, self.count = site.mesh, site.axes, site.count
        numbers = self.emit.iota([self.count], 0)
        own = build.all_slice(numbers, self.mesh, mesh_axes=self.axes, slice_axis=0, at=self.emit)
        self.number = self.emit.reshape(own, [])
        self._conditions: dict[bytes, ir.Value] = {}

    def add(self, launch: Launch) -> None:
        """Writes one launch."""
        if isinstance(launch, LanePermute):
            self._permute(launch)
        else:
            self._exchange(launch)

    def result(self, number: int) -> ir.Value:
        """What the permute of that number gives: zeros where nothing arrives."""
        operand = self.operands[number]
        value = self.emit.splat(operand.type, 0)
        for devices, found in [*self.arrived[number], (self.permutes[number].kept, operand)]:
            value = self._select(devices, found, value)
        return value

    def _permute(self, launch: LanePermute) -> None:
        numbers = {number for lane in launch.lanes for number in lane.permutes.tolist()}
        shapes = {tuple(shape_of(self.operands[number])) for number in numbers}
        flat = len(launch.lanes) > 1 or len(shapes) > 1
        lengths = [self._elements(lane) for lane in launch.lanes]
        sent = [self._sent(lane, [length] if flat else None) for lane, length in zip(launch.lanes, lengths, strict=True)]
        value = self.emit.concatenate(sent, 0) if flat else sent[0]
        pairs = np.stack([launch.lanes[0].senders, launch.lanes[0].receivers], axis=1)
        attrs = Groups().moves(self.mesh, axis_digits(self.mesh, self.axes), pairs)
        moved = self.emit.value("collective_permute", value.type, [value], attrs)
        start = 0
        for lane, length in zip(launch.lanes, lengths, strict=True):
            piece = self.emit.slice(moved, 0, start, length) if flat else moved
            start += length
            for number in sorted({*lane.permutes.tolist()}):
                found = self._of_shape(piece, shape_of(self.operands[number])) if flat else piece
                self._arrives(number, lane.receivers[lane.permutes == number], found)

    def _exchange(self, launch: LaneExchange) -> None:
        """Row `slot` of those for a member is what this device sends to it, and then what this device has from it."""
        edges, slots, length = launch.edges, launch.slots, self._elements(launch.edges)
        unused = self.emit.splat(tensor([1, length], element_of(next(iter(self.operands.values())))), 0)
        rows = []
        for receiver in range(self.count):
            for slot in range(slots):
                chosen = edges.where((edges.receivers == receiver) & (launch.slot == slot))
                rows.append(self._sent(chosen, [1, length]) if len(chosen.senders) else unused)
        buffer = self.emit.concatenate(rows, 0)
        moved = build.all_to_all(buffer, self.mesh, mesh_axes=self.axes, split_axis=0, concat_axis=0, at=self.emit)
        self.rewriter.adopt(moved)
        for number in sorted({*edges.permutes.tolist()}):
            own = edges.permutes == number
            receivers, row = edges.receivers[own], edges.senders[own] * slots + launch.slot[own]
            if (row == row[0]).all():
                piece = self.emit.slice(moved, 0, int(row[0]), 1)
            else:
                column = np.full(self.count, row[0])
                column[receivers] = row
                piece = self.emit.dynamic_slice(moved, 0, entry(self.emit, column, self.number), 1)
            self._arrives(number, receivers, self._of_shape(self.emit.reshape(piece, [length]), shape_of(self.operands[number])))

    def _arrives(self, number: int, receivers: Numbers, value: ir.Value) -> None:
        self.arrived.setdefault(number, []).append((receivers, value))

    def _elements(self, edges: Edges) -> int:
        """How many elements an edge carries."""
        number = int(edges.permutes[0])
        unit = self.permutes[number].moves.size // prod(shape_of(self.operands[number]))
        return edges.size // unit

    def _sent(self, edges: Edges, shape: Shape | None) -> ir.Value:
        """What this device sends along one of the edges, in a `shape` that it is padded to, if there is one; anything where it
        sends nothing."""
        senders: dict[ir.Value, list[int]] = {}
        for number, sender in zip(edges.permutes.tolist(), edges.senders.tolist(), strict=True):
            senders.setdefault(self.operands[number], []).append(sender)
        values = [value if shape is None else self._flat(value, shape) for value in senders]
        value = values[0]
        for devices, other in list(zip(senders.values(), values, strict=True))[1:]:
            value = self._select(np.array(devices), other, value)
        return value

    def _flat(self, value: ir.Value, shape: Shape) -> ir.Value:
        total = prod(shape_of(value))
        return self.emit.reshape(self.emit.pad_along(self.emit.reshape(value, [total]), 0, 0, 0, shape[-1] - total), shape)

    def _of_shape(self, flat: ir.Value, shape: Shape) -> ir.Value:
        return self.emit.reshape(self.emit.slice(flat, 0, 0, prod(shape)), shape)

    def _select(self, devices: Numbers, there: ir.Value, elsewhere: ir.Value) -> ir.Value:
        """`there` on those devices of each group."""
        if len(devices) in (0, self.count):
            return there if len(devices) else elsewhere
        devices = np.sort(devices)
        key = devices.tobytes()
        if key not in self._conditions:
            self._conditions[key] = self._is_among(devices)
        return self.emit.select(self._conditions[key], there, elsewhere)

    def _is_among(self, devices: Numbers) -> ir.Value:
        """Whether this device is one of `devices`, some but not all members of its group in order."""
        low, high = int(devices[0]), int(devices[-1])
        if high - low + 1 == len(devices):
            bounds = [("GE", low)] if low else []
            bounds += [("LE", high)] if high < self.count - 1 else []
            return self.emit.all_of(self.emit.compare(direction, self.number, bound) for direction, bound in bounds)
        column = np.zeros(self.count, np.int64)
        column[devices] = 1
        return self.emit.compare("EQ", entry(self.emit, column, self.number), 1)
