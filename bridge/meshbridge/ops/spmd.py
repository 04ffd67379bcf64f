"""SPMD lowerings: what an op becomes on one device's shards.

For most ops only the types change: `default_lowering`. A family whose ops hold sizes or positions registers one of its own
beside its sharding rule. When it runs, the operands are shards already, resharded to what the option needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

from meshbridge import resharding
from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect import build
from meshbridge.ir.builder import Builder, element_of, op_of, shape_of, tensor
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ir
from meshbridge.ir.recipes import FreeValues, Recipes, SharingBuilder
from meshbridge.ir.registry import Registry
from meshbridge.ir.sharding import Axes, Mesh, Sharding, local_shape
from meshbridge.ops.option import Option, computed_sharding
from meshbridge.ops.placements import place_again
from meshbridge.ops.reasons import Reasons
from meshbridge.ops.rule import ShardingRule
from meshbridge.resharding.boxes import buffer_shape
from meshbridge.resharding.halos import grow_halos, grows_halos

SpmdLowering = Callable[[ir.Operation, ShardingRule, Option, "SpmdProgram"], None]
SPMD_LOWERINGS: Registry[str, SpmdLowering] = Registry("SPMD lowering")
"""Op name to its SPMD lowering, where that is not the default one."""

spmd_lowering = SPMD_LOWERINGS.register

REPLICATED_LOWERINGS: Registry[str, SpmdLowering] = Registry("SPMD lowering of replicated ops")
"""The same of ops of which no loop is split. Any other such op stays as it is."""

replicated_lowering = REPLICATED_LOWERINGS.register

Condition = Callable[[ir.Operation, ShardingRule, "SpmdProgram"], bool]
ONLY_TYPES: Registry[str, Condition] = Registry("condition")
"""Op name to whether of such an op nothing but the types changes, although it has an SPMD lowering."""

only_types = ONLY_TYPES.register


def lowering_of(name: str, option: Option) -> SpmdLowering:
    """The SPMD lowering of an op by that name."""
    return (SPMD_LOWERINGS if any(option) else REPLICATED_LOWERINGS).get(name, default_lowering)


def lower_op(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Turns `op` into what it becomes on shards and records the shardings of its results."""
    name = op.name
    at.write_before(op)
    if at.reasons is not None:
        at.reasons.computes(op, exchanges=name in SPMD_LOWERINGS)
    lowering_of(name, option)(op, rule, option, at)


def default_lowering(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """The same op on smaller types; partial operands of a linear op leave its result partial."""
    for result, sharding in zip(op.results, at.computed(rule, option), strict=True):
        at.define(result, sharding)


class Shard(NamedTuple):
    """What one device holds of a tensor: a shard of the largest size, with its halos."""

    whole: tuple[int, ...]
    "The global shape."
    sharding: Sharding
    type: ir.Type | None = None
    "That of the shard; None where it is the global one."


def _shard(whole: ir.Type, sharding: Sharding, mesh: Mesh) -> Shard | None:
    """The shards of values of one global type; None for what is no ranked tensor, which is the same on all devices."""
    if not isinstance(whole, ir.RankedTensorType):
        return None
    shape = tuple(whole.shape)
    if not any(sharding.split_axes) and sharding.is_plain:
        return Shard(shape, sharding)
    size = local_shape(shape, mesh, sharding.split_axes) if sharding.is_plain else buffer_shape(shape, mesh, sharding)
    return Shard(shape, sharding, tensor(size, whole.element_type) if size != shape else None)


class SpmdProgram:
    """The state of partitioning one function: the sharding of every value, and the reshardings that exist already."""

    def __init__(self, mesh: Mesh, entry: ir.Block) -> None:
        self.mesh = mesh
        self.held: dict[ir.Value, Shard] = {}
        "What the values are shards of that have been made so far."
        self.resharding = resharding.PlanOptions()
        "How plans are chosen."
        self.reasons: Reasons | None = None
        "Where the reasons of communication are written down, if anybody wants them."
        self._entry, self._unknown = entry, ir.Location.unknown(entry.owner.context)
        self._op: ir.Operation | None = None
        self._emit: Builder | None = None
        self._indices: dict[Axes, ir.Value] = {}
        self.carried: Axes = ()
        "The axes along which the op at hand takes operands as partial sums and passes them on."
        self.manual: Axes = ()
        "Axes of the manual computations around: values differ along them although no sharding says so."
        self.moved: set[ir.Value] = set()
        "Values that a resharding made."
        self._resharded: list[dict[tuple[ir.Value, Sharding], ir.Value]] = [{}]
        self._shifts: list[dict[tuple[object, ...], ir.Value]] = [{}]
        self._shards: dict[tuple[ir.Type, Sharding], Shard | None] = {}
        self._free = FreeValues()
        self._recipes = Recipes(self._free)
        self._neutral: dict[tuple[ir.Attribute, str] | None, bool] = {}
        "Whether reductions of a kind ignore a constant's elements."
        self._computed: dict[tuple[ShardingRule, Option, Axes], tuple[Sharding, ...]] = {}
        self.placed: dict[ir.Value, ir.Operation] = {}
        "Values in a memory that nothing is computed in, and what places them there."

    def enter_block(self) -> None:
        """Reshardings made from here on are only visible in this block and below."""
        self._resharded.append({})
        self._shifts.append({})
        self._free.enter_block()

    def leave_block(self) -> None:
        self._resharded.pop()
        self._shifts.pop()
        self._free.leave_block()

    @property
    def emit(self) -> Builder:
        """Where the lowering of the op at hand writes: before the op, unless it says otherwise."""
        if self._emit is None:
            assert self._op is not None, "no op is being lowered"
            self._emit = self._writing(Builder.before(self._op))
        return self._emit

    def _writing(self, at: Builder) -> Builder:
        return SharingBuilder(at.loc, at.ip, self._free)

    def write_before(self, op: ir.Operation) -> None:
        """Lets `emit` write before `op`; most ops need nothing written, and no builder is made for them."""
        self._op, self._emit = op, None

    def global_shape(self, value: ir.Value) -> tuple[int, ...]:
        """The global shape of which `value` is a shard; that of its type until it is given another one."""
        held = self.held.get(value)
        return tuple(shape_of(value)) if held is None else held.whole

    def sharding(self, value: ir.Value) -> Sharding | None:
        """The sharding of `value`; None for what is no ranked tensor, or has been made here and is no shard."""
        held = self.held.get(value)
        return None if held is None else held.sharding

    def computed(self, rule: ShardingRule, option: Option) -> tuple[Sharding, ...]:
        """How an op computes its results under `option`, where it passes on the partial sums that are `carried`."""
        key = (rule, option, self.carried)
        found = self._computed.get(key)
        if found is None:
            results = range(len(rule.results))
            found = tuple(computed_sharding(rule, option, index, self.mesh, self.carried) for index in results)
            self._computed[key] = found
        return found

    def define(self, value: ir.Value, sharding: Sharding) -> None:
        """Gives `value`, which still has its global type, the type of its shard."""
        shard = self.shard(value, sharding)
        if shard is not None:
            self.hold(value, shard)

    def shard(self, value: ir.Value, sharding: Sharding) -> Shard | None:
        """What a device holds of `value`, which still has its global type; None for what is no ranked tensor."""
        key = (value.type, sharding)
        if key not in self._shards:
            self._shards[key] = _shard(*key, self.mesh)
        return self._shards[key]

    def hold(self, value: ir.Value, shard: Shard) -> None:
        """Makes `value` that shard."""
        if shard.type is not None:
            value.set_type(shard.type)
        self.held[value] = shard
        if self.reasons is not None:
            self.reasons.made(value, shard.sharding)

    def adopt(self, value: ir.Value, shape: tuple[int, ...], sharding: Sharding) -> ir.Value:
        """Registers a value made here: a shard, by `sharding`, of a tensor of global `shape`."""
        self._free.claim(value)
        self.held[value] = Shard(shape, sharding)
        if self.reasons is not None:
            self.reasons.made(value, sharding)
        return value

    def amend(self, result: ir.Value, make: Callable[[ir.Value], ir.Value], sharding: Sharding | None = None) -> None:
        """Has the users of `result` take what `make` writes behind its op, in the same sharding unless another one is given."""
        users = [(use.owner, use.operand_number) for use in result.uses]
        self._emit = self._writing(Builder.after(op_of(result)))
        made = make(result)
        for user, index in users:
            user.operands[index] = made
        self.adopt(made, self.global_shape(result), sharding or self.held[result].sharding)

    def reshard(
        self, value: ir.Value, target: Sharding, before: ir.Operation, *, defined_at: ir.Location | None = None
    ) -> ir.Value:
        """`value` as `target`: what an earlier use has made, or new collectives before an op that needs it so; or because it is
        kept so where it is defined."""
        shape, source, _ = self.held[value]
        if source == target:
            return value
        for made in reversed(self._resharded):
            found: ir.Value | None = made.get((value, target))
            if found is not None:
                return found
        if (placement := self.placed.get(value)) is not None:
            result = place_again(placement, self.reshard(placement.operands[0], target, before), before)
            self.placed[result] = op_of(result)
            self._resharded[-1][value, target] = self.adopt(result, shape, target)
            self.moved.add(result)
            return result
        location = defined_at or before.location
        if self.reasons is not None:
            location = self.reasons.to_reshard(value, source, target, before, defined_at)
        key = (value.type, shape, source, target, self.manual)
        emit = Builder(location, ir.InsertionPoint(before))
        result = self._recipes.value(key, [value], emit, lambda emit: self._collectives(value, shape, source, target, emit))
        self._resharded[-1][value, target] = self.adopt(result, shape, target)
        if self.reasons is not None:
            self.reasons.made(result, target, value)
        self.moved.add(result)
        return result

    def _collectives(
        self, value: ir.Value, shape: tuple[int, ...], source: Sharding, target: Sharding, emit: Builder
    ) -> ir.Value:
        """Writes what makes the shard `value` of a tensor of `shape` one of `target`."""
        if 0 in shape:
            return emit.splat(tensor(buffer_shape(shape, self.mesh, target), element_of(value)), 0)  # no element to move
        if grows_halos(source, target, self.resharding):
            return grow_halos(value, shape, self.mesh, target, emit)
        dtype = str(element_of(value))
        if self.manual:
            return self._reshard_inside(value, shape, dtype, target, emit)
        plan = resharding.plan(shape, dtype, self.mesh, source, target, self.resharding)
        return resharding.emit(plan, value, self.mesh, emit)

    def erase_unused_placements(self) -> None:
        """Takes out the placements that only what is now placed again has used."""
        for op in self.placed.values():
            if next(iter(op.results[0].uses), None) is None:
                op.erase()

    def _reshard_inside(self, value: ir.Value, shape: tuple[int, ...], dtype: str, target: Sharding, emit: Builder) -> ir.Value:
        """Reshards within a manual computation: a dimension in front that the manual axes split keeps plans from taking what
        stands along them for copies of one value.
        """

        count = self.mesh.group_size(self.manual)

        def deeper(sharding: Sharding) -> Sharding:
            halo_sizes, offsets = ((0, 0), tuple(range(count + 1)))
            return dataclasses.replace(
                sharding,
                split_axes=(self.manual, *sharding.padded(len(shape)).split_axes),
                halo_sizes=(*halo_sizes, *sharding.halo_sizes) if sharding.halo_sizes else (),
                offsets=(*offsets, *sharding.offsets) if sharding.offsets else (),
            )

        whole = (count, *shape)
        plan = resharding.plan(whole, dtype, self.mesh, deeper(self.held[value].sharding), deeper(target), self.resharding)
        moved = resharding.emit(plan, emit.reshape(value, [1, *shape_of(value)]), self.mesh, emit)
        return emit.reshape(moved, shape_of(moved)[1:])

    def shifted(self, piece: tuple[ir.Value, int, int, int], axis: int, distance: int) -> ir.Value:
        """The elements `start` … `start + size` of dimension `dim` that the device `distance` further along a mesh axis holds of
        `piece`, which is (value, dim, start, size); undefined where there is none.

        A piece that was fetched before is there already. One whose other half was, from devices at the other end of the axis,
        comes with it: the two shifts become a rotation.
        """
        count = self.mesh.shape[axis]
        for made in reversed(self._shifts):
            for other in (distance, distance - count, distance + count):
                found: ir.Value | None = made.get((piece, axis, other))
                if found is not None:
                    if other != distance:
                        op_of(found).attributes["rotate"] = ir.UnitAttr.get()
                        made[piece, axis, distance] = found
                    return found
        value, dim, start, size = piece
        cut = self.emit.slice(value, dim, start, size)
        moved = build.shift(cut, self.mesh, mesh_axes=(axis,), shift_axis=axis, offset=-distance, at=self.emit)
        self._shifts[-1][piece, axis, distance] = moved
        return moved

    def group_index(self, axes: Axes) -> ir.Value:
        """This device's number within its group along `axes`, as a tensor<i32>, made once at the top of the function.

        A slice of an iota says it in the dialect's own words and needs no arithmetic on `index` values.
        """
        found = self._indices.get(axes)
        if found is None:
            top = Builder(self._unknown, ir.InsertionPoint.at_block_begin(self._entry))
            numbers = top.iota([self.mesh.group_size(axes)], 0)
            own = build.all_slice(numbers, self.mesh, mesh_axes=axes, slice_axis=0, at=top)
            found = self._indices[axes] = self._free.add(top.reshape(own, []))
        return found

    def is_neutral(self, value: ir.Value, kind: str) -> bool:
        """Whether every element of `value` is the one that a reduction of `kind` ignores."""
        made = value.owner
        key = None if isinstance(made, ir.Block) or made.name != "stablehlo.constant" else (made.attributes["value"], kind)
        found = self._neutral.get(key)
        if found is None:
            found = is_splat(value, neutral(kind, element_of(value)))
            if key is not None:
                self._neutral[key] = found
        return found

    def offset(self, axes: Axes, size: int) -> ir.Value:
        """Where this device's shard of `size` elements begins in a dimension split along `axes`: tensor<i32>."""
        return self.emit.beginning(self.group_index(axes), self.mesh.group_size(axes), size)

    def is_first(self, axes: Axes) -> ir.Value:
        """Whether this device is the first of its group along `axes`: tensor<i1>."""
        return self.is_at(axes, 0)

    def is_at(self, axes: Axes, position: int) -> ir.Value:
        """Whether this device is at that position of its group along `axes`: tensor<i1>."""
        return self.emit.compare("EQ", self.group_index(axes), position)


def mask_padding(value: ir.Value, dim: int, size: int, axes: Axes, kind: str, at: SpmdProgram) -> ir.Value:
    """`value` with the neutral element of `kind` wherever its dimension `dim`, of global `size` and split along `axes`,
    is padding."""
    emit, length = at.emit, shape_of(value)[dim]
    inside = emit.compare("LT", emit.count_from(at.offset(axes, length), length), size)
    return emit.select_along(dim, inside, value, neutral(kind, element_of(value)))


def replace_result(op: ir.Operation, rule: ShardingRule, option: Option, value: ir.Value, at: SpmdProgram) -> None:
    """Puts `value`, computed from the op's local operands, in place of its only result and removes the op."""
    result = op.results[0]
    at.adopt(value, at.global_shape(result), at.computed(rule, option)[0])
    result.replace_all_uses_with(value)
    op.erase()
