"""`#sdy.sharding<…>` attributes as mesh-dialect shardings, and back, without loss.

    #sdy.sharding<@m, [{"x", ?}p1, {}], replicated={"y"}, unreduced={"z"}>
<->
    Sharding("m", split_axes=((0,), ()), partial_axes=(2,), partial_kind="sum")
    with meshbridge.open_dims = [0], meshbridge.priorities = [1, -1], meshbridge.replicated_axes = [1]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from meshbridge.dialect import attributes
from meshbridge.dialect.ops import OPEN_DIMS, PRIORITIES, REPLICATED_AXES
from meshbridge.ir.mlir import MeshError, ir, sdy
from meshbridge.ir.sharding import Axes, AxisRef, Mesh, Sharding
from meshbridge.ir.subaxes import factor

NO_PRIORITY = -1


class Annotation(NamedTuple):
    """What one sdy sharding says: a mesh sharding, and discardable attributes for the rest."""

    sharding: Sharding
    extras: dict[str, ir.Attribute]


@dataclass(frozen=True)
class SdyMesh:
    """One mesh of a module, as sdy has it and as a value, which may have no axes. `inlined` ones have no symbol in sdy."""

    attr: ir.Attribute
    value: Mesh
    inlined: bool = False

    @property
    def is_maximal(self) -> bool:
        """Whether the mesh means one device that holds the value. Its shardings have no dimensions, whatever the rank."""
        return not self.value.rank and bool(self.value.device_ids)


def mesh_axes(attr: ir.Attribute) -> list[tuple[str, int]]:
    """Name and size of each axis of an `#sdy.mesh<…>`."""
    return [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(attr).axes)]


def sdy_mesh(symbol: str, attr: ir.Attribute, used: Iterable[AxisRef], inlined: bool = False) -> SdyMesh:
    """The mesh `symbol` with its axes cut for the axis references in `used`.

    Raises MeshError where no factorisation has all of them.
    """
    try:
        value = factor(mesh_axes(attr), used, symbol=symbol, device_ids=tuple(sdy.MeshAttr(attr).device_ids))
    except ValueError as error:
        raise MeshError(f"mesh @{symbol}: {error}") from None
    return SdyMesh(attr, value, inlined)


def mesh_attr(mesh: Mesh) -> ir.Attribute:
    """The `#sdy.mesh<…>` of a mesh, its axes without the digits. sdy leaves the device order out where it is 0, 1, 2, …"""
    in_order = bool(mesh.rank) and mesh.device_ids == tuple(range(len(mesh.device_ids)))
    axes = [sdy.MeshAxisAttr.get(name, size) for name, size in mesh.named_axes]
    return sdy.MeshAttr.get(axes, [] if in_order else list(mesh.device_ids))


def axis_ref(attr: ir.Attribute) -> AxisRef:
    """An `#sdy<axis_ref…>` as a value."""
    ref = sdy.AxisRefAttr(attr)
    if ref.sub_axis_info is None:
        return AxisRef(ref.name)
    info = sdy.SubAxisInfoAttr(ref.sub_axis_info)
    return AxisRef(ref.name, info.pre_size, info.size)


def axis_ref_attr(ref: AxisRef) -> ir.Attribute:
    """A value as an `#sdy<axis_ref…>`."""
    if ref.size is None:
        return sdy.AxisRefAttr.get(ref.name)
    return sdy.AxisRefAttr.get(ref.name, sdy.SubAxisInfoAttr.get(ref.pre, ref.size))


def axis_refs(sharding: ir.Attribute) -> list[AxisRef]:
    """Every axis reference in an `#sdy.sharding<…>`."""
    tensor = sdy.TensorShardingAttr(sharding)
    refs = [axis for dim in tensor.dimension_shardings for axis in sdy.DimensionShardingAttr(dim).axes]
    return [axis_ref(ref) for ref in (*refs, *tensor.replicated_axes, *tensor.unreduced_axes)]


def read(attr: ir.Attribute, mesh: SdyMesh, rank: int) -> Annotation:
    """What an `#sdy.sharding<…>` over `mesh` says, in the mesh dialect's terms, of a tensor of `rank` dimensions."""

    def axes(refs: Sequence[ir.Attribute]) -> Axes:
        return tuple(axis for ref in refs for axis in mesh.value.axes_of(axis_ref(ref)))

    tensor = sdy.TensorShardingAttr(attr)
    dims = [sdy.DimensionShardingAttr(dim) for dim in tensor.dimension_shardings]
    partial, replicated = axes(tensor.unreduced_axes), axes(tensor.replicated_axes)
    extras: dict[str, ir.Attribute] = {}
    if opened := [index for index, dim in enumerate(dims) if not dim.is_closed]:
        extras[OPEN_DIMS] = attributes.integers_attr(opened)
    priorities = [dim.priority for dim in dims]
    if any(priority is not None for priority in priorities):
        extras[PRIORITIES] = attributes.integers_attr(NO_PRIORITY if p is None else p for p in priorities)
    if replicated:
        extras[REPLICATED_AXES] = attributes.axes_attr(replicated)
    return Annotation(Sharding(mesh.value.name, tuple(axes(dim.axes) for dim in dims), partial).padded(rank), extras)


def write(sharding: Sharding, rank: int, extras: Mapping[str, ir.Attribute], mesh: SdyMesh) -> ir.Attribute:
    """The `#sdy.sharding<…>` that `read` would understand as `sharding` with `extras`, for a tensor of `rank` dimensions.

    Raises ValueError that names what sdy cannot say: halos, offsets, partial values of a kind other than sum.
    """
    if sharding.halo_sizes:
        raise ValueError(f"halo sizes {list(sharding.halo_sizes)} have no counterpart in sdy")
    if sharding.offsets:
        raise ValueError(f"sharded dimension offsets {list(sharding.offsets)} have no counterpart in sdy")
    if sharding.partial_axes and sharding.partial_kind != "sum":
        raise ValueError(f"partial = {sharding.partial_kind} has no counterpart in sdy, where unreduced means sum")

    def refs(axes: Iterable[int]) -> list[ir.Attribute]:
        if not mesh.value.rank:  # the one axis of size 1 that stands for no axis at all
            return []
        return [axis_ref_attr(ref) for ref in mesh.value.refs_of(axes)]

    def in_mesh_order(axes: Iterable[int]) -> list[ir.Attribute]:
        return refs(sorted(axes))

    if mesh.is_maximal:
        rank, sharding = 0, replace(sharding, split_axes=())
    opened = set(attributes.integers(extras[OPEN_DIMS])) if OPEN_DIMS in extras else set()
    priorities = attributes.integers(extras[PRIORITIES]) if PRIORITIES in extras else (NO_PRIORITY,) * rank
    dims = [
        sdy.DimensionShardingAttr.get(refs(axes), index not in opened, None if priority == NO_PRIORITY else priority)
        for index, (axes, priority) in enumerate(zip(sharding.padded(rank).split_axes, priorities, strict=True))
    ]
    replicated = attributes.integers(extras[REPLICATED_AXES]) if REPLICATED_AXES in extras else ()
    where = mesh.attr if mesh.inlined else mesh.value.name
    return sdy.TensorShardingAttr.get(where, dims, in_mesh_order(replicated), in_mesh_order(sharding.partial_axes))


def mesh_of(sharding: ir.Attribute) -> str | ir.Attribute:
    """The symbol of a sharding's mesh, or the mesh itself where it is inlined."""
    mesh = sdy.TensorShardingAttr(sharding).mesh_or_ref
    return mesh.value if isinstance(mesh, ir.FlatSymbolRefAttr) else mesh


def on_mesh(sharding: ir.Attribute, mesh: str | ir.Attribute) -> ir.Attribute:
    """The same sharding with its mesh named by another symbol or by its contents."""
    tensor = sdy.TensorShardingAttr(sharding)
    return sdy.TensorShardingAttr.get(mesh, tensor.dimension_shardings, tensor.replicated_axes, tensor.unreduced_axes)


def open_sharding(mesh: SdyMesh, rank: int) -> ir.Attribute:
    """Nothing is said: every dimension is open."""
    dims = [] if mesh.is_maximal else [sdy.DimensionShardingAttr.get([], False)] * rank
    return sdy.TensorShardingAttr.get(mesh.attr if mesh.inlined else mesh.value.name, dims)
