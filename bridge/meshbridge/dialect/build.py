"""Builders of mesh operations in the style of the MLIR bindings: `build.all_gather(x, mesh, mesh_axes=[1], gather_axis=1)`.

`mesh` is the Mesh value; result types follow from it. Operations are built `at` a Builder, or at the bindings' current insertion
point.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from meshbridge.dialect import attributes
from meshbridge.dialect.ops import AXIS_DIGITS, AXIS_NAMES, DEVICE_IDS
from meshbridge.dialect.signature import group_size
from meshbridge.ir.builder import Builder, element_of, integer, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh, Sharding, Split


def _create(
    name: str, results: list[ir.Type], operands: list[ir.Value], attrs: dict[str, ir.Attribute], at: Builder | None
) -> ir.Operation:
    return (at or Builder.current()).op(f"mesh.{name}", results, operands, attrs)


def _result(op: ir.Operation) -> ir.Value:
    value: ir.Value = op.results[0]
    return value


def mesh(value: Mesh, *, at: Builder | None = None) -> ir.Operation:
    """Declares `value` as a symbol."""
    attrs = {"sym_name": ir.StringAttr.get(value.name), "shape": attributes.integers_attr(value.shape)}
    if value.axis_names:
        attrs[AXIS_NAMES] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in value.axis_names])
    if value.digits:
        attrs[AXIS_DIGITS] = attributes.integers_attr(value.digits)
    if value.device_ids:
        attrs[DEVICE_IDS] = attributes.integers_attr(value.device_ids)
    return _create("mesh", [], [], attrs, at)


def sharding(value: Sharding, *, at: Builder | None = None) -> ir.Value:
    """Builds a static sharding as an SSA value."""
    attrs = {
        "mesh": ir.FlatSymbolRefAttr.get(value.mesh),
        "split_axes": attributes.axis_array_attr(value.split_axes),
        "static_halo_sizes": attributes.integers_attr(value.halo_sizes),
        "static_sharded_dims_offsets": attributes.integers_attr(value.offsets),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0]),
    }
    if value.partial_axes:
        attrs["partial_axes"] = attributes.axes_attr(value.partial_axes)
        attrs["partial_type"] = attributes.kind_attr(value.partial_kind)
    return _result(_create("sharding", [ir.Type.parse(attributes.SHARDING_TYPE)], [], attrs, at))


def shard(
    source: ir.Value,
    sharding: ir.Value,
    *,
    annotate_for_users: bool = False,
    extras: Mapping[str, ir.Attribute] | None = None,
    at: Builder | None = None,
) -> ir.Value:
    """Annotates the definition of `source`, or one of its uses. `extras` are discardable attributes."""
    attrs = dict(extras or {})
    if annotate_for_users:
        attrs["annotate_for_users"] = ir.UnitAttr.get()
    return _result(_create("shard", [source.type], [source, sharding], attrs, at))


def shard_definition(
    source: ir.Value, sharding: ir.Value, *, extras: Mapping[str, ir.Attribute] | None = None, at: Builder | None = None
) -> ir.Value:
    """Annotates the definition of `source`, and replaces its uses by the annotated value."""
    op = _create("shard", [source.type], [source, sharding], dict(extras or {}), at)
    source.replace_all_uses_except(op.results[0], op)
    return _result(op)


def process_multi_index(mesh: Mesh, axes: Axes, *, at: Builder | None = None) -> list[ir.Value]:
    """This device's coordinates along `axes`, all of them if empty."""
    attrs = {"mesh": ir.FlatSymbolRefAttr.get(mesh.name), "axes": attributes.axes_attr(axes)}
    return _indices("process_multi_index", len(axes) or mesh.rank, [], attrs, at)


def _collective(
    name: str,
    value: ir.Value,
    mesh: Mesh,
    mesh_axes: Sequence[int],
    shape: Iterable[int],
    attrs: dict[str, ir.Attribute],
    at: Builder | None,
    element_type: ir.Type | None = None,
    device: Sequence[ir.Value] = (),
) -> ir.Value:
    element = element_type or element_of(value)
    attrs |= {"mesh": ir.FlatSymbolRefAttr.get(mesh.name), "mesh_axes": attributes.axes_attr(mesh_axes)}
    return _result(_create(name, [tensor(list(shape), element)], [value, *device], attrs, at))


def _resized(value: ir.Value, dim: int, multiply: int = 1, divide: int = 1) -> list[int]:
    """The operand's shape with one dimension multiplied or divided; dynamic sizes and group sizes make it dynamic."""
    shape = shape_of(value)
    if DYNAMIC in (shape[dim], multiply, divide):
        shape[dim] = DYNAMIC
        return shape
    if shape[dim] * multiply % divide:
        raise ValueError(f"dimension {dim} of size {shape[dim]} does not divide by {divide}")
    shape[dim] = shape[dim] * multiply // divide
    return shape


def all_gather(value: ir.Value, mesh: Mesh, *, mesh_axes: Sequence[int], gather_axis: int, at: Builder | None = None) -> ir.Value:
    shape = _resized(value, gather_axis, multiply=group_size(mesh, mesh_axes))
    return _collective("all_gather", value, mesh, mesh_axes, shape, {"gather_axis": attributes.index_attr(gather_axis)}, at)


def all_slice(value: ir.Value, mesh: Mesh, *, mesh_axes: Sequence[int], slice_axis: int, at: Builder | None = None) -> ir.Value:
    shape = _resized(value, slice_axis, divide=group_size(mesh, mesh_axes))
    return _collective("all_slice", value, mesh, mesh_axes, shape, {"slice_axis": attributes.index_attr(slice_axis)}, at)


def group_index(mesh: Mesh, *, mesh_axes: Sequence[int], at: Builder) -> ir.Value:
    """The device's number within its group, tensor<i32>: a slice of an iota, which needs no arithmetic on `index` values."""
    numbers = at.iota([group_size(mesh, mesh_axes)], 0)
    return at.reshape(all_slice(numbers, mesh, mesh_axes=mesh_axes, slice_axis=0, at=at), [])


def all_to_all(
    value: ir.Value, mesh: Mesh, *, mesh_axes: Sequence[int], split_axis: int, concat_axis: int, at: Builder | None = None
) -> ir.Value:
    count = group_size(mesh, mesh_axes)
    shape = _resized(value, split_axis, divide=count)
    shape[concat_axis] = DYNAMIC if DYNAMIC in (count, shape[concat_axis]) else shape[concat_axis] * count
    attrs = {"split_axis": attributes.index_attr(split_axis), "concat_axis": attributes.index_attr(concat_axis)}
    return _collective("all_to_all", value, mesh, mesh_axes, shape, attrs, at)


def all_reduce(
    value: ir.Value,
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    reduction: str = "sum",
    element_type: ir.Type | None = None,
    at: Builder | None = None,
) -> ir.Value:
    attrs = {"reduction": attributes.kind_attr(reduction)}
    return _collective("all_reduce", value, mesh, mesh_axes, shape_of(value), attrs, at, element_type)


def reduce_scatter(
    value: ir.Value,
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    scatter_axis: int,
    reduction: str = "sum",
    element_type: ir.Type | None = None,
    at: Builder | None = None,
) -> ir.Value:
    shape = _resized(value, scatter_axis, divide=group_size(mesh, mesh_axes))
    attrs = {"reduction": attributes.kind_attr(reduction), "scatter_axis": attributes.index_attr(scatter_axis)}
    return _collective("reduce_scatter", value, mesh, mesh_axes, shape, attrs, at, element_type)


def permute(
    value: ir.Value, mesh: Mesh, *, mesh_axes: Sequence[int], target_axes: Sequence[int], at: Builder | None = None
) -> ir.Value:
    """Relabels equal shards; see ops.PermuteOp."""
    return _collective("permute", value, mesh, mesh_axes, shape_of(value), {"target_axes": attributes.axes_attr(target_axes)}, at)


Device = Sequence["int | ir.Value"]
"""An in-group device: its coordinates along `mesh_axes`, constants or `index` values."""


def _static_and_dynamic(entries: Device) -> tuple[ir.Attribute, list[ir.Value]]:
    """The static list of a dynamic index list, and the values for its dynamic entries."""
    static = [entry if isinstance(entry, int) else DYNAMIC for entry in entries]
    return attributes.integers_attr(static), [entry for entry in entries if not isinstance(entry, int)]


def broadcast(value: ir.Value, mesh: Mesh, *, mesh_axes: Sequence[int], root: Device, at: Builder | None = None) -> ir.Value:
    static, device = _static_and_dynamic(root)
    return _collective("broadcast", value, mesh, mesh_axes, shape_of(value), {"root": static}, at, device=device)


def gather(
    value: ir.Value, mesh: Mesh, *, mesh_axes: Sequence[int], gather_axis: int, root: Device, at: Builder | None = None
) -> ir.Value:
    static, device = _static_and_dynamic(root)
    shape = _resized(value, gather_axis, multiply=group_size(mesh, mesh_axes))
    attrs = {"gather_axis": attributes.index_attr(gather_axis), "root": static}
    return _collective("gather", value, mesh, mesh_axes, shape, attrs, at, device=device)


def reduce(
    value: ir.Value,
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    root: Device,
    reduction: str = "sum",
    element_type: ir.Type | None = None,
    at: Builder | None = None,
) -> ir.Value:
    static, device = _static_and_dynamic(root)
    attrs = {"reduction": attributes.kind_attr(reduction), "root": static}
    return _collective("reduce", value, mesh, mesh_axes, shape_of(value), attrs, at, element_type, device)


def scatter(
    value: ir.Value, mesh: Mesh, *, mesh_axes: Sequence[int], scatter_axis: int, root: Device, at: Builder | None = None
) -> ir.Value:
    static, device = _static_and_dynamic(root)
    shape = _resized(value, scatter_axis, divide=group_size(mesh, mesh_axes))
    attrs = {"scatter_axis": attributes.index_attr(scatter_axis), "root": static}
    return _collective("scatter", value, mesh, mesh_axes, shape, attrs, at, device=device)


def send(value: ir.Value, mesh: Mesh, *, mesh_axes: Sequence[int], destination: Device, at: Builder | None = None) -> ir.Value:
    static, device = _static_and_dynamic(destination)
    return _collective("send", value, mesh, mesh_axes, shape_of(value), {"destination": static}, at, device=device)


def recv(
    value: ir.Value, mesh: Mesh, *, mesh_axes: Sequence[int], source: Device | None = None, at: Builder | None = None
) -> ir.Value:
    static, device = _static_and_dynamic(source or ())
    attrs = {} if source is None else {"source": static}
    return _collective("recv", value, mesh, mesh_axes, shape_of(value), attrs, at, device=device)


def shift(
    value: ir.Value,
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    shift_axis: int,
    offset: int,
    rotate: bool = False,
    at: Builder | None = None,
) -> ir.Value:
    attrs = {"shift_axis": attributes.index_attr(shift_axis), "offset": integer(offset)}
    if rotate:
        attrs["rotate"] = ir.UnitAttr.get()
    return _collective("shift", value, mesh, mesh_axes, shape_of(value), attrs, at)


def update_halo(
    value: ir.Value, mesh: Mesh, *, split_axes: Split, halo_sizes: Device = (), at: Builder | None = None
) -> ir.Value:
    """`halo_sizes`: two for each split dimension, constants or `i64` values."""
    static, dynamic = _static_and_dynamic(halo_sizes)
    attrs = {
        "mesh": ir.FlatSymbolRefAttr.get(mesh.name),
        "split_axes": attributes.axis_array_attr(split_axes),
        "static_halo_sizes": static,
    }
    return _result(_create("update_halo", [value.type], [value, *dynamic], attrs, at))


def _indices(
    name: str, count: int, operands: Sequence[ir.Value], attrs: dict[str, ir.Attribute], at: Builder | None
) -> list[ir.Value]:
    return list(_create(name, [ir.IndexType.get()] * count, list(operands), attrs, at).results)


def mesh_shape(mesh: Mesh, axes: Axes = (), *, at: Builder | None = None) -> list[ir.Value]:
    """The sizes of `axes`, of all axes if empty."""
    attrs = {"mesh": ir.FlatSymbolRefAttr.get(mesh.name), "axes": attributes.axes_attr(axes)}
    return _indices("mesh_shape", len(axes) or mesh.rank, [], attrs, at)


def process_linear_index(mesh: Mesh, *, at: Builder | None = None) -> ir.Value:
    """This device's row-major number."""
    return _indices("process_linear_index", 1, [], {"mesh": ir.FlatSymbolRefAttr.get(mesh.name)}, at)[0]


def neighbors_linear_indices(
    mesh: Mesh, device: Sequence[ir.Value], split_axes: Axes, *, at: Builder | None = None
) -> list[ir.Value]:
    """The devices before and after `device` along `split_axes`; negative if there is none."""
    attrs = {"mesh": ir.FlatSymbolRefAttr.get(mesh.name), "split_axes": attributes.axes_attr(split_axes)}
    return _indices("neighbors_linear_indices", 2, device, attrs, at)


def get_sharding(value: ir.Value, *, at: Builder | None = None) -> ir.Value:
    """The sharding of `value`."""
    return _result(_create("get_sharding", [ir.Type.parse(attributes.SHARDING_TYPE)], [value], {}, at))


def shard_shape(shape: Sequence[int], sharding: ir.Value, device: ir.Value, *, at: Builder | None = None) -> list[ir.Value]:
    """The sizes of the shard of a tensor of `shape` on the device with that linear number; dynamic sizes are DYNAMIC."""
    return _indices("shard_shape", len(shape), [sharding, device], {"shape": attributes.integers_attr(shape)}, at)
