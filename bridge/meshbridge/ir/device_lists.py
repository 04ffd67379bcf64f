"""Device lists of StableHLO's collectives as positions on a mesh, and the mesh axes of their groups."""

from __future__ import annotations

import numpy as np

from meshbridge.ir.digits import Numbers, axis_digits, groups_along
from meshbridge.ir.groups import read_groups
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes, Mesh


def device_table(listed: ir.Attribute) -> Numbers:
    """Device ids, one row for each group or pair."""
    table = np.array(ir.DenseIntElementsAttr(listed))
    return table.reshape(table.shape[0], -1) if table.size else np.zeros((0, 2), np.int64)


def positions_of(devices: Numbers, mesh: Mesh) -> Numbers:
    """The mesh positions of devices with these ids."""
    if not mesh.device_ids:
        return devices
    of_device = np.empty(mesh.size, np.int64)
    of_device[np.array(mesh.device_ids)] = np.arange(mesh.size)
    positions: Numbers = of_device[devices]
    return positions


def group_positions(groups: ir.Attribute, mesh: Mesh) -> Numbers | None:
    """The positions of each group's members in `replica_groups`, one row per group; None for groups along unknown axes, for
    groups of different sizes, and for unknown devices."""
    listed = device_table(groups) if isinstance(groups, ir.DenseElementsAttr) else read_groups(groups, mesh)
    if listed is None or (listed < 0).any() or (listed >= mesh.size).any():
        return None
    return positions_of(listed, mesh)


def axes_within(positions: Numbers, mesh: Mesh) -> Axes:
    """The mesh axes along which the devices of a row differ, the slowest first."""
    if not positions.size:
        return ()
    coordinates = np.array(np.unravel_index(positions, mesh.shape))
    differs = (coordinates != coordinates[:, :, :1]).any(axis=1)
    changing = [axis for axis in range(mesh.rank) if differs[axis].any()]
    return tuple(sorted(changing, key=lambda axis: -int(differs[axis].argmax())))


def axes_along(positions: Numbers, mesh: Mesh) -> Axes | None:
    """The mesh axes of which these are the groups, outer first, members in order; None if there are none, for example if groups
    divide an axis. Groups of one device have no axes."""
    axes = axes_within(positions, mesh)
    expected = groups_along(mesh, axis_digits(mesh, axes))
    if positions.shape != expected.shape:
        return None
    by_first = positions[np.argsort(positions[:, 0])]
    return axes if np.array_equal(by_first, expected[np.argsort(expected[:, 0])]) else None


def rotation(pairs: ir.Attribute, mesh: Mesh) -> tuple[int, int] | None:
    """The axis of a rotation along one axis, and by how many devices it sends; None for other `source_target_pairs`."""
    listed = device_table(pairs)
    if len(listed) != mesh.size or (listed < 0).any() or (listed >= mesh.size).any():
        return None
    sources, targets = np.array(np.unravel_index(positions_of(listed, mesh), mesh.shape)).transpose(2, 0, 1)
    steps = (targets - sources) % np.array(mesh.shape)[:, None]
    changing = [axis for axis in range(mesh.rank) if steps[axis].any()]
    if len(changing) != 1 or (steps[changing[0]] != steps[changing[0], 0]).any():
        return None
    return changing[0], int(steps[changing[0], 0])
