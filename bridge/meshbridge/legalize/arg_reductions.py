"""argmax and argmin as two plain reductions, which may be sharded along the reduced dimension, with small all-reduces."""

from __future__ import annotations

from meshbridge.analysis.known_values import Iota, is_splat, known
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import neutral
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.legalize.table import replaces


@replaces("stablehlo.reduce")
def split_arg_reductions(op: ir.Operation) -> tuple[ir.Value, ir.Value] | None:
    """Takes apart the reduction of (value, index) pairs that `jnp.argmax` and `jnp.argmin` write.

    Input:   %i = stablehlo.iota dim = 0 : tensor<64xi32>
             %0:2 = stablehlo.reduce(%x init: %lowest), (%i init: %zero) across dimensions = [0] {larger, or equal and earlier}
    Output:  %0 = stablehlo.reduce(%x init: %lowest) applies stablehlo.maximum across dimensions = [0]
             %m = x equal to %0, or NaN
             %1 = stablehlo.reduce(select %m, %i, %largest) applies stablehlo.minimum across dimensions = [0]

    The first NaN wins, as in the original; equal elements give the smallest index.
    """
    kind = _kind(op) if len(op.results) == 2 else ""
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
    values, indices, value_init, index_init = op.operands
    (dimension,) = integers(op.attributes["dimensions"])
    best = _reduce(values, value_init, dimension, kind)
    kept = [dim for dim in range(ir.RankedTensorType(values.type).rank) if dim != dimension]
    spread = stablehlo.broadcast_in_dim(values.type, best, ir.DenseI64ArrayAttr.get(kept))
    wins = stablehlo.compare(values, spread, stablehlo.ComparisonDirectionAttr.get("EQ"))
    not_a_number = stablehlo.compare(values, values, stablehlo.ComparisonDirectionAttr.get("NE"))
    last = neutral("min", ir.RankedTensorType(indices.type).element_type)
    candidates = stablehlo.select(stablehlo.or_(wins, not_a_number), indices, Builder.current().splat(indices.type, last))
    return best, _reduce(candidates, Builder.current().splat(index_init.type, last), dimension, "min")


def _reduce(value: ir.Value, init: ir.Value, dimension: int, kind: str) -> ir.Value:
    """`value` reduced over `dimension` by `max` or `min`."""
    tensor = ir.RankedTensorType(value.type)
    shape = [size for dim, size in enumerate(tensor.shape) if dim != dimension]
    result = ir.RankedTensorType.get(shape, tensor.element_type)
    reduce = stablehlo.ReduceOp([result], [value], [init], ir.DenseI64ArrayAttr.get([dimension]))
    block = reduce.operation.regions[0].blocks.append(init.type, init.type)
    with ir.InsertionPoint(block):
        combine = stablehlo.maximum if kind == "max" else stablehlo.minimum
        stablehlo.return_([combine(*block.arguments)])
    reduced: ir.Value = reduce.operation.results[0]
    return reduced
