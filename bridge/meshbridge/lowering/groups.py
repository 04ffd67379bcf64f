"""Device groups as XLA reads them: replica groups, source-target pairs and channel handles.

A device's number in a group is its *logical* number: its place in XLA's device assignment, `partition_id` in the exported form
and `replica_id` in the local one. `Mesh.device_ids` holds those same numbers, as `sdy.mesh`'s `device_ids` do: the device at
row-major position p of the mesh is logical device `device_ids[p]`. Which hardware a logical device is, the device assignment
alone decides, in both forms: `jax.jit` takes it from the devices of its mesh, a PJRT client from CompileOptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from meshbridge.lowering.emit import dense
from meshbridge.mlir import ir
from meshbridge.sharding import Axes, Mesh, device_groups

Form = Literal["exported", "local"]
Spelling = Literal["dense", "mesh-axes"]
Attributes = dict[str, ir.Attribute]


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
    _replica_groups: dict[tuple[Mesh, Axes], ir.Attribute] = field(default_factory=dict)
    _device_groups: dict[tuple[Mesh, Axes], list[list[int]]] = field(default_factory=dict)

    def collective(self, mesh: Mesh, axes: Axes, *, global_ids: bool = True) -> Attributes:
        """The attributes that say who takes part. `global_ids` False for the operations that know no such flag."""
        attrs = {"replica_groups": self.replica_groups(mesh, axes)}
        if self.form == "exported":
            attrs["channel_handle"] = _channel()
            if global_ids:
                attrs["use_global_device_ids"] = ir.UnitAttr.get()
        return attrs

    def permutation(self, pairs: list[tuple[int, int]]) -> Attributes:
        """The attributes of a collective_permute between logical devices, sources first."""
        attrs: Attributes = {"source_target_pairs": dense(np.array(sorted(pairs), np.int64))}
        if self.form == "exported":
            attrs["channel_handle"] = _channel()
        return attrs

    def rooted(self, mesh: Mesh, axes: Axes, root: int) -> Attributes:
        """The attributes of a collective_broadcast, whose groups name their root first."""
        groups = [group[root:] + group[:root] for group in self.devices(mesh, axes)]
        attrs: Attributes = {"replica_groups": dense(np.array(groups, np.int64))}
        if self.form == "exported":
            attrs["channel_handle"] = _channel()
        return attrs

    def devices(self, mesh: Mesh, axes: Axes) -> list[list[int]]:
        """Logical devices of every group along `axes`, in group order; see sharding.device_groups."""
        key = (mesh, axes)
        if (found := self._device_groups.get(key)) is None:
            found = self._device_groups[key] = device_groups(mesh, axes)
        return found

    def replica_groups(self, mesh: Mesh, axes: Axes) -> ir.Attribute:
        """`replica_groups` in the chosen spelling; but a mesh with a device order of its own has dense groups.

        XLA (as of jaxlib 0.10) reads the axes of a `#stablehlo.mesh` and drops its device ids.
        """
        key = (mesh, axes)
        if (found := self._replica_groups.get(key)) is None:
            by_axes = self.spelling == "mesh-axes" and not mesh.device_ids
            found = _mesh_axes(mesh, axes) if by_axes else dense(np.array(self.devices(mesh, axes), np.int64))
            self._replica_groups[key] = found
        return found


def _channel() -> ir.Attribute:
    """One number for all collectives, so that equal ones stay equal to CSE; JAX does the same. Type 1: between devices."""
    return ir.Attribute.parse("#stablehlo.channel_handle<handle = 1, type = 1>")


def _mesh_axes(mesh: Mesh, axes: Axes) -> ir.Attribute:
    """`#stablehlo.replica_group_mesh_axes` with the mesh written inside, so that it needs no symbol; axes go by `axis_name`."""
    sizes = ", ".join(f"#stablehlo.mesh_axis<name = {_name(mesh, axis)}, size = {size}>" for axis, size in enumerate(mesh.shape))
    refs = ", ".join(f"#stablehlo.axis_ref<name = {_name(mesh, axis)}>" for axis in axes)
    return ir.Attribute.parse(f"#stablehlo.replica_group_mesh_axes<mesh = #stablehlo.mesh<axes = [{sizes}]>, axes = [{refs}]>")


def _name(mesh: Mesh, axis: int) -> str:
    """The axis's name as a quoted string."""
    return str(ir.StringAttr.get(mesh.axis_name(axis)))
