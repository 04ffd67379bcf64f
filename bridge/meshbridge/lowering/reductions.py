"""Lowers `all_reduce` and `reduce_scatter`. Elements are converted to the result's element type before they are reduced."""

from __future__ import annotations

from functools import partial

from meshbridge.backends import xla_tpu
from meshbridge.dialect.ops import NAN_FOLLOWS, AllReduceOp, ReduceScatterOp
from meshbridge.ir import combine
from meshbridge.ir.builder import element_of
from meshbridge.ir.combine import GroupAttributes, is_native
from meshbridge.ir.digits import Digits, group_size
from meshbridge.ir.elements import type_bytes
from meshbridge.ir.exchange import COMBINERS
from meshbridge.ir.mlir import ir
from meshbridge.lowering.exchanges import in_pieces, own_piece
from meshbridge.lowering.site import Site, lowers


@lowers(AllReduceOp)
def all_reduce(op: AllReduceOp, site: Site) -> list[ir.Value]:
    """`stablehlo.all_reduce`; over groups of one device, only the conversion of the element type."""
    return [all_reduce_over(site, op.input, op.reduction)]


def all_reduce_over(site: Site, value: ir.Value, kind: str) -> ir.Value:
    """`value` reduced over the site's groups, in the result's element type."""
    value = _converted(site, value, kind)
    if site.group_size == 1:
        return value
    if is_native(kind, element_of(value)):
        nan_follows = NAN_FOLLOWS in site.op.attributes
        groups = _groups(site, site.digits)
        return combine.all_reduce_natively(site.builder, value, kind, site.group_size, groups, nan_follows=nan_follows)
    return in_pieces(site, value, lambda flat: _scattered(site, flat, kind, 0))


@lowers(ReduceScatterOp)
def reduce_scatter(op: ReduceScatterOp, site: Site) -> list[ir.Value]:
    """`stablehlo.reduce_scatter`."""
    value = _converted(site, op.input, op.reduction)
    return [value if site.group_size == 1 else _scattered(site, value, op.reduction, op.scatter_axis)]


def _converted(site: Site, value: ir.Value, kind: str) -> ir.Value:
    """The value in the element type of the accumulator. Raises OpError if `kind` has no meaning on it."""
    element = site.result_type.element_type
    check_kind(site, kind, element)
    return site.builder.convert(value, element)


def _groups(site: Site, digits: Digits) -> GroupAttributes:
    return partial(site.groups.collective, site.mesh, digits)


def _scattered(site: Site, value: ir.Value, kind: str, dim: int) -> ir.Value:
    """This device's piece of `value` along `dim`, reduced. For compilers that lay out tiles (XLA:TPU), a small value is
    all-reduced and then sliced."""
    size, forms = type_bytes(value.type), site.groups.forms
    is_small = forms.tiles and size < forms.least and xla_tpu.scatters_parts_of_tiles(value, dim, site.group_size)
    if is_small and is_native(kind, element_of(value)):
        reduced = combine.all_reduce_natively(site.builder, value, kind, site.group_size, _groups(site, site.digits))
        return own_piece(site, reduced, dim)
    stages = site.stages("reduce_scatter", size)
    groups = [(group_size(digits), _groups(site, digits)) for digits in stages]
    return combine.reduce_scatter(site.builder, value, dim, kind, groups, xla_tpu.scatter_pieces_first if forms.tiles else None)


def check_kind(site: Site, kind: str, element: ir.Type) -> None:
    """Raises OpError if `kind` has no meaning on elements of type `element`."""
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
