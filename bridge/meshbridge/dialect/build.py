"""Builders of mesh operations in the style of the MLIR bindings: `build.all_gather(x, mesh, mesh_axes=[1], gather_axis=1)`.

`mesh` is the Mesh value; result types follow from it. Location and insertion point come from the usual context managers, or
from `loc` and `ip`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from meshbridge.dialect import attributes
from meshbridge.dialect.ops import AXIS_NAMES, DEVICE_IDS
from meshbridge.mlir import ir
from meshbridge.sharding import Axes, Mesh, Sharding

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
) -> ir.Value[Any]:
    element = element_type or ir.RankedTensorType(value.type).element_type
    attrs |= {"mesh": ir.FlatSymbolRefAttr.get(mesh.name), "mesh_axes": attributes.axes_attr(mesh_axes)}
    result = ir.RankedTensorType.get(list(shape), element, loc=ir.Location.unknown())
    return _result(_create(name, [result], [value], attrs, loc, ip))


def _resized(value: ir.Value[Any], dim: int, multiply: int = 1, divide: int = 1) -> list[int]:
    shape = list(ir.RankedTensorType(value.type).shape)
    if shape[dim] * multiply % divide:
        raise ValueError(f"dimension {dim} of size {shape[dim]} does not divide by {divide}")
    shape[dim] = shape[dim] * multiply // divide
    return shape


def _group(mesh: Mesh, mesh_axes: Sequence[int]) -> int:
    return mesh.group_size(tuple(mesh_axes))


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
    shape[concat_axis] *= count
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
