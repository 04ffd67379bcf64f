"""Reductions between devices in StableHLO, as the lowering of mesh collectives and resharding plans both write them.

On `i1`, StableHLO's sum is "or" and its product is "and". A NaN that one device holds is everybody's maximum and minimum
(`ordered.py`). What XLA's collectives cannot combine, devices exchange and combine themselves, in as many bytes. `average` is the
sum divided by the number of devices; on integers the division truncates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from meshbridge.ir.builder import Builder, element_of, integer, shape_of, tensor
from meshbridge.ir.elements import neutral
from meshbridge.ir.exchange import COMBINERS, exchange_over
from meshbridge.ir.groups import Attributes
from meshbridge.ir.mlir import ir
from meshbridge.ir.ordered import as_keys, from_keys, is_orderable

GroupAttributes = Callable[..., Attributes]
"""The attributes that say who takes part; `global_ids=False` for the operations that know no such flag."""

_OF_BITS = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}
"""What these mean on `i1`, in the words that XLA's collectives know there."""


def _combiner_of(kind: str, element: ir.Type) -> str:
    """What combines two elements in a reduction of that kind, one of COMBINERS."""
    combiner = COMBINERS[kind]
    return _OF_BITS.get(combiner, combiner) if _is_bit(element) else combiner


def is_native(kind: str, element: ir.Type) -> bool:
    """Whether XLA's collectives can reduce so: their reductions are sum, product, max and min, and "and", "or" of bits."""
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
    """Of the pieces of `value` along `dim`, one for each device of a group, this device's, reduced: by one collective after the
    other, outer groups first, each over so many devices. With `pieces_first`, in the form that XLA:TPU keeps."""
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
    """The pieces one after the other, without a copy where nothing stands before `dim` and they are of whole tiles. Of parts of
    tiles XLA would have the product that gives `value` read its operand in pieces, and hold what it would compute on the way.
    Where something stands before `dim`, pieces are made matrices: of a mere transposition XLA makes a layout, in which the first
    dimension is not the outermost."""
    if prod(piece[:dim]) == 1:
        in_parts = len(piece) - 1 - dim == 1 and piece[dim] % TILE[1] > 0
        return emit.reshape(emit.barrier(value) if in_parts else value, [count, *piece[dim:]])
    split = emit.reshape(value, [*piece[:dim], count, *piece[dim:]])
    first = emit.transpose(split, [dim, *range(dim), *range(dim + 1, len(piece) + 1)])
    return emit.reshape(first, [count, prod(piece[:-1]), piece[-1]])


def _is_kept(piece: Sequence[int], dim: int) -> bool:
    """Whether XLA:TPU (libtpu 0.0.42) makes no all-reduce of a reduce-scatter into such pieces along `dim`, of an even number of
    tiles, or makes one of every form of it, into parts of a tile. Rows that tiles do not divide it pads, unless pieces are first:
    of [2112, 4096] over 16 devices it sends 22.7 MB, of [16, 132, 4096] 16.2."""
    inner, size = len(piece) - 1 - dim, piece[dim]
    if prod(piece[:dim]) == 1:
        return inner == 0 or (inner == 1 and size < TILE[1])
    return inner < 2 and (size % (2 * TILE[inner]) == 0 or size < TILE[inner])


def in_part_of_a_tile(value: ir.Value, dim: int, count: int) -> bool:
    """Whether the pieces of `value`, so many along `dim`, are parts of a tile: of most reduce-scatters into such pieces XLA:TPU
    makes an all-reduce, and copies around it."""
    piece = _piece(value, dim, count)
    inner = len(piece) - 1 - dim
    return inner < 2 and piece[dim] < TILE[inner]


TILE = (128, 8)
"""The elements of a tile in the memory of a TPU along the last dimension, and along the one before."""


def _exchanged(emit: Builder, value: ir.Value, dim: int, combiner: str, count: int, groups: GroupAttributes) -> ir.Value:
    """By an exchange and arithmetic."""
    piece = _piece(value, dim, count)
    exchanged = exchange_over(emit, value, dim, dim, count, groups(global_ids=False))
    received = emit.reshape(exchanged, [*piece[:dim], count, *piece[dim:]])
    return emit.reduce(received, neutral(f"bitwise_{combiner}", element_of(value)), [dim], combiner)


def _piece(value: ir.Value, dim: int, count: int) -> list[int]:
    """The shape of a piece of `value`, of so many along `dim`."""
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
