"""Writes a plan into the program.

Collectives are mesh operations, with two exceptions: over factors of mesh axes, which no mesh operation can name, and exchanges
in rounds, whose pairs of devices are no permutation of axes. Those are StableHLO operations with explicit device groups. Groups
are partition ids, as in the form `exported`; lowering to `local` makes them replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, singledispatch
from itertools import accumulate
from math import prod

import numpy as np

from meshbridge.backends.xla_tpu import exchange_and_join
from meshbridge.dialect import build
from meshbridge.ir.builder import Builder, element_of, integer, shape_of, tensor
from meshbridge.ir.combine import reduce_scatter
from meshbridge.ir.digits import Digit, Digits, group_size
from meshbridge.ir.elements import neutral
from meshbridge.ir.exchange import COMBINERS, exchange_over, in_rows, out_of_rows
from meshbridge.ir.groups import shifted
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ir.sharding import Mesh
from meshbridge.resharding import steps as s
from meshbridge.resharding.emit_tiles import exchange_tiles
from meshbridge.resharding.plan import ReshardingPlan
from meshbridge.resharding.site import StepSite
from meshbridge.resharding.steps import Step
from meshbridge.resharding.tiles import TileExchange


def emit(plan: ReshardingPlan, value: ir.Value, mesh: Mesh, at: Builder | None = None) -> ir.Value:
    """Builds the steps of `plan` with the builder `at`, or at the current insertion point.

    `value` is the local shard of `plan.source`, the result that of `plan.target`. Raises MeshError if `value` has another shape.
    """
    if tuple(shape_of(value)) != plan.start:
        raise MeshError(f"the plan starts from a shard of shape {list(plan.start)}, found {value.type}")
    site = StepSite(mesh, at or Builder.current())
    for step in plan.steps:
        value = _emit_step(step, value, site)
    return value


@singledispatch
def _emit_step(step: Step, value: ir.Value, site: StepSite) -> ir.Value:
    """Writes one step; by the step's class."""
    raise NotImplementedError(type(step).__name__)


@_emit_step.register
def _reshape(step: s.Reshape, value: ir.Value, site: StepSite) -> ir.Value:
    return site.emit.reshape(value, step.shape)


@_emit_step.register
def _transpose(step: s.Transpose, value: ir.Value, site: StepSite) -> ir.Value:
    return site.emit.transpose(value, step.permutation)


@_emit_step.register
def _pad(step: s.Pad, value: ir.Value, site: StepSite) -> ir.Value:
    high = [after - before - low for after, before, low in zip(step.shape, shape_of(value), step.low, strict=True)]
    return site.emit.pad(value, 0, step.low, high)


@_emit_step.register
def _crop(step: s.Crop, value: ir.Value, site: StepSite) -> ir.Value:
    return site.emit.cut(value, step.start, [start + size for start, size in zip(step.start, step.shape, strict=True)])


_IDENTITY = {"sum": 0, "product": 1, "bitwise_xor": 0}
"""The neutral elements. Other kinds are idempotent: every device may keep its value."""


@_emit_step.register
def _mask(step: s.Mask, value: ir.Value, site: StepSite) -> ir.Value:
    if step.kind not in _IDENTITY:
        return value
    is_first = site.emit.compare("EQ", site.number(step.digits), 0)
    return site.emit.select(is_first, value, _IDENTITY[step.kind])


@_emit_step.register
def _place(step: s.Place, value: ir.Value, site: StepSite) -> ir.Value:
    emit, size, element = site.emit, shape_of(value)[step.dim], element_of(value)
    ignored = neutral(step.kind, element)
    starts = [emit.scalar(0)] * len(step.shape)
    starts[step.dim] = emit.beginning(site.number(step.digits), group_size(step.digits), size)
    return emit.dynamic_paste(emit.splat(tensor(step.shape, element), ignored), value, starts)


@_emit_step.register
def _slice(step: s.Slice, value: ir.Value, site: StepSite) -> ir.Value:
    if (axes := site.axes(step.digits)) is not None:
        return build.all_slice(value, site.mesh, mesh_axes=axes, slice_axis=step.dim, at=site.emit)
    size = step.shape[step.dim]
    return site.emit.dynamic_slice(
        value, step.dim, site.emit.beginning(site.number(step.digits), group_size(step.digits), size), size
    )


@_emit_step.register
def _all_gather(step: s.AllGather, value: ir.Value, site: StepSite) -> ir.Value:
    if (axes := site.axes(step.digits)) is not None:
        return build.all_gather(value, site.mesh, mesh_axes=axes, gather_axis=step.dim, at=site.emit)
    attrs = {"all_gather_dim": integer(step.dim)} | site.groups.collective(site.mesh, step.digits)
    return site.emit.value("all_gather", tensor(step.shape, element_of(value)), [value], attrs)


@_emit_step.register
def _all_reduce(step: s.AllReduce, value: ir.Value, site: StepSite) -> ir.Value:
    axes = site.axes(step.digits)
    assert axes is not None, f"{step} reduces over a part of an axis"
    return build.all_reduce(value, site.mesh, mesh_axes=axes, reduction=step.kind, at=site.emit)


@_emit_step.register
def _reduce_scatter(step: s.ReduceScatter, value: ir.Value, site: StepSite) -> ir.Value:
    if (axes := site.axes(step.digits)) is not None:
        return build.reduce_scatter(value, site.mesh, mesh_axes=axes, scatter_axis=step.dim, reduction=step.kind, at=site.emit)
    if step.kind not in COMBINERS:
        raise MeshError(f"reduction '{step.kind}' has no body that could run")
    groups = partial(site.groups.collective, site.mesh, step.digits)
    return reduce_scatter(site.emit, value, step.dim, step.kind, [(group_size(step.digits), groups)])


@_emit_step.register
def _all_to_all(step: s.AllToAll, value: ir.Value, site: StepSite) -> ir.Value:
    return _exchanged(step.digits, step.split, step.concat, value, site)


def _exchanged(digits: Digits, split: int, concat: int, value: ir.Value, site: StepSite) -> ir.Value:
    if (axes := site.axes(digits)) is not None:
        return build.all_to_all(value, site.mesh, mesh_axes=axes, split_axis=split, concat_axis=concat, at=site.emit)
    groups = site.groups.collective(site.mesh, digits, global_ids=False)
    write = exchange_and_join if site.groups.forms.tiles else exchange_over
    return write(site.emit, value, split, concat, group_size(digits), groups)


@_emit_step.register
def _permute(step: s.Permute, value: ir.Value, site: StepSite) -> ir.Value:
    sources, targets = site.axes(step.sources), site.axes(step.targets)
    if sources is None or targets is None:
        return site.permute(value, site.groups.relabelling(site.mesh, step.sources, step.targets))
    return build.permute(value, site.mesh, mesh_axes=sources, target_axes=targets, at=site.emit)


@_emit_step.register
def _relay(step: s.Relay, value: ir.Value, site: StepSite) -> ir.Value:
    """Writes the relabelling as all-to-alls: swaps of digits, or an all-to-all, a local transpose and an all-to-all.

    Without swaps, the rows of a buffer are numbered as the group's members along the targets: member t receives what the member
    with number t along the sources had. Pairs of digits go in mesh order, so that whole axes are named."""
    emit, swaps = site.emit, step.swaps
    for swap in swaps:
        rows = in_rows(emit, value, group_size(swap.left))
        for digits in swap.over:
            rows = _exchanged(digits, 0, 0, rows, site)
        value = out_of_rows(emit, rows, step.shape)
    if swaps:
        return value
    pairs = sorted(zip(step.targets, step.sources, strict=True), key=lambda pair: -pair[0].stride)
    targets, sources = tuple(target for target, _ in pairs), [source for _, source in pairs]
    rows = _exchanged(targets, 0, 0, in_rows(emit, value, group_size(targets)), site)
    radices, order = _together([digit.radix for digit in targets], [*map(targets.index, sources)])
    by_digit = emit.reshape(rows, [*radices, shape_of(rows)[1]])
    ordered = emit.transpose(by_digit, [*order, len(radices)])
    return out_of_rows(emit, _exchanged(targets, 0, 0, emit.reshape(ordered, shape_of(rows)), site), step.shape)


def _together(sizes: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """The sizes and the order of a transposition in which dimensions that stay adjacent are one."""
    runs: list[list[int]] = []
    for dim in order:
        if runs and runs[-1][-1] + 1 == dim:
            runs[-1].append(dim)
        else:
            runs.append([dim])
    ordered_runs = sorted(runs)
    return [prod(sizes[dim] for dim in run) for run in ordered_runs], [ordered_runs.index(run) for run in runs]


_emit_step.register(TileExchange, exchange_tiles)


@_emit_step.register
def _rounds(step: s.Rounds, value: ir.Value, site: StepSite) -> ir.Value:
    """One dynamic slice, one permute and one dynamic update a round."""
    emit = site.emit
    sent_shape, received = step.piece(tuple(shape_of(value)), step.split), step.piece(step.shape, step.concat)
    result = emit.splat(tensor(step.shape, element_of(value)), 0)
    devices = np.arange(site.mesh.size)
    piece: ir.Value | None = None
    for turn in step.rounds:
        read_at, write_at = ([emit.scalar(0)] * len(shape) for shape in (sent_shape, received))
        for i, shift, split, concat in zip(step.rotating, turn, step.split, step.concat, strict=True):
            read_at[split] = emit.beginning(_rotated(step.sources[i], -shift, site), step.sources[i].radix, sent_shape[split])
            write_at[concat] = emit.beginning(_rotated(step.targets[i], shift, site), step.targets[i].radix, received[concat])
        if piece is not None:
            read_at[step.split[0]] = site.after(read_at[step.split[0]], piece)
        piece = emit.dynamic_cut(value, read_at, sent_shape)
        piece = site.permute(piece, site.groups.between(site.mesh, step.sender(devices, turn), devices))
        result = emit.dynamic_paste(result, emit.reshape(piece, received), write_at)
    return result


@_emit_step.register
def _reblock(step: s.Reblock, value: ir.Value, site: StepSite) -> ir.Value:
    """Collects the rows from each distance in order, and slices this device's block out of them."""
    emit, dim, count, pieces = site.emit, step.dim, group_size(step.digits), step.pieces
    longer = step.shift > 0
    pieces_sent = {size: emit.slice(value, dim, 0 if longer else step.before - size, size) for size in step.lengths}
    received = (_rows_by_permutes if step.listed else _rows_by_all_to_alls)(step, pieces_sent, site)
    around = emit.concatenate([value, *received] if longer else [*reversed(received), value], dim)
    if longer:  # the last device's block ends after all rows
        around = emit.pad_along(around, dim, 0, 0, count * step.shift - sum(pieces))
    start = emit.add(emit.multiply(site.number(step.digits), step.shift), 0 if longer else sum(pieces))
    return emit.dynamic_slice(around, dim, start, step.shape[dim])


def _rows_by_permutes(step: s.Reblock, sent: dict[int, ir.Value], site: StepSite) -> list[ir.Value]:
    """The rows that this device receives from each distance, the nearest first."""
    count, away = group_size(step.digits), -1 if step.shift > 0 else 1
    moves = [shifted(count, away * distance) for distance in range(1, len(step.pieces) + 1)]
    return [
        site.permute(sent[size], site.groups.permute(site.mesh, step.digits, steps))
        for size, steps in zip(step.pieces, moves, strict=True)
    ]


def _rows_by_all_to_alls(step: s.Reblock, sent: dict[int, ir.Value], site: StepSite) -> list[ir.Value]:
    """The same by two all-to-alls: each device gets a piece of every device's rows, and then the pieces that it lacks."""
    emit, count, away = site.emit, group_size(step.digits), -1 if step.shift > 0 else 1
    parts = {size: in_rows(emit, value, count) for size, value in sent.items()}
    rows = _exchanged(step.digits, 0, 0, emit.concatenate(list(parts.values()), 1), site)
    widths = {size: shape_of(part)[1] for size, part in parts.items()}
    by_size = dict(zip(parts, _side_by_side(rows, list(widths.values()), emit), strict=True))
    lacked = [
        emit.pad_along(by_size[size], 0, 0, away * distance, -away * distance) for distance, size in enumerate(step.pieces, 1)
    ]
    exchanged = _exchanged(step.digits, 0, 0, emit.concatenate(lacked, 1), site)
    parts_by_distance = _side_by_side(exchanged, [widths[size] for size in step.pieces], emit)
    return [out_of_rows(emit, part, shape_of(sent[size])) for size, part in zip(step.pieces, parts_by_distance, strict=True)]


def _side_by_side(rows: ir.Value, widths: list[int], emit: Builder) -> list[ir.Value]:
    """The parts of `rows` of these widths."""
    return [emit.slice(rows, 1, end - width, width) for end, width in zip(accumulate(widths), widths, strict=True)]


def _rotated(digit: Digit, shift: int, site: StepSite) -> ir.Value:
    """This device's value of `digit` with `shift` added, modulo the radix."""
    number = site.number((digit,))
    return site.emit.elementwise("remainder", site.emit.add(number, shift % digit.radix), digit.radix) if shift else number
