"""The topology of devices and their positions in it, from what JAX knows of each: the coordinates of its chip, its core, its
slice, its process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshbridge.ir.mlir import MeshError
from meshbridge.machines import order
from meshbridge.machines.layout import dimensions, ordered
from meshbridge.machines.machine import Machine
from meshbridge.machines.order import Coordinates
from meshbridge.machines.target import of_machine


class Located(NamedTuple):
    """Devices in a topology of their machine."""

    name: str
    "The machine with its topology, as in `v5e:4x4`."
    layout: str
    "The order of the devices in the topology: a layout of all axes."


class UnlocatedError(MeshError):
    """Devices that do not tell their positions, or whose positions no layout describes. The text says what is missing."""


def locate(devices: Sequence[Any], known: Sequence[Any], machine: Machine) -> Located:
    """The positions of JAX's `devices`, in order, among the `known` devices of their backend, all in slices or nodes of one size.
    Raises UnlocatedError."""
    everything = list({device.id: device for device in (*known, *devices)}.values())
    is_torus = bool(machine.link.wrap_multiple)
    rows = _on_torus(everything, machine) if is_torus else _at_switches(everything, machine)
    numbers = {device.id: number for number, device in enumerate(everything)}
    used = rows[[numbers[device.id] for device in devices]]
    outer = np.unique(used[:, 0])
    beginnings, shape = _slices(rows, outer)
    name = f"{machine.name}:{'x'.join(map(str, _topology(len(outer), shape, machine)))}"
    try:
        physical = dimensions(of_machine(name))
    except MeshError as error:
        raise UnlocatedError(str(error).removeprefix("error: ")) from None
    at = np.searchsorted(outer, used[:, 0])
    columns = np.column_stack([at, used[:, 1:] - beginnings[at]])
    has_outer, has_core = machine.network is not None, machine.chip is not None or not is_torus
    blocks = order.blocks(columns[:, (0 if has_outer else 1) : (None if has_core else -1)])
    if blocks is None or (layout := ordered(blocks, physical)) is None:
        raise UnlocatedError("in the order of the mesh they are no grid")
    return Located(name, layout)


def _on_torus(devices: Sequence[Any], machine: Machine) -> Coordinates:
    """Slice, coordinates of the chip, core. Devices of a single slice need not number it."""
    axes = len(machine.topology)
    rows_found = []
    for device in devices:
        coords = getattr(device, "coords", None)
        if coords is None or len(coords) < axes:
            raise UnlocatedError(f"they have no coordinates {', '.join(machine.topology)}")
        rows_found.append((_slice(device), *coords, getattr(device, "core_on_chip", None) or 0))
    rows = np.array(rows_found, np.int64)
    if (rows[:, 1 + axes : -1] != rows[:1, 1 + axes : -1]).any():
        raise UnlocatedError(f"their coordinates have other axes than {', '.join(machine.topology)}")
    return np.column_stack([rows[:, : 1 + axes], rows[:, -1]])


def _at_switches(devices: Sequence[Any], machine: Machine) -> Coordinates:
    """Node, and number in the node, by device ids. A node is what JAX calls a slice of GPUs, or a process of it, if the slice has
    more devices than a switch connects."""
    slices = [_slice(device) for device in devices]
    divided = max(Counter(slices).values()) > machine.link.size
    nodes = [(number, device.process_index if divided else 0) for number, device in zip(slices, devices, strict=True)]
    numbers = {node: number for number, node in enumerate(sorted({*nodes}))}
    counted = Counter[tuple[int, int]]()
    rows = np.zeros((len(devices), 2), np.int64)
    for at in sorted(range(len(devices)), key=lambda at: devices[at].id):
        rows[at] = numbers[nodes[at]], counted[nodes[at]]
        counted[nodes[at]] += 1
    return rows


def _slice(device: Any) -> int:
    return getattr(device, "slice_index", None) or 0


def _slices(rows: Coordinates, outer: npt.NDArray[np.int64]) -> tuple[Coordinates, tuple[int, ...]]:
    """The first device of each slice or node, and the number of devices along each dimension. Raises UnlocatedError if they
    differ or have gaps."""
    blocks = [rows[rows[:, 0] == number, 1:] for number in outer]
    shapes = {tuple((block.max(axis=0) - block.min(axis=0) + 1).tolist()) for block in blocks}
    if len(shapes) > 1 or any(len(block) != prod(next(iter(shapes))) for block in blocks):
        sizes = ", ".join(f"{len(block)} within {'x'.join(map(str, np.ptp(block, axis=0) + 1))}" for block in blocks)
        raise UnlocatedError(f"their slices or nodes are no full blocks of one size: {sizes}")
    return np.array([block.min(axis=0) for block in blocks]), next(iter(shapes))


def _topology(outer: int, shape: Sequence[int], machine: Machine) -> Iterator[int]:
    """The numbers of the machine's topology. Raises UnlocatedError if chips have another number of devices."""
    if not machine.link.wrap_multiple:
        yield from (*[1] * (len(machine.topology) - 2), outer, *shape)
        return
    if shape[-1] != machine.devices_per_chip:
        raise UnlocatedError(f"they are {shape[-1]} to a chip, expected {machine.devices_per_chip}")
    yield from (*([outer] if outer > 1 else []), *shape[:-1])
