"""Reduction kinds of the dialect as StableHLO reduction bodies: `all_reduce`, `reduce_scatter`.

Elements are converted to the result's element type before they are reduced (seed 002). `average` is the sum divided by the
number of devices; on integers the division truncates. On `i1`, StableHLO's sum is "or" and its product is "and".
"""

from __future__ import annotations

from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.lowering.emit import Emitter, integer
from meshbridge.lowering.emit import tensor as tensor_of
from meshbridge.lowering.site import Site, lowers
from meshbridge.mlir import ir

COMBINERS = {
    "sum": "add",
    "average": "add",
    "max": "maximum",
    "min": "minimum",
    "product": "multiply",
    "bitwise_and": "and",
    "bitwise_or": "or",
    "bitwise_xor": "xor",
}
"""Reduction kind to the StableHLO operation that combines two elements. `generic` has no body to lower."""


@lowers(AllReduceOp)
def all_reduce(op: AllReduceOp, site: Site) -> list[ir.Value]:
    """`stablehlo.all_reduce`; over groups of one device only the conversion of the element type is left."""
    return [reduce_over(site, op.input, op.reduction)]


@lowers(ReduceScatterOp)
def reduce_scatter(op: ReduceScatterOp, site: Site) -> list[ir.Value]:
    """`stablehlo.reduce_scatter`."""
    attrs = {"scatter_dimension": integer(op.scatter_axis)}
    return [_reduce(site, "reduce_scatter", op.input, op.reduction, site.result_type, attrs)]


def reduce_over(site: Site, value: ir.Value, kind: str) -> ir.Value:
    """`value` reduced over the site's groups, in the result's element type."""
    return _reduce(site, "all_reduce", value, kind, site.result_type, {})


def _reduce(
    site: Site, name: str, value: ir.Value, kind: str, result: ir.RankedTensorType, attrs: dict[str, ir.Attribute]
) -> ir.Value:
    check_kind(site, kind, result.element_type)
    emit = site.emit
    value = emit.convert(value, result.element_type)
    if site.group_size == 1:
        return value
    attrs |= site.groups.collective(site.mesh, site.axes)
    reduce = emit.op(name, result, [value], attrs, regions=1)
    add_body(reduce, COMBINERS[kind], result.element_type)
    total: ir.Value = reduce.results[0]
    if kind != "average":
        return total
    return emit.elementwise("divide", total, _splat(site, result, site.group_size))


def add_body(reduce: ir.Operation, combiner: str, element: ir.Type) -> None:
    """Gives `reduce` the region that combines two scalars."""
    scalar = tensor_of([], element)
    block = reduce.regions[0].blocks.append(scalar, scalar, arg_locs=[reduce.location] * 2)
    emit = Emitter(reduce.location, ir.InsertionPoint(block))
    combined = emit.value(combiner, scalar, list(block.arguments))
    ir.Operation.create("stablehlo.return", [], [combined], loc=emit.loc, ip=emit.ip)


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
        if site.group_size >= limit:
            raise site.error(f"reduction 'average' over {site.group_size} devices: {element} cannot hold that divisor")


def _splat(site: Site, type_: ir.RankedTensorType, value: int) -> ir.Value:
    """`value` in every place of `type_`."""
    element = type_.element_type
    if isinstance(element, ir.IntegerType):
        text = str(value)
    else:
        text = f"({value}.0, 0.0)" if isinstance(element, ir.ComplexType) else f"{value}.0"
    return site.emit.constant(ir.Attribute.parse(f"dense<{text}> : {type_}"))
