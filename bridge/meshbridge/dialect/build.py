"""Builders of mesh operations in the style of the MLIR bindings: `build.all_gather(x, mesh, mesh_axes=[1], gather_axis=1)`.

`mesh` is the Mesh value; result types follow from it. Location and insertion point come from the usual context managers, or
from `loc` and `ip`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshbridge.dialect import attributes
from meshbridge.dialect.ops import AXIS_DIGITS, AXIS_NAMES, DEVICE_IDS
from meshbridge.dialect.signature import group_size
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh, Sharding, Split

Place = ir.InsertionPoint | None


def _create(
    name: str,
    results: list[ir.Type],
    operands: list[ir.Value[Any]],
    attrs: dict[str, ir.Attribute],
    loc: ir.Location | None,
    ip: Place,
) -> ir.Operation:
    return ir.Operation.create(f"mesh.{name}", results, operands, attrs, loc=loc, ip=ip)


def _result(op: ir.Operation) -> ir.Value[Any]:
    value: ir.Value[Any] = op.results[0]
    return value


def mesh(value: Mesh, *, loc: ir.Location | None = None, ip: Place = None) -> ir.Operation:
    """Declares `value` as a symbol."""
    attrs = {"sym_name": ir.StringAttr.get(value.name), "shape": attributes.integers_attr(value.shape)}
    if value.axis_names:
        attrs[AXIS_NAMES] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in value.axis_names])
    if value.digits:
        attrs[AXIS_DIGITS] = attributes.integers_attr(value.digits)
    if value.device_ids:
        attrs[DEVICE_IDS] = attributes.integers_attr(value.device_ids)
    return _create("mesh", [], [], attrs, loc, ip)


def sharding(value: Sharding, *, loc: ir.Location | None = None, ip: Place = None) -> ir.Value[Any]:
    """The SSA value of a static sharding."""
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
    return _result(_create("sharding", [ir.Type.parse(attributes.SHARDING_TYPE)], [], attrs, loc, ip))


def shard(
    source: ir.Value[Any],
    sharding: ir.Value[Any],
    *,
    annotate_for_users: bool = False,
    extras: Mapping[str, ir.Attribute] | None = None,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    """Annotates the definition of `source`, or one of its uses. `extras` are discardable attributes."""
    attrs = dict(extras or {})
    if annotate_for_users:
        attrs["annotate_for_users"] = ir.UnitAttr.get()
    return _result(_create("shard", [source.type], [source, sharding], attrs, loc, ip))


def shard_definition(
    source: ir.Value[Any],
    sharding: ir.Value[Any],
    *,
    extras: Mapping[str, ir.Attribute] | None = None,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    """Annotates the definition of `source`; everything that used `source` uses the annotated value from then on."""
    op = _create("shard", [source.type], [source, sharding], dict(extras or {}), loc, ip)
    source.replace_all_uses_except(op.results[0], op)
    return _result(op)


def process_multi_index(mesh: Mesh, axes: Axes, *, loc: ir.Location | None = None, ip: Place = None) -> list[ir.Value[Any]]:
    """This device's coordinates along `axes`, all of them if empty."""
    count = len(axes) or mesh.rank
    attrs = {"mesh": ir.FlatSymbolRefAttr.get(mesh.name), "axes": attributes.axes_attr(axes)}
    return list(_create("process_multi_index", [ir.IndexType.get()] * count, [], attrs, loc, ip).results)


def _collective(
    name: str,
    value: ir.Value[Any],
    mesh: Mesh,
    mesh_axes: Sequence[int],
    shape: Iterable[int],
    attrs: dict[str, ir.Attribute],
    loc: ir.Location | None,
    ip: Place,
    element_type: ir.Type | None = None,
    device: Sequence[ir.Value[Any]] = (),
) -> ir.Value[Any]:
    element = element_type or ir.RankedTensorType(value.type).element_type
    attrs |= {"mesh": ir.FlatSymbolRefAttr.get(mesh.name), "mesh_axes": attributes.axes_attr(mesh_axes)}
    result = ir.RankedTensorType.get(list(shape), element, loc=ir.Location.unknown())
    return _result(_create(name, [result], [value, *device], attrs, loc, ip))


def _resized(value: ir.Value[Any], dim: int, multiply: int = 1, divide: int = 1) -> list[int]:
    """The operand's shape with one dimension multiplied or divided; unknown sizes and group sizes make it unknown."""
    shape = list(ir.RankedTensorType(value.type).shape)
    if DYNAMIC in (shape[dim], multiply, divide):
        shape[dim] = DYNAMIC
        return shape
    if shape[dim] * multiply % divide:
        raise ValueError(f"dimension {dim} of size {shape[dim]} does not divide by {divide}")
    shape[dim] = shape[dim] * multiply // divide
    return shape


def _group(mesh: Mesh, mesh_axes: Sequence[int]) -> int:
    return group_size(mesh, tuple(mesh_axes))


def all_gather(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    gather_axis: int,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    shape = _resized(value, gather_axis, multiply=_group(mesh, mesh_axes))
    return _collective("all_gather", value, mesh, mesh_axes, shape, {"gather_axis": attributes.index_attr(gather_axis)}, loc, ip)


def all_slice(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    slice_axis: int,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    shape = _resized(value, slice_axis, divide=_group(mesh, mesh_axes))
    return _collective("all_slice", value, mesh, mesh_axes, shape, {"slice_axis": attributes.index_attr(slice_axis)}, loc, ip)


def all_to_all(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    split_axis: int,
    concat_axis: int,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    count = _group(mesh, mesh_axes)
    shape = _resized(value, split_axis, divide=count)
    shape[concat_axis] = DYNAMIC if DYNAMIC in (count, shape[concat_axis]) else shape[concat_axis] * count
    attrs = {"split_axis": attributes.index_attr(split_axis), "concat_axis": attributes.index_attr(concat_axis)}
    return _collective("all_to_all", value, mesh, mesh_axes, shape, attrs, loc, ip)


def all_reduce(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    reduction: str = "sum",
    element_type: ir.Type | None = None,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    shape = ir.RankedTensorType(value.type).shape
    attrs = {"reduction": attributes.kind_attr(reduction)}
    return _collective("all_reduce", value, mesh, mesh_axes, shape, attrs, loc, ip, element_type)


def reduce_scatter(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    scatter_axis: int,
    reduction: str = "sum",
    element_type: ir.Type | None = None,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    shape = _resized(value, scatter_axis, divide=_group(mesh, mesh_axes))
    attrs = {"reduction": attributes.kind_attr(reduction), "scatter_axis": attributes.index_attr(scatter_axis)}
    return _collective("reduce_scatter", value, mesh, mesh_axes, shape, attrs, loc, ip, element_type)


def permute(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    target_axes: Sequence[int],
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    """Relabels equal shards; see ops.PermuteOp."""
    shape = ir.RankedTensorType(value.type).shape
    return _collective("permute", value, mesh, mesh_axes, shape, {"target_axes": attributes.axes_attr(target_axes)}, loc, ip)


Device = Sequence["int | ir.Value[Any]"]
"""An in-group device: its coordinates along `mesh_axes`, constants or `index` values."""


def _static_and_dynamic(entries: Device) -> tuple[ir.Attribute, list[ir.Value[Any]]]:
    """The static list of a dynamic index list, and the values for its dynamic entries."""
    static = [entry if isinstance(entry, int) else DYNAMIC for entry in entries]
    return attributes.integers_attr(static), [entry for entry in entries if not isinstance(entry, int)]


def broadcast(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    root: Device,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    static, device = _static_and_dynamic(root)
    shape = ir.RankedTensorType(value.type).shape
    return _collective("broadcast", value, mesh, mesh_axes, shape, {"root": static}, loc, ip, device=device)


def gather(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    gather_axis: int,
    root: Device,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    static, device = _static_and_dynamic(root)
    shape = _resized(value, gather_axis, multiply=_group(mesh, mesh_axes))
    attrs = {"gather_axis": attributes.index_attr(gather_axis), "root": static}
    return _collective("gather", value, mesh, mesh_axes, shape, attrs, loc, ip, device=device)


def reduce(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    root: Device,
    reduction: str = "sum",
    element_type: ir.Type | None = None,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    static, device = _static_and_dynamic(root)
    shape = ir.RankedTensorType(value.type).shape
    attrs = {"reduction": attributes.kind_attr(reduction), "root": static}
    return _collective("reduce", value, mesh, mesh_axes, shape, attrs, loc, ip, element_type, device)


def scatter(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    scatter_axis: int,
    root: Device,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    static, device = _static_and_dynamic(root)
    shape = _resized(value, scatter_axis, divide=_group(mesh, mesh_axes))
    attrs = {"scatter_axis": attributes.index_attr(scatter_axis), "root": static}
    return _collective("scatter", value, mesh, mesh_axes, shape, attrs, loc, ip, device=device)


def send(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    destination: Device,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    static, device = _static_and_dynamic(destination)
    shape = ir.RankedTensorType(value.type).shape
    return _collective("send", value, mesh, mesh_axes, shape, {"destination": static}, loc, ip, device=device)


def recv(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    source: Device | None = None,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    static, device = _static_and_dynamic(source or ())
    shape = ir.RankedTensorType(value.type).shape
    attrs = {} if source is None else {"source": static}
    return _collective("recv", value, mesh, mesh_axes, shape, attrs, loc, ip, device=device)


def shift(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    mesh_axes: Sequence[int],
    shift_axis: int,
    offset: int,
    rotate: bool = False,
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    i64 = ir.IntegerType.get_signless(64)
    attrs = {"shift_axis": attributes.index_attr(shift_axis), "offset": ir.IntegerAttr.get(i64, offset)}
    if rotate:
        attrs["rotate"] = ir.UnitAttr.get()
    return _collective("shift", value, mesh, mesh_axes, ir.RankedTensorType(value.type).shape, attrs, loc, ip)


def update_halo(
    value: ir.Value[Any],
    mesh: Mesh,
    *,
    split_axes: Split,
    halo_sizes: Device = (),
    loc: ir.Location | None = None,
    ip: Place = None,
) -> ir.Value[Any]:
    """`halo_sizes`: two for each split dimension, constants or `i64` values."""
    static, dynamic = _static_and_dynamic(halo_sizes)
    attrs = {
        "mesh": ir.FlatSymbolRefAttr.get(mesh.name),
        "split_axes": attributes.axis_array_attr(split_axes),
        "static_halo_sizes": static,
    }
    return _result(_create("update_halo", [value.type], [value, *dynamic], attrs, loc, ip))


def _indices(
    name: str, count: int, operands: Sequence[ir.Value[Any]], attrs: dict[str, ir.Attribute], loc: ir.Location | None, ip: Place
) -> list[ir.Value[Any]]:
    return list(_create(name, [ir.IndexType.get()] * count, list(operands), attrs, loc, ip).results)


def mesh_shape(mesh: Mesh, axes: Axes = (), *, loc: ir.Location | None = None, ip: Place = None) -> list[ir.Value[Any]]:
    """The sizes of `axes`, of all axes if empty."""
    attrs = {"mesh": ir.FlatSymbolRefAttr.get(mesh.name), "axes": attributes.axes_attr(axes)}
    return _indices("mesh_shape", len(axes) or mesh.rank, [], attrs, loc, ip)


def process_linear_index(mesh: Mesh, *, loc: ir.Location | None = None, ip: Place = None) -> ir.Value[Any]:
    """This device's row-major number."""
    return _indices("process_linear_index", 1, [], {"mesh": ir.FlatSymbolRefAttr.get(mesh.name)}, loc, ip)[0]


def neighbors_linear_indices(
    mesh: Mesh, device: Sequence[ir.Value[Any]], split_axes: Axes, *, loc: ir.Location | None = None, ip: Place = None
) -> list[ir.Value[Any]]:
    """The devices before and behind `device` along `split_axes`; negative where there is none."""
    attrs = {"mesh": ir.FlatSymbolRefAttr.get(mesh.name), "split_axes": attributes.axes_attr(split_axes)}
    return _indices("neighbors_linear_indices", 2, device, attrs, loc, ip)


def get_sharding(value: ir.Value[Any], *, loc: ir.Location | None = None, ip: Place = None) -> ir.Value[Any]:
    """The sharding of `value`."""
    return _result(_create("get_sharding", [ir.Type.parse(attributes.SHARDING_TYPE)], [value], {}, loc, ip))


def shard_shape(
    shape: Sequence[int], sharding: ir.Value[Any], device: ir.Value[Any], *, loc: ir.Location | None = None, ip: Place = None
) -> list[ir.Value[Any]]:
    """The sizes of the shard that the device of that linear number holds of a tensor of `shape`; unknown sizes are DYNAMIC."""
    return _indices("shard_shape", len(shape), [sharding, device], {"shape": attributes.integers_attr(shape)}, loc, ip)
