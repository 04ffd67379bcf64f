"""Device groups as XLA reads them: replica groups, source-target pairs and channel handles.

A device's number in a group is its *logical* number: its position in XLA's device assignment, `partition_id` in the exported form
and `replica_id` in the local one. `Mesh.device_ids` holds those same numbers, as `sdy.mesh`'s `device_ids` do: the device at
row-major position p of the mesh is logical device `device_ids[p]`. Which hardware a logical device is, the device assignment
alone decides, in both forms: `jax.jit` takes it from the devices of its mesh, a PJRT client from CompileOptions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from meshbridge.ir.builder import dense
from meshbridge.ir.digits import Digits, Numbers, groups_along, whole_axes
from meshbridge.ir.mlir import MeshError, ir, stablehlo
from meshbridge.ir.sharding import Axes, Mesh

Form = Literal["exported", "local"]
Spelling = Literal["dense", "mesh-axes"]
Attributes = dict[str, ir.Attribute]

Steps = tuple[tuple[int, int], ...]
"""Moves within a group, from member to member; each member is the source of one at most, and the target of one."""


KNOWS_MESH_AXES = hasattr(stablehlo, "ReplicaGroupMeshAxesAttr")
"""Whether this jaxlib can write device groups by mesh axes."""


@dataclass
class Groups:
    """Writes the groups of one module; equal ones once.

    `exported`: devices are SPMD partitions; collectives need a channel and global device ids, as jax.shard_map writes them.
    `local`: devices are replicas; without a channel StableHLO's process groups are cross-replica.
    """

    form: Form = "exported"
    spelling: Spelling = "dense"
    collective_broadcast: bool = False
    """Whether the backend has `stablehlo.collective_broadcast`."""
    _written: dict[tuple[Hashable, ...], ir.Attribute] = field(default_factory=dict)
    _devices: dict[tuple[str, Digits], Numbers] = field(default_factory=dict)

    def collective(self, mesh: Mesh, digits: Digits, *, global_ids: bool = True) -> Attributes:
        """The attributes that say who takes part. `global_ids` False for the operations that know no such flag."""
        attrs = self._with_channel("replica_groups", self._once((mesh.name, digits), lambda: self._replica_groups(mesh, digits)))
        if self.form == "exported" and global_ids:
            attrs["use_global_device_ids"] = ir.UnitAttr.get()
        return attrs

    def moves(self, mesh: Mesh, digits: Digits, steps: Steps) -> Attributes:
        """The attributes of a collective_permute that takes the same steps in every group."""

        def pairs() -> ir.Attribute:
            sources, targets = (list(members) for members in zip(*steps, strict=True))
            groups = self.devices(mesh, digits)
            return _pairs(groups[:, sources], groups[:, targets])

        return self._with_channel("source_target_pairs", self._once((mesh.name, digits, steps), pairs))

    def relabelling(self, mesh: Mesh, sources: Digits, targets: Digits) -> Attributes:
        """The attributes of a collective_permute from member L along `sources` to member L along `targets`, the same digits."""

        def pairs() -> ir.Attribute:
            return _pairs(self.devices(mesh, sources), self.devices(mesh, targets))

        return self._with_channel("source_target_pairs", self._once((mesh.name, sources, "to", targets), pairs))

    def between(self, mesh: Mesh, senders: Numbers, receivers: Numbers) -> Attributes:
        """The attributes of a collective_permute between devices named by their row-major numbers."""
        devices = np.array(mesh.ordered_devices(), np.int64)
        return self._with_channel("source_target_pairs", _pairs(devices[senders], devices[receivers]))

    def rooted(self, mesh: Mesh, digits: Digits, root: int) -> Attributes:
        """The attributes of a collective_broadcast, whose groups name their root first."""

        def groups() -> ir.Attribute:
            return dense(np.roll(self.devices(mesh, digits), -root, axis=1))

        return self._with_channel("replica_groups", self._once((mesh.name, digits, "from", root), groups))

    def devices(self, mesh: Mesh, digits: Digits) -> Numbers:
        """Logical devices, one row for each group along `digits`, in group order."""
        key = (mesh.name, digits)
        if (found := self._devices.get(key)) is None:
            found = self._devices[key] = np.array(mesh.ordered_devices(), np.int64)[groups_along(mesh, digits)]
        return found

    def _once(self, key: tuple[Hashable, ...], write: Callable[[], ir.Attribute]) -> ir.Attribute:
        if (found := self._written.get(key)) is None:
            found = self._written[key] = write()
        return found

    def _with_channel(self, name: str, attr: ir.Attribute) -> Attributes:
        if self.form == "local":
            return {name: attr}
        return {name: attr, "channel_handle": self._once(("channel",), _channel)}

    def _replica_groups(self, mesh: Mesh, digits: Digits) -> ir.Attribute:
        """`replica_groups` in the chosen spelling; dense for factors of axes, and on a mesh with a device order of its own.

        XLA (as of jaxlib 0.10) reads the axes of a `#stablehlo.mesh` and drops its device ids.
        """
        axes = whole_axes(mesh, digits) if self.spelling == "mesh-axes" and not mesh.device_ids else None
        return dense(self.devices(mesh, digits)) if axes is None else _mesh_axes(mesh, axes)


def _pairs(sources: Numbers, targets: Numbers) -> ir.Attribute:
    """`[[source, target], …]`, by source."""
    pairs = np.stack([sources.ravel(), targets.ravel()], axis=1)
    return dense(pairs[pairs[:, 0].argsort()])


def _channel() -> ir.Attribute:
    """One number for all collectives, so that equal ones stay equal to CSE; JAX does the same. Type 1: between devices."""
    return ir.Attribute.parse("#stablehlo.channel_handle<handle = 1, type = 1>")


def _mesh_axes(mesh: Mesh, axes: Axes) -> ir.Attribute:
    """`#stablehlo.replica_group_mesh_axes` with the mesh written inside, so that it needs no symbol.

    Parts of an axis are axes of that mesh: portable artifacts (as of jaxlib 0.10) take no sub-axes here.
    """
    if not KNOWS_MESH_AXES:
        raise MeshError("<module>: error: replica_groups=mesh-axes needs jaxlib 0.10 or newer; this one writes them dense only")
    sizes = ", ".join(f"#stablehlo.mesh_axis<name = {_name(mesh, axis)}, size = {size}>" for axis, size in enumerate(mesh.shape))
    refs = ", ".join(f"#stablehlo.axis_ref<name = {_name(mesh, axis)}>" for axis in axes)
    return ir.Attribute.parse(f"#stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes = [{sizes}]>, axes = [{refs}]>")


def _name(mesh: Mesh, axis: int) -> str:
    """The axis's name as a quoted string."""
    return str(ir.StringAttr.get(mesh.axis_name(axis)))
