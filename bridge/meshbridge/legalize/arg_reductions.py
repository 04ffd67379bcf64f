"""argmax and argmin as two plain reductions, which may be sharded along the reduced dimension, with small all-reduces."""

from __future__ import annotations

from meshbridge.analysis.known_values import Iota, is_splat, known
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of, shape_of
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.legalize.table import replaces


@replaces("stablehlo.reduce", where=lambda op: len(op.results) == 2)
def split_arg_reductions(op: ir.Operation) -> tuple[ir.Value, ir.Value] | None:
    """Takes apart the reduction of (value, index) pairs that `jnp.argmax` and `jnp.argmin` write.

    Input:   %i = stablehlo.iota dim = 0 : tensor<64xi32>
             %0:2 = stablehlo.reduce(%x init: %lowest), (%i init: %zero) across dimensions = [0] {larger, or equal and earlier}
    Output:  %0 = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [0]
             %m = x equal to %0, or NaN
             %1 = stablehlo.reduce(select %m, %i, %largest) applies stablehlo.minimum across dimensions = [0]

    The first NaN wins, as in the original; equal elements give the smallest index.
    """
    kind = _kind(op)
    return _two_reductions(op, kind) if kind else None


_KINDS: dict[tuple[str | int, ...], str] = {("compare", "GT", 0, 2): "max", ("compare", "LT", 0, 2): "min"}
"""What the first comparison of the body says."""

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
"""The rest of it: arguments are 0 to 3 (two pairs of value and index), then come results."""


def _kind(op: ir.Operation) -> str:
    """`max` or `min` for an argmax or argmin over the one dimension that its second operand counts; "" for anything else."""
    values, indices, value_init, _ = op.operands
    reduced = integers(op.attributes["dimensions"])
    counted = known(indices)
    if not isinstance(counted, Iota) or reduced != (counted.dim,) or counted.step < 0:
        return ""
    first, *rest = _numbered(op.regions[0].blocks[0])
    kind = _KINDS.get(first, "")
    element = ir.RankedTensorType(values.type).element_type
    # The pair to start from must lose against every element, else it may be the answer.
    return kind if tuple(rest) == _BODY and kind and is_splat(value_init, neutral(kind, element)) else ""


def _numbered(block: ir.Block) -> list[tuple[str | int, ...]]:
    """The ops of a body with their operands by number, and the direction of comparisons."""
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
    emit, better = Builder.before(op), "maximum" if kind == "max" else "minimum"
    best = emit.reduce(values, value_init, [dimension], better)
    kept = [dim for dim in range(len(shape_of(values))) if dim != dimension]
    wins = emit.compare("EQ", values, emit.broadcast(best, shape_of(values), kept))
    last = neutral("min", element_of(indices))
    candidates = emit.select(emit.elementwise("or", wins, emit.compare("NE", values, values)), indices, last)
    return best, emit.reduce(candidates, last, [dimension], "minimum")
