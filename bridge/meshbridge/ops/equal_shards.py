"""The edge of a partitioned program: callers hold equal shards, and are told of what."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.dialect.attributes import axes_attr, axis_array_attr
from meshbridge.dialect.ops import BOUNDARY_GLOBAL, BOUNDARY_MESH, BOUNDARY_PARTIAL, BOUNDARY_SPLIT, RESULT_SPLIT
from meshbridge.ir.mlir import entries, ir, set_entries, walk
from meshbridge.ir.sharding import Mesh, Sharding, Split, even_split, is_even
from meshbridge.ops.spmd import SpmdProgram


def in_equal_shards(shape: tuple[int, ...], mesh: Mesh, sharding: Sharding) -> Sharding:
    """What a caller holds of a tensor of `shape` in place of `sharding`, if that has halo sizes or offsets: it stays split where
    the shards are equal."""
    if sharding.is_plain:
        return sharding
    return replace(sharding.plain(), split_axes=even_split(shape, mesh, sharding.split_axes))


def return_equal_shards(terminator: ir.Operation, results: list[Sharding], at: SpmdProgram) -> list[Sharding]:
    """Reshards the results that have halo sizes or offsets to what callers can hold. Returns the shardings of all results."""
    held = list(results)
    for index, (value, sharding) in enumerate(zip(terminator.operands, results, strict=True)):
        if not sharding.is_plain:
            held[index] = in_equal_shards(at.global_shape(value), at.mesh, sharding)
            terminator.operands[index] = at.reshard(value, held[index], terminator)
    return held


def set_boundary(function: ir.Operation, name: str, types: list[ir.Type], shardings: list[Sharding]) -> None:
    """Writes down what each argument or result is a shard of."""
    said = entries(function, name)
    of_sharding: dict[Sharding, dict[str, ir.Attribute]] = {}
    for entry, whole, sharding in zip(said, types, shardings, strict=True):
        if isinstance(whole, ir.RankedTensorType):
            if sharding not in of_sharding:
                of_sharding[sharding] = _boundary(sharding)
            entry |= of_sharding[sharding]
            entry[BOUNDARY_GLOBAL] = ir.TypeAttr.get(whole)
    set_entries(function, name, said)


def _boundary(sharding: Sharding) -> dict[str, ir.Attribute]:
    said = {BOUNDARY_MESH: ir.FlatSymbolRefAttr.get(sharding.mesh), BOUNDARY_SPLIT: axis_array_attr(sharding.split_axes)}
    return said | {BOUNDARY_PARTIAL: axes_attr(sharding.partial_axes)} if sharding.partial_axes else said


def set_results(function: ir.Operation, at: SpmdProgram) -> None:
    """Writes down what the results of payload ops are shards of, where these are equal."""
    for op in walk(function):
        if op.name.startswith(("func.", "mesh.")):
            continue
        lists = [_lists(result, at) for result in op.results]
        if any(lists):
            op.attributes[RESULT_SPLIT] = ir.ArrayAttr.get([axis_array_attr(entry) for entry in lists])


def _lists(value: ir.Value, at: SpmdProgram) -> Split:
    """The axes that split each dimension, then the partial ones, without trailing empty lists.

    () for a value that is replicated or has no equal shards.
    """
    sharding = at.sharding(value)
    if sharding is None or sharding.is_replicated or not sharding.is_plain:
        return ()
    if not is_even(at.global_shape(value), at.mesh, sharding.split_axes):
        return ()
    lists = (*sharding.split_axes, sharding.partial_axes)
    return lists[: max(index for index, axes in enumerate(lists, 1) if axes)]
