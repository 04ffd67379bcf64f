"""Parses the meshes to search on, and chooses a topology for a machine that is named without one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import MAX_DEVICES, Mesh
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.layout import place
from meshbridge.machines.target import of_machine
from meshbridge.text import did_you_mean

AXES = ("x", "y", "z", "w", "v", "u")
"""The names of unnamed axes."""

_AXIS = re.compile(r"\s*(\w+)\s*=\s*([1-9]\d*)\s*")
_SIZES = re.compile(r"[1-9]\d*(x[1-9]\d*)*")


def meshes(notation: str | Mapping[str, int]) -> list[Mesh]:
    """The meshes of `data=4,model=2`, or of a mapping that says this; of `4x2`, whose axes are `x` and `y`; or of `8`: that many
    devices along one axis, and along two axes of any sizes.

    Raises MeshError for another notation, and for more devices than a program can be partitioned on.
    """
    text = notation if isinstance(notation, str) else ",".join(f"{name}={size}" for name, size in notation.items())
    axes = [_AXIS.fullmatch(part) for part in text.split(",")]
    if all(axes):
        candidates = [Mesh("mesh", tuple(int(axis[2]) for axis in axes if axis), tuple(axis[1] for axis in axes if axis))]
    elif _SIZES.fullmatch(text) is None:
        raise MeshError(
            f"error: expected a mesh, as in 16x16, data=16,model=16, or 256 for any of so many devices, found '{text}'"
        )
    elif "x" in text:
        sizes = tuple(map(int, text.split("x")))
        if len(sizes) > len(AXES):
            raise MeshError(f"error: expected a mesh of at most {len(AXES)} axes without names, found {len(sizes)} in '{text}'")
        candidates = [Mesh("mesh", sizes, AXES[: len(sizes)])]
    else:
        size = int(text)
        pairs = [(outer, size // outer) for outer in range(2, size) if size <= MAX_DEVICES and size % outer == 0]
        candidates = [Mesh("mesh", sizes, AXES[: len(sizes)]) for sizes in ((size,), *pairs)]
    for mesh in candidates:
        if mesh.size > MAX_DEVICES:
            raise MeshError(f"error: mesh '{text}' has {mesh.size} devices, expected at most {MAX_DEVICES}")
        if len({*mesh.axis_names}) < mesh.rank:
            raise MeshError(f"error: mesh '{text}' names an axis twice")
    return candidates


def in_parts(meshes: Sequence[Mesh], sub_axes: Mapping[str, Sequence[int]]) -> tuple[list[Mesh], dict[str, tuple[str, ...]]]:
    """The meshes with each axis in `sub_axes` split: sub-axes 2 and 4 of `data` are `data_0` and `data_1`; and the names of the
    sub-axes of each axis.

    Raises MeshError for an axis that no mesh has, for sizes that do not make up an axis, and for a name that exists.
    """
    parts = {name: tuple(f"{name}_{number}" for number in range(len(sizes))) for name, sizes in sub_axes.items()}
    return [_in_parts(mesh, sub_axes, parts) for mesh in meshes], parts


def _in_parts(mesh: Mesh, sub_axes: Mapping[str, Sequence[int]], parts: Mapping[str, Sequence[str]]) -> Mesh:
    for name, sizes in sub_axes.items():
        axis_sizes = dict(mesh.named_axes)
        if name not in axis_sizes:
            known = f"{', '.join(axis_sizes)}{did_you_mean(name, axis_sizes)}"
            raise MeshError(f"error: sub-axes of '{name}', expected an axis of the mesh: {known}")
        sizes_text = "x".join(map(str, sizes))
        if len(sizes) < 2 or min(sizes) < 2 or prod(sizes) != axis_sizes[name]:
            raise MeshError(
                f"error: sub-axes of '{name}' are {sizes_text}, "
                f"expected two sizes or more, of 2 or more, that make {axis_sizes[name]}"
            )
        if clashing := [part for part in parts[name] if part in axis_sizes]:
            raise MeshError(
                f"error: sub-axes of '{name}' are called {', '.join(parts[name])}, and the mesh has an axis '{clashing[0]}'"
            )
    axes = [
        (part, part_size)
        for name, size in mesh.named_axes
        for part, part_size in zip(parts.get(name, (name,)), sub_axes.get(name, (size,)), strict=True)
    ]
    return Mesh(mesh.name, tuple(size for _, size in axes), tuple(name for name, _ in axes))


def sub_axes(text: str) -> tuple[str, tuple[int, ...]]:
    """Parses `data=2x4`: an axis and the sizes of its sub-axes. Raises MeshError for another notation."""
    name, _, sizes = text.partition("=")
    if not (name.strip().isidentifier() and _SIZES.fullmatch(sizes.strip())):
        raise MeshError(f"error: expected an axis and the sizes of its parts, as in data=2x4, found '{text}'")
    return name.strip(), tuple(map(int, sizes.split("x")))


def timed(target: CompileTarget) -> CompileTarget:
    """The target. Raises MeshError for one without known times."""
    if target.machine is None:
        raise MeshError(
            f"error: a search minimises time, which machine '{target.name}' says nothing of: name a device, as in v5p or h100"
        )
    return target


def with_topology(target: CompileTarget, mesh: Mesh) -> CompileTarget:
    """`target` with a topology of the mesh's devices, if it has none: among those that the mesh fits, the one whose longest side
    is the shortest; for GPUs, the fewest nodes.

    Raises MeshError if there is none.
    """
    if target.devices is not None:
        return target
    machine, device = target.name, target.device
    if mesh.size % device.devices_per_chip:
        raise MeshError(
            f"error: machine '{machine}' has {device.devices_per_chip} devices a chip, the mesh has {mesh.size} devices"
        )
    size, is_torus = mesh.size // device.devices_per_chip, bool(device.link.wrap_multiple)
    topologies = _products(size, len(device.topology))
    for sizes in sorted(topologies, key=lambda sizes: (max(sizes) if is_torus else prod(sizes[:-1]), sizes)):
        text = f"{machine}:{'x'.join(map(str, sizes))}"
        try:
            place(mesh, of_machine(text))
        except MeshError:
            continue
        return target.but(machine=text)
    raise MeshError(
        f"error: no topology of machine '{machine}' has {mesh.size} devices on which the mesh fits: name one, as in v5p:4x4x4"
    )


def divisors(number: int) -> list[int]:
    """The divisors of a number, itself included, the smallest first."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _products(size: int, count: int) -> list[tuple[int, ...]]:
    """All ways to write `size` as a product of `count` numbers."""
    return [sizes for sizes in product(divisors(size), repeat=count) if prod(sizes) == size]
