"""The boundary of a partitioned program: callers hold equal shards, and attributes describe them."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.dialect.attributes import axes_attr, axis_array_attr
from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_MESH, BOUNDARY_PARTIAL, BOUNDARY_SPLIT, RESULT_SPLIT
from meshbridge.ir.mlir import entries, ir, set_entries, walk
from meshbridge.ir.sharding import Mesh, Sharding, Split, even_split, is_even
from meshbridge.ops.spmd import SpmdProgram


def boundary_sharding(shape: tuple[int, ...], mesh: Mesh, sharding: Sharding) -> Sharding:
    """The sharding in which a caller holds a tensor of `shape`: without halos and offsets, split where shards are equal."""
    if sharding.is_plain:
        return sharding
    return replace(sharding.plain(), split_axes=even_split(shape, mesh, sharding.split_axes))


def return_equal_shards(terminator: ir.Operation, results: list[Sharding], at: SpmdProgram) -> list[Sharding]:
    """Reshards results with halos or offsets to equal shards. Returns the shardings of all results."""
    returned = list(results)
    for index, (value, sharding) in enumerate(zip(terminator.operands, results, strict=True)):
        if not sharding.is_plain:
            returned[index] = boundary_sharding(at.global_shape(value), at.mesh, sharding)
            terminator.operands[index] = at.reshard(value, returned[index], terminator)
    return returned


def set_boundary(function: ir.Operation, name: str, types: list[ir.Type], shardings: list[Sharding]) -> None:
    """Records the sharding and global type of each argument or result."""
    attributes = entries(function, name)
    of_sharding: dict[Sharding, dict[str, ir.Attribute]] = {}
    for entry, global_type, sharding in zip(attributes, types, shardings, strict=True):
        if isinstance(global_type, ir.RankedTensorType):
            if sharding not in of_sharding:
                of_sharding[sharding] = _boundary(sharding)
            entry |= of_sharding[sharding]
            entry[BOUNDARY_GLOBAL] = ir.TypeAttr.get(global_type)
    set_entries(function, name, attributes)


def _boundary(sharding: Sharding) -> dict[str, ir.Attribute]:
    attributes = {BOUNDARY_MESH: ir.FlatSymbolRefAttr.get(sharding.mesh), BOUNDARY_SPLIT: axis_array_attr(sharding.split_axes)}
    return attributes | {BOUNDARY_PARTIAL: axes_attr(sharding.partial_axes)} if sharding.partial_axes else attributes


def record_result_shardings(function: ir.Operation, at: SpmdProgram) -> None:
    """Records the shardings of results of payload ops, if their shards are equal."""
    for op in walk(function):
        if op.name.startswith(("func.", "mesh.")):
            continue
        lists = [_lists(result, at) for result in op.results]
        if any(lists):
            op.attributes[RESULT_SPLIT] = ir.ArrayAttr.get([axis_array_attr(entry) for entry in lists])


def _lists(value: ir.Value, at: SpmdProgram) -> Split:
    """The axes that split each dimension, then the partial ones, without trailing empty lists.

    () for a value that is replicated or has unequal shards.
    """
    sharding = at.sharding(value)
    if sharding is None or sharding.is_replicated or not sharding.is_plain:
        return ()
    if not is_even(at.global_shape(value), at.mesh, sharding.split_axes):
        return ()
    lists = (*sharding.split_axes, sharding.partial_axes)
    return lists[: max(index for index, axes in enumerate(lists, 1) if axes)]
