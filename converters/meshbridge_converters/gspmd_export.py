"""StableHLO + sdy -> StableHLO + GSPMD's annotations, in place: the inverse of `gspmd_import`.

What GSPMD numbers, sdy names: the tiles of a dimension are the sizes of its axes, and the devices follow the mesh. Calls are
inlined first where there are manual computations, since GSPMD says of every value inside along which axes it is local.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.mlir import MANUAL, SHARDING_GROUP, SIDES, OpError, ir, sdy, walk_all
from meshbridge.ir.sharding import MAX_DEVICES, AxisRef, Mesh
from meshbridge.ir.subaxes import factor
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge_converters import carriers, group_meshes, hlo_shardings, sdy_attributes
from meshbridge_converters.carriers import CONSTRAINING, MHLO_SHARDING, NAMED, NAMED_IN_HLO, SHARDING
from meshbridge_converters.gspmd_annotations import CONSTRAINT, FULL_TO_SHARD, NUM_PARTITIONS, SHARD_TO_FULL
from meshbridge_converters.gspmd_import import IN_SHARDING, SHARD_LIKE, UNKNOWN
from meshbridge_converters.hlo_shardings import Tiling
from meshbridge_converters.invariants import manual_axes
from meshbridge_converters.sdy_attributes import Refs, SdySharding

Value: TypeAlias = "ir.Value[Any]"
Manual = frozenset[str]
"""The names of the axes along which values are local already."""


def from_sdy(module: ir.Module, *, plain: bool = False) -> None:
    """Turns every sdy annotation of `module` into the GSPMD one that means the same, in place; the meshes go.

    Where a mesh has axis names, all shardings are written in version 3, which names axes; `plain` has tilings by device numbers
    all the same, for readers that know no version 3.

    Raises OpError for what GSPMD cannot say: priorities, propagation barriers and other operations that only sdy has. Axes that
    must stay replicated are taken for a wish: GSPMD has no open dimension that must not take them.
    """
    with module.context, ir.Location.unknown():
        declared = sdy_attributes.declared_meshes(module)
        meshes = {symbol: op.attributes["mesh"] for symbol, op in declared.items()}
        group_meshes.list_devices(module)
        names_axes = not plain and _has_names(module, declared.values())
        if any(op.name in (MANUAL, NAMED) for op in walk_all(module)):
            InlineCalls().run(module)
        members = {op.operands[0]: op for op in walk_all(module) if op.name == SHARDING_GROUP and IN_SHARDING in op.attributes}
        export = _Export(meshes, names_axes, members)
        export.block(module.body, frozenset())
        for op in declared.values():
            op.erase()
        if export.devices > 1 and NUM_PARTITIONS not in module.operation.attributes:
            module.operation.attributes[NUM_PARTITIONS] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), export.devices)


def _has_names(module: ir.Module, declared: Iterable[ir.Operation]) -> bool:
    """Whether a mesh has axis names that a tiling would lose: others than the numbers that a mesh without names has."""
    if any(NAMED_IN_HLO in op.attributes for op in declared):
        return True
    inlined = {sdy_attributes.mesh_of(attr) for op in walk_all(module) for attr in carriers.shardings(op, op.name)}
    meshes = {op.attributes["mesh"] for op in declared} | {mesh for mesh in inlined if not isinstance(mesh, str)}
    axes = [sdy_attributes.mesh_axes(mesh) for mesh in meshes]
    return any(name != str(index) for each in axes for index, (name, _) in enumerate(each))


@dataclass
class _Export:
    meshes: dict[str, ir.Attribute]
    names_axes: bool
    members: dict[Value, ir.Operation]
    devices: int = 1
    joined: list[ir.Operation] = field(default_factory=list)
    written: dict[tuple[ir.Attribute, Manual], str] = field(default_factory=dict)

    def block(self, block: ir.Block, manual: Manual) -> None:
        """Rewrites the operations of `block` and below, which are local along `manual`."""
        for op in [child.operation for child in block.operations]:
            name = op.name
            if name == MANUAL:
                self._manual_computation(op, manual)
                continue
            if name == "func.func":
                self._function(op)
            for region in op.regions:
                for inner in region.blocks:
                    self.block(inner, manual)
            if name == "func.func":
                continue
            if name in CONSTRAINING:
                self._constraint(op, CONSTRAINING[name], manual)
            elif name == SHARDING_GROUP:
                self._group(op)
            elif name.startswith("sdy.") and name not in ("sdy.mesh", "sdy.return"):
                raise OpError(op, "has no counterpart in GSPMD")
            elif SHARDING in op.attributes:
                texts = [self.final(op, attr, manual) for attr in carriers.per_value(op.attributes[SHARDING])]
                found = zip(texts, op.results, strict=False)  # an operation without results has one sharding
                texts = [self._with_group(text, value) for text, value in found] or texts
                del op.attributes[SHARDING]
                op.attributes[MHLO_SHARDING] = ir.StringAttr.get(texts[0] if len(texts) == 1 else f"{{{', '.join(texts)}}}")

    def _function(self, op: ir.Operation) -> None:
        for side in SIDES:
            found = enumerate(carriers.take(op, side))
            texts = {index: self.final(op, attr, frozenset()) for index, attr in found if attr is not None}
            if side == "arg_attrs" and len(op.regions[0].blocks):
                arguments = op.regions[0].blocks[0].arguments
                texts = {index: self._with_group(text, arguments[index]) for index, text in texts.items()}
            carriers.give(op, side, {index: ir.StringAttr.get(text) for index, text in texts.items()}, MHLO_SHARDING)

    def _constraint(self, op: ir.Operation, listed: str, manual: Manual) -> None:
        """One without uses says how its operand itself is sharded: all others use it from then on."""
        value, result = op.operands[0], op.results[0]
        if listed in op.attributes:
            attr = op.attributes[listed]
            is_unknown = UNKNOWN in op.attributes and SdySharding.of(attr).says_nothing
            text, opened = ("{unknown}", ()) if is_unknown else (self.text(op, attr, manual), self._unspecified(attr))
            text = self._with_group(text, result)
            constrained = _call(Builder.before(op), CONSTRAINT, value, value.type, text, opened)
            if next(iter(result.uses), None) is None:
                value.replace_all_uses_except(constrained, [op_of(constrained), op])
            value = constrained
        result.replace_all_uses_with(value)
        op.erase()

    def _group(self, op: ir.Operation) -> None:
        """A call of its own, unless the sharding of the value says it."""
        if op in self.joined:
            op.erase()
            return
        value = op.operands[0]
        joined = _call(Builder.before(op), CONSTRAINT, value, value.type, f"{{unknown {_group_word(op)}}}")
        op_of(joined).attributes["has_side_effect"] = ir.BoolAttr.get(True)
        op.erase()

    def _with_group(self, text: str, value: Value) -> str:
        """`text` of the sharding of `value`, and the group that is to be said in it. Shardings that name axes have no word."""
        member = self.members.get(value)
        if member is None or text.startswith("{mesh"):
            return text
        self.joined.append(member)
        return f"{text[:-1]} {_group_word(member)}}}"

    def _manual_computation(self, op: ir.Operation, manual: Manual) -> None:
        """The body moves out, between the calls that open and close the region."""
        ins, outs = (carriers.per_value(op.attributes[name]) for name in ("in_shardings", "out_shardings"))
        inside = manual | set(manual_axes(op))
        block, at = op.regions[0].blocks[0], Builder.before(op)
        for value, argument, attr in zip(list(op.operands), list(block.arguments), ins, strict=True):
            opened = self._unspecified(attr)
            outer = _call(at, CONSTRAINT, value, value.type, self.text(op, attr, manual), opened)
            local = self._local_text(op, attr, inside)
            argument.replace_all_uses_with(_call(at, FULL_TO_SHARD, outer, argument.type, local, opened))
        self.block(block, inside)
        terminator = block.operations[-1].operation
        for child in [child.operation for child in block.operations][:-1]:
            child.move_before(op)
        for value, result, attr in zip(list(terminator.operands), list(op.results), outs, strict=True):
            opened = self._unspecified(attr)
            inner = _call(at, CONSTRAINT, value, value.type, self._local_text(op, attr, inside), opened)
            result.replace_all_uses_with(_call(at, SHARD_TO_FULL, inner, result.type, self.text(op, attr, manual), opened))
        op.erase()

    def _local_text(self, op: ir.Operation, attr: ir.Attribute, inside: Manual) -> str:
        """What is left of a sharding inside the region: its free axes."""
        said = SdySharding.of(attr)
        free = tuple(tuple(ref for ref in refs if ref.name not in inside) for refs in said.dims)
        return self.text(op, SdySharding(said.mesh, free, said.open_dims).attr, inside)

    def final(self, op: ir.Operation, attr: ir.Attribute, manual: Manual) -> str:
        """What says how a value itself is sharded. Without names, that can leave all dimensions open or none."""
        said = SdySharding.of(attr)
        return "{unknown}" if said.says_nothing and not self.names_axes else self.text(op, attr, manual)

    def _unspecified(self, attr: ir.Attribute) -> tuple[int, ...]:
        """The open dimensions that a call names beside its sharding; one that names axes says them itself."""
        said = SdySharding.of(attr)
        return () if self.names_axes else said.open_dims

    def text(self, op: ir.Operation, attr: ir.Attribute, manual: Manual) -> str:
        """The HloSharding string of an `#sdy.sharding<…>` of a value that is local along `manual`."""
        key = (attr, manual)
        if key not in self.written:
            self.written[key] = self._text(op, attr, manual)
        return self.written[key]

    def _text(self, op: ir.Operation, attr: ir.Attribute, manual: Manual) -> str:
        said = SdySharding.of(attr)
        mesh = sdy.MeshAttr(self.meshes[said.mesh] if isinstance(said.mesh, str) else said.mesh)
        axes, devices = sdy_attributes.mesh_axes(mesh), list(mesh.device_ids)
        if not axes:
            return f"{{maximal device={devices[0]}}}" if devices else "{replicated}"
        devices_in_mesh = prod(size for _, size in axes)
        if devices_in_mesh > MAX_DEVICES:
            raise OpError(op, f"is on a mesh of {devices_in_mesh} devices, expected at most {MAX_DEVICES} in GSPMD")
        self.devices = max(self.devices, devices_in_mesh)
        if any(priority is not None for priority in said.priorities):
            raise OpError(op, f"has priorities in {attr}, which GSPMD cannot say")
        local = tuple(AxisRef(name) for name, _ in axes if name in manual)
        if self.names_axes:
            named = factor(axes, (), device_ids=tuple(devices))
            groups = (("replicated", said.replicated), ("unreduced", said.unreduced), ("manual", local))
            return hlo_shardings.print_named(Tiling("named", mesh=named, dims=said.dims, open_dims=said.open_dims, axes=groups))
        factored = factor(axes, said.axes)

        def parts(refs: Refs) -> list[int]:
            return [axis for ref in refs for axis in factored.axes_of(ref)]

        return _tiled(
            factored, list(map(parts, said.dims)), {"manual": parts(local), "unreduced": parts(said.unreduced)}, devices
        )


def _group_word(op: ir.Operation) -> str:
    """What GSPMD calls a member of a group."""
    return f"{'shard_like' if SHARD_LIKE in op.attributes else 'shard_as'} {ir.IntegerAttr(op.attributes['group_id']).value}"


def _tiled(factored: Mesh, dims: list[list[int]], groups: dict[str, list[int]], devices: list[int]) -> str:
    """Axes that neither split a dimension nor belong to a group hold replicas."""
    shape = factored.shape

    def size(axes: list[int]) -> int:
        return prod(shape[axis] for axis in axes)

    used = {axis for axes in (*dims, *groups.values()) for axis in axes}
    replicated = [axis for axis in range(len(shape)) if axis not in used]
    subgroups = [("manual", groups["manual"]), ("replicated", replicated), ("unreduced", groups["unreduced"])]
    kept = [(kind, axes) for kind, axes in subgroups if size(axes) > 1]
    listed = [*dims, *(axes for _, axes in kept)]
    in_order = [axis for axes in listed for axis in axes]
    in_order += [axis for axis in range(len(shape)) if axis not in in_order]  # axes of size 1, which make no subgroup
    return hlo_shardings.print_tiled(
        [size(axes) for axes in dims], [(kind, size(axes)) for kind, axes in kept], shape, in_order, devices
    )


def _call(at: Builder, target: str, value: Value, kind: ir.Type, text: str, opened: tuple[int, ...] = ()) -> Value:
    """What one of GSPMD's custom calls gives."""
    attrs: dict[str, ir.Attribute] = {"call_target_name": ir.StringAttr.get(target), MHLO_SHARDING: ir.StringAttr.get(text)}
    if opened:
        attrs["backend_config"] = ir.StringAttr.get(f"unspecified_dims=[{','.join(map(str, opened))}]")
    return at.value("custom_call", kind, [value], attrs)
