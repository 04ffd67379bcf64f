"""`#sdy.sharding<…>` attributes as mesh-dialect shardings, and back, without loss.

    #sdy.sharding<@m, [{"x", ?}p1, {}], replicated={"y"}, unreduced={"z"}>
<->
    Sharding("m", split_axes=((0,), ()), partial_axes=(2,), partial_kind="sum")
    with meshbridge.open_dims = [0], meshbridge.priorities = [1, -1], meshbridge.replicated_axes = [1]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
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
    def reference(self) -> str | ir.Attribute:
        """How shardings name the mesh: by its symbol, or by its contents."""
        return self.attr if self.inlined else self.value.name

    @property
    def is_maximal(self) -> bool:
        """Whether the mesh means one device that holds the value. Its shardings have no dimensions, whatever the rank."""
        return not self.value.rank and bool(self.value.device_ids)


def mesh_axes(attr: ir.Attribute) -> list[tuple[str, int]]:
    """Name and size of each axis of an `#sdy.mesh<…>`."""
    return [(axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, sdy.MeshAttr(attr).axes)]


def declared_meshes(module: ir.Module) -> dict[str, ir.Operation]:
    """The `sdy.mesh` operations of a module by symbol."""
    found = [view.operation for view in module.body.operations if view.operation.name == "sdy.mesh"]
    return {ir.StringAttr(op.attributes["sym_name"]).value: op for op in found}


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


Refs = tuple[AxisRef, ...]


@dataclass(frozen=True)
class SdySharding:
    """An `#sdy.sharding<…>` as a value.

    `mesh` is its symbol, or the mesh itself where it is inlined. `dims` has the axes of each dimension, outer to inner, and
    `priorities` as many entries, or none at all. The axes `replicated` must not be used; along `unreduced` the value is a sum.
    """

    mesh: str | ir.Attribute
    dims: tuple[Refs, ...]
    open_dims: tuple[int, ...] = ()
    replicated: Refs = ()
    unreduced: Refs = ()
    priorities: tuple[int | None, ...] = ()

    @classmethod
    def of(cls, attr: ir.Attribute) -> SdySharding:
        """What an `#sdy.sharding<…>` says. Raises MeshError for a value that is unreduced by another operation than a sum."""
        tensor = sdy.TensorShardingAttr(attr)
        reduction = getattr(tensor, "reduction_op", None)  # which jaxlib 0.10 and older ones have not
        if len(tensor.unreduced_axes) and reduction is not None and reduction.name != "SUM":
            hint = "reduce it where it is made, as by jax.lax.pmax"
            raise MeshError(f"<module>: error: {attr} is unreduced by {reduction.name}, expected SUM\n  hint: {hint}")
        dims = [sdy.DimensionShardingAttr(dim) for dim in tensor.dimension_shardings]
        opened = tuple(index for index, dim in enumerate(dims) if not dim.is_closed)
        split = tuple(tuple(map(_ref, dim.axes)) for dim in dims)
        replicated, unreduced = (tuple(map(_ref, refs)) for refs in (tensor.replicated_axes, tensor.unreduced_axes))
        return cls(mesh_of(attr), split, opened, replicated, unreduced, tuple(dim.priority for dim in dims))

    @property
    def attr(self) -> ir.Attribute:
        """The `#sdy.sharding<…>`."""
        said = zip(self.dims, self.priorities or (None,) * len(self.dims), strict=True)
        dims = [
            sdy.DimensionShardingAttr.get(list(map(_ref_attr, refs)), dim not in self.open_dims, priority)
            for dim, (refs, priority) in enumerate(said)
        ]
        replicated, unreduced = (list(map(_ref_attr, refs)) for refs in (self.replicated, self.unreduced))
        return sdy.TensorShardingAttr.get(self.mesh, dims, replicated, unreduced)

    @property
    def axes(self) -> Refs:
        """Every axis reference in it."""
        return (*chain.from_iterable(self.dims), *self.replicated, *self.unreduced)

    @property
    def says_nothing(self) -> bool:
        """Whether every dimension is open, and none is split."""
        return bool(self.dims) and len(self.open_dims) == len(self.dims) and not self.axes


def _ref(attr: ir.Attribute) -> AxisRef:
    """An `#sdy<axis_ref…>` as a value."""
    ref = sdy.AxisRefAttr(attr)
    if ref.sub_axis_info is None:
        return AxisRef(ref.name)
    info = sdy.SubAxisInfoAttr(ref.sub_axis_info)
    return AxisRef(ref.name, info.pre_size, info.size)


def _ref_attr(ref: AxisRef) -> ir.Attribute:
    """A value as an `#sdy<axis_ref…>`."""
    if ref.size is None:
        return sdy.AxisRefAttr.get(ref.name)
    return sdy.AxisRefAttr.get(ref.name, sdy.SubAxisInfoAttr.get(ref.pre, ref.size))


def read(attr: ir.Attribute, mesh: SdyMesh, rank: int) -> Annotation:
    """What an `#sdy.sharding<…>` over `mesh` says, in the mesh dialect's terms, of a tensor of `rank` dimensions."""

    def axes(refs: Refs) -> Axes:
        return tuple(axis for ref in refs for axis in mesh.value.axes_of(ref))

    said = SdySharding.of(attr)
    extras: dict[str, ir.Attribute] = {}
    if said.open_dims:
        extras[OPEN_DIMS] = attributes.integers_attr(said.open_dims)
    if any(priority is not None for priority in said.priorities):
        extras[PRIORITIES] = attributes.integers_attr(NO_PRIORITY if p is None else p for p in said.priorities)
    if said.replicated:
        extras[REPLICATED_AXES] = attributes.axes_attr(axes(said.replicated))
    return Annotation(Sharding(mesh.value.name, tuple(map(axes, said.dims)), axes(said.unreduced)).padded(rank), extras)


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

    def refs(axes: Iterable[int]) -> Refs:
        """None on a mesh without axes, whose one axis of size 1 stands for no axis at all."""
        return tuple(mesh.value.refs_of(axes)) if mesh.value.rank else ()

    def listed(name: str) -> tuple[int, ...]:
        return attributes.integers(extras[name]) if name in extras else ()

    dims = () if mesh.is_maximal else tuple(map(refs, sharding.padded(rank).split_axes))
    priorities = tuple(None if priority == NO_PRIORITY else priority for priority in listed(PRIORITIES))
    replicated, unreduced = (refs(sorted(axes)) for axes in (listed(REPLICATED_AXES), sharding.partial_axes))
    return SdySharding(mesh.reference, dims, listed(OPEN_DIMS), replicated, unreduced, priorities).attr


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
    dims = 0 if mesh.is_maximal else rank
    return SdySharding(mesh.reference, ((),) * dims, tuple(range(dims))).attr
