"""Splits argmax and argmin into two plain reductions, which may be sharded along the reduced dimension with small all-reduces."""

from __future__ import annotations

from meshbridge.analysis.known_values import Iota, is_splat, known
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of, shape_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.legalize.table import replaces


@replaces("stablehlo.reduce", where=lambda op: len(op.results) == 2)
def split_arg_reductions(op: ir.Operation) -> tuple[ir.Value, ir.Value] | None:
    """Splits the reduction of (value, index) pairs of `jnp.argmax` and `jnp.argmin`.

    Input:   %i = stablehlo.iota dim = 0 : tensor<64xi32>
             %0:2 = stablehlo.reduce(%x init: %lowest), (%i init: %zero) across dimensions = [0] {larger, or equal and earlier}
    Output:  %0 = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [0]
             %m = x equal to %0, or NaN
             %1 = stablehlo.reduce(select %m, %i, %largest) applies stablehlo.minimum across dimensions = [0]

    The first NaN wins, as in JAX; equal elements give the smallest index.
    """
    kind = _kind(op)
    return _two_reductions(op, kind) if kind else None


_KINDS: dict[tuple[str | int, ...], str] = {("compare", "GT", 0, 2): "max", ("compare", "LT", 0, 2): "min"}
"""By the first op of the body: the kind of reduction."""

_BODY = (
    ("compare", "NE", 0, 0),
    ("or", "", 4, 5),
    ("compare", "EQ", 0, 2),
    ("compare", "LT", 1, 3),
    ("and", "", 7, 8),
    ("or", "", 6, 9),
    ("select", "", 6, 0, 2),
    ("select", "", 10, 1, 3),
    ("return", "", 11, 12),
)
"""The other ops of the body. Values have numbers: arguments 0 to 3 (two pairs of value and index), then results."""


def _kind(op: ir.Operation) -> str:
    """`max` or `min` for an argmax or argmin over the dimension of the iota in its second operand; "" for other reductions."""
    values, indices, value_init, _ = op.operands
    reduced = integers(op.attributes["dimensions"])
    counted = known(indices)
    if not isinstance(counted, Iota) or reduced != (counted.dim,) or counted.step < 0:
        return ""
    comparison, *body = _numbered(op.regions[0].blocks[0])
    kind = _KINDS.get(comparison, "")
    element = ir.RankedTensorType(values.type).element_type
    # The initial pair must lose against every element, else it may be the result.
    return kind if tuple(body) == _BODY and kind and is_splat(value_init, neutral(kind, element)) else ""


def _numbered(block: ir.Block) -> list[tuple[str | int, ...]]:
    """The ops of a body: name, direction of a comparison, numbers of the operands."""
    numbers: dict[ir.Value, int] = {argument: index for index, argument in enumerate(block.arguments)}
    lines: list[tuple[str | int, ...]] = []
    for view in block.operations:
        op = view.operation
        name = op.name.removeprefix("stablehlo.")
        direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value if name == "compare" else ""
        lines.append((name, str(direction), *(numbers.get(operand, -1) for operand in op.operands)))
        for result in op.results:
            numbers[result] = len(numbers)
    return lines


def _two_reductions(op: ir.Operation, kind: str) -> tuple[ir.Value, ir.Value]:
    values, indices, value_init, _ = op.operands
    (dimension,) = integers(op.attributes["dimensions"])
    builder, better = Builder.before(op), "maximum" if kind == "max" else "minimum"
    best = builder.reduce(values, value_init, [dimension], better)
    free_dims = [dim for dim in range(len(shape_of(values))) if dim != dimension]
    wins = builder.compare("EQ", values, builder.broadcast(best, shape_of(values), free_dims))
    largest_index = neutral("min", element_of(indices))
    candidates = builder.select(builder.elementwise("or", wins, builder.compare("NE", values, values)), indices, largest_index)
    return best, builder.reduce(candidates, largest_index, [dimension], "minimum")
