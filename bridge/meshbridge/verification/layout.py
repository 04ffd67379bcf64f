"""Meshes and shardings: splits a global value into what each device holds, and joins it again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

import numpy as np

from meshbridge.ir.mlir import MeshError, ir, sdy, stablehlo
from meshbridge.verification.extended import differs
from meshbridge.verification.field import Array
from meshbridge.verification.machine import index, integers

Digit = tuple[int, int]
"""Part of a device's position on its mesh: position // digit[0] % digit[1]. An axis is one digit, a sub-axis part of one."""

Dims = tuple[tuple[Digit, ...], ...]
"""For each dimension of a tensor, the digits that split it, from outer to inner."""


@dataclass(frozen=True)
class DeviceMesh:
    """Named axes from outer to inner; `ids` are the devices in row-major order, empty for 0, 1, 2, …"""

    axes: tuple[tuple[str, int], ...]
    ids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return prod(size for _, size in self.axes)

    def digit(self, name: str, before: int = 1, size: int = 0) -> Digit:
        """The digit of an axis, or of its sub-axis of `size` after `before` others. Raises MeshError for an unknown axis."""
        stride = self.size
        for axis, length in self.axes:
            stride //= length
            if axis == name:
                return (stride * length // (before * size), size) if size else (stride, length)
        raise MeshError(
            f"<module>: error: the mesh has no axis '{name}', its axes are {', '.join(axis for axis, _ in self.axes)}"
        )

    def positions(self) -> Array:
        """The position of each device on the mesh, by its number."""
        positions = np.arange(self.size)
        if self.ids:
            positions[list(self.ids)] = np.arange(self.size)
        return positions

    def everywhere(self, value: Array) -> Array:
        """`value` with one entry for each device."""
        return np.broadcast_to(value, (self.size, *value.shape[1:]))

    def choices(self) -> Iterator[tuple[str, ...]]:
        """Every choice of axes longer than 1, fewest first."""
        names = [name for name, size in self.axes if size > 1]
        for count in range(1, len(names) + 1):
            yield from combinations(names, count)

    def groups_along(self, names: Sequence[str]) -> Array:
        """The groups of devices that differ along these axes alone, one row for each."""
        return np.array(self.groups([self.digit(name) for name in names]))

    def groups(self, digits: Sequence[Digit]) -> list[list[int]]:
        """The groups of devices that differ in these digits alone, in the order of the digits."""
        positions = self.positions()
        order = np.argsort(positions)
        base = positions - sum((positions // stride % size * stride for stride, size in digits), np.zeros(self.size, np.int64))
        groups = []
        for start in np.unique(base):
            members = [
                int(start) + sum(c * stride for c, (stride, _) in zip(at, digits, strict=True)) for at in _counters(digits)
            ]
            groups.append([int(order[member]) for member in members])
        return groups


def _counters(digits: Sequence[Digit]) -> list[tuple[int, ...]]:
    return list(product(*(range(size) for _, size in digits)))


def mesh_named(reference: ir.Attribute, meshes: Mapping[str, ir.Operation]) -> DeviceMesh:
    """The mesh of a `#sdy.sharding`, which names it or contains it."""
    if isinstance(reference, ir.FlatSymbolRefAttr):
        return mesh_of(meshes[reference.value])
    return mesh_of_attribute(reference)


def mesh_of(op: ir.Operation) -> DeviceMesh:
    """The mesh that `sdy.mesh` or `mesh.mesh` declares."""
    if op.name == "sdy.mesh":
        return mesh_of_attribute(op.attributes["mesh"])
    shape = integers(op, "shape")
    plain = "meshbridge.axis_names" in op.attributes and "meshbridge.axis_digits" not in op.attributes
    names = (
        [ir.StringAttr(name).value for name in ir.ArrayAttr(op.attributes["meshbridge.axis_names"])]
        if plain
        else list(map(str, range(len(shape))))
    )
    return DeviceMesh(tuple(zip(names, shape, strict=True)), integers(op, "meshbridge.device_ids"))


def mesh_of_attribute(attr: ir.Attribute) -> DeviceMesh:
    """The mesh of a `#sdy.mesh`."""
    mesh = sdy.MeshAttr(attr)
    axes = [sdy.MeshAxisAttr(axis) for axis in mesh.axes]
    return DeviceMesh(tuple((axis.name, axis.size) for axis in axes), tuple(mesh.device_ids))


_AXIS = re.compile(r'name = "((?:[^"\\]|\\.)*)", size = (\d+)')
_REF = re.compile(r'name = "((?:[^"\\]|\\.)*)"(?:, sub_axis_info = \((\d+)\)(\d+))?')
_SYMBOL = re.compile(r"mesh = @([\w.$-]+)")


def groups_by_axes(attribute: ir.Attribute, meshes: Mapping[str, ir.Operation]) -> list[list[int]]:
    """The groups of a `#stablehlo.replica_group_mesh_axes`, whose mesh is inside or is the symbol of one of `meshes`.

    Raises MeshError if it is neither.
    """
    text = str(attribute)
    mesh_text, _, refs = text.rpartition("axes = [")
    axes = tuple((name, int(size)) for name, size in _AXIS.findall(mesh_text))
    if symbol := _SYMBOL.search(mesh_text):
        mesh = mesh_of(meshes[symbol[1]])
    elif axes:
        ids = stablehlo.MeshAttr(stablehlo.ReplicaGroupMeshAxesAttr(attribute).mesh).device_ids
        mesh = DeviceMesh(axes, () if ids is None else tuple(np.array(ids).ravel().tolist()))
    else:
        raise MeshError(f"<module>: error: expected a mesh in {text}")
    digits = [mesh.digit(name, int(pre), int(size)) if size else mesh.digit(name) for name, pre, size in _REF.findall(refs)]
    return mesh.groups(digits)


_LISTS = re.compile(r"\[.*\]", re.S)


def axis_lists(attribute: ir.Attribute) -> list[list[int]]:
    """The axes that split each dimension, from the mesh dialect's array of arrays."""
    match = _LISTS.search(str(attribute))
    return ast.literal_eval(match[0]) if match else []


def dims_of_sharding(mesh: DeviceMesh, sharding: sdy.TensorShardingAttr, manual: set[str]) -> Dims:
    """The digits of a `#sdy.sharding` along the axes of a manual computation, by dimension; along other axes a value stays
    global.

    Raises MeshError for unreduced axes.
    """
    if sharding.unreduced_axes:
        raise MeshError(f"<module>: error: the sharding {sharding} has unreduced axes, which have no exact evaluation")
    return tuple(
        tuple(_digit(mesh, ref) for ref in map(sdy.AxisRefAttr, sdy.DimensionShardingAttr(dim).axes) if ref.name in manual)
        for dim in sharding.dimension_shardings
    )


def _digit(mesh: DeviceMesh, ref: sdy.AxisRefAttr) -> Digit:
    if ref.sub_axis_info is None:
        return mesh.digit(ref.name)
    part = sdy.SubAxisInfoAttr(ref.sub_axis_info)
    return mesh.digit(ref.name, part.pre_size, part.size)


def pieces(digits: Sequence[Digit]) -> int:
    """The number of pieces of a dimension."""
    return prod(size for _, size in digits)


def shard_shape(shape: Sequence[int], dims: Dims) -> tuple[int, ...]:
    """The shape of each shard: ceiling division."""
    return tuple(-(-size // pieces(digits)) for size, digits in zip(shape, dims, strict=True))


def numbers_of(positions: Array, digits: Sequence[Digit]) -> Array:
    """The piece that each position holds."""
    number = np.zeros_like(positions)
    for stride, size in digits:
        number = number * size + positions // stride % size
    return number


def _span(block: Sequence[int], local: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    """The slices of a block in a tensor, clipped at the end of the tensor."""
    sizes = zip(block, local, shape, strict=True)
    return tuple(slice(int(at) * size, min(int(at) * size + size, whole)) for at, size, whole in sizes)


def cut(x: Array, dims: Dims, mesh: DeviceMesh, padding: Array | None = None) -> Array:
    """The shards of a value, which has one entry for all devices or one for each.

    `padding` fills what is beyond the end: one value per device, in the shape of a shard.
    """
    shape, local = x.shape[1:], shard_shape(x.shape[1:], dims)
    if not any(dims):
        return x
    blocks = np.stack([numbers_of(mesh.positions(), digits) for digits in dims], axis=1)
    result = np.zeros((mesh.size, *local), x.dtype) if padding is None else padding.copy()
    for device, block in enumerate(blocks):
        source = _span(block, local, shape)
        piece = x[index(min(device, x.shape[0] - 1), *source)]
        result[index(device, *(slice(0, size) for size in piece.shape))] = piece
    return result


def join(
    x: Array, dims: Dims, mesh: DeviceMesh, shape: Sequence[int], members: Sequence[int] | None = None
) -> tuple[Array, Array | None]:
    """The global value of the shards on the devices, or on those in `members`, and the devices whose copies differ.

    The second is None, or the devices whose shard differs from the copy that was used.
    """
    counts = [pieces(digits) for digits in dims]
    local, everywhere = x.shape[1:], mesh.everywhere(x)
    result = np.zeros((1, *shape), x.dtype)
    positions = mesh.positions()
    blocks = np.stack([numbers_of(positions, digits) for digits in dims], axis=1) if dims else np.zeros((mesh.size, 0), np.int64)
    differing, joined_blocks = [], set()
    for device in np.argsort(positions) if members is None else members:
        block = tuple(int(number) for number in blocks[device])
        place = _span(block, local, shape)
        target = result[index(0, *place)]
        shard = everywhere[index(device, *(slice(0, size) for size in target.shape))]
        if block not in joined_blocks:
            joined_blocks.add(block)
            result[index(0, *place)] = shard
        elif x.shape[0] > 1 and differs(target, shard).any():
            differing.append(int(device))
    assert len(joined_blocks) == prod(counts), "every piece has a device"
    return result, np.array(differing) if differing else None
