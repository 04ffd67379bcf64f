"""SPMD lowerings: what an op becomes on one device's shards.

For most ops only the types change: `default_lowering`. A family whose ops contain sizes or positions registers its own lowering
beside its sharding rule. A lowering runs when the operands are shards, resharded as the option requires.
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
from meshbridge.ops.placements import clone_placement
from meshbridge.ops.reasons import Reasons
from meshbridge.ops.rule import ShardingRule
from meshbridge.resharding.boxes import buffer_shape
from meshbridge.resharding.halos import grow_halos, grows_halos

SpmdLowering = Callable[[ir.Operation, ShardingRule, Option, "SpmdProgram"], None]
SPMD_LOWERINGS: Registry[str, SpmdLowering] = Registry("SPMD lowering")
"""SPMD lowerings by op name, except the default one."""

spmd_lowering = SPMD_LOWERINGS.register

REPLICATED_LOWERINGS: Registry[str, SpmdLowering] = Registry("SPMD lowering of replicated ops")
"""Lowerings for ops without a split loop. Other such ops do not change."""

replicated_lowering = REPLICATED_LOWERINGS.register

Condition = Callable[[ir.Operation, ShardingRule, "SpmdProgram"], bool]
ONLY_TYPES: Registry[str, Condition] = Registry("condition")
"""By op name, a condition under which only the types of such an op change, although it has an SPMD lowering."""

only_types = ONLY_TYPES.register


def lowering_of(name: str, option: Option) -> SpmdLowering:
    """The SPMD lowering of an op of that name."""
    return (SPMD_LOWERINGS if any(option) else REPLICATED_LOWERINGS).get(name, default_lowering)


def lower_op(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Lowers `op` to shards and records the shardings of its results."""
    name = op.name
    at.write_before(op)
    if at.reasons is not None:
        at.reasons.record_op(op, exchanges=name in SPMD_LOWERINGS)
    lowering_of(name, option)(op, rule, option, at)


def default_lowering(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """The same op on smaller types; partial operands of a linear op leave its result partial."""
    for result, sharding in zip(op.results, at.computed(rule, option), strict=True):
        at.define(result, sharding)


class Shard(NamedTuple):
    """One device's part of a tensor: a shard of the largest size, with its halos."""

    global_shape: tuple[int, ...]
    "The global shape."
    sharding: Sharding
    type: ir.Type | None = None
    "The type of the shard; None if it is the global type."


def _shard(global_type: ir.Type, sharding: Sharding, mesh: Mesh) -> Shard | None:
    """The shards of values of one global type; None for values that are no ranked tensors, which are the same on all devices."""
    if not isinstance(global_type, ir.RankedTensorType):
        return None
    shape = tuple(global_type.shape)
    if not any(sharding.split_axes) and sharding.is_plain:
        return Shard(shape, sharding)
    size = local_shape(shape, mesh, sharding.split_axes) if sharding.is_plain else buffer_shape(shape, mesh, sharding)
    return Shard(shape, sharding, tensor(size, global_type.element_type) if size != shape else None)


class SpmdProgram:
    """The state of partitioning one function: the sharding of every value, and the reshardings that exist."""

    def __init__(self, mesh: Mesh, entry: ir.Block) -> None:
        self.mesh = mesh
        self.shards: dict[ir.Value, Shard] = {}
        "By value, the shard that it is."
        self.resharding = resharding.PlanOptions()
        "How resharding plans are chosen."
        self.reasons: Reasons | None = None
        "Records the reasons of communication, if the user wants them."
        self._entry, self._unknown = entry, ir.Location.unknown(entry.owner.context)
        self._op: ir.Operation | None = None
        self._builder: Builder | None = None
        self._indices: dict[Axes, ir.Value] = {}
        self.carried: Axes = ()
        "The axes along which the current op takes operands as partial sums and passes them on."
        self.manual: Axes = ()
        "Axes of the enclosing manual computations: values differ along them although no sharding says so."
        self.resharded: set[ir.Value] = set()
        "Results of reshardings."
        self._reshardings: list[dict[tuple[ir.Value, Sharding], ir.Value]] = [{}]
        self._shifts: list[dict[tuple[object, ...], ir.Value]] = [{}]
        self._shards: dict[tuple[ir.Type, Sharding], Shard | None] = {}
        self._free = FreeValues()
        self._recipes = Recipes(self._free)
        self._neutral: dict[tuple[ir.Attribute, str] | None, bool] = {}
        "By constant and reduction kind, whether the constant is neutral."
        self._computed: dict[tuple[ShardingRule, Option, Axes], tuple[Sharding, ...]] = {}
        self.offloaded: dict[ir.Value, ir.Operation] = {}
        "Offloaded values, with the ops that place them."

    def enter_block(self) -> None:
        """Limits reshardings created from here on to this block and the blocks in it."""
        self._reshardings.append({})
        self._shifts.append({})
        self._free.enter_block()

    def leave_block(self) -> None:
        self._reshardings.pop()
        self._shifts.pop()
        self._free.leave_block()

    @property
    def builder(self) -> Builder:
        """The builder for the lowering of the current op: before the op, unless changed."""
        if self._builder is None:
            assert self._op is not None, "no op is being lowered"
            self._builder = self._writing(Builder.before(self._op))
        return self._builder

    def _writing(self, at: Builder) -> Builder:
        return SharingBuilder(at.loc, at.ip, self._free)

    def write_before(self, op: ir.Operation) -> None:
        """Makes `builder` build before `op`. Most ops need nothing built, and no builder is created for them."""
        self._op, self._builder = op, None

    def global_shape(self, value: ir.Value) -> tuple[int, ...]:
        """The global shape of which `value` is a shard; the shape of its type if it is not registered."""
        shard = self.shards.get(value)
        return tuple(shape_of(value)) if shard is None else shard.global_shape

    def sharding(self, value: ir.Value) -> Sharding | None:
        """The sharding of `value`; None if it is no ranked tensor, or not registered."""
        shard = self.shards.get(value)
        return None if shard is None else shard.sharding

    def computed(self, rule: ShardingRule, option: Option) -> tuple[Sharding, ...]:
        """The shardings of an op's results under `option`, with the partial axes that are `carried`."""
        key = (rule, option, self.carried)
        shardings = self._computed.get(key)
        if shardings is None:
            results = range(len(rule.results))
            shardings = tuple(computed_sharding(rule, option, index, self.mesh, self.carried) for index in results)
            self._computed[key] = shardings
        return shardings

    def define(self, value: ir.Value, sharding: Sharding) -> None:
        """Gives `value`, which still has its global type, the type of its shard."""
        shard = self.shard(value, sharding)
        if shard is not None:
            self.set_shard(value, shard)

    def shard(self, value: ir.Value, sharding: Sharding) -> Shard | None:
        """The shard of `value`, which still has its global type; None if it is no ranked tensor."""
        key = (value.type, sharding)
        if key not in self._shards:
            self._shards[key] = _shard(*key, self.mesh)
        return self._shards[key]

    def set_shard(self, value: ir.Value, shard: Shard) -> None:
        """Registers `value` as that shard."""
        if shard.type is not None:
            value.set_type(shard.type)
        self.shards[value] = shard
        if self.reasons is not None:
            self.reasons.record_value(value, shard.sharding)

    def register(self, value: ir.Value, shape: tuple[int, ...], sharding: Sharding) -> ir.Value:
        """Registers a new value: a shard, by `sharding`, of a tensor of global `shape`."""
        self._free.claim(value)
        self.shards[value] = Shard(shape, sharding)
        if self.reasons is not None:
            self.reasons.record_value(value, sharding)
        return value

    def replace_uses(self, result: ir.Value, make: Callable[[ir.Value], ir.Value], sharding: Sharding | None = None) -> None:
        """Makes the users of `result` use the value that `make` builds after its op, in the same sharding unless another one is
        given."""
        users = [(use.owner, use.operand_number) for use in result.uses]
        self._builder = self._writing(Builder.after(op_of(result)))
        value = make(result)
        for user, index in users:
            user.operands[index] = value
        self.register(value, self.global_shape(result), sharding or self.shards[result].sharding)

    def reshard(
        self, value: ir.Value, target: Sharding, before: ir.Operation, *, defined_at: ir.Location | None = None
    ) -> ir.Value:
        """`value` resharded to `target` before an op, reusing an earlier resharding. `defined_at` is given if the definition
        needs it, not the op."""
        shape, source, _ = self.shards[value]
        if source == target:
            return value
        for reshardings in reversed(self._reshardings):
            existing: ir.Value | None = reshardings.get((value, target))
            if existing is not None:
                return existing
        if (placement := self.offloaded.get(value)) is not None:
            result = clone_placement(placement, self.reshard(placement.operands[0], target, before), before)
            self.offloaded[result] = op_of(result)
            self._reshardings[-1][value, target] = self.register(result, shape, target)
            self.resharded.add(result)
            return result
        location = defined_at or before.location
        if self.reasons is not None:
            location = self.reasons.reshard_location(value, source, target, before, defined_at)
        key = (value.type, shape, source, target, self.manual)
        builder = Builder(location, ir.InsertionPoint(before))
        result = self._recipes.value(
            key, [value], builder, lambda builder: self._collectives(value, shape, source, target, builder)
        )
        self._reshardings[-1][value, target] = self.register(result, shape, target)
        if self.reasons is not None:
            self.reasons.record_value(result, target, value)
        self.resharded.add(result)
        return result

    def _collectives(
        self, value: ir.Value, shape: tuple[int, ...], source: Sharding, target: Sharding, builder: Builder
    ) -> ir.Value:
        """Builds the collectives that reshard `value`, a shard of a tensor of `shape`, to `target`."""
        if 0 in shape:
            return builder.splat(tensor(buffer_shape(shape, self.mesh, target), element_of(value)), 0)  # nothing to send
        if grows_halos(source, target, self.resharding):
            return grow_halos(value, shape, self.mesh, target, builder)
        dtype = str(element_of(value))
        if self.manual:
            return self._reshard_inside(value, shape, dtype, target, builder)
        plan = resharding.plan(shape, dtype, self.mesh, source, target, self.resharding)
        return resharding.emit(plan, value, self.mesh, builder)

    def erase_unused_placements(self) -> None:
        """Erases the placements whose only users now use a cloned placement."""
        for op in self.offloaded.values():
            if next(iter(op.results[0].uses), None) is None:
                op.erase()

    def _reshard_inside(
        self, value: ir.Value, shape: tuple[int, ...], dtype: str, target: Sharding, builder: Builder
    ) -> ir.Value:
        """Reshards within a manual computation. A leading dimension, split by the manual axes, tells the planner that devices
        along them hold different values."""
        count = self.mesh.group_size(self.manual)

        def nested(sharding: Sharding) -> Sharding:
            return dataclasses.replace(
                sharding,
                split_axes=(self.manual, *sharding.padded(len(shape)).split_axes),
                halo_sizes=(0, 0, *sharding.halo_sizes) if sharding.halo_sizes else (),
                offsets=(*range(count + 1), *sharding.offsets) if sharding.offsets else (),
            )

        full_shape = (count, *shape)
        source = nested(self.shards[value].sharding)
        plan = resharding.plan(full_shape, dtype, self.mesh, source, nested(target), self.resharding)
        resharded = resharding.emit(plan, builder.reshape(value, [1, *shape_of(value)]), self.mesh, builder)
        return builder.reshape(resharded, shape_of(resharded)[1:])

    def shifted(self, piece: tuple[ir.Value, int, int, int], axis: int, distance: int) -> ir.Value:
        """The elements `start` … `start + size` of dimension `dim` of `piece`, which is (value, dim, start, size), on the device
        `distance` further along a mesh axis; undefined if there is none.

        Earlier shifts are reused. An earlier shift that fetches the same piece from the opposite end of the axis becomes a
        rotation, which gives both.
        """
        count = self.mesh.shape[axis]
        for shifts in reversed(self._shifts):
            for candidate in (distance, distance - count, distance + count):
                existing: ir.Value | None = shifts.get((piece, axis, candidate))
                if existing is not None:
                    if candidate != distance:
                        op_of(existing).attributes["rotate"] = ir.UnitAttr.get()
                        shifts[piece, axis, distance] = existing
                    return existing
        value, dim, start, size = piece
        block = self.builder.slice(value, dim, start, size)
        received = build.shift(block, self.mesh, mesh_axes=(axis,), shift_axis=axis, offset=-distance, at=self.builder)
        self._shifts[-1][piece, axis, distance] = received
        return received

    def group_index(self, axes: Axes) -> ir.Value:
        """This device's number within its group along `axes`: tensor<i32>, created once at the top of the function."""
        index = self._indices.get(axes)
        if index is None:
            top = Builder(self._unknown, ir.InsertionPoint.at_block_begin(self._entry))
            index = self._indices[axes] = self._free.add(build.group_index(self.mesh, mesh_axes=axes, at=top))
        return index

    def is_neutral(self, value: ir.Value, kind: str) -> bool:
        """True if every element of `value` is neutral in a reduction of `kind`."""
        op = value.owner
        key = None if isinstance(op, ir.Block) or op.name != "stablehlo.constant" else (op.attributes["value"], kind)
        answer = self._neutral.get(key)
        if answer is None:
            answer = is_splat(value, neutral(kind, element_of(value)))
            if key is not None:
                self._neutral[key] = answer
        return answer

    def offset(self, axes: Axes, size: int) -> ir.Value:
        """The offset of this device's shard of `size` elements in a dimension split along `axes`: tensor<i32>."""
        return self.builder.beginning(self.group_index(axes), self.mesh.group_size(axes), size)

    def is_first(self, axes: Axes) -> ir.Value:
        """True on the first device of each group along `axes`: tensor<i1>."""
        return self.is_at(axes, 0)

    def is_at(self, axes: Axes, position: int) -> ir.Value:
        """True on the device at that position of each group along `axes`: tensor<i1>."""
        return self.builder.compare("EQ", self.group_index(axes), position)


def mask_padding(value: ir.Value, dim: int, size: int, axes: Axes, kind: str, at: SpmdProgram) -> ir.Value:
    """`value` with the neutral element of `kind` in the padding of dimension `dim`, which has the global `size` and is split
    along `axes`."""
    builder, length = at.builder, shape_of(value)[dim]
    inside = builder.compare("LT", builder.count_from(at.offset(axes, length), length), size)
    return builder.select_along(dim, inside, value, neutral(kind, element_of(value)))


def replace_result(op: ir.Operation, rule: ShardingRule, option: Option, value: ir.Value, at: SpmdProgram) -> None:
    """Replaces the op, which has one result, by `value`."""
    result = op.results[0]
    at.register(value, at.global_shape(result), at.computed(rule, option)[0])
    result.replace_all_uses_with(value)
    op.erase()
