"""How often a loop runs, where its text says so."""

from __future__ import annotations

from meshbridge.ir.mlir import ir


def trip_count(op: ir.Operation) -> int | None:
    """How often a `stablehlo.while` runs if it counts one carried integer up by a constant to a constant, as lax.scan does.

    Annotations between the operations make no difference.
    """
    condition, body = (region.blocks[0] for region in op.regions)
    compared = [inner.operation for inner in condition.operations]
    constants = _integer_constants(compared)
    result = _unmarked(compared[-1].operands[0])
    compare = next((inner for inner in compared if inner.name == "stablehlo.compare" and inner.results[0] == result), None)
    if compare is None or "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counted = _unmarked(compare.operands[0])
    counter = next((i for i, arg in enumerate(condition.arguments) if arg == counted), None)
    limit = _constant(compare.operands[1], constants)
    if counter is None or limit is None:
        return None
    start = _constant(op.operands[counter], {})
    inner_ops = [inner.operation for inner in body.operations]
    step = _step(inner_ops, body.arguments[counter], counter)
    return max(0, -(-(limit - start) // step)) if start is not None and step else None


def _step(body: list[ir.Operation], counter: ir.Value, index: int) -> int | None:
    constants = _integer_constants(body)
    yielded = _unmarked(body[-1].operands[index])
    for inner in body:
        if inner.name == "stablehlo.add" and inner.results[0] == yielded and _unmarked(inner.operands[0]) == counter:
            return _constant(inner.operands[1], constants)
    return None


def _integer_constants(ops: list[ir.Operation]) -> dict[ir.Value, int]:
    return {op.results[0]: value for op in ops if (value := _scalar(op)) is not None}


def _scalar(op: ir.Operation) -> int | None:
    if op.name != "stablehlo.constant":
        return None
    value = op.attributes["value"]
    if not isinstance(value, ir.DenseIntElementsAttr) or not value.is_splat or ir.RankedTensorType(value.type).rank:
        return None
    return int(ir.IntegerAttr(value.get_splat_value()).value)


def _constant(value: ir.Value, known: dict[ir.Value, int]) -> int | None:
    if value in known:
        return known[value]
    owner = _unmarked(value).owner
    return _scalar(owner.operation) if not isinstance(owner, ir.Block) else None


def _unmarked(value: ir.Value) -> ir.Value:
    """`value` without the annotations of its definition and its use."""
    while not isinstance(owner := value.owner, ir.Block) and owner.operation.name == "mesh.shard":
        value = owner.operation.operands[0]
    return value
