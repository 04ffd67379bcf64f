"""Meshes to search on, as they are written, and topologies for machines that are named without one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from meshbridge.cost.objective import UNNAMED, objective
from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import MAX_DEVICES, Mesh
from meshbridge.machines.layout import place
from meshbridge.machines.machine import named
from meshbridge.machines.target import has_topology, of_machine

AXES = ("x", "y", "z", "w", "v", "u")
"""What axes are called that nobody names."""

_AXIS = re.compile(r"\s*(\w+)\s*=\s*([1-9]\d*)\s*")
_SIZES = re.compile(r"[1-9]\d*(x[1-9]\d*)*")


def meshes(said: str | Mapping[str, int]) -> list[Mesh]:
    """The meshes that are meant: `data=4,model=2`, or a mapping that says this; `4x2`, whose axes are `x` and `y`; or `8`, of
    that many devices along one axis, and along two, whatever their sizes.

    Raises MeshError for another notation, and for more devices than a program is partitioned on.
    """
    text = said if isinstance(said, str) else ",".join(f"{name}={size}" for name, size in said.items())
    axes = [_AXIS.fullmatch(part) for part in text.split(",")]
    if all(axes):
        found = [Mesh("mesh", tuple(int(each[2]) for each in axes if each), tuple(each[1] for each in axes if each))]
    elif _SIZES.fullmatch(text) is None:
        raise MeshError(
            f"error: expected a mesh, as in 16x16, data=16,model=16, or 256 for any of so many devices, found '{text}'"
        )
    elif "x" in text:
        sizes = tuple(map(int, text.split("x")))
        if len(sizes) > len(AXES):
            raise MeshError(f"error: expected a mesh of at most {len(AXES)} axes without names, found {len(sizes)} in '{text}'")
        found = [Mesh("mesh", sizes, AXES[: len(sizes)])]
    else:
        size = int(text)
        pairs = [(outer, size // outer) for outer in range(2, size) if size <= MAX_DEVICES and size % outer == 0]
        found = [Mesh("mesh", sizes, AXES[: len(sizes)]) for sizes in ((size,), *pairs)]
    for mesh in found:
        if mesh.size > MAX_DEVICES:
            raise MeshError(f"error: mesh '{text}' has {mesh.size} devices, expected at most {MAX_DEVICES}")
        if len({*mesh.axis_names}) < mesh.rank:
            raise MeshError(f"error: mesh '{text}' names an axis twice")
    return found


def in_parts(meshes: Sequence[Mesh], sub_axes: Mapping[str, Sequence[int]]) -> tuple[list[Mesh], dict[str, tuple[str, ...]]]:
    """The meshes where each axis that `sub_axes` names is several: 2 and 4 of `data` are `data_0` and `data_1`; and the names of
    the parts by that of the axis.

    Raises MeshError for an axis that no mesh has, for sizes that do not make up an axis, and for a name that is taken.
    """
    parts = {name: tuple(f"{name}_{number}" for number in range(len(sizes))) for name, sizes in sub_axes.items()}
    return [_in_parts(mesh, sub_axes, parts) for mesh in meshes], parts


def _in_parts(mesh: Mesh, sub_axes: Mapping[str, Sequence[int]], parts: Mapping[str, Sequence[str]]) -> Mesh:
    for name, sizes in sub_axes.items():
        known = dict(mesh.named_axes)
        if name not in known:
            raise MeshError(f"error: sub-axes of '{name}', expected an axis of the mesh: {', '.join(known)}")
        said = "x".join(map(str, sizes))
        if len(sizes) < 2 or min(sizes) < 2 or prod(sizes) != known[name]:
            raise MeshError(
                f"error: sub-axes of '{name}' are {said}, expected two sizes or more, of 2 or more, that make {known[name]}"
            )
        if taken := [part for part in parts[name] if part in known]:
            raise MeshError(
                f"error: sub-axes of '{name}' are called {', '.join(parts[name])}, and the mesh has an axis '{taken[0]}'"
            )
    cut = [
        (part, each)
        for name, size in mesh.named_axes
        for part, each in zip(parts.get(name, (name,)), sub_axes.get(name, (size,)), strict=True)
    ]
    return Mesh(mesh.name, tuple(size for _, size in cut), tuple(name for name, _ in cut))


def sub_axes(text: str) -> tuple[str, tuple[int, ...]]:
    """The notation `data=2x4`: an axis, and the sizes of its parts. Raises MeshError for another one."""
    name, _, sizes = text.partition("=")
    if not (name.strip().isidentifier() and _SIZES.fullmatch(sizes.strip())):
        raise MeshError(f"error: expected an axis and the sizes of its parts, as in data=2x4, found '{text}'")
    return name.strip(), tuple(map(int, sizes.split("x")))


def timed(machine: str) -> str:
    """The same. Raises MeshError for one of which no time is known, and for one that is none."""
    objective(machine)
    if machine in UNNAMED:
        raise MeshError(
            f"error: a search minimises time, which machine '{machine}' says nothing of: name a device, as in v5p or h100"
        )
    return machine


def with_topology(machine: str, mesh: Mesh) -> str:
    """`machine` with a topology of the mesh's devices, where it has none: of those that the mesh fits, the one whose longest side
    is the shortest, and of GPUs as few nodes as there can be.

    Raises MeshError where there is none.
    """
    if has_topology(machine):
        return machine
    known = named(machine)
    if mesh.size % known.devices_per_chip:
        raise MeshError(
            f"error: machine '{machine}' has {known.devices_per_chip} devices a chip, the mesh has {mesh.size} devices"
        )
    size, is_torus = mesh.size // known.devices_per_chip, bool(known.link.wrap_multiple)
    ways = _products(size, len(known.topology))
    for sizes in sorted(ways, key=lambda sizes: (max(sizes) if is_torus else prod(sizes[:-1]), sizes)):
        text = f"{machine}:{'x'.join(map(str, sizes))}"
        try:
            place(mesh, of_machine(text))
        except MeshError:
            continue
        return text
    raise MeshError(
        f"error: no topology of machine '{machine}' has {mesh.size} devices on which the mesh fits: name one, as in v5p:4x4x4"
    )


def _products(size: int, count: int) -> list[tuple[int, ...]]:
    """All ways to write `size` as a product of `count` numbers."""
    divisors = [each for each in range(1, size + 1) if size % each == 0]
    return [sizes for sizes in product(divisors, repeat=count) if prod(sizes) == size]
