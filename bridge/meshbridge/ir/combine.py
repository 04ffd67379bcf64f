"""Reductions over devices in StableHLO, for the lowering of mesh collectives and for resharding plans.

On `i1`, StableHLO's sum is "or" and its product is "and". A NaN of one device is the maximum and minimum of all
(`float_keys.py`). Devices exchange and combine themselves, in the same number of bytes, what XLA's collectives cannot combine.
`average` is the sum divided by the number of devices; on integers the division truncates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from meshbridge.ir.builder import Builder, element_of, integer, shape_of, tensor
from meshbridge.ir.elements import neutral
from meshbridge.ir.exchange import COMBINERS, exchange_over
from meshbridge.ir.float_keys import as_keys, from_keys, is_orderable
from meshbridge.ir.groups import Attributes
from meshbridge.ir.mlir import ir

GroupAttributes = Callable[..., Attributes]
"""The attributes of a collective's device groups; `global_ids=False` for operations without that flag."""

_OF_BITS = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}
"""The meaning of these on `i1`, in the names of XLA's collectives."""


def _combiner_of(kind: str, element: ir.Type) -> str:
    """The operation, one of COMBINERS, that combines two elements in a reduction of that kind."""
    combiner = COMBINERS[kind]
    return _OF_BITS.get(combiner, combiner) if _is_bit(element) else combiner


def is_native(kind: str, element: ir.Type) -> bool:
    """Whether XLA's collectives have this reduction: sum, product, max and min, and "and", "or" of bits."""
    combiner = _combiner_of(kind, element)
    return combiner in ("and", "or") if _is_bit(element) else combiner not in ("and", "or", "xor")


def _is_bit(element: ir.Type) -> bool:
    return isinstance(element, ir.IntegerType) and element.width == 1


def all_reduce_natively(
    emit: Builder, value: ir.Value, kind: str, count: int, groups: GroupAttributes, *, nan_follows: bool = False
) -> ir.Value:
    """`stablehlo.all_reduce` over groups of `count` devices, where `is_native`. With `nan_follows` it may lose a NaN."""
    combiner = _combiner_of(kind, element_of(value))
    reduced = _reducing(emit, "all_reduce", value, combiner, shape_of(value), groups(), nan_follows=nan_follows)
    return _averaged(emit, reduced, kind, count)


def reduce_scatter(
    emit: Builder,
    value: ir.Value,
    dim: int,
    kind: str,
    stages: Sequence[tuple[int, GroupAttributes]],
    *,
    pieces_first: bool = False,
) -> ir.Value:
    """This device's piece of the reduced `value`, which is divided along `dim` into a piece for each device. Each stage is one
    collective over its number of devices, outer groups first. `pieces_first`: uses the form that XLA:TPU keeps."""
    combiner = _combiner_of(kind, element_of(value))
    for count, groups in stages:
        piece = _piece(value, dim, count)
        if not is_native(kind, element_of(value)):
            value = _exchanged(emit, value, dim, combiner, count, groups)
        elif pieces_first and not _is_kept(piece, dim):
            pieces = _pieces_first(emit, value, dim, piece, count)
            value = emit.reshape(_scattered(emit, pieces, 0, combiner, count, groups), piece)
        else:
            value = _scattered(emit, value, dim, combiner, count, groups)
    return _averaged(emit, value, kind, prod(count for count, _ in stages))


def _scattered(emit: Builder, value: ir.Value, dim: int, combiner: str, count: int, groups: GroupAttributes) -> ir.Value:
    """By XLA's reduce-scatter."""
    attrs = {"scatter_dimension": integer(dim)} | groups()
    return _reducing(emit, "reduce_scatter", value, combiner, _piece(value, dim, count), attrs)


def _pieces_first(emit: Builder, value: ir.Value, dim: int, piece: Sequence[int], count: int) -> ir.Value:
    """Moves the pieces to the first dimension, without a copy if no dimension is before `dim` and the pieces are whole tiles. For
    pieces that are parts of tiles, XLA would let the product that computes `value` read its operand in pieces, and store
    intermediate values; a barrier prevents this. If a dimension is before `dim`, pieces become matrices: XLA turns a mere
    transposition into a layout, in which the first dimension is not the outermost."""
    if prod(piece[:dim]) == 1:
        in_parts = len(piece) - 1 - dim == 1 and piece[dim] % TILE[1] > 0
        return emit.reshape(emit.barrier(value) if in_parts else value, [count, *piece[dim:]])
    split = emit.reshape(value, [*piece[:dim], count, *piece[dim:]])
    transposed = emit.transpose(split, [dim, *range(dim), *range(dim + 1, len(piece) + 1)])
    return emit.reshape(transposed, [count, prod(piece[:-1]), piece[-1]])


def _is_kept(piece: Sequence[int], dim: int) -> bool:
    """Whether XLA:TPU (libtpu 0.0.42) does not replace a reduce-scatter into such pieces along `dim`, of an even number of tiles,
    by an all-reduce, or replaces every form of it, into parts of a tile. It pads rows that do not divide into tiles, unless
    pieces come first: of [2112, 4096] over 16 devices it sends 22.7 MB, of [16, 132, 4096] 16.2."""
    inner, size = len(piece) - 1 - dim, piece[dim]
    if prod(piece[:dim]) == 1:
        return inner == 0 or (inner == 1 and size < TILE[1])
    return inner < 2 and (size % (2 * TILE[inner]) == 0 or size < TILE[inner])


def in_part_of_a_tile(value: ir.Value, dim: int, count: int) -> bool:
    """Whether the `count` pieces of `value` along `dim` are parts of a tile: XLA:TPU replaces most reduce-scatters into such
    pieces by an all-reduce with copies."""
    piece = _piece(value, dim, count)
    inner = len(piece) - 1 - dim
    return inner < 2 and piece[dim] < TILE[inner]


TILE = (128, 8)
"""The elements of a tile in TPU memory along the last dimension, and along the second to last."""


def _exchanged(emit: Builder, value: ir.Value, dim: int, combiner: str, count: int, groups: GroupAttributes) -> ir.Value:
    """By an exchange and arithmetic."""
    piece = _piece(value, dim, count)
    exchanged = exchange_over(emit, value, dim, dim, count, groups(global_ids=False))
    received = emit.reshape(exchanged, [*piece[:dim], count, *piece[dim:]])
    return emit.reduce(received, neutral(f"bitwise_{combiner}", element_of(value)), [dim], combiner)


def _piece(value: ir.Value, dim: int, count: int) -> list[int]:
    """The shape of one of `count` pieces of `value` along `dim`."""
    shape = shape_of(value)
    return [*shape[:dim], shape[dim] // count, *shape[dim + 1 :]]


def _averaged(emit: Builder, total: ir.Value, kind: str, count: int) -> ir.Value:
    return emit.elementwise("divide", total, count) if kind == "average" else total


def _reducing(
    emit: Builder,
    name: str,
    value: ir.Value,
    combiner: str,
    shape: Sequence[int],
    attrs: dict[str, ir.Attribute],
    *,
    nan_follows: bool = False,
) -> ir.Value:
    element = element_of(value)
    if combiner in ("maximum", "minimum") and is_orderable(element) and not nan_follows:
        keys = _reducing(emit, name, as_keys(emit, value, combiner), combiner, shape, attrs)
        return from_keys(emit, keys, element)
    return emit.combining(name, tensor(shape, element), [value], attrs, combiner)
