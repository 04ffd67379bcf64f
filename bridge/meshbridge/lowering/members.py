"""Members of a group: the in-group device that `root`, `source` or `destination` names (spec: "In-group Device")."""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.dialect.ops import CollectiveOpView
from meshbridge.ir.mlir import ir
from meshbridge.lowering.site import Site

Member = int | ir.Value
"""A device's number in its group: an int, or a `tensor<i32>` if it is only known at run time."""


def member(op: CollectiveOpView, site: Site, name: str) -> Member:
    """The number of the device that the attribute `name` gives as a multi-index along the site's axes.

    Raises OpError if the multi-index has another length than the axes, or is outside the group.
    """
    index = [site.known(entry) for entry in op.device(name)]
    sizes = [site.mesh.shape[axis] for axis in site.axes]
    if len(index) != len(sizes):
        raise site.error(f"{name} has {len(index)} coordinates; its device group has {len(sizes)} axes")
    for number, (coordinate, size) in enumerate(zip(index, sizes, strict=True)):
        if isinstance(coordinate, int) and not 0 <= coordinate < size:
            raise site.error(f"coordinate {number} of {name} must be in [0, {size}), got {coordinate}")
    return linearize(site, index, sizes)


def linearize(site: Site, index: Sequence[Member], sizes: Sequence[int]) -> Member:
    """The row-major number of a multi-index, computed at run time only if a coordinate is."""
    number: Member = 0
    for coordinate, size in zip(index, sizes, strict=True):
        if not isinstance(number, int):
            number = site.builder.add(site.builder.multiply(number, size), coordinate)
        elif isinstance(coordinate, int):
            number = number * size + coordinate
        else:
            number = site.builder.add(coordinate, number * size)
    return number


def is_member(site: Site, number: Member) -> ir.Value:
    """`tensor<i1>`: true on the device that is member `number` of its group."""
    return site.builder.compare("EQ", site.in_group(), number)
