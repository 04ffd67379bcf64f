"""Composes ops that only move elements: pads, slices, reversals, concatenations of these, updates at constant indices.

An `AffineAccess` describes what an op reads along one dimension. Accesses compose, so that a chain of such ops becomes one op,
and concatenations become selects between reads. Each tensor of another size has different shards, so that each op in a chain
would send what one op sends once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from meshbridge.analysis.known_values import Splat, known, known_integer, known_integers
from meshbridge.dialect.attributes import integers_attr
from meshbridge.ir.builder import Builder, Operand, shape_of
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.uses import defining_name, defining_op
from meshbridge.legalize.table import Legalizer, rewrites
from meshbridge.ops.affine_access import AffineAccess
from meshbridge.ops.reductions import body_kind
from meshbridge.ops.slicing import accesses
from meshbridge.ops.traits import Trait, ops_with


@dataclass(frozen=True)
class Read:
    """The elements of a tensor: those of `source`, by an access per dimension, and `fill` elsewhere."""

    source: ir.Value
    accesses: tuple[AffineAccess, ...]
    fill: Operand | None = None

    @property
    def fills(self) -> bool:
        """True if some elements are not the source's."""
        return any(access.reads_padding for access in self.accesses)

    def after(self, inner: Read) -> Read | None:
        """This read composed with `inner`; None if the result is no read, or if their fills differ."""
        composed = tuple(access for pair in zip(self.accesses, inner.accesses, strict=True) if (access := pair[0].after(pair[1])))
        if len(composed) < len(self.accesses) or (self.fills and inner.fills and not _is_same_operand(self.fill, inner.fill)):
            return None
        return Read(inner.source, composed, self.fill if self.fills else inner.fill)

    def reads_dropped(self, inner: Read) -> bool:
        """True if this read fills positions of elements that `inner` crops."""
        return any(own.reads_dropped(cropped) for own, cropped in zip(self.accesses, inner.accesses, strict=True))

    def write(self, builder: Builder) -> ir.Value | None:
        """Builds the read as one op, or returns the source; None if no single op can read so, or if nothing is read."""
        dims = self.accesses
        turned = [
            dim for dim, access in enumerate(dims) if access == AffineAccess(access.source, access.source, -1, 1 - access.source)
        ]
        if all(access.is_identity for access in dims):
            return self.source
        if all(access.is_identity or dim in turned for dim, access in enumerate(dims)):
            return builder.value("reverse", self.source.type, [self.source], {"dimensions": integers_attr(turned)})
        if not self.fills and all(access.stride > 0 for access in dims):
            ends = [access.stride * (access.size - 1) - access.low + 1 for access in dims]
            return builder.cut(self.source, [-access.low for access in dims], ends, [access.stride for access in dims])
        ends = [access.low + access.dilation * (access.source - 1) + 1 for access in dims]
        empty = any(end <= 0 or access.low >= access.size for access, end in zip(dims, ends, strict=True))
        if empty or self.fill is None or any(access.stride != 1 for access in dims):
            return None
        highs = [access.size - end for access, end in zip(dims, ends, strict=True)]
        return builder.pad(
            self.source, self.fill, [access.low for access in dims], highs, [access.dilation - 1 for access in dims]
        )


def _is_same_operand(lhs: Operand | None, rhs: Operand | None) -> bool:
    if not isinstance(lhs, ir.Value) or not isinstance(rhs, ir.Value) or lhs == rhs:
        return lhs == rhs
    splat = known(lhs)
    return isinstance(splat, Splat) and splat == known(rhs)


def read_of(value: ir.Value) -> Read:
    """The read of the pad, slice or reversal that defines `value`, if its sizes are static; else an identity read of `value`."""
    shape, op = shape_of(value), defining_op(value)
    if op is None or op.name not in _READS or any(size <= 0 for size in shape):
        return Read(value, tuple(AffineAccess(size, size) for size in shape))
    source, fill = op.operands[0], op.operands[1] if op.name == "stablehlo.pad" else None
    return Read(source, tuple(accesses(op, shape_of(source), shape)), fill)


_READS = sorted(ops_with(Trait.STRIDED))


def _reads_a_read(op: ir.Operation) -> bool:
    return any(defining_name(value) in _READS for value in op.operands)


@rewrites(*_READS, where=_reads_a_read)
def compose_reads(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Merges two reads in a row into one op, unless the second fills positions of elements that the first crops.

    Input:   %0 = stablehlo.slice %x [7:8] : tensor<1xf32>
             %1 = stablehlo.pad %0, %zero, low = [0], high = [7] : tensor<8xf32>
    Output:  %1 = stablehlo.pad %x, %zero, low = [-7], high = [7] : tensor<8xf32>
    """
    outer, inner = read_of(op.results[0]), read_of(op.operands[0])
    if inner.source == op.operands[0] or outer.source != op.operands[0] or outer.reads_dropped(inner):
        return False
    composed = outer.after(inner)
    value = composed.write(Builder.before(op)) if composed is not None else None
    if value is None:
        return False
    rewriter.replace(op, value)
    return True


@rewrites("stablehlo.concatenate", where=_reads_a_read)
def select_pieces(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Replaces a concatenation of slices of one tensor (`jnp.roll`, wrapped edges) by selects between pads of it.

    Input:   %0 = stablehlo.slice %x [7:8] : tensor<1xf32>
             %1 = stablehlo.slice %x [0:7] : tensor<7xf32>
             %2 = stablehlo.concatenate %0, %1, dim = 0 : tensor<8xf32>
    Output:  %0 = stablehlo.pad %x, %zero, low = [-7], high = [7]
             %1 = stablehlo.pad %x, %zero, low = [1], high = [-1]
             %2 = stablehlo.select (stablehlo.iota < 1), %0, %1
    """
    builder, along, whole = Builder.before(op), ir.IntegerAttr(op.attributes["dimension"]).value, shape_of(op.results[0])
    parts = [value for value in op.operands if shape_of(value)[along]]
    sources = [read_of(value).source if _is_slice(value, along) else value for value in parts]
    times = Counter(sources)
    if not any(times[source] > 1 and source != value for source, value in zip(sources, parts, strict=True)):
        return False
    ends = list(accumulate(shape_of(value)[along] for value in parts))
    pieces = [
        _pad_to(value, whole, {along: end - shape_of(value)[along]}, builder) for value, end in zip(parts, ends, strict=True)
    ]
    selected = pieces.pop()
    for piece, end in reversed(list(zip(pieces, ends, strict=False))):
        selected = builder.select(_index_mask(whole, along, 0, end, builder), piece, selected)
    _replace(op, selected, rewriter)
    return True


def _is_slice(value: ir.Value, along: int) -> bool:
    """True if `value` is a contiguous slice of a tensor along one dimension."""
    dims = read_of(value).accesses
    other_dims, run = [access for dim, access in enumerate(dims) if dim != along], dims[along]
    return (run.stride, run.dilation, run.reads_padding) == (1, 1, False) and all(access.is_identity for access in other_dims)


def _pad_to(value: ir.Value, whole: Sequence[int], starts: dict[int, int], builder: Builder) -> ir.Value:
    """A tensor of shape `whole` with `value` at `starts`, and unspecified elements elsewhere."""
    sizes = enumerate(zip(whole, shape_of(value), strict=True))
    placing = Read(value, tuple(AffineAccess(size, own, low=starts.get(dim, 0)) for dim, (size, own) in sizes), 0)
    through = placing.after(read_of(value)) if not read_of(value).fills else None
    placed = (through.write(builder) if through is not None else None) or placing.write(builder)
    assert placed is not None, "a part of a tensor can be padded to its size"
    return placed


def _index_mask(shape: Sequence[int], dim: int, start: int, end: int, builder: Builder) -> ir.Value:
    """A mask of the elements of a tensor whose index along `dim` is in [start, end)."""
    index = builder.iota([shape[dim]], dim=0)
    bounds = [builder.compare("GE", index, start)] if start else []
    bounds += [builder.compare("LT", index, end)] if end < shape[dim] else []
    return builder.broadcast(builder.all_of(bounds), shape, [dim])


def _replace(op: ir.Operation, value: ir.Value, rewriter: Legalizer) -> None:
    """Replaces `op`, and offers the pads of a select to other patterns."""
    select = defining_op(value)
    for piece in select.operands if select is not None and select.name == "stablehlo.select" else ():
        rewriter.adopt(piece)
    rewriter.replace(op, value)


SMALLEST = 1 / 4
"""The least part of a tensor that an update must cover. A smaller update is gathered, and every device writes its part in place.

Measured, an update of 4,096 rows on 8 devices, shifted by one row and sharded itself: of a quarter, selects send 9.2 KB in 6
permutes where gathering the update sends 57.3 KB, and compute on 34,806 elements instead of 18,437. Of a sixteenth they send 1.8
KB in 7 permutes instead of 14.3 KB, and compute on five times as many elements."""


@rewrites("stablehlo.scatter", "stablehlo.dynamic_update_slice")
def select_updates(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Replaces an update of a large part of a tensor at constant indices, by a scatter or a dynamic update, by a select.

    Input:   %0 = stablehlo.dynamic_update_slice %x, %y, %one : (tensor<8xf32>, tensor<6xf32>, tensor<i32>) -> tensor<8xf32>
    Output:  %0 = stablehlo.pad %y, %zero, low = [1], high = [1] : tensor<8xf32>
             %1 = stablehlo.select (1 <= stablehlo.iota < 7), %0, %x

    A pad needs at most a halo exchange, whereas an update would be replicated.
    """
    builder, is_scatter = Builder.before(op), op.name == "stablehlo.scatter"
    operand, update = op.operands[0], op.operands[2 if is_scatter else 1]
    whole = shape_of(operand)
    if len(op.results) != 1 or not whole or 0 in whole or prod(shape_of(update)) < SMALLEST * prod(whole):
        return False
    window = _scatter_window(op, whole) if is_scatter else _update_window(op, whole)
    if window is None:
        return False
    shape, starts = window
    placed = _pad_to(builder.reshape(update, shape), whole, dict(enumerate(starts)), builder)
    if is_scatter and not _overwrites(op):
        placed = builder.elementwise(op.regions[0].blocks[0].operations[0].operation.name, operand, placed)
    partly = [dim for dim, size in enumerate(shape) if size < whole[dim]]
    masks = [_index_mask(whole, dim, starts[dim], starts[dim] + shape[dim], builder) for dim in partly]
    selected = builder.select(builder.all_of(masks), placed, operand) if masks else placed
    _replace(op, selected, rewriter)
    return True


_Window = tuple[list[int], list[int]]
"""The window of an update: its shape with all dimensions of the operand, and the index of its first element."""


def _update_window(op: ir.Operation, operand: Sequence[int]) -> _Window | None:
    """The window of a dynamic update with constant starts, which are clamped so that it fits; else None."""
    shape = shape_of(op.operands[1])
    known_starts = [known_integer(start) for start in list(op.operands)[2:]]
    starts = [start for start in known_starts if start is not None]
    if len(starts) < len(known_starts):
        return None
    return shape, [min(max(start, 0), size - own) for start, size, own in zip(starts, operand, shape, strict=True)]


def _scatter_window(op: ir.Operation, operand: Sequence[int]) -> _Window | None:
    """The window of a scatter with a single one at constant indices, if it fits; else None."""
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    index, update = known_integers(op.operands[1]), shape_of(op.operands[2])
    if index is None or list(numbers.input_batching_dims) or len(list(numbers.update_window_dims)) != len(update):
        return None
    if not (body_kind(op) or _overwrites(op)):
        return None
    starts = [0] * len(operand)
    for dim, start in zip(numbers.scattered_dims_to_operand_dims, index, strict=True):
        starts[dim] = start
    sizes, inserted = iter(update), set(numbers.inserted_window_dims)
    shape = [1 if dim in inserted else next(sizes) for dim in range(len(operand))]
    fits = all(0 <= start <= whole - size for start, whole, size in zip(starts, operand, shape, strict=True))
    return (shape, starts) if fits else None


def _overwrites(op: ir.Operation) -> bool:
    """True if the body of a scatter returns the update."""
    block = op.regions[0].blocks[0]
    return len(block.operations) == 1 and block.operations[0].operation.operands[0] == block.arguments[1]
