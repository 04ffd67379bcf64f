"""Ops of the mesh dialect, as documented (release 20 of LLVM): annotations are the identity, collectives communicate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from math import prod

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verification.collectives import exchange, moved, parts, swapped
from meshbridge.verification.elementwise import apply_binary, converted
from meshbridge.verification.field import Array
from meshbridge.verification.layout import DeviceMesh, Digit, axis_lists, mesh_of, numbers_of
from meshbridge.verification.machine import (
    Evaluator,
    align,
    element_of,
    evaluates,
    index,
    integer,
    integers,
    same_numbers,
    shape_of,
)
from meshbridge.verification.reductions import combiner_named, reduced

DYNAMIC = -(2**63)
"""An entry of a static list that is given by an operand."""

_KIND = re.compile(r"#mesh(?:\.partial<\s*|<partial\s+)(\w+)\s*>")


def _mesh(machine: Evaluator, op: ir.Operation) -> DeviceMesh:
    """The mesh of an op. Raises OpError if the program runs on another number of devices."""
    mesh = mesh_of(machine.meshes[ir.FlatSymbolRefAttr(op.attributes["mesh"]).value])
    if mesh.size != machine.grid.count:
        raise OpError(op, f"speaks of a mesh of {mesh.size} devices in a program of {machine.grid.count}")
    return mesh


def _digits(mesh: DeviceMesh, axes: Sequence[int]) -> list[Digit]:
    return [mesh.digit(mesh.axes[axis][0]) for axis in axes]


def _kind(op: ir.Operation) -> str:
    match = _KIND.fullmatch(str(op.attributes["reduction"])) if "reduction" in op.attributes else None
    return match[1] if match else "sum"


COMBINERS = {
    "sum": "add", "average": "add", "max": "maximum", "min": "minimum", "product": "multiply",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
}  # fmt: skip
"""The op that combines two elements, for each reduction kind."""


def _reduced(machine: Evaluator, op: ir.Operation) -> Callable[[Array], Array]:
    """Reduces stacked members, which already have the result's element type."""
    kind, element = _kind(op), element_of(op.results[0])
    if kind not in COMBINERS:
        raise OpError(op, f"reduces by '{kind}', which has no exact evaluation")

    combiner = combiner_named(machine, op, COMBINERS[kind], element)

    def of_members(rows: Array) -> Array:
        (total,) = reduced(combiner, [rows], (0,))
        if kind != "average":
            return total
        divisor = (
            machine.field.from_integers(np.array(len(rows))) if total.dtype.kind in "fc" else np.array(len(rows), total.dtype)
        )
        average = apply_binary(machine.field, "divide", total, divisor, element)
        assert average is not None
        return average

    return of_members


def _groups(machine: Evaluator, op: ir.Operation) -> list[list[int]]:
    mesh = _mesh(machine, op)
    return mesh.groups(_digits(mesh, integers(op, "mesh_axes")))


def _member(machine: Evaluator, op: ir.Operation, operands: list[Array], name: str) -> int:
    """The in-group number of `root`, `source` or `destination`. Raises OpError if it differs between devices."""
    mesh, values, number = _mesh(machine, op), iter(operands[1:]), 0
    for (_, size), entry in zip(_digits(mesh, integers(op, "mesh_axes")), integers(op, name), strict=True):
        if entry == DYNAMIC:
            (entry,) = same_numbers(op, next(values), name)
        number = number * size + entry
    return number


def _prepared(machine: Evaluator, op: ir.Operation, x: Array) -> Array:
    return converted(machine.field, x, element_of(op.operands[0]), element_of(op.results[0]))


@evaluates("mesh.sharding", "mesh.get_sharding")
def sharding(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The dynamic offsets and halo sizes of a sharding, in that order: they are only known at run time."""
    return [np.stack(align(*operands), axis=1) if operands else np.zeros((1, 0), np.int64)]


@evaluates("mesh.shard")
def shard(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Returns its operand: an annotation."""
    return [operands[0]]


@evaluates("mesh.all_reduce", "mesh.reduce")
def all_reduce(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Converted, then reduced over each group. After `reduce`, only the root holds the result, other devices zeros."""
    total, x = _reduced(machine, op), _prepared(machine, op, operands[0])
    totals = exchange(machine, x, _groups(machine, op), x.shape[1:], total)
    return [_only_root(machine, op, operands, totals) if op.name == "mesh.reduce" else totals]


@evaluates("mesh.reduce_scatter")
def reduce_scatter(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Converted, reduced over each group, and sliced."""
    total, dim, x = _reduced(machine, op), integer(op, "scatter_axis"), _prepared(machine, op, operands[0])
    return [exchange(machine, x, _groups(machine, op), shape_of(op.results[0]), lambda rows: parts(total(rows), len(rows), dim))]


@evaluates("mesh.all_gather", "mesh.gather")
def all_gather(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The members' values, concatenated. After `gather`, only the root holds the result, other devices zeros."""
    dim, shape = integer(op, "gather_axis"), shape_of(op.results[0])
    gathered = exchange(machine, operands[0], _groups(machine, op), shape, lambda rows: np.concatenate(list(rows), axis=dim))
    return [_only_root(machine, op, operands, gathered) if op.name == "mesh.gather" else gathered]


def _only_root(machine: Evaluator, op: ir.Operation, operands: list[Array], value: Array) -> Array:
    roots = [group[_member(machine, op, operands, "root")] for group in _groups(machine, op)]
    at_root = np.zeros_like(value)
    at_root[roots] = value[roots]
    return at_root


@evaluates("mesh.all_slice")
def all_slice(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every member's own piece of its value."""
    return [_sliced(machine, op, operands[0], integer(op, "slice_axis"))]


def _sliced(machine: Evaluator, op: ir.Operation, x: Array, dim: int) -> Array:
    def own(rows: Array) -> Array:
        return np.stack([np.split(row, len(rows), axis=dim)[number] for number, row in enumerate(rows)])

    return exchange(machine, x, _groups(machine, op), shape_of(op.results[0]), own)


@evaluates("mesh.all_to_all")
def all_to_all(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Member j holds the j-th pieces of all members, concatenated."""
    split, join, shape = integer(op, "split_axis"), integer(op, "concat_axis"), shape_of(op.results[0])
    return [exchange(machine, operands[0], _groups(machine, op), shape, lambda rows: swapped(rows, split, join))]


@evaluates("mesh.broadcast")
def broadcast(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The root's value."""
    root = _member(machine, op, operands, "root")
    return [exchange(machine, operands[0], _groups(machine, op), operands[0].shape[1:], lambda rows: rows[root])]


@evaluates("mesh.scatter")
def scatter(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every member's piece of the root's value."""
    return [_sliced(machine, op, broadcast(machine, op, operands)[0], integer(op, "scatter_axis"))]


@evaluates("mesh.shift")
def shift(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Values shifted along one axis; zeros where no value arrives."""
    mesh, axis, offset = _mesh(machine, op), integer(op, "shift_axis"), integer(op, "offset")
    pairs = []
    for group in mesh.groups(_digits(mesh, [axis])):
        for number, source in enumerate(group):
            target = number + offset
            if "rotate" in op.attributes:
                target %= len(group)
            if 0 <= target < len(group):
                pairs.append((source, group[target]))
    return [moved(machine, operands[0], pairs)]


@evaluates("mesh.permute")
def permute(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Number L along `target_axes` holds the value of number L along `mesh_axes`."""
    mesh = _mesh(machine, op)
    into = {min(group): group for group in mesh.groups(_digits(mesh, integers(op, "target_axes")))}
    sources = mesh.groups(_digits(mesh, integers(op, "mesh_axes")))
    return [moved(machine, operands[0], [pair for group in sources for pair in zip(group, into[min(group)], strict=True)])]


@evaluates("mesh.update_halo")
def update_halo(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Every halo cell gets its owner's value, dimension by dimension; cells beyond the global tensor keep their values."""
    mesh, x = _mesh(machine, op), machine.everywhere(operands[0]).copy()
    split = [(dim, axes) for dim, axes in enumerate(axis_lists(op.attributes["split_axes"])) if axes]
    entries = iter(operands[1:])
    halos = [
        same_numbers(op, next(entries), "halo size")[0] if size == DYNAMIC else size for size in integers(op, "static_halo_sizes")
    ]
    for (dim, axes), low, high in zip(split, halos[::2], halos[1::2], strict=True):
        core = x.shape[dim + 1] - low - high
        before = x.copy()
        for group in mesh.groups(_digits(mesh, axes)):
            for number, device in enumerate(group):
                for cell in (*range(low), *range(low + core, low + core + high)):
                    owner, inside = divmod(number * core + cell - low, core)
                    if 0 <= owner < len(group):
                        at, source = index(device, *_at(dim, cell)), index(group[owner], *_at(dim, low + inside))
                        x[at] = before[source]
    return [x]


def _at(dim: int, cell: int) -> tuple[object, ...]:
    return (*(slice(None) for _ in range(dim)), cell)


@evaluates("mesh.process_multi_index")
def process_multi_index(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The device's coordinates on the given axes, by default on all."""
    mesh = _mesh(machine, op)
    axes = integers(op, "axes") or range(len(mesh.axes))
    return [numbers_of(mesh.positions(), [digit]) for digit in _digits(mesh, axes)]


@evaluates("mesh.process_linear_index")
def process_linear_index(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The device's row-major number."""
    return [_mesh(machine, op).positions()]


@evaluates("mesh.neighbors_linear_indices")
def neighbors_linear_indices(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The row-major numbers of the devices before and after one along some axes; -1 beyond either end."""
    mesh, device = _mesh(machine, op), _row_major(_mesh(machine, op), operands)
    digits = _digits(mesh, integers(op, "split_axes"))
    positions, groups = mesh.positions(), mesh.groups(digits)
    beside = np.full((2, mesh.size), -1)
    for group in groups:
        numbers = positions[group]
        beside[0][numbers[1:]], beside[1][numbers[:-1]] = numbers[:-1], numbers[1:]
    return [beside[0][device], beside[1][device]]


def _row_major(mesh: DeviceMesh, coordinates: Sequence[Array]) -> Array:
    """The row-major number of the device with these coordinates."""
    number = np.zeros(1, np.int64)
    for (_, size), coordinate in zip(mesh.axes, coordinates, strict=True):
        number = number * size + coordinate
    return number


@evaluates("mesh.shard_shape")
def shard_shape(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The size of one device's shard in each dimension, halos included: by its offsets, or by ceiling division."""
    position = [str(value.type) for value in op.operands].index("!mesh.sharding")
    sharding_op = op.operands[position].owner.operation
    mesh = mesh_of(machine.meshes[ir.FlatSymbolRefAttr(sharding_op.attributes["mesh"]).value])
    shape = integers(op, "shape") or integers(op, "dims")
    sizes = _filled(shape, [*operands[:position], *(np.array([DYNAMIC]) for _ in shape)])  # `?` of which offsets say all
    dynamic = iter(operands[position][:, number] for number in range(operands[position].shape[1]))
    starts = _filled(integers(sharding_op, "static_sharded_dims_offsets"), dynamic)
    halos = _filled(integers(sharding_op, "static_halo_sizes"), dynamic)
    coordinates = operands[position + 1 :]
    device = _row_major(mesh, _filled(integers(op, "device"), coordinates)) if "device" in op.attributes else coordinates[0]
    split = [*axis_lists(sharding_op.attributes["split_axes"]), *([] for _ in sizes)]
    shard_sizes = []
    for size, axes in zip(sizes, split, strict=False):
        if DYNAMIC in size and not (axes and starts):
            raise OpError(op, "has a dimension whose size nothing gives")
        if not axes:
            shard_sizes.append(size)
            continue
        digits = _digits(mesh, axes)
        count, number = prod(length for _, length in digits), numbers_of(device, digits)
        piece = -(-size // count)
        own = np.clip(size - number * piece, 0, piece)
        if starts:
            offsets, starts = np.stack(align(*starts[: count + 1]), axis=1), starts[count + 1 :]
            rows = np.arange(max(len(offsets), len(number)))
            offsets, number = (np.broadcast_to(column, (len(rows), *column.shape[1:])) for column in (offsets, number))
            own = offsets[rows, number + 1] - offsets[rows, number]
        shard_sizes.append(own + (halos[0] + halos[1] if halos else 0))
        halos = halos[2:]
    return shard_sizes


def _filled(entries: Sequence[int], operands: Iterable[Array]) -> list[Array]:
    """A static list with each dynamic entry replaced by the next operand."""
    values = iter(operands)
    return [next(values) if entry == DYNAMIC else np.array([entry]) for entry in entries]


@evaluates("mesh.mesh_shape")
def mesh_shape(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The sizes of the given axes, by default of all."""
    mesh = mesh_of(machine.meshes[ir.FlatSymbolRefAttr(op.attributes["mesh"]).value])
    return [np.array([mesh.axes[axis][1]]) for axis in integers(op, "axes") or range(len(mesh.axes))]
