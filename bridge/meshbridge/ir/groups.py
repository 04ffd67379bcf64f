"""Device groups as XLA reads them: replica groups, source-target pairs and channel handles.

A device's number in a group is its *logical* number: its position in XLA's device assignment, `partition_id` in the exported form
and `replica_id` in the local one. `Mesh.device_ids` has these numbers, like `sdy.mesh`'s `device_ids`: the device at row-major
position p of the mesh is logical device `device_ids[p]`. The device assignment alone maps logical devices to hardware, in both
forms: `jax.jit` takes it from the devices of its mesh, a PJRT client from CompileOptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Literal

import numpy as np

from meshbridge.ir.builder import dense
from meshbridge.ir.digits import Digit, Digits, Numbers, divided, group_size, groups_along, in_parts, line_digits, logical_digits
from meshbridge.ir.mlir import MeshError, ir, stablehlo
from meshbridge.ir.sharding import Mesh

Form = Literal["exported", "local"]
Spelling = Literal["auto", "dense", "mesh-axes"]
Attributes = dict[str, ir.Attribute]

Steps = Numbers | Sequence[tuple[int, int]]
"""Rows of source and target: members of a group that send to each other. Each member occurs once at most in each column."""


DENSE_DEVICES = 64
"""`auto` lists at most this many devices: a list has 16 characters a device, axes 200 to 1,000 characters. A training step of 205
collectives has 243 KB of text on 8 devices; lists of 64 add 205 KB, of 65,536 devices 200 MB, and axes of 65,536 160 KB."""


LISTED_DEVICES = 256
"""Permutes list at most this many devices, in 32 characters each, if all-to-alls can name axes instead, which send about twice
the bytes. A step of 10,000 ops on 1,024 devices has 280 permutes, whose lists are 9 of its 11 MB of text; without lists, it sends
0.07 % more. On 256 devices lists are an eighth of the text of such a step."""

SHIFTED_DEVICES = 8192
"""The same for shifts: a permute sends to a neighbour, all-to-alls send across the whole axis, and a program has few. A list of
8,192 devices is 260 KB."""


def rotated(count: int, offset: int) -> Numbers:
    """The steps in which each member of a group of `count` sends to the member `offset` after it, modulo `count`."""
    members = np.arange(count)
    return np.stack([members, (members + offset) % count], axis=1)


def shifted(count: int, offset: int) -> Numbers:
    """The steps of `rotated` without those that wrap around."""
    members = np.arange(max(0, -offset), min(count, count - offset))
    return np.stack([members, members + offset], axis=1)


KNOWS_MESH_AXES = hasattr(stablehlo, "ReplicaGroupMeshAxesAttr")
"""Whether this jaxlib can express device groups by mesh axes."""


@dataclass(frozen=True)
class Forms:
    """The forms of collectives that a machine's compiler keeps: it replaces others by collectives of more bytes."""

    inner: Mapping[str, int] = field(default_factory=dict)
    "By StableHLO name, the number of devices of the inner one of two collectives that together replace one over all devices."
    least: float = 0.0
    "The least bytes of collectives that are divided into two."
    tiles: bool = False
    """Whether values are stored in tiles of their last two dimensions. Then a reduce-scatter runs along a first dimension of
    pieces, unless these are whole tiles, a value is gathered before a reshape divides it, and concatenations join the results of
    all-to-alls."""

    def stages(self, kind: str, mesh: Mesh, digits: Digits, size: float) -> tuple[Digits, ...]:
        """The digits of each stage's groups, outer ones first, of a collective of `size` bytes."""
        if size < self.least or group_size(digits) < mesh.size or kind not in self.inner:
            return (digits,)
        return tuple(stage for stage in divided(digits, self.inner[kind]) if stage)


@dataclass
class Groups:
    """Creates the group attributes of one module; equal ones once.

    `exported`: devices are SPMD partitions; collectives need a channel and global device ids, as jax.shard_map writes them.
    `local`: devices are replicas; without a channel StableHLO's process groups are cross-replica.
    """

    form: Form = "exported"
    spelling: Spelling = "auto"
    collective_broadcast: bool = False
    """Whether the backend has `stablehlo.collective_broadcast`."""
    forms: Forms = Forms()
    _written: dict[tuple[Hashable, ...], ir.Attribute] = field(default_factory=dict)
    _devices: dict[tuple[str, Digits], Numbers] = field(default_factory=dict)

    def lists(self, mesh: Mesh) -> bool:
        """Whether shifts may list the devices of `mesh`."""
        return self.spelling == "dense" or lists_shifted(mesh)

    def collective(self, mesh: Mesh, digits: Digits, *, global_ids: bool = True) -> Attributes:
        """The group attributes of a collective. `global_ids` False for operations without that flag."""

        def groups() -> ir.Attribute:
            return self._replica_groups(mesh, logical_digits(mesh, digits), lambda: self.devices(mesh, digits))

        attrs = self._with_channel("replica_groups", self._once((mesh.name, digits), groups))
        if self.form == "exported" and global_ids:
            attrs["use_global_device_ids"] = ir.UnitAttr.get()
        return attrs

    def permute(self, mesh: Mesh, digits: Digits, steps: Steps) -> Attributes:
        """The attributes of a collective_permute with the same steps in every group."""

        def pairs() -> ir.Attribute:
            groups = self.devices(mesh, digits)
            return _pairs(groups[:, members[:, 0]], groups[:, members[:, 1]])

        members = np.asarray(steps, np.int64)
        return self._with_channel("source_target_pairs", self._once((mesh.name, digits, members.tobytes()), pairs))

    def relabelling(self, mesh: Mesh, sources: Digits, targets: Digits) -> Attributes:
        """The attributes of a collective_permute from member L along `sources` to member L along `targets`, the same digits."""

        def pairs() -> ir.Attribute:
            return _pairs(self.devices(mesh, sources), self.devices(mesh, targets))

        return self._with_channel("source_target_pairs", self._once((mesh.name, sources, "to", targets), pairs))

    def between(self, mesh: Mesh, senders: Numbers, receivers: Numbers) -> Attributes:
        """The attributes of a collective_permute between devices named by their row-major numbers."""
        pairs = _pairs(logical_numbers(mesh, senders), logical_numbers(mesh, receivers))
        return self._with_channel("source_target_pairs", pairs)

    def rooted(self, mesh: Mesh, digits: Digits, root: int) -> Attributes:
        """The attributes of a collective_broadcast, whose groups name their root first."""

        def groups() -> ir.Attribute:
            return dense(np.roll(self.devices(mesh, digits), -root, axis=1))

        return self._with_channel("replica_groups", self._once((mesh.name, digits, "from", root), groups))

    def devices(self, mesh: Mesh, digits: Digits) -> Numbers:
        """Logical devices, one row for each group along `digits`, in group order."""
        key = (mesh.name, digits)
        if (devices := self._devices.get(key)) is None:
            devices = self._devices[key] = logical_numbers(mesh, groups_along(mesh, digits))
        return devices

    def respelled(self, mesh: Mesh, attr: ir.Attribute) -> ir.Attribute:
        """`replica_groups` that name axes of any mesh, in this object's `spelling`. Unchanged if they list devices, or name axes
        of an unknown mesh."""
        if isinstance(attr, ir.DenseElementsAttr) or (digits := read_digits(attr, mesh)) is None:
            return attr
        return self._once((attr,), lambda: self._replica_groups(mesh, digits, lambda: groups_along(mesh, digits)))

    def _once(self, key: tuple[Hashable, ...], write: Callable[[], ir.Attribute]) -> ir.Attribute:
        if (attribute := self._written.get(key)) is None:
            attribute = self._written[key] = write()
        return attribute

    def _with_channel(self, name: str, attr: ir.Attribute) -> Attributes:
        if self.form == "local":
            return {name: attr}
        return {name: attr, "channel_handle": self.channel()}

    def channel(self) -> ir.Attribute:
        """The channel that makes device numbers partition numbers."""
        return self._once(("channel",), _channel)

    def _replica_groups(self, mesh: Mesh, logical: Digits | None, listed: Callable[[], Numbers]) -> ir.Attribute:
        """`replica_groups` in this object's `spelling`; dense if no axes correspond to those digits of logical numbers."""
        by_axes = self.spelling == "mesh-axes" or (self.spelling == "auto" and KNOWS_MESH_AXES and mesh.size > DENSE_DEVICES)
        named = _by_axes(mesh, logical) if by_axes and logical is not None and is_nameable(mesh) else None
        return dense(listed()) if named is None else named


def logical_numbers(mesh: Mesh, positions: Numbers) -> Numbers:
    """The logical numbers of the devices at row-major `positions` of the mesh."""
    return np.array(mesh.device_ids, np.int64)[positions] if mesh.device_ids else positions


def _pairs(sources: Numbers, targets: Numbers) -> ir.Attribute:
    """`[[source, target], …]`, by source."""
    of_source = np.full(int(sources.max()) + 1, -1)
    of_source[sources.ravel()] = targets.ravel()
    (sending,) = np.nonzero(of_source >= 0)
    return dense(np.stack([sending, of_source[sending]], axis=1))


def _channel() -> ir.Attribute:
    """One channel for all collectives, so that CSE finds equal ones; JAX does the same. Type 1: between devices."""
    return ir.Attribute.parse("#stablehlo.channel_handle<handle = 1, type = 1>")


def device_line(mesh: Mesh) -> Digits | None:
    """The digits of prime radix of logical numbers, outer to inner, whose axes name the groups of `mesh`: equal for all meshes
    with the same number of devices and the same division. None for a device order that does not transpose digits."""
    line = line_digits(mesh)
    return None if line is None else tuple(sorted(line, key=lambda digit: -digit.stride))


def names_axes(mesh: Mesh) -> bool:
    """Whether groups of `mesh` can be expressed by axes, without a list of devices."""
    return KNOWS_MESH_AXES and is_nameable(mesh)


def lists_devices(mesh: Mesh) -> bool:
    """Whether permutes list the devices of `mesh`: it has few, or groups cannot be expressed by axes."""
    return mesh.size <= LISTED_DEVICES or not names_axes(mesh)


def lists_shifted(mesh: Mesh) -> bool:
    """Whether permutes that shift list the devices of `mesh`."""
    return mesh.size <= SHIFTED_DEVICES or not names_axes(mesh)


@lru_cache(maxsize=256)
def is_nameable(mesh: Mesh) -> bool:
    """Whether XLA reads groups expressed by axes correctly, in a program on `mesh`.

    Of all meshes of a module with the same number of devices, XLA (as of jaxlib 0.10) keeps the one with the most axes, the first
    of several, renames axes in shardings, and does not rename those in device groups. A caller's meshes are in that module too.
    So groups name axes of the mesh with the most possible axes: each is a prime factor. Their names contain radix and stride, so
    that XLA refuses them under another mesh, and never takes other devices for them.
    """
    line = device_line(mesh)
    return line is not None and sum(size > 1 for _, size in mesh.named_axes) < len(line)


def _by_axes(mesh: Mesh, logical: Digits) -> ir.Attribute | None:
    """`#stablehlo.replica_group_mesh_axes` with its mesh inline, so that it needs no symbol."""
    if not KNOWS_MESH_AXES:
        raise MeshError("<module>: error: replica_groups=mesh-axes needs jaxlib 0.10 or newer; this one writes them dense only")
    line = device_line(mesh) or ()
    if (named := in_parts(logical, line)) is None:
        return None
    axes = ", ".join(f"<name = {_name(digit)}, size = {digit.radix}>" for digit in line)
    refs = ", ".join(f"#stablehlo.axis_ref<name = {_name(digit)}>" for digit in named)
    return ir.Attribute.parse(f"#stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes = [{axes}]>, axes = [{refs}]>")


def _name(digit: Digit) -> str:
    return f'"{digit.radix}@{digit.stride}"'


_REF = re.compile(r'axis_ref<name = "((?:[^"\\]|\\.)*)"(?:, sub_axis_info = \((\d+)\)(\d+))?>')
_AXIS = re.compile(r'<name = "((?:[^"\\]|\\.)*)", size = (\d+)>')


def read_digits(attr: ir.Attribute, mesh: Mesh) -> Digits | None:
    """The digits of logical numbers that a `#stablehlo.replica_group_mesh_axes` names, of its inline mesh, or else of `mesh`.
    None if that mesh has no such axis, another number of devices, or a device order that does not transpose digits."""
    return None if (mesh_digits := _read_axes(attr, mesh)) is None else logical_digits(*mesh_digits)


def read_groups(attr: ir.Attribute, mesh: Mesh) -> Numbers | None:
    """The groups as logical numbers, one row each, in any device order of the mesh."""
    return (
        None if (mesh_digits := _read_axes(attr, mesh)) is None else logical_numbers(mesh_digits[0], groups_along(*mesh_digits))
    )


def _read_axes(attr: ir.Attribute, mesh: Mesh) -> tuple[Mesh, Digits] | None:
    """The mesh whose axes the attribute names, and their digits of positions on it."""
    inside, _, named = str(attr).rpartition("axes = [")
    if sizes := [(name, int(size)) for name, size in _AXIS.findall(inside)]:
        if prod(size for _, size in sizes) != mesh.size:
            return None
        mesh = Mesh("", tuple(size for _, size in sizes), tuple(name for name, _ in sizes), _order(attr))
    digits: list[Digit] = []
    for name, pre, size in _REF.findall(named):
        if name not in mesh.runs:
            return None
        run = mesh.runs[name]
        inner, extent = prod(mesh.shape[run[-1] + 1 :]), mesh.group_size(run)
        part = int(size or extent)
        digits.append(Digit(run[0], part, inner * extent // (int(pre or 1) * part)))
    return mesh, tuple(digits)


def _order(attr: ir.Attribute) -> tuple[int, ...]:
    """The `device_ids` of the attribute's inline mesh; the text of long ones is hexadecimal."""
    ids = stablehlo.MeshAttr(stablehlo.ReplicaGroupMeshAxesAttr(attr).mesh).device_ids
    return () if ids is None else tuple(np.array(ids).ravel().tolist())
