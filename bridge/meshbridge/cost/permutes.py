"""Seconds that a permute takes on a machine: those of the busiest link, which all groups of the mesh share.

On a torus each operand travels along one dimension after the other, the shorter way around a ring, and half each way if both are
equal. With several dimensions, equal shares travel in each rotation of their order. Operands that take a network take no other
links. Links are counted one by one: the time grows with the devices along the dimensions of the groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from meshbridge.cost.seconds import Time
from meshbridge.ir.sharding import Axes
from meshbridge.machines.layout import Dimension, Placement
from meshbridge.machines.machine import Link

_KIND = "collective_permute"
"""What compilers issue for all of these, by StableHLO's name."""


def shift_time(operand_bytes: float, axes: Axes, offset: int, placement: Placement, *, rotate: bool) -> Time:
    """The time of a permute to the device `offset` further along `axes`; if `rotate`, the last devices send to the first ones."""
    of_a_byte = _shifted_byte(axes, offset, placement, rotate)
    return replace(of_a_byte, busy={name: operand_bytes * seconds for name, seconds in of_a_byte.busy.items()})


@lru_cache(maxsize=256)
def _shifted_byte(axes: Axes, offset: int, placement: Placement, rotate: bool) -> Time:
    size = prod(part.size for axis in axes for part in placement.parts[axis])
    sources = np.arange(size)
    targets = (sources + offset) % size if rotate else sources + offset
    inside = (targets >= 0) & (targets < size)
    return permute_time(1.0, sources[inside], targets[inside], axes, placement)


def permute_time(operand_bytes: float, sources: np.ndarray, targets: np.ndarray, axes: Axes, placement: Placement) -> Time:
    """The time in which each of `sources` sends its operand to the corresponding one of `targets`: distinct numbers of devices in
    their groups along `axes`, the last of which varies fastest."""
    moving = sources != targets
    if not moving.any():
        return Time()
    dimensions, coordinates = _coordinates(placement, axes)
    start, end = (coordinates[:, :, devices[moving]].reshape(len(dimensions), -1) for devices in (sources, targets))
    busy: dict[str, float] = {}
    hops = np.zeros(start.shape[1])
    links: set[Link] = set()
    on_torus = np.ones(start.shape[1], bool)
    for at, dimension in enumerate(dimensions):
        through = on_torus & (start[at] != end[at])
        if not dimension.torus and through.any():
            busy[dimension.name] = operand_bytes / dimension.link.rate_of(_KIND)
            hops += through * dimension.link.latency
            links.add(dimension.link)
            if dimension.link == placement.target.machine.network:
                on_torus = ~through
    loads = {dimension.name: np.zeros(()) for dimension in dimensions}
    torus = [at for at, dimension in enumerate(dimensions) if dimension.torus and (start[at] != end[at])[on_torus].any()]
    for order in (torus[at:] + torus[:at] for at in range(len(torus))):
        now = start[:, on_torus].copy()
        for at in order:
            dimension = dimensions[at]
            load, distance = _load(now, end[at, on_torus], at, dimensions)
            now[at] = end[at, on_torus]
            loads[dimension.name] = loads[dimension.name] + load / len(torus)
            busy[dimension.name] = operand_bytes * float(loads[dimension.name].max()) / dimension.link.rate_of(_KIND)
            hops[on_torus] += distance * dimension.link.latency / len(torus)
            links.add(dimension.link)
    return Time(max(link.launch_of(_KIND) for link in links) + float(hops.max()), busy)


def _coordinates(placement: Placement, axes: Axes) -> tuple[list[Dimension], np.ndarray]:
    """The dimensions of groups along `axes`, and the coordinates of devices along them, of shape dimensions x groups x devices of
    a group."""
    parts = [part for axis in axes for part in placement.parts[axis]]
    dimensions = [dimension for dimension in placement.dimensions if any(part.dimension == dimension for part in parts)]
    sizes = [part.size for part in parts]
    digits = np.unravel_index(np.arange(prod(sizes)), sizes)
    inside = np.zeros((len(dimensions), prod(sizes)), np.int64)
    origins = [np.arange(dimension.size) for dimension in dimensions]
    for part, digit in zip(parts, digits, strict=True):
        at = dimensions.index(part.dimension)
        inside[at] += digit * part.stride
        origins[at] = origins[at][origins[at] // part.stride % part.size == 0]
    origin = np.stack([coordinate.ravel() for coordinate in np.meshgrid(*origins, indexing="ij")])
    return dimensions, origin[:, :, None] + inside[:, None, :]


def _load(start: np.ndarray, end: np.ndarray, at: int, dimensions: list[Dimension]) -> tuple[np.ndarray, np.ndarray]:
    """The number of operands on each link if they move from the coordinates `start` to `end` along dimension `at`, of shape ways
    x lines x devices of a line, and the hops of each."""
    size, ring = dimensions[at].size, dimensions[at].ring
    forward = (end - start[at]) % size if ring else end - start[at]
    backward = size - forward if ring else -forward
    ahead = np.where(forward == backward, 0.5, 1.0) * ((forward <= backward) if ring else (forward > 0)) * (forward != 0)
    distance = np.minimum(forward, backward) if ring else np.abs(forward)
    other_dims = [dim for dim in range(len(dimensions)) if dim != at]
    line = np.zeros(start.shape[1], np.int64)
    for dim in other_dims:
        line = line * dimensions[dim].size + start[dim]
    lines = prod(dimensions[dim].size for dim in other_dims)
    loads = []
    for source, target, weight in ((start[at], end, ahead), (end, start[at], (forward != 0) - ahead)):
        change = np.zeros(lines * (size + 1))
        over = (source > target) * weight  # past the last device of a ring
        for at_end, weights in ((source, weight), (target, -weight), (0, over), (size, -over)):
            change += np.bincount(line * (size + 1) + at_end, weights, minlength=len(change))
        loads.append(change.reshape(lines, size + 1).cumsum(axis=1))
    return np.stack(loads), distance
