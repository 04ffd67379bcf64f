"""Members of a group: the in-group device that `root`, `source` or `destination` names (spec: "In-group Device")."""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.dialect.ops import CollectiveOpView
from meshbridge.ir.mlir import ir
from meshbridge.lowering.site import Site

Member = int | ir.Value
"""A device's number in its group: an int, or `tensor<i32>` where it is only known at run time."""


def member(op: CollectiveOpView, site: Site, name: str) -> Member:
    """The number of the device whose multi-index along the site's axes is the attribute `name`.

    Raises OpError for a multi-index of another length than the axes, and for one outside of the group.
    """
    index = [site.known(entry) for entry in op.device(name)]
    sizes = [site.mesh.shape[axis] for axis in site.axes]
    if len(index) != len(sizes):
        raise site.error(f"{name} has {len(index)} coordinates; its device group has {len(sizes)} axes")
    for place, (coordinate, size) in enumerate(zip(index, sizes, strict=True)):
        if isinstance(coordinate, int) and not 0 <= coordinate < size:
            raise site.error(f"coordinate {place} of {name} must be in [0, {size}), got {coordinate}")
    return linearize(site, index, sizes)


def linearize(site: Site, index: Sequence[Member], sizes: Sequence[int]) -> Member:
    """Row-major number of a multi-index, computed at run time only where it has to be."""
    number: Member = 0
    for coordinate, size in zip(index, sizes, strict=True):
        if not isinstance(number, int):
            number = site.emit.add(site.emit.multiply(number, size), coordinate)
        elif isinstance(coordinate, int):
            number = number * size + coordinate
        else:
            number = site.emit.add(coordinate, number * size)
    return number


def is_member(site: Site, number: Member) -> ir.Value:
    """`tensor<i1>`: whether this device is that member of its group."""
    return site.emit.compare("EQ", site.in_group(), number)
