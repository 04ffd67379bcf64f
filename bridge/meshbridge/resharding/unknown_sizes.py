"""Resharding where sizes of the tensor or of the mesh are only known at run time.

Without sizes no plan can be weighed. Mesh axes are resharded one after the other: by an all-to-all to the dimension that needs
the axis next, an all-gather if no dimension does, an all-slice if the axis is new. Unknown sizes are assumed to divide, as the
lowering of an all-slice asserts.
"""

from __future__ import annotations

from typing import Any

from meshbridge.dialect import build
from meshbridge.dialect.signature import group_size
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh, Sharding, Split

Value = ir.Value[Any]


def shard_type(whole: ir.RankedTensorType, mesh: Mesh, sharding: Sharding) -> ir.RankedTensorType:
    """The type of one shard. Raises MeshError where known sizes do not divide, and for halos and offsets."""
    if sharding.halo_sizes or sharding.offsets:
        raise MeshError("halo sizes and explicit offsets need static sizes")
    shape = []
    for size, axes in zip(whole.shape, sharding.padded(whole.rank).split_axes, strict=True):
        count = group_size(mesh, axes)
        if DYNAMIC not in (size, count) and size % count:
            raise MeshError(f"a dimension of size {size} does not divide by {count} beside unknown sizes")
        shape.append(size if not axes else DYNAMIC if DYNAMIC in (size, count) else size // count)
    return ir.RankedTensorType.get(shape, whole.element_type, whole.encoding)


def reshard(value: Value, whole: ir.RankedTensorType, mesh: Mesh, source: Sharding, target: Sharding) -> Value:
    """Writes the collectives from the shard `value` of a tensor of type `whole` at the current insertion point.

    Raises MeshError for shardings that no such steps lead to.
    """
    shard_type(whole, mesh, target)
    dropped = tuple(axis for axis in source.partial_axes if axis not in target.partial_axes)
    is_less = set(target.partial_axes) <= set(source.partial_axes)
    if not is_less or (target.partial_axes and target.partial_kind != source.partial_kind):
        raise MeshError("making a value partial needs static sizes")
    if dropped:
        value = build.all_reduce(value, mesh, mesh_axes=dropped, reduction=source.partial_kind)
    split, wanted = source.padded(whole.rank).split_axes, target.padded(whole.rank).split_axes
    while split != wanted:
        value, split = _step(value, mesh, split, wanted)
        value = _as_type(value, shard_type(whole, mesh, Sharding(mesh.name, split)))
    return value


def _step(value: Value, mesh: Mesh, split: Split, wanted: Split) -> tuple[Value, Split]:
    """One collective, and how its result is split."""
    leaving = [dim for dim, axes in enumerate(split) if wanted[dim][: len(axes)] != axes]
    for dim in leaving:
        axis = split[dim][-1]
        to = next((at for at, axes in enumerate(split) if wanted[at][: len(axes) + 1] == (*axes, axis)), None)
        if to is not None:
            exchanged = build.all_to_all(value, mesh, mesh_axes=[axis], split_axis=to, concat_axis=dim)
            return exchanged, _with(_with(split, dim, split[dim][:-1]), to, (*split[to], axis))
    if leaving:
        dim = leaving[0]
        return build.all_gather(value, mesh, mesh_axes=split[dim][-1:], gather_axis=dim), _with(split, dim, split[dim][:-1])
    dim = next(dim for dim, axes in enumerate(split) if axes != wanted[dim])
    added = wanted[dim][len(split[dim]) :]
    return build.all_slice(value, mesh, mesh_axes=added, slice_axis=dim), _with(split, dim, wanted[dim])


def _with(split: Split, dim: int, axes: Axes) -> Split:
    return (*split[:dim], axes, *split[dim + 1 :])


def _as_type(value: Value, type_: ir.Type) -> Value:
    """`value` with what its sharding says of its shape."""
    if value.type == type_:
        return value
    cast: Value = ir.Operation.create("tensor.cast", [type_], [value]).results[0]
    return cast
