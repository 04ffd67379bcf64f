"""The rules of `mesh.sharding`, `mesh.shard` and the operations that read a sharding or update halos.

A sharding must name each axis of its mesh at most once. The sharding of a tensor must also fit its dimensions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping

from meshbridge.dialect import attributes
from meshbridge.dialect.attributes import SHARDING_TYPE
from meshbridge.dialect.constraints import check_axes_once, check_reduction, check_split_axes
from meshbridge.dialect.signature import Broken, Shape, Signature, element_of, group_size, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh, Sharding, Split

Rule = Callable[[Signature], None]


def sharding_is_consistent(signature: Signature) -> None:
    """`mesh.sharding` by itself."""
    _check_is_sharding(signature)
    split = attributes.axis_array(signature.attributes["split_axes"])
    halo_sizes = signature.integers("static_halo_sizes")
    offsets = signature.integers("static_sharded_dims_offsets")
    check_axes_once((*split, signature.integers("partial_axes")))
    if halo_sizes and offsets:
        raise Broken("halo sizes and shard offsets are mutually exclusive")
    _check_halos(halo_sizes, split)
    mesh = signature.mesh
    check_split_axes((*split, signature.integers("partial_axes")), mesh)
    if offsets:
        _check_offsets(offsets, split, mesh)


def _check_is_sharding(signature: Signature) -> None:
    if len(signature.results) != 1 or str(signature.results[0]) != SHARDING_TYPE:
        raise Broken(f"result #0 must be sharding definition, but got '{', '.join(map(str, signature.results))}'")


def _check_halos(halo_sizes: tuple[int, ...], split: Split) -> None:
    """Checks two sizes for each split dimension. Closed hole: negative sizes."""
    if halo_sizes and len(halo_sizes) != 2 * sum(bool(axes) for axes in split):
        raise Broken("halo sizes must be specified for all split axes.")
    if any(size < 0 and size != DYNAMIC for size in halo_sizes):
        raise Broken("halo sizes are expected to be non-negative or dynamic")


def _check_offsets(offsets: tuple[int, ...], split: Split, mesh: Mesh) -> None:
    """Checks one list per split dimension, from 0 up, with one entry per shard and one for the end.

    Closed holes: for a dimension that is split along several axes, upstream counts the sum of their sizes instead of the product.
    It accepts additional entries, and lists that do not start at 0.
    """
    if DYNAMIC in mesh.shape:
        raise Broken("sharded dims offsets are not allowed for devices meshes with dynamic shape.")
    counts = [group_size(mesh, axes) + 1 for axes in split if axes]
    if len(counts) == 1:  # as upstream, before the check of the size
        _check_not_decreasing(offsets)
    if len(offsets) != sum(counts):
        raise Broken("sharded dims offsets has wrong size.")
    for listed in offsets_by_dimension(offsets, split, mesh):
        if listed[0] not in (0, DYNAMIC):
            raise Broken("sharded dims offsets of a dimension must start at 0.")
        _check_not_decreasing(listed)


def _check_not_decreasing(offsets: tuple[int, ...]) -> None:
    static_offsets = [offset for offset in offsets if offset != DYNAMIC]
    if any(before > after for before, after in itertools.pairwise(static_offsets)):
        raise Broken("sharded dims offsets must be non-decreasing.")


def offsets_by_dimension(offsets: tuple[int, ...], split: Split, mesh: Mesh) -> Iterator[tuple[int, ...]]:
    """The flat list of `sharded_dims_offsets` as one list per split dimension."""
    start = 0
    for axes in split:
        if axes:
            count = group_size(mesh, axes) + 1
            yield offsets[start : start + count]
            start += count


def check_shard(source: ir.Type, result: ir.Type, sharding: Sharding | ir.Type, meshes: Mapping[str, Mesh]) -> None:
    """Checks a `mesh.shard` of a tensor. `sharding` is its value, or the operand's type if the value is unknown.

    Closed holes: everything about the sharding; upstream only checks the types.
    """
    if not isinstance(source, ir.RankedTensorType):
        raise Broken(f"operand #0 must be ranked tensor of any type values, but got '{source}'")
    if source != result:
        raise Broken("failed to verify that all of {src, result} have same type")
    if isinstance(sharding, Sharding):
        check_fits(shape_of(source), element_of(source), sharding, meshes[sharding.mesh])
    elif str(sharding) != SHARDING_TYPE:
        raise Broken(f"operand #1 must be sharding definition, but got '{sharding}'")


def check_fits(shape: Shape, element: ir.Type, sharding: Sharding, mesh: Mesh) -> None:
    """Raises Broken if the sharding does not fit the tensor."""
    if any(sharding.split_axes[len(shape) :]):
        raise Broken(f"sharding has {len(sharding.split_axes)} split axes lists, but the tensor is of rank {len(shape)}.")
    if sharding.partial_axes:
        check_reduction(sharding.partial_kind, element)
    split = [(dim, axes) for dim, axes in enumerate(sharding.split_axes) if axes]
    if sharding.halo_sizes:
        _check_halos_fit(shape, split, sharding.halo_sizes, mesh)
    if sharding.offsets:
        lists = offsets_by_dimension(sharding.offsets, sharding.split_axes, mesh)
        for (dim, _), offsets in zip(split, lists, strict=True):
            if DYNAMIC not in (shape[dim], offsets[-1]) and offsets[-1] != shape[dim]:
                raise Broken(
                    f"sharded dims offsets of tensor axis {dim} end at {offsets[-1]}, but the dimension is of size {shape[dim]}."
                )


def _check_halos_fit(shape: Shape, split: list[tuple[int, Axes]], halo_sizes: tuple[int, ...], mesh: Mesh) -> None:
    """Checks that no halo, which is the neighbour's data, exceeds the neighbour's shard."""
    for (dim, axes), before, after in zip(split, halo_sizes[::2], halo_sizes[1::2], strict=True):
        count = group_size(mesh, axes)
        if DYNAMIC in (shape[dim], count):
            continue
        shard = -(-shape[dim] // count)
        for halo in (before, after):
            if halo not in (DYNAMIC, 0) and halo > shard:
                raise Broken(f"halo size {halo} of tensor axis {dim} exceeds the shard size {shard}.")


def reads_a_sharding(signature: Signature) -> None:
    """`mesh.get_sharding`."""
    if len(signature.operands) != 1 or not isinstance(signature.operands[0], ir.RankedTensorType):
        raise Broken(f"operand #0 must be ranked tensor of any type values, but got '{', '.join(map(str, signature.operands))}'")
    _check_is_sharding(signature)


def one_size_per_dimension(signature: Signature) -> None:
    """`mesh.shard_shape`, in both forms. Closed hole: the number of results."""
    dims = signature.integers("shape" if "shape" in signature.attributes else "dims")
    if len(signature.results) != len(dims):
        raise Broken(f"Unexpected number of results {len(signature.results)}. Expected {len(dims)}.")
    types = [str(type_) for type_ in signature.operands]
    if types.count(SHARDING_TYPE) != 1:
        raise Broken("expects one operand that is a sharding definition")
    if any(type_ not in (SHARDING_TYPE, "index") for type_ in types) or any(str(type_) != "index" for type_ in signature.results):
        raise Broken("expects index operands and results beside the sharding")


def halo_update_is_consistent(signature: Signature) -> None:
    """`mesh.update_halo`. Closed holes: the axes, the number of halo sizes, and halos larger than the shard around them."""
    if not signature.operands or len(signature.results) != 1:
        raise Broken("expects a destination and one result")
    if signature.operands[0] != signature.results[0]:
        raise Broken("failed to verify that all of {destination, result} have same type")
    if not isinstance(signature.results[0], ir.RankedTensorType | ir.MemRefType) or not signature.result_shape():
        raise Broken(
            "operand #0 must be non-0-ranked.memref of any type values or non-0-ranked.tensor of any type values, "
            f"but got '{signature.operands[0]}'"
        )
    split = attributes.axis_array(signature.attributes["split_axes"])
    check_split_axes(split, signature.mesh)
    if any(split[len(signature.result_shape()) :]):
        raise Broken(f"has {len(split)} split axes lists, but the tensor is of rank {len(signature.result_shape())}.")
    halo_sizes = signature.integers("static_halo_sizes")
    _check_halos(halo_sizes, split)
    dims = [dim for dim, axes in enumerate(split) if axes]
    for dim, before, after in zip(dims, halo_sizes[::2], halo_sizes[1::2], strict=False):
        _check_core(signature.result_shape()[dim], dim, before, after)


def _check_core(size: int, dim: int, before: int, after: int) -> None:
    """Checks that the core, the dimension without its halos, can fill a neighbour's halo."""
    if DYNAMIC in (size, before, after):
        return
    core = size - before - after
    if max(before, after) > core:
        raise Broken(f"halo sizes [{before}, {after}] of tensor axis {dim} leave a core of {core} of {size}.")


RULES: dict[str, tuple[Rule, ...]] = {
    "sharding": (sharding_is_consistent,),
    "shard": (),
    "get_sharding": (reads_a_sharding,),
    "shard_shape": (one_size_per_dimension,),
    "update_halo": (halo_update_is_consistent,),
}
"""Rules by mnemonic. `shard` has `check_shard`, which needs the value of its sharding."""
