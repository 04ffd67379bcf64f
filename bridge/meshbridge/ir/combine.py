"""Reductions between devices in StableHLO, as the lowering of mesh collectives and resharding plans both write them.

On `i1`, StableHLO's sum is "or" and its product is "and". A NaN that one device holds is everybody's maximum and minimum
(`ordered.py`). What XLA's collectives cannot combine, devices exchange and combine themselves, in as many bytes. `average` is the
sum divided by the number of devices; on integers the division truncates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def all_reduce_natively(emit: Builder, value: ir.Value, kind: str, count: int, groups: GroupAttributes) -> ir.Value:
    """`stablehlo.all_reduce` over groups of `count` devices, where `is_native`."""
    combiner = _combiner_of(kind, element_of(value))
    return _averaged(emit, _reducing(emit, "all_reduce", value, combiner, shape_of(value), groups()), kind, count)


def reduce_scatter(emit: Builder, value: ir.Value, dim: int, kind: str, count: int, groups: GroupAttributes) -> ir.Value:
    """Of the pieces of `value` along `dim`, one for each of the `count` devices of a group, this device's, reduced."""
    shape, combiner = shape_of(value), _combiner_of(kind, element_of(value))
    piece = [*shape[:dim], shape[dim] // count, *shape[dim + 1 :]]
    if is_native(kind, element_of(value)):
        attrs = {"scatter_dimension": integer(dim)} | groups()
        return _averaged(emit, _reducing(emit, "reduce_scatter", value, combiner, piece, attrs), kind, count)
    exchanged = exchange_over(emit, value, dim, dim, count, groups(global_ids=False))
    received = emit.reshape(exchanged, [*shape[:dim], count, *piece[dim:]])
    return emit.reduce(received, neutral(f"bitwise_{combiner}", element_of(value)), [dim], combiner)


def _averaged(emit: Builder, total: ir.Value, kind: str, count: int) -> ir.Value:
    return emit.elementwise("divide", total, count) if kind == "average" else total


def _reducing(
    emit: Builder, name: str, value: ir.Value, combiner: str, shape: Sequence[int], attrs: dict[str, ir.Attribute]
) -> ir.Value:
    element = element_of(value)
    if combiner in ("maximum", "minimum") and is_orderable(element):
        keys = _reducing(emit, name, as_keys(emit, value, combiner), combiner, shape, attrs)
        return from_keys(emit, keys, element)
    return emit.combining(name, tensor(shape, element), [value], attrs, combiner)
