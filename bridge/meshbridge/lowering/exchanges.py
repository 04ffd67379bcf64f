"""Collectives that move whole shards: all_gather, all_slice, all_to_all, permute. Group order is that of `mesh_axes`."""

from __future__ import annotations

from meshbridge.dialect.ops import AllGatherOp, AllSliceOp, AllToAllOp, PermuteOp
from meshbridge.lowering.emit import integer
from meshbridge.lowering.site import Site, lowers
from meshbridge.mlir import ir


@lowers(AllGatherOp)
def all_gather(op: AllGatherOp, site: Site) -> list[ir.Value]:
    """`stablehlo.all_gather`."""
    return [gather_over(site, op.input, op.gather_axis)]


def gather_over(site: Site, value: ir.Value, dim: int) -> ir.Value:
    """The values of the site's groups one after the other along `dim`."""
    if site.group_size == 1:
        return value
    attrs = {"all_gather_dim": integer(dim)} | site.groups.collective(site.mesh, site.axes)
    return site.emit.value("all_gather", site.result_type, [value], attrs)


@lowers(AllSliceOp)
def all_slice(op: AllSliceOp, site: Site) -> list[ir.Value]:
    """`stablehlo.dynamic_slice` at this device's number in its group, times the size of a piece; no communication."""
    if site.group_size == 1:
        return [op.input]
    emit, dim = site.emit, op.slice_axis
    size = int(site.result_type.shape[dim])
    return [emit.dynamic_slice(op.input, dim, emit.multiply(site.in_group(), size), size)]


@lowers(AllToAllOp)
def all_to_all(op: AllToAllOp, site: Site) -> list[ir.Value]:
    """`stablehlo.all_to_all`."""
    if site.group_size == 1:
        return [op.input]
    return [exchange(site, op.input, op.split_axis, op.concat_axis, site.result_type)]


def exchange(site: Site, value: ir.Value, split: int, concat: int, result: ir.RankedTensorType) -> ir.Value:
    """Piece j of `value` along `split` to device j of the group, the pieces received one after the other along `concat`."""
    attrs = {
        "split_dimension": integer(split),
        "concat_dimension": integer(concat),
        "split_count": integer(site.group_size),
    }
    attrs |= site.groups.collective(site.mesh, site.axes, global_ids=False)
    return site.emit.value("all_to_all", result, [value], attrs)


@lowers(PermuteOp)
def permute(op: PermuteOp, site: Site) -> list[ir.Value]:
    """`stablehlo.collective_permute`: device number L along `target_axes` receives from device number L along `mesh_axes`."""
    if sorted(op.target_axes) != sorted(site.axes):
        raise site.error(f"needs the same axes twice, got mesh_axes = {list(site.axes)}, target_axes = {list(op.target_axes)}")
    sources = site.groups.devices(site.mesh, site.axes)
    targets = site.groups.devices(site.mesh, op.target_axes)
    pairs = [pair for group in zip(sources, targets, strict=True) for pair in zip(*group, strict=True)]
    if all(source == target for source, target in pairs):
        return [op.input]
    return [site.permute(op.input, pairs)]
