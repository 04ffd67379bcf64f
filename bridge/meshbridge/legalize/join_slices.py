"""Slices of one tensor that are joined or padded (`jnp.roll`, its gradient, wrapped borders) as pads of it, which stay split."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.passes import RewritePass, register
from meshbridge.ops.rule import shape_of


@register
@dataclass(frozen=True)
class JoinSlices(RewritePass):
    """Turns a concatenation whose parts are cut from one tensor into selects between pads of that tensor; and a pad of what is
    cut from one into a pad of that one, where no element that was cut off comes back.

    Input:   %0 = stablehlo.slice %x [7:8] : tensor<1xf32>
             %1 = stablehlo.slice %x [0:7] : tensor<7xf32>
             %2 = stablehlo.concatenate %0, %1, dim = 0 : tensor<8xf32>
    Output:  %0 = stablehlo.pad %x, %zero, low = [-7], high = [7]
             %1 = stablehlo.pad %x, %zero, low = [1], high = [-1]
             %2 = stablehlo.select (stablehlo.iota < 1), %0, %1

    Input:   %0 = stablehlo.slice %x [7:8] : tensor<1xf32>
             %1 = stablehlo.pad %0, %zero, low = [0], high = [7] : tensor<8xf32>
    Output:  %1 = stablehlo.pad %x, %zero, low = [-7], high = [7] : tensor<8xf32>

    A slice lies in shards of its own, so that cutting and joining moves elements twice; a pad moves them once, to the shard where
    they belong, and what is cut off does not move at all.
    """

    name: ClassVar[str] = "join-slices"
    rewrites: ClassVar[frozenset[str]] = frozenset({"stablehlo.concatenate", "stablehlo.pad"})

    def rewrite(self, module: ir.Module, ops: list[ir.Operation]) -> bool:
        found = False
        dead: list[ir.Operation] = []
        for op in ops:
            if _unused(op):
                continue
            with ir.InsertionPoint(op), op.location:
                # Not before the last op has become something else: a part may be its result.
                value = _joined(op) if op.name == "stablehlo.concatenate" else _padded(op)
            if value is not None:
                found = True
                op.results[0].replace_all_uses_with(value)
                dead += [op, *(cut.op for operand in set(op.operands) if (cut := _slice_behind(operand)) is not None)]
        for op in dict.fromkeys(dead):  # readers before what they read
            if _unused(op):
                op.erase()
        return found


def _unused(op: ir.Operation) -> bool:
    return next(iter(op.results[0].uses), None) is None


@dataclass(frozen=True)
class _Slice:
    """An op that takes the elements of `source` from `starts` to `limits`: a slice without steps, or a pad that only cuts off."""

    op: ir.Operation
    source: ir.Value
    starts: tuple[int, ...]
    limits: tuple[int, ...]


def _slice_behind(value: ir.Value) -> _Slice | None:
    op = value.owner
    if isinstance(op, ir.Block) or op.name not in ("stablehlo.slice", "stablehlo.pad"):
        return None
    source = op.operands[0]
    if op.name == "stablehlo.slice":
        starts, limits, steps = (integers(op.attributes[name]) for name in ("start_indices", "limit_indices", "strides"))
        return _Slice(op.operation, source, starts, limits) if set(steps) <= {1} else None
    low, high = _edges(op.operation)
    if _interior(op.operation) or any(edge > 0 for edge in (*low, *high)):
        return None
    kept = tuple(size + edge for size, edge in zip(shape_of(source), high, strict=True))
    return _Slice(op.operation, source, tuple(-edge for edge in low), kept)


def _edges(pad_op: ir.Operation) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return integers(pad_op.attributes["edge_padding_low"]), integers(pad_op.attributes["edge_padding_high"])


def _interior(pad_op: ir.Operation) -> bool:
    return any(integers(pad_op.attributes["interior_padding"]))


def _joined(op: ir.Operation) -> ir.Value | None:
    """What a concatenation becomes, if anything."""
    parts = _parts(op)
    return _selected(op, parts) if parts else None


def _padded(op: ir.Operation) -> ir.Value | None:
    """What a pad becomes, if it pads a slice and what the slice has cut off stays away."""
    cut = _slice_behind(op.operands[0])
    if cut is None or _interior(op):
        return None
    left = [size - limit for size, limit in zip(shape_of(cut.source), cut.limits, strict=True)]
    low, high = _edges(op)
    if any(off and more > 0 for off, more in [*zip(cut.starts, low, strict=True), *zip(left, high, strict=True)]):
        return None
    lower = [more - off for more, off in zip(low, cut.starts, strict=True)]
    upper = [more - off for more, off in zip(high, left, strict=True)]
    return stablehlo.pad(cut.source, op.operands[1], lower, upper, [0] * len(low))


_Part = tuple[ir.Value, int, int]
"""A tensor, and the elements from one index to another of it that a concatenation takes."""


def _parts(op: ir.Operation) -> list[_Part]:
    """The parts that are concatenated; none unless two of them are of one tensor, of which one is cut."""
    if len(op.operands) < 2:
        return []
    along = ir.IntegerAttr(op.attributes["dimension"]).value
    parts = [_cut(value, along) for value in op.operands]
    times = Counter(value for value, _, _ in parts)
    joined = any(times[value] > 1 and stop - start < shape_of(value)[along] for value, start, stop in parts)
    return [part for part in parts if part[1] < part[2]] if joined else []


def _cut(value: ir.Value, along: int) -> _Part:
    """What `value` is a slice of, if it is one along one dimension; else all of itself."""
    cut = _slice_behind(value)
    if cut is not None:
        kept = [(0, size) for size in shape_of(cut.source)]
        kept[along] = cut.starts[along], cut.limits[along]
        if list(zip(cut.starts, cut.limits, strict=True)) == kept:
            return (cut.source, *kept[along])
    return (value, 0, shape_of(value)[along])


def _selected(op: ir.Operation, parts: list[_Part]) -> ir.Value:
    emit, along = Builder.before(op), ir.IntegerAttr(op.attributes["dimension"]).value
    size = shape_of(op.results[0])[along]
    ends = list(accumulate(stop - start for _, start, stop in parts))
    found: ir.Value | None = None
    for (value, _, stop), end in reversed(list(zip(parts, ends, strict=True))):
        low = end - stop  # the part's last element comes before `end`
        shifted = emit.pad_along(value, along, 0, low, size - shape_of(value)[along] - low)
        if found is not None:
            shifted = emit.select_along(along, emit.compare("LT", emit.iota([size], 0), end), shifted, found)
        found = shifted
    assert found is not None, "a concatenation has parts"
    return found
