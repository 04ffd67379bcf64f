"""Which links of a machine the axes of a mesh are on: a layout, written `data=dcn,model=ici`, or for all axes at once, in the
order of the devices, `*=y+x`, where `y&x` says that they go through both in no order; and a default where nothing is said.

By default axes are laid out as `jax.make_mesh` does it. Of the slices of a TPU, and of the nodes of GPUs, the outermost axes take
as many as divide them, from the outside. Within a slice axes take the axes of the torus from the innermost on: whole ones before
parts of them, several before one. Everything here is closed-form: nothing lists devices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from operator import mul

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import Axes, Mesh
from meshbridge.machines import order
from meshbridge.machines.machine import Link
from meshbridge.machines.order import Block, GridDigit
from meshbridge.machines.target import ALL_AXES, Target
from meshbridge.text import did_you_mean


class OrderError(MeshError):
    """Axes of a mesh that the order of the devices does not fit."""


@dataclass(frozen=True)
class Dimension:
    """One coordinate of a device: its place along an axis of the torus, at a switch, or among nodes and slices."""

    name: str
    "That of the axis of the torus, or of the link."
    link: Link
    size: int
    ring: bool = False

    @property
    def torus(self) -> bool:
        """Whether neighbours are connected, and not any two devices."""
        return self.link.wrap_multiple > 0


@dataclass(frozen=True)
class Part:
    """What a mesh axis takes of a dimension: `size` devices, each of which is `stride` further along it than the one before."""

    dimension: Dimension
    size: int
    stride: int = 1

    @property
    def ring(self) -> bool:
        """Whether the last device is the neighbour of the first one."""
        return self.dimension.ring and self.size * self.stride == self.dimension.size


@dataclass(frozen=True)
class Placement:
    """A mesh on the devices of a machine."""

    target: Target
    dimensions: tuple[Dimension, ...]
    "Outermost first: network, axes of the torus or switch, devices of a chip."
    parts: tuple[tuple[Part, ...], ...]
    "Of each axis that the dialect numbers, what it is on, outermost first; nothing for an axis of one device."

    def across(self, axes: Axes) -> tuple[Part, ...]:
        """What groups along `axes` are on, outermost dimension first; parts of a dimension next to each other are one."""
        found: list[Part] = []
        parts = (part for axis in axes for part in self.parts[axis])
        for part in sorted(parts, key=lambda part: (self.dimensions.index(part.dimension), -part.stride)):
            if found and found[-1].dimension == part.dimension and found[-1].stride == part.size * part.stride:
                part = Part(part.dimension, found.pop().size * part.size, part.stride)
            found.append(part)
        return tuple(found)


def dimensions(target: Target) -> tuple[Dimension, ...]:
    """The coordinates of the devices of `target`. Raises MeshError where a node or a torus is larger than the machine's."""
    machine, link = target.machine, target.machine.link
    names = machine.topology if link.wrap_multiple else (link.name,)
    sizes = target.node_topology
    for name, size in zip(names, sizes, strict=True):
        if size > link.size:
            raise MeshError(f"error: machine '{target.text}': {size} devices along {name}, expected {link.size} at most")
    physical = [Dimension(*each) for each in zip(names, itertools.repeat(link), sizes, link.rings(sizes))]
    if machine.network is not None:
        physical.insert(0, Dimension(machine.network.name, machine.network, target.nodes))
    elif target.nodes > 1:
        raise MeshError(f"error: machine '{target.text}': expected {link.size} devices at most, its file has no [network]")
    if machine.chip is not None:
        physical.append(Dimension(machine.chip.name, machine.chip, machine.devices_per_chip))
    return tuple(physical)


def place(mesh: Mesh, target: Target) -> Placement:
    """Which links the axes of `mesh` are on, as the target's layout says. Raises MeshError for a layout that does not fit, and
    for a mesh of another number of devices. A layout of all axes may leave devices of the target out."""
    physical, layout = dimensions(target), target.layout
    if ALL_AXES in layout:
        return Placement(target, physical, _in_order(mesh, physical, target))
    if mesh.size != target.devices:
        raise MeshError(f"error: mesh @{mesh.name} has {mesh.size} devices, machine '{target.text}' has {target.devices}")
    sizes = {name: prod(mesh.shape[axis] for axis in run) for name, run in mesh.runs.items()}
    allowed = {axis: _named(axis, layout[axis], physical, target) for axis in layout if axis in sizes}
    for axis in layout:
        if axis not in sizes:
            axes = f"expected one of {', '.join(sizes)}{did_you_mean(axis, sizes)}"
            raise MeshError(f"error: layout of '{axis}': mesh @{mesh.name} has no such axis, {axes}")
    taken = _assign(sizes, physical, allowed, target)
    parts: list[tuple[Part, ...]] = [()] * mesh.rank
    strides = dict.fromkeys(physical, 1)
    for name, run in reversed(mesh.runs.items()):
        own = []
        for dimension, size in reversed([*zip(physical, taken[name], strict=True)]):
            if size > 1:
                own.append(Part(dimension, size, strides[dimension]))
                strides[dimension] *= size
        for number, parts_of_it in zip(
            run, _shared_out(own[::-1], [mesh.shape[number] for number in run], f"mesh axis '{name}'"), strict=True
        ):
            parts[number] = parts_of_it
    return Placement(target, physical, tuple(parts))


def ordered(found: Sequence[Block], physical: Sequence[Dimension]) -> str | None:
    """The layout of all axes whose devices count along those digits; None where no layout says that."""
    parts = [[Part(physical[digit.dimension], digit.size, digit.stride) for digit in block] for block in found]
    if any(part.dimension.size % (part.size * part.stride) for block in parts for part in block):
        return None
    return f"{ALL_AXES}={'+'.join('&'.join(map(_written, block)) for block in parts)}"


def _written(part: Part) -> str:
    """A part of a dimension as Shardy writes sub-axes, `x:(2)4`: four devices along x, of each of two blocks of them."""
    whole = part.dimension.size
    return (
        part.dimension.name if part.size == whole else f"{part.dimension.name}:({whole // (part.size * part.stride)}){part.size}"
    )


_PART = re.compile(r"(?P<name>[^:()]+)(:\((?P<outside>[1-9][0-9]*)\)(?P<size>[1-9][0-9]*))?")


def _in_order(mesh: Mesh, physical: Sequence[Dimension], target: Target) -> tuple[tuple[Part, ...], ...]:
    """What each axis that the dialect numbers is on, where the layout says what the devices count along. Raises OrderError where
    a user's axis is a part of what counts in an order of its own."""
    if len({*target.layout}) > 1:
        raise MeshError(f"error: layout of '{ALL_AXES}': it is one of all axes, expected no other beside it")
    found = [[_read(text, physical, target) for text in block.split("&")] for block in target.layout[ALL_AXES]]
    _check_apart([part for block in found for part in block], target)
    if (count := prod(part.size for block in found for part in block)) != mesh.size:
        raise MeshError(f"error: layout of '{ALL_AXES}': expected the {mesh.size} devices of mesh @{mesh.name}, found {count}")
    ends = {*itertools.accumulate((mesh.group_size(run) for run in mesh.runs.values()), mul)}
    after = 1
    for block in found:
        before, after = after, after * prod(part.size for part in block)
        if len(block) > 1 and (mesh.device_ids or any(before < end < after for end in ends)):
            together = " and ".join(map(_written, block))
            raise OrderError(f"error: an axis of mesh @{mesh.name} ends within {together}, through which devices go in no order")
    parts = [part for block in found for part in block]
    if mesh.device_ids:
        parts = _reordered(parts, mesh, physical, target)
    return tuple(_shared_out([part for part in parts if part.size > 1], mesh.shape, f"mesh @{mesh.name}"))


def _reordered(parts: Sequence[Part], mesh: Mesh, physical: Sequence[Dimension], target: Target) -> list[Part]:
    """What the positions of a mesh count along that lists its devices, whose numbers count along `parts`."""
    digits = [GridDigit(physical.index(part.dimension), part.size, part.stride) for part in parts]
    found = order.blocks(order.coordinates(digits, len(physical))[list(mesh.device_ids)])
    if found is None or any(len(block) > 1 for block in found):
        raise OrderError(f"error: mesh @{mesh.name} lists devices in an order that no links of '{target.text}' connect")
    return [Part(physical[digit.dimension], digit.size, digit.stride) for (digit,) in found]


def _read(text: str, physical: Sequence[Dimension], target: Target) -> Part:
    """A part that `_written` has written."""
    read = _PART.fullmatch(text)
    dimension = next((each for each in physical if read is not None and each.name == read["name"]), None)
    if read is None or dimension is None:
        names = ", ".join(each.name for each in physical)
        raise MeshError(f"error: layout of '{ALL_AXES}': expected one of {names}, or a part of it as in x:(2)4, found '{text}'")
    if read["size"] is None:
        return Part(dimension, dimension.size)
    outside, size = int(read["outside"]), int(read["size"])
    if dimension.size % (outside * size):
        along = f"the {dimension.size} devices along {dimension.name} of '{target.text}'"
        raise MeshError(f"error: layout of '{ALL_AXES}': '{text}' is no part of {along}")
    return Part(dimension, size, dimension.size // (outside * size))


def _check_apart(parts: Sequence[Part], target: Target) -> None:
    """Raises MeshError where two parts of a dimension overlap."""
    for inner, outer in itertools.pairwise(sorted(parts, key=lambda part: (part.dimension.name, part.stride))):
        if inner.dimension == outer.dimension and outer.stride < inner.size * inner.stride:
            found = f"{_written(outer)} and {_written(inner)}"
            raise MeshError(f"error: layout of '{ALL_AXES}': {found} are the same devices of machine '{target.text}'")


def _named(axis: str, names: Sequence[str], physical: Sequence[Dimension], target: Target) -> tuple[bool, ...]:
    """Which dimensions an axis may be on."""
    known = dict.fromkeys(name for dimension in physical for name in (dimension.link.name, dimension.name))
    if unknown := [name for name in names if name not in known]:
        expected = f"expected one of {', '.join(known)}{did_you_mean(unknown[0], known)}"
        raise MeshError(f"error: layout of '{axis}': machine '{target.text}' has no '{unknown[0]}', {expected}")
    return tuple(dimension.name in names or dimension.link.name in names for dimension in physical)


def _assign(
    sizes: Mapping[str, int], physical: Sequence[Dimension], allowed: Mapping[str, Sequence[bool]], target: Target
) -> dict[str, tuple[int, ...]]:
    """Of each mesh axis, how many devices it takes along each dimension. The axes that a layout names choose first, before
    all those with the fewest dimensions to choose from."""
    free = [dimension.size for dimension in physical]
    network = [not dimension.torus and dimension.link == target.machine.network for dimension in physical]
    outer: dict[str, list[int]] = {}
    said_first = sorted(sizes, key=lambda name: name not in allowed)
    for name in said_first:  # of the network, the outermost axes take what they can, an axis after one that it divides
        size, mine = sizes[name], outer.setdefault(name, [1] * len(physical))
        for at, (is_network, may) in enumerate(zip(network, allowed.get(name, network), strict=True)):
            if is_network and may:
                mine[at] = gcd(size, free[at])
                free[at] //= mine[at]
        if name not in allowed and size > prod(mine):
            break
    used = [1] * len(physical)
    everywhere = [True] * len(physical)
    inside_out = [*reversed([*sizes])]
    inside_out.sort(key=lambda name: sum(allowed[name]) if name in allowed else len(physical) + 1)  # who has the fewest choices
    found: dict[str, tuple[int, ...]] = {}
    for name in inside_out:
        mine = outer.get(name, [1] * len(physical))
        within = allowed.get(name, everywhere)
        room = [size if may and not is_network else 1 for size, may, is_network in zip(free, within, network, strict=True)]
        whole = [dimension.size for dimension in physical]
        options = _splits(sizes[name] // prod(mine), room)
        best = max(options, key=lambda split: _preference(split, whole, used), default=None)
        if best is None:
            left = ", ".join(f"{size} of {dimension.name}" for size, dimension in zip(free, physical, strict=True))
            where = f"machine '{target.text}'" if name not in allowed else "where its layout says"
            raise MeshError(f"error: mesh axis '{name}' of {sizes[name]} devices does not fit {where}: what is left is {left}")
        free = [size // taken for size, taken in zip(free, best, strict=True)]
        used = [before * taken for before, taken in zip(used, best, strict=True)]
        found[name] = tuple(map(mul, mine, best))
    return found


def _splits(size: int, room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to take `size` devices as a product of divisors of `room`."""
    if not room:
        if size == 1:
            yield ()
        return
    common = gcd(size, room[0])
    for taken in (divisor for divisor in range(1, common + 1) if common % divisor == 0):
        yield from ((taken, *rest) for rest in _splits(size // taken, room[1:]))


def _preference(split: Sequence[int], whole: Sequence[int], used: Sequence[int]) -> tuple[object, ...]:
    """Which way to take devices `jax.make_mesh` prefers: most along whole dimensions, most whole dimensions, most along
    dimensions that inner axes are on, and then the first dimensions."""
    entire = [taken for taken, size in zip(split, whole, strict=True) if taken == size > 1]
    shared = prod(taken for taken, before in zip(split, used, strict=True) if before > 1)
    return prod(entire), len(entire), shared, tuple(split)


def _shared_out(parts: Sequence[Part], sizes: Sequence[int], what: str) -> Iterator[tuple[Part, ...]]:
    """The parts of a user's axis, or of a mesh, for each of the axes that it is, outermost first."""
    left = list(parts)
    for size in sizes:
        own: list[Part] = []
        while size > 1:
            part = left.pop(0)
            taken = gcd(size, part.size)
            if taken not in (size, part.size):
                along = f"{part.size} devices along {part.dimension.name}"
                raise OrderError(f"error: {what} is split in {size}, which {along} cannot be")
            size //= taken
            own.append(Part(part.dimension, taken, part.stride * (part.size // taken)))
            if taken < part.size:
                left.insert(0, Part(part.dimension, part.size // taken, part.stride))
        yield tuple(own)
