"""Lowers all_gather, all_slice, all_to_all and permute. Devices of a group are in the order of `mesh_axes`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from meshbridge.backends import xla_tpu
from meshbridge.dialect.ops import AllGatherOp, AllSliceOp, AllToAllOp, PermuteOp
from meshbridge.ir.builder import Builder, element_of, integer, op_of, shape_of, tensor
from meshbridge.ir.digits import axis_digits, group_size
from meshbridge.ir.elements import type_bytes
from meshbridge.ir.exchange import exchange_over
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_name
from meshbridge.lowering.site import Site, lowers


@lowers(AllGatherOp)
def all_gather(op: AllGatherOp, site: Site) -> list[ir.Value]:
    """`stablehlo.all_gather`. For compilers that lay out tiles, a reshape that divides the gathered dimension comes after it."""
    whole = xla_tpu.gathered_before_division(op.input, op.gather_axis) if site.groups.forms.tiles else op.input
    gathered = gather_over(site, whole, op.gather_axis)
    return [site.builder.reshape(gathered, site.result_type.shape)]


def gather_over(site: Site, value: ir.Value, dim: int) -> ir.Value:
    """All-gathers `value` over the site's groups along `dim`."""
    if site.group_size == 1:
        return value
    shape = shape_of(value)
    for digits in reversed(site.stages("all_gather", type_bytes(value.type) * site.group_size)):
        shape[dim] *= group_size(digits)
        attrs = {"all_gather_dim": integer(dim)} | site.groups.collective(site.mesh, digits)
        value = site.builder.value("all_gather", tensor(shape, element_of(value)), [value], attrs)
    return value


@lowers(AllSliceOp)
def all_slice(op: AllSliceOp, site: Site) -> list[ir.Value]:
    """`stablehlo.dynamic_slice` at this device's number in its group times the size of a piece, without communication."""
    if site.group_size == 1:
        return [op.input]
    if clamps_start(op.input):
        _clamp_start(op_of(op.input), op.slice_axis)
    return [own_piece(site, op.input, op.slice_axis)]


def own_piece(site: Site, value: ir.Value, dim: int) -> ir.Value:
    """This device's piece of `value`, which has one piece for each device of the group along `dim`."""
    size = shape_of(value)[dim] // site.group_size
    return site.builder.dynamic_slice(value, dim, site.builder.beginning(site.in_group(), site.group_size, size), size)


def clamps_start(value: ir.Value) -> bool:
    """True if `value` is a `dynamic_slice`, whose start is clamped before the result is sliced again."""
    return defining_name(value) == "stablehlo.dynamic_slice"


def _clamp_start(inner: ir.Operation, dim: int) -> None:
    """Clamps the start of the user's `dynamic_slice` along `dim`, as the op itself does: XLA merges nested slices and adds their
    starts, but does not clamp the inner start first.
    """
    largest_start = shape_of(inner.operands[0])[dim] - shape_of(inner.results[0])[dim]
    start = inner.operands[1 + dim]
    kind = ir.IntegerType(element_of(start))
    bound = min(largest_start, (1 << (kind.width - (not kind.is_unsigned))) - 1)
    builder = Builder.before(inner)
    inner.operands[1 + dim] = builder.clamp(0, start, bound)


@lowers(AllToAllOp)
def all_to_all(op: AllToAllOp, site: Site) -> list[ir.Value]:
    """`stablehlo.all_to_all`."""
    if site.group_size == 1:
        return [op.input]
    return [exchange(site, op.input, op.split_axis, op.concat_axis)]


def exchange(site: Site, value: ir.Value, split: int, concat: int) -> ir.Value:
    """Sends piece j of `value` along `split` to device j of the group, and concatenates the received pieces along `concat`."""
    groups = site.groups.collective(site.mesh, site.digits, global_ids=False)
    write = xla_tpu.exchange_and_join if site.groups.forms.tiles else exchange_over
    return write(site.builder, value, split, concat, site.group_size, groups)


def in_pieces(site: Site, value: ir.Value, piece_of: Callable[[ir.Value], ir.Value]) -> ir.Value:
    """Splits the work on `value` over its group. `piece_of` gets the value, flat and padded to a multiple of the group size, and
    returns this device's piece of the result; the pieces are gathered into a result of the shape of `value`."""
    builder, shape = site.builder, shape_of(value)
    total = prod(shape)
    flat = builder.pad_along(builder.reshape(value, [total]), 0, 0, 0, -total % site.group_size)
    return builder.reshape(builder.slice(gather_over(site, piece_of(flat), 0), 0, 0, total), shape)


@lowers(PermuteOp)
def permute(op: PermuteOp, site: Site) -> list[ir.Value]:
    """`stablehlo.collective_permute`: device number L along `target_axes` receives from device number L along `mesh_axes`."""
    if sorted(op.target_axes) != sorted(site.axes):
        raise site.error(f"needs the same axes twice, got mesh_axes = {list(site.axes)}, target_axes = {list(op.target_axes)}")
    order = [[axis for axis in axes if site.mesh.shape[axis] > 1] for axes in (site.axes, op.target_axes)]
    if order[0] == order[1]:
        return [op.input]
    attrs = site.groups.relabelling(site.mesh, site.digits, axis_digits(site.mesh, op.target_axes))
    return [site.builder.value("collective_permute", op.input.type, [op.input], attrs)]
