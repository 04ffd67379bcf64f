"""One class per operation of the mesh dialect: typed accessors over the unregistered operation of the same name.

Builders are in `build`, checks in `verifier`, text in `assembly`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from meshbridge.dialect import attributes
from meshbridge.ir.mlir import _cext, ir
from meshbridge.ir.sharding import DYNAMIC, Mesh, Sharding

T = TypeVar("T")


@_cext.register_dialect
class MeshDialect(ir.Dialect):
    """The namespace `mesh`."""

    DIALECT_NAMESPACE = "mesh"


class _Attribute(Generic[T]):
    """An accessor of the attribute `name`, by default its own name in the class; `default` if an op may lack it."""

    def __init__(self, read: Callable[[ir.Attribute], T], name: str = "", default: T | None = None) -> None:
        self.read = read
        self.name = name
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    def __get__(self, op: MeshOpView, owner: type | None = None) -> T:
        attrs = op.operation.attributes
        return self.read(attrs[self.name]) if self.default is None or self.name in attrs else self.default


def _integers(name: str = "") -> _Attribute[tuple[int, ...]]:
    """An accessor of a list of axes or sizes, empty if the op lacks it."""
    return _Attribute(attributes.integers, name, ())


def _is_set(_: ir.Attribute) -> bool:
    return True


def _number(attr: ir.Attribute) -> int:
    return int(ir.IntegerAttr(attr).value)


class _Operand:
    """An accessor of the operand of this number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __get__(self, op: MeshOpView, owner: type | None = None) -> ir.Value[Any]:
        value: ir.Value[Any] = op.operation.operands[self.number]
        return value


class MeshOpView(ir.OpView):
    """The base of all operations of the dialect."""

    OPERATION_NAME: ClassVar[str]
    _ODS_REGIONS = (0, True)

    mesh = _Attribute(attributes.symbol)
    "The symbol of the mesh that this operation runs on."


@_cext.register_operation(MeshDialect)
class MeshOp(MeshOpView):
    """`mesh.mesh @m(shape = 2x?x4)`: declares a mesh."""

    OPERATION_NAME = "mesh.mesh"

    sym_name = _Attribute(attributes.string)
    shape = _Attribute(attributes.integers)

    @property
    def value(self) -> Mesh:
        """The mesh, with axis names, sub-axes and device order from its discardable attributes."""
        attrs = self.operation.attributes
        names = tuple(map(attributes.string, ir.ArrayAttr(attrs[AXIS_NAMES]))) if AXIS_NAMES in attrs else ()
        devices = attributes.integers(attrs[DEVICE_IDS]) if DEVICE_IDS in attrs else ()
        digits = attributes.integers(attrs[AXIS_DIGITS]) if AXIS_DIGITS in attrs else ()
        return Mesh(self.sym_name, self.shape, names, devices, digits)


AXIS_NAMES = "meshbridge.axis_names"
"""Discardable attribute of `mesh.mesh`: the user's names of the axes, which the dialect numbers."""

AXIS_DIGITS = "meshbridge.axis_digits"
"""Discardable attribute of `mesh.mesh`: into how many axes of the mesh each of the user's axes is divided."""

DEVICE_IDS = "meshbridge.device_ids"
"""Discardable attribute of `mesh.mesh`: device ids in row-major order, unless they are 0, 1, 2, …"""

OPEN_DIMS = "meshbridge.open_dims"
"""Discardable attribute of `mesh.shard`: tensor dimensions that propagation may split further. All others are closed."""

PRIORITIES = "meshbridge.priorities"
"""Discardable attribute of `mesh.shard`: for each tensor dimension, the round (from 0) in which it propagates; -1 without one."""

REPLICATED_AXES = "meshbridge.replicated_axes"
"""Discardable attribute of `mesh.shard`: mesh axes that must not split the value, open dimensions or not."""

SOURCE = "meshbridge.source"
"""Discardable attribute of `mesh.shard`: the source operation that it was made from, unless its position implies it."""

SOURCE_ATTRIBUTES = "meshbridge.source_attributes"
"""Discardable attribute of `mesh.shard`: other attributes of the source operation. For a manual computation, the REPLICATED_AXES
that its sharding does not name."""

UNSAID = "meshbridge.unsaid"
"""Discardable attribute of `mesh.shard`: the source operation has no sharding; the annotation only marks its position."""

REQUIRED = "meshbridge.required"
"""Discardable attribute of `mesh.shard`: the RFC's `required`; false for a hint that the compiler may ignore."""

OPTION = "meshbridge.sharding_option"
"""Discardable attribute of a payload op: the mesh axes of each of its loops (the RFC, ShardingOption)."""

BOUNDARY_GLOBAL = "meshbridge.global"
"""Attribute of an argument or result of a partitioned function: the type of the global tensor."""

BOUNDARY_MESH = "meshbridge.mesh"
"""Attribute of an argument or result of a partitioned function: the mesh that it is sharded on. Attribute of a function: its
mesh, if nothing in it names one."""

BOUNDARY_SPLIT = "meshbridge.split_axes"
"""Attribute of an argument or result of a partitioned function: the mesh axes that split each dimension."""

BOUNDARY_PARTIAL = "meshbridge.partial_axes"
"""Attribute of an argument or result of a partitioned function: the axes along which it is unreduced."""

NAN_FOLLOWS = "meshbridge.nan_follows"
"""Discardable attribute of `mesh.all_reduce`: values computed from a NaN that it may lose are NaN anyway."""

RESULT_SPLIT = "meshbridge.result_split_axes"
"""Discardable attribute of a payload op of a partitioned function: for each result, the mesh axes that split its dimensions, and
then those along which it is partial."""

GATHERED = "meshbridge.gathered"
"""Unit attribute of an op that runs replicated on gathered operands, because it has no sharding rule."""

MANUAL_AXES = "meshbridge.manual_axes"
"""Discardable attribute of an operation whose region is already local along these mesh axes."""


@_cext.register_operation(MeshDialect)
class MeshShapeOp(MeshOpView):
    """`mesh.mesh_shape @m axes = […]`: sizes of mesh axes."""

    OPERATION_NAME = "mesh.mesh_shape"

    axes = _integers()


@_cext.register_operation(MeshDialect)
class ProcessMultiIndexOp(MeshOpView):
    """`mesh.process_multi_index on @m axes = […]`: coordinates of this device."""

    OPERATION_NAME = "mesh.process_multi_index"

    axes = _integers()


@_cext.register_operation(MeshDialect)
class ProcessLinearIndexOp(MeshOpView):
    """`mesh.process_linear_index on @m`: row-major number of this device in the mesh."""

    OPERATION_NAME = "mesh.process_linear_index"


@_cext.register_operation(MeshDialect)
class NeighborsLinearIndicesOp(MeshOpView):
    """`mesh.neighbors_linear_indices on @m[…] split_axes = […]`: the previous and the next device, or negative."""

    OPERATION_NAME = "mesh.neighbors_linear_indices"

    split_axes = _integers()


@_cext.register_operation(MeshDialect)
class ShardingOp(MeshOpView):
    """`mesh.sharding @m split_axes = … : !mesh.sharding`: a sharding as an SSA value."""

    OPERATION_NAME = "mesh.sharding"

    split_axes = _Attribute(attributes.axis_array)
    partial_axes = _integers()
    partial_type = _Attribute(attributes.kind, default="sum")
    halo_sizes = _integers("static_halo_sizes")
    sharded_dims_offsets = _integers("static_sharded_dims_offsets")

    @property
    def value(self) -> Sharding:
        """The sharding; dynamic entries are DYNAMIC."""
        return Sharding(
            self.mesh, self.split_axes, self.partial_axes, self.partial_type, self.halo_sizes, self.sharded_dims_offsets
        )


@_cext.register_operation(MeshDialect)
class ShardOp(MeshOpView):
    """`mesh.shard %x to %s`: how the definition of `%x`, or with `annotate_for_users` its use, is sharded."""

    OPERATION_NAME = "mesh.shard"

    source = _Operand(0)
    sharding = _Operand(1)
    annotate_for_users = _Attribute(_is_set, default=False)


@_cext.register_operation(MeshDialect)
class GetShardingOp(MeshOpView):
    """`mesh.get_sharding %x`: the sharding of a value (LLVM 21)."""

    OPERATION_NAME = "mesh.get_sharding"


@_cext.register_operation(MeshDialect)
class ShardShapeOp(MeshOpView):
    """`mesh.shard_shape 8x? %sharding %device`: the shape of one device's shard."""

    OPERATION_NAME = "mesh.shard_shape"

    shape = _integers()
    dims = _integers()
    "The shape in LLVM 21's form, in which `device` has the device's coordinates."
    device = _integers()


class CollectiveOpView(MeshOpView):
    """An operation over device groups. Devices that only differ along `mesh_axes` form a group; no axes: each device does."""

    mesh_axes = _integers()
    input = _Operand(0)

    def device(self, name: str) -> tuple[int | ir.Value[Any], ...]:
        """The coordinates in attribute `name` (`root`, `source` or `destination`): static ones as int, dynamic ones as values."""
        dynamic = iter(list(self.operation.operands)[1:])
        entries = attributes.integers(attrs[name]) if name in (attrs := self.operation.attributes) else ()
        return tuple(next(dynamic) if entry == DYNAMIC else entry for entry in entries)

    reduction = _Attribute(attributes.kind, default="sum")


@_cext.register_operation(MeshDialect)
class AllGatherOp(CollectiveOpView):
    """Concatenates the shards of each group along `gather_axis`."""

    OPERATION_NAME = "mesh.all_gather"

    gather_axis = _Attribute(_number)


@_cext.register_operation(MeshDialect)
class AllReduceOp(CollectiveOpView):
    """Reduces over each group, in the result's element type."""

    OPERATION_NAME = "mesh.all_reduce"


@_cext.register_operation(MeshDialect)
class AllSliceOp(CollectiveOpView):
    """Each device keeps its piece along `slice_axis`, without communication."""

    OPERATION_NAME = "mesh.all_slice"

    slice_axis = _Attribute(_number)


@_cext.register_operation(MeshDialect)
class AllToAllOp(CollectiveOpView):
    """Splits along `split_axis`, exchanges, concatenates along `concat_axis`."""

    OPERATION_NAME = "mesh.all_to_all"

    split_axis = _Attribute(_number)
    concat_axis = _Attribute(_number)


@_cext.register_operation(MeshDialect)
class BroadcastOp(CollectiveOpView):
    """Sends the root's tensor to every device of its group."""

    OPERATION_NAME = "mesh.broadcast"


@_cext.register_operation(MeshDialect)
class GatherOp(CollectiveOpView):
    """`all_gather` with a result that is only defined on the root."""

    OPERATION_NAME = "mesh.gather"

    gather_axis = _Attribute(_number)


@_cext.register_operation(MeshDialect)
class ReduceOp(CollectiveOpView):
    """`all_reduce` with a result that is only defined on the root."""

    OPERATION_NAME = "mesh.reduce"


@_cext.register_operation(MeshDialect)
class ReduceScatterOp(CollectiveOpView):
    """Reduces over each group and leaves every device its piece along `scatter_axis`."""

    OPERATION_NAME = "mesh.reduce_scatter"

    scatter_axis = _Attribute(_number)


@_cext.register_operation(MeshDialect)
class ScatterOp(CollectiveOpView):
    """Splits the root's tensor along `scatter_axis` over its group."""

    OPERATION_NAME = "mesh.scatter"

    scatter_axis = _Attribute(_number)


@_cext.register_operation(MeshDialect)
class SendOp(CollectiveOpView):
    """Sends to `destination` within the group."""

    OPERATION_NAME = "mesh.send"


@_cext.register_operation(MeshDialect)
class RecvOp(CollectiveOpView):
    """Receives from `source` within the group."""

    OPERATION_NAME = "mesh.recv"


@_cext.register_operation(MeshDialect)
class ShiftOp(CollectiveOpView):
    """Moves data by `offset` devices along `shift_axis`, wrapping around with `rotate`."""

    OPERATION_NAME = "mesh.shift"

    shift_axis = _Attribute(_number)
    offset = _Attribute(_number)
    rotate = _Attribute(_is_set, default=False)


@_cext.register_operation(MeshDialect)
class UpdateHaloOp(MeshOpView):
    """Refreshes the halo regions of a shard from the neighbours."""

    OPERATION_NAME = "mesh.update_halo"

    split_axes = _Attribute(attributes.axis_array)
    halo_sizes = _integers("static_halo_sizes")


@_cext.register_operation(MeshDialect)
class PermuteOp(CollectiveOpView):
    """`mesh.permute`: meshbridge's only addition to the dialect, a permutation of equal shards that the resharding spec needs.

    The device whose row-major number along `target_axes` is L receives from the device whose number along `mesh_axes` is L.
    Both lists hold the same axes in different orders.
    """

    OPERATION_NAME = "mesh.permute"

    target_axes = _integers()


OPERATION_NAMES = frozenset(
    str(kind.OPERATION_NAME)
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, MeshOpView) and "OPERATION_NAME" in vars(kind)
)
"""The operations of the dialect."""
