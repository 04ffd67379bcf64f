"""XLA:TPU: it stores values in tiles of their last two dimensions, and replaces collectives of other forms by larger ones."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshbridge.backends import quirk
from meshbridge.ir.builder import Builder, shape_of
from meshbridge.ir.combine import GroupAttributes, piece_shape, scattered
from meshbridge.ir.exchange import exchange_over
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_op

LIBTPU = "libtpu 0.0.42.1"

TILE = (128, 8)
"""The elements of a tile in TPU memory along the last dimension, and along the second to last."""

JOINED = 16
"""The most received pieces that a concatenation joins; they are its operands, and programs should not grow with devices. Measured
with 4 pieces, and 16 in llama32_scan_fsdp_tp of `testdata/realistic`; not with more."""

ALIASED_GATHER_COPIES = 2
"""How often XLA:TPU copies for an all-gather whose result is written over an argument: first the elements that it reads of the
argument, then the result. It copies no all-reduce and no elementwise result. Measured with libtpu 0.0.42.1 on 8 v5e and 8 v5p."""


@quirk(LIBTPU, test="tests/targets/test_kept_forms.py")
def scatter_pieces_first(
    builder: Builder, value: ir.Value, dim: int, combiner: str, count: int, groups: GroupAttributes
) -> ir.Value:
    """Writes a reduce-scatter along a leading dimension of pieces: XLA:TPU replaces most others by an all-reduce."""
    piece = piece_shape(value, dim, count)
    if _is_kept(piece, dim):
        return scattered(builder, value, dim, combiner, count, groups)
    pieces = _pieces_first(builder, value, dim, piece, count)
    return builder.reshape(scattered(builder, pieces, 0, combiner, count, groups), piece)


def _pieces_first(builder: Builder, value: ir.Value, dim: int, piece: Sequence[int], count: int) -> ir.Value:
    """Moves the pieces to the first dimension, without a copy if no dimension is before `dim` and the pieces are whole tiles. For
    pieces that are parts of tiles, XLA would let the product that computes `value` read its operand in pieces, and store
    intermediate values; a barrier prevents this. If a dimension is before `dim`, pieces become matrices: XLA turns a mere
    transposition into a layout, in which the first dimension is not the outermost."""
    if prod(piece[:dim]) == 1:
        in_parts = len(piece) - 1 - dim == 1 and piece[dim] % TILE[1] > 0
        return builder.reshape(builder.barrier(value) if in_parts else value, [count, *piece[dim:]])
    split = builder.reshape(value, [*piece[:dim], count, *piece[dim:]])
    transposed = builder.transpose(split, [dim, *range(dim), *range(dim + 1, len(piece) + 1)])
    return builder.reshape(transposed, [count, prod(piece[:-1]), piece[-1]])


def _is_kept(piece: Sequence[int], dim: int) -> bool:
    """True if XLA:TPU keeps a reduce-scatter into such pieces along `dim`, of an even number of tiles, or replaces all its forms
    by an all-reduce, into parts of a tile. It pads rows that do not divide into tiles, unless pieces come first: of [2112, 4096]
    over 16 devices it sends 22.7 MB, of [16, 132, 4096] 16.2."""
    inner, size = len(piece) - 1 - dim, piece[dim]
    if prod(piece[:dim]) == 1:
        return inner == 0 or (inner == 1 and size < TILE[1])
    return inner < 2 and (size % (2 * TILE[inner]) == 0 or size < TILE[inner])


@quirk(LIBTPU, test="tests/targets/test_kept_forms.py")
def scatters_parts_of_tiles(value: ir.Value, dim: int, count: int) -> bool:
    """Whether the `count` pieces of `value` along `dim` are parts of a tile: XLA:TPU replaces most reduce-scatters into such
    pieces by an all-reduce with copies."""
    piece = piece_shape(value, dim, count)
    inner = len(piece) - 1 - dim
    return inner < 2 and piece[dim] < TILE[inner]


def exchange_and_join(
    builder: Builder, value: ir.Value, split: int, concat: int, count: int, groups: dict[str, ir.Attribute]
) -> ir.Value:
    """Writes an all-to-all whose received pieces a concatenation joins, if they come from a first dimension, or follow each other
    along the last: XLA:TPU then orders them in one pass, instead of up to two. No test compiles a program that shows it."""
    if split >= concat or (split != 0 and concat != len(shape_of(value)) - 1) or count > JOINED:
        return exchange_over(builder, value, split, concat, count, groups)
    rows = exchange_over(builder, value, split, 0, count, groups)
    size = shape_of(rows)[0] // count
    return builder.concatenate([builder.slice(rows, 0, number * size, size) for number in range(count)], concat)


def gathered_before_division(value: ir.Value, dim: int) -> ir.Value:
    """The operand of `value` if it is a reshape that only divides one dimension into `dim` and those after it; else `value`.
    XLA:TPU stores the gathered dimension of a divided value outermost, and copies the result of the gather. No test compiles a
    program that shows it."""
    op = defining_op(value)
    if op is None or op.name != "stablehlo.reshape":
        return value
    source = op.operands[0]
    before, after = shape_of(source), shape_of(value)
    parts = len(after) - len(before) + 1
    divided = parts > 1 and before == [*after[:dim], prod(after[dim : dim + parts]), *after[dim + parts :]]
    return source if divided else value
