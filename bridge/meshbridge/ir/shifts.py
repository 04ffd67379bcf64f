"""Shifts along digits of the device's number: permutes, or all-to-alls that replace them without listing devices."""

from __future__ import annotations

from math import prod

from meshbridge.ir import relays
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.digits import Digits, axis_digits, group_size
from meshbridge.ir.exchange import exchange_over, in_rows, out_of_rows
from meshbridge.ir.groups import Groups, lists_shifted, rotated, shifted
from meshbridge.ir.mlir import ir
from meshbridge.ir.positions import Positions
from meshbridge.ir.sharding import Axes, Mesh


def shift(
    emit: Builder,
    value: ir.Value,
    mesh: Mesh,
    digits: Digits,
    offset: int,
    groups: Groups,
    positions: Positions,
    *,
    rotate: bool = False,
) -> ir.Value:
    """`value` from the member of each group along `digits` that is `offset` before, modulo the group with `rotate`; zeros if
    there is no such member. `offset` is not 0, and smaller than the group."""
    count = group_size(digits)
    if groups.lists(mesh):
        steps = rotated(count, offset) if rotate else shifted(count, offset)
        return emit.value("collective_permute", value.type, [value], groups.permute(mesh, digits, steps))
    if rotate:
        offset = (offset + count // 2) % count - count // 2
    variants = relays.levels(digits, offset)
    inner, *outer = variants[relays.shifted(prod(shape_of(value)), variants).best]
    value = _shift(emit, value, mesh, inner, offset, groups, wraps=rotate or bool(outer))
    for level in outer:
        from_next = _wrapped(positions.along(mesh, inner, emit), group_size(inner), offset, emit)
        carried = _shift(emit, value, mesh, level, 1 if offset > 0 else -1, groups, wraps=rotate or level is not outer[-1])
        value, inner = emit.select(from_next, carried, value), (*level, *inner)
    return value


def _shift(emit: Builder, value: ir.Value, mesh: Mesh, digits: Digits, offset: int, groups: Groups, *, wraps: bool) -> ir.Value:
    """The shift in one level. Row i is a piece of what member i sends, and then of what it receives."""
    count, attrs = group_size(digits), groups.collective(mesh, digits, global_ids=False)
    rows = exchange_over(emit, in_rows(emit, value, count), 0, 0, count, attrs)
    if wraps:
        start = -offset % count
        rows = emit.concatenate([emit.slice(rows, 0, start, count - start), emit.slice(rows, 0, 0, start)], 0)
    else:
        rows = emit.pad_along(rows, 0, 0, offset, -offset)
    return out_of_rows(emit, exchange_over(emit, rows, 0, 0, count, attrs), shape_of(value))


def _wrapped(number: ir.Value, count: int, offset: int, emit: Builder) -> ir.Value:
    """Whether the member with that `number` of `count` receives from another group in a shift by `offset`."""
    return emit.compare("LT", number, offset) if offset > 0 else emit.compare("GE", number, count + offset)


def received(elements: float, mesh: Mesh, axes: Axes, offset: int, *, rotate: bool = False) -> float:
    """Elements that a device receives on average in a shift of buffers of `elements`."""
    count = mesh.group_size(axes)
    if rotate:
        offset = (offset + count // 2) % count - count // 2
    senders = count if rotate and offset else max(count - abs(offset), 0) if offset else 0
    if lists_shifted(mesh) or not senders:
        return senders / count * elements
    return float(relays.shifted(elements, relays.levels(axis_digits(mesh, axes), offset)).sent[0])
