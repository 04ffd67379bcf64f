"""Writes collectives of the mesh dialect by axes, and StableHLO's by axes or, if no axes give their groups, by groups.

A sum of bits is their "or". JAX has no product over devices; an all-gather and a local product replace it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshbridge.dialect.ops import (
    AllGatherOp,
    AllReduceOp,
    AllSliceOp,
    AllToAllOp,
    CollectiveOpView,
    PermuteOp,
    ReduceScatterOp,
    ShiftOp,
)
from meshbridge.emit.python.code import Code, call, infix, keywords, list_of, literal, method
from meshbridge.emit.python.elementwise import is_bit
from meshbridge.emit.python.reductions import ON_BITS, combiner_of
from meshbridge.emit.python.scope import Scope
from meshbridge.emit.python.shapes import integer
from meshbridge.emit.python.table import WRITINGS, writes
from meshbridge.ir.builder import element_of, shape_of
from meshbridge.ir.device_lists import axes_along, device_table, group_positions, positions_of
from meshbridge.ir.digits import axis_digits, groups_along
from meshbridge.ir.float_keys import is_orderable
from meshbridge.ir.groups import rotated, shifted
from meshbridge.ir.mlir import ir
from meshbridge.lowering.exchanges import clamps_start

_KINDS = {"sum": "add", "max": "maximum", "min": "minimum"}
"""By reduction of the dialect that JAX has over devices: the op that combines two elements."""


def is_written(op: ir.Operation) -> bool:
    """True if an op of the mesh dialect is written as one of JAX's collectives; others are lowered to StableHLO first."""
    if op.name not in WRITINGS or not CollectiveOpView(op).mesh_axes:
        return False
    if op.name == "mesh.shift":
        return ShiftOp(op).shift_axis in ShiftOp(op).mesh_axes
    if op.name == "mesh.all_slice":
        return not clamps_start(op.operands[0])
    if op.name in ("mesh.all_reduce", "mesh.reduce_scatter"):
        kind = AllReduceOp(op).reduction if op.name == "mesh.all_reduce" else ReduceScatterOp(op).reduction
        keeps_element = element_of(op.operands[0]) == element_of(op.results[0])
        return (
            kind in _KINDS and keeps_element and (op.name == "mesh.all_reduce" or (kind == "sum" and not is_bit(op.operands[0])))
        )
    return True


@writes("mesh.all_gather")
def all_gather(op: ir.Operation, scope: Scope) -> Code:
    """`lax.all_gather`."""
    view = AllGatherOp(op)
    return _gathered(scope.at(op.operands[0]), scope.axes(view.mesh_axes), view.gather_axis, None)


def _gathered(code: Code, axes: Code, dim: int, groups: Code | None) -> Code:
    named = keywords({"axis_index_groups": groups})
    return call("lax.all_gather", code, axes, axis=literal(dim), tiled="True", **named)


@writes("mesh.all_reduce")
def all_reduce(op: ir.Operation, scope: Scope) -> Code:
    """`lax.psum`, `lax.pmax`, `lax.pmin`."""
    view = AllReduceOp(op)
    return _reduced(op, scope, _combiner(_KINDS[view.reduction], op), scope.axes(view.mesh_axes), None)


def _combiner(name: str, op: ir.Operation) -> str:
    """The op that combines two elements; for bits `or` or `and`."""
    return ON_BITS.get(name, name) if is_bit(op.operands[0]) else name


_REDUCERS = {"add": "lax.psum", "maximum": "lax.pmax", "minimum": "lax.pmin", "or": "lax.pmax", "and": "lax.pmin"}


def _reduced(op: ir.Operation, scope: Scope, combiner: str, axes: Code, groups: Code | None) -> Code:
    code, named = scope.at(op.operands[0]), keywords({"axis_index_groups": groups})
    if combiner == "multiply":
        gathered = call("lax.all_gather", code, axes, **named)
        return call("lax.reduce_prod", gathered, axes=literal((0,)))
    function = _REDUCERS[combiner]
    if combiner in ("maximum", "minimum") and is_orderable(element_of(op.operands[0])):
        function = function.removeprefix("lax.")
        scope.script.helpers.add(function)
    return call(function, code, axes, **named)


@writes("mesh.reduce_scatter")
def reduce_scatter(op: ir.Operation, scope: Scope) -> Code:
    """`lax.psum_scatter`."""
    view = ReduceScatterOp(op)
    return _scattered(scope.at(op.operands[0]), scope.axes(view.mesh_axes), view.scatter_axis, None)


def _scattered(code: Code, axes: Code, dim: int, groups: Code | None) -> Code:
    named = keywords({"axis_index_groups": groups})
    return call("lax.psum_scatter", code, axes, scatter_dimension=literal(dim), tiled="True", **named)


@writes("mesh.all_to_all")
def all_to_all(op: ir.Operation, scope: Scope) -> Code:
    """`lax.all_to_all`."""
    view = AllToAllOp(op)
    return _exchanged(scope.at(op.operands[0]), scope.axes(view.mesh_axes), view.split_axis, view.concat_axis, None)


def _exchanged(code: Code, axes: Code, split: int, concat: int, groups: Code | None) -> Code:
    named = keywords({"axis_index_groups": groups})
    return call("lax.all_to_all", code, axes, split_axis=literal(split), concat_axis=literal(concat), tiled="True", **named)


@writes("mesh.all_slice")
def all_slice(op: ir.Operation, scope: Scope) -> Code:
    """`lax.dynamic_slice_in_dim` at this device's number, without communication."""
    view = AllSliceOp(op)
    size = shape_of(op.results[0])[view.slice_axis]
    number = scope.index(view.mesh_axes)
    start = number if size == 1 else infix(number, "*", literal(size))
    return call("lax.dynamic_slice_in_dim", scope.at(op.operands[0]), start, literal(size), axis=literal(view.slice_axis))


@writes("mesh.shift")
def shift(op: ir.Operation, scope: Scope) -> Code:
    """`lax.ppermute` to a neighbour, around the end with `rotate`."""
    view = ShiftOp(op)
    count = scope.script.mesh.shape[view.shift_axis]
    if not (view.offset % count if view.rotate else view.offset and abs(view.offset) < count):
        return scope.at(op.operands[0])  # no device receives anything, and the result is undefined
    steps = rotated(count, view.offset) if view.rotate else shifted(count, view.offset)
    return _permuted(scope.at(op.operands[0]), scope.axes((view.shift_axis,)), steps)


def _permuted(code: Code, axes: Code, pairs: np.ndarray | Sequence[tuple[int, int]]) -> Code:
    return call("lax.ppermute", code, axes, list_of(literal((int(source), int(target))) for source, target in pairs))


@writes("mesh.permute")
def permute(op: ir.Operation, scope: Scope) -> Code:
    """`lax.ppermute` to the device with a number along `target_axes` from the one with the same number along `mesh_axes`."""
    view = PermuteOp(op)
    axes = tuple(sorted(view.mesh_axes))
    sizes = [scope.script.mesh.shape[axis] for axis in axes]
    numbers = np.arange(int(np.prod(sizes))).reshape(sizes)
    sources, targets = (
        numbers.transpose([axes.index(axis) for axis in order]).ravel() for order in (view.mesh_axes, view.target_axes)
    )
    pairs = sorted(zip(sources.tolist(), targets.tolist(), strict=True))
    return _permuted(scope.at(op.operands[0]), scope.axes(axes), pairs)


@writes("partition_id")
def partition_id(op: ir.Operation, scope: Scope) -> Code:
    """`lax.axis_index` over the whole mesh, as the device's number."""
    mesh, dtype = scope.script.mesh, scope.dtype(op.results[0], op)
    number = scope.index(tuple(range(len(scope.script.axis_names))))
    if not mesh.device_ids:
        return method(number, "astype", dtype)
    return Code(f"jnp.array({list(mesh.device_ids)}, {dtype})[{number}]")


AxesAndGroups = tuple[Code, Code | None]
"""The axes of a collective, and its device groups if no axes give them."""


def _groups(op: ir.Operation, scope: Scope) -> AxesAndGroups:
    """The groups of a StableHLO collective. Raises OpError for groups that are not along the mesh."""
    mesh, attr = scope.script.mesh, op.attributes["replica_groups"]
    positions = group_positions(attr, mesh)
    if positions is None:
        raise scope.error(op, f"has device groups that are not along the mesh, {attr}")
    if axes := axes_along(positions, mesh):
        return scope.axes(axes), None
    return scope.all_axes(), literal(positions.tolist())


@writes("all_gather")
def plain_all_gather(op: ir.Operation, scope: Scope) -> Code:
    """`lax.all_gather`."""
    _refuse_variadic(op, scope)
    axes, groups = _groups(op, scope)
    return _gathered(scope.at(op.operands[0]), axes, integer(op, "all_gather_dim"), groups)


@writes("all_reduce")
def plain_all_reduce(op: ir.Operation, scope: Scope) -> Code:
    """`lax.psum`, `lax.pmax`, `lax.pmin`."""
    _refuse_variadic(op, scope)
    combiner = _region_combiner(op, scope)
    return _reduced(op, scope, combiner, *_groups(op, scope))


def _region_combiner(op: ir.Operation, scope: Scope) -> str:
    combiner = combiner_of(op.regions[0].blocks[0])
    if combiner not in (*_REDUCERS, "multiply"):
        raise scope.error(op, "reduces over devices in a way that JAX has no function for")
    return combiner


@writes("reduce_scatter")
def plain_reduce_scatter(op: ir.Operation, scope: Scope) -> Code:
    """`lax.psum_scatter`; other reductions are an all-to-all and a local reduction."""
    combiner, dim = _region_combiner(op, scope), integer(op, "scatter_dimension")
    axes, groups = _groups(op, scope)
    if combiner == "add":
        return _scattered(scope.at(op.operands[0]), axes, dim, groups)
    shape = shape_of(op.results[0])
    received = _exchanged(scope.at(op.operands[0]), axes, dim, dim, groups)
    count = shape_of(op.operands[0])[dim] // shape[dim]
    pieces = method(received, "reshape", literal((*shape[:dim], count, *shape[dim:])))
    function = {"maximum": "max", "minimum": "min", "or": "or", "and": "and", "multiply": "prod"}[combiner]
    return call(f"lax.reduce_{function}", pieces, axes=literal((dim,)))


@writes("all_to_all")
def plain_all_to_all(op: ir.Operation, scope: Scope) -> Code:
    """`lax.all_to_all`."""
    _refuse_variadic(op, scope)
    axes, groups = _groups(op, scope)
    split, concat = integer(op, "split_dimension"), integer(op, "concat_dimension")
    return _exchanged(scope.at(op.operands[0]), axes, split, concat, groups)


@writes("collective_permute")
def collective_permute(op: ir.Operation, scope: Scope) -> Code:
    """`lax.ppermute`, along one axis if every group along it permutes alike."""
    mesh = scope.script.mesh
    pairs = positions_of(device_table(op.attributes["source_target_pairs"]), mesh)
    for axis in range(mesh.rank):
        if (steps := _steps_along(pairs, axis, scope)) is not None:
            return _permuted(scope.at(op.operands[0]), scope.axes((axis,)), steps)
    return _permuted(scope.at(op.operands[0]), scope.all_axes(), pairs)


def _steps_along(pairs: np.ndarray, axis: int, scope: Scope) -> list[tuple[int, int]] | None:
    """The pairs as steps between members along `axis`; None unless every group along it has the same steps."""
    mesh = scope.script.mesh
    groups = groups_along(mesh, axis_digits(mesh, (axis,)))
    wanted = {(int(source), int(target)) for source, target in pairs}
    member = {int(device): index for index, device in enumerate(groups[0])}
    steps = [(member[source], member[target]) for source, target in sorted(wanted) if source in member and target in member]
    permuted = {(int(row[source]), int(row[target])) for row in groups for source, target in steps}
    return steps if permuted == wanted and steps else None


@writes("collective_broadcast")
def collective_broadcast(op: ir.Operation, scope: Scope) -> Code:
    """An all-gather, of which the first device's value is kept."""
    axes, groups = _groups(op, scope)
    named = keywords({"axis_index_groups": groups})
    return Code(f"{call('lax.all_gather', scope.at(op.operands[0]), axes, **named)}[0]")


def _refuse_variadic(op: ir.Operation, scope: Scope) -> None:
    if len(op.operands) != 1:
        raise scope.error(op, f"has {len(op.operands)} operands, expected one", "partition with collectives='off'")
