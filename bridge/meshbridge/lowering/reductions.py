"""Reduction kinds of the dialect as StableHLO reduction bodies: `all_reduce`, `reduce_scatter`.

Elements are converted to the result's element type before they are reduced. `average` is the sum divided by the
number of devices; on integers the division truncates. On `i1`, StableHLO's sum is "or" and its product is "and". A NaN that one
device holds is everybody's maximum and minimum (`ordered.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.ir.builder import element_of, integer, shape_of, tensor
from meshbridge.ir.elements import neutral
from meshbridge.ir.exchange import COMBINERS
from meshbridge.ir.mlir import ir
from meshbridge.lowering.exchanges import exchange, in_pieces
from meshbridge.lowering.ordered import as_keys, from_keys, is_orderable
from meshbridge.lowering.site import Site, lowers

COMBINERS_OF_BITS = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}
"""What these mean on `i1`, in the words that XLA's collectives know there."""


@lowers(AllReduceOp)
def all_reduce(op: AllReduceOp, site: Site) -> list[ir.Value]:
    """`stablehlo.all_reduce`; over groups of one device only the conversion of the element type is left."""
    return [all_reduce_over(site, op.input, op.reduction)]


def all_reduce_over(site: Site, value: ir.Value, kind: str) -> ir.Value:
    """`value` reduced over the site's groups, in the result's element type."""
    value, combiner = _prepared(site, value, kind)
    if site.group_size == 1:
        return value
    if _in_collectives(combiner, site.result_type.element_type):
        total = _reducing(site, "all_reduce", value, combiner, shape_of(value), {})
    else:
        total = in_pieces(site, value, lambda flat: _exchanged_and_combined(site, flat, combiner, 0))
    return _averaged(site, total) if kind == "average" else total


@lowers(ReduceScatterOp)
def reduce_scatter(op: ReduceScatterOp, site: Site) -> list[ir.Value]:
    """`stablehlo.reduce_scatter`."""
    value, combiner = _prepared(site, op.input, op.reduction)
    if site.group_size == 1:
        return [value]
    if _in_collectives(combiner, site.result_type.element_type):
        scattered = {"scatter_dimension": integer(op.scatter_axis)}
        total = _reducing(site, "reduce_scatter", value, combiner, site.result_type.shape, scattered)
    else:
        total = _exchanged_and_combined(site, value, combiner, op.scatter_axis)
    return [_averaged(site, total) if op.reduction == "average" else total]


def _prepared(site: Site, value: ir.Value, kind: str) -> tuple[ir.Value, str]:
    """The value in the element type that accumulates, and what combines two elements of it."""
    element = site.result_type.element_type
    check_kind(site, kind, element)
    combiner = COMBINERS[kind]
    if _is_bit(element):
        combiner = COMBINERS_OF_BITS.get(combiner, combiner)
    return site.emit.convert(value, element), combiner


def _in_collectives(combiner: str, element: ir.Type) -> bool:
    """Whether XLA's collectives can combine with it: their reductions are sum, product, max and min, and "and", "or" of bits."""
    return combiner in ("and", "or") if _is_bit(element) else combiner not in ("and", "or", "xor")


def _is_bit(element: ir.Type) -> bool:
    return isinstance(element, ir.IntegerType) and element.width == 1


def _reducing(
    site: Site, name: str, value: ir.Value, combiner: str, shape: Sequence[int], attrs: dict[str, ir.Attribute]
) -> ir.Value:
    element = element_of(value)
    if combiner in ("maximum", "minimum") and is_orderable(element):
        keys = _reducing(site, name, as_keys(site.emit, value, combiner), combiner, shape, attrs)
        return from_keys(site.emit, keys, element)
    attrs |= site.groups.collective(site.mesh, site.digits)
    return site.emit.combining(name, tensor(shape, element), [value], attrs, combiner)


def _exchanged_and_combined(site: Site, value: ir.Value, combiner: str, dim: int) -> ir.Value:
    """A reduce-scatter by hand, of as many bytes: every device receives its piece from all others and combines them itself."""
    emit, shape = site.emit, shape_of(value)
    piece = [*shape[:dim], shape[dim] // site.group_size, *shape[dim + 1 :]]
    received = emit.reshape(exchange(site, value, dim, dim), [*shape[:dim], site.group_size, *piece[dim:]])
    return emit.reduce(received, neutral(f"bitwise_{combiner}", element_of(value)), [dim], combiner)


def _averaged(site: Site, total: ir.Value) -> ir.Value:
    return site.emit.elementwise("divide", total, site.group_size)


def check_kind(site: Site, kind: str, element: ir.Type) -> None:
    """Raises OpError where `kind` has no meaning on elements of type `element`."""
    if kind not in COMBINERS:
        raise site.error(f"reduction '{kind}' has no body that could run", "give one of: " + ", ".join(COMBINERS))
    if kind.startswith("bitwise") and not isinstance(element, ir.IntegerType):
        raise site.error(f"reduction '{kind}' needs integers, got {element}")
    if kind in ("max", "min") and isinstance(element, ir.ComplexType):
        raise site.error(f"reduction '{kind}' needs an order, got {element}")
    if kind == "average" and isinstance(element, ir.IntegerType):
        limit = 2 ** (element.width if element.is_unsigned else element.width - 1)
        if site.group_size >= max(limit, 2):
            raise site.error(f"reduction 'average' over {site.group_size} devices: {element} cannot hold that divisor")
