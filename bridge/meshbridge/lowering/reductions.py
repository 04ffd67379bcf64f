"""Reduction kinds of the dialect as StableHLO reduction bodies: `all_reduce`, `reduce_scatter`.

Elements are converted to the result's element type before they are reduced. `average` is the sum divided by the
number of devices; on integers the division truncates.
"""

from __future__ import annotations

from functools import partial

from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.ir import combine
from meshbridge.ir.combine import GroupAttributes, combiner_of, is_native
from meshbridge.ir.exchange import COMBINERS
from meshbridge.ir.mlir import ir
from meshbridge.lowering.exchanges import in_pieces
from meshbridge.lowering.site import Site, lowers


@lowers(AllReduceOp)
def all_reduce(op: AllReduceOp, site: Site) -> list[ir.Value]:
    """`stablehlo.all_reduce`; over groups of one device only the conversion of the element type is left."""
    return [all_reduce_over(site, op.input, op.reduction)]


def all_reduce_over(site: Site, value: ir.Value, kind: str) -> ir.Value:
    """`value` reduced over the site's groups, in the result's element type."""
    value, combiner = _prepared(site, value, kind)
    if site.group_size == 1:
        return value
    if is_native(combiner, site.result_type.element_type):
        total = combine.all_reduce_natively(site.emit, value, combiner, _groups(site))
    else:
        total = in_pieces(site, value, lambda flat: _scattered(site, flat, combiner, 0))
    return _averaged(site, total) if kind == "average" else total


@lowers(ReduceScatterOp)
def reduce_scatter(op: ReduceScatterOp, site: Site) -> list[ir.Value]:
    """`stablehlo.reduce_scatter`."""
    value, combiner = _prepared(site, op.input, op.reduction)
    if site.group_size == 1:
        return [value]
    total = _scattered(site, value, combiner, op.scatter_axis)
    return [_averaged(site, total) if op.reduction == "average" else total]


def _prepared(site: Site, value: ir.Value, kind: str) -> tuple[ir.Value, str]:
    """The value in the element type that accumulates, and what combines two elements of it."""
    element = site.result_type.element_type
    check_kind(site, kind, element)
    return site.emit.convert(value, element), combiner_of(kind, element)


def _groups(site: Site) -> GroupAttributes:
    return partial(site.groups.collective, site.mesh, site.digits)


def _scattered(site: Site, value: ir.Value, combiner: str, dim: int) -> ir.Value:
    return combine.reduce_scatter(site.emit, value, dim, combiner, site.group_size, _groups(site))


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
