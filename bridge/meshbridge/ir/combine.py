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

Scatter = Callable[[Builder, ir.Value, int, str, int, GroupAttributes], ir.Value]
"""Writes a reduce-scatter, as `scattered` does."""

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
    scatter: Scatter | None = None,
) -> ir.Value:
    """This device's piece of the reduced `value`, which is divided along `dim` into a piece for each device. Each stage is one
    collective over its number of devices, outer groups first, which `scatter` writes (default: `scattered`)."""
    scatter = scatter or scattered
    combiner = _combiner_of(kind, element_of(value))
    for count, groups in stages:
        if not is_native(kind, element_of(value)):
            value = _exchanged(emit, value, dim, combiner, count, groups)
        else:
            value = scatter(emit, value, dim, combiner, count, groups)
    return _averaged(emit, value, kind, prod(count for count, _ in stages))


def scattered(emit: Builder, value: ir.Value, dim: int, combiner: str, count: int, groups: GroupAttributes) -> ir.Value:
    """`stablehlo.reduce_scatter` along `dim` over groups of `count` devices, by one of COMBINERS."""
    attrs = {"scatter_dimension": integer(dim)} | groups()
    return _reducing(emit, "reduce_scatter", value, combiner, piece_shape(value, dim, count), attrs)


def _exchanged(emit: Builder, value: ir.Value, dim: int, combiner: str, count: int, groups: GroupAttributes) -> ir.Value:
    """By an exchange and arithmetic."""
    piece = piece_shape(value, dim, count)
    exchanged = exchange_over(emit, value, dim, dim, count, groups(global_ids=False))
    received = emit.reshape(exchanged, [*piece[:dim], count, *piece[dim:]])
    return emit.reduce(received, neutral(f"bitwise_{combiner}", element_of(value)), [dim], combiner)


def piece_shape(value: ir.Value, dim: int, count: int) -> list[int]:
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
