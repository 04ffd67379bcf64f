"""How often a loop runs, where its text says so."""

from __future__ import annotations

from meshbridge.analysis.known_values import known_integer
from meshbridge.ir.mlir import ir


def trip_count(op: ir.Operation) -> int | None:
    """How often a `stablehlo.while` runs if it counts one carried integer up by a constant to a constant, as lax.scan does.

    Annotations between the operations make no difference.
    """
    condition, body = (region.blocks[0] for region in op.regions)
    tested = _unmarked(_returned(condition)[0])
    compare = None if isinstance(tested.owner, ir.Block) else tested.owner.operation
    if compare is None or compare.name != "stablehlo.compare" or "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counted, limit = _unmarked(compare.operands[0]), known_integer(compare.operands[1])
    counter = next((i for i, arg in enumerate(condition.arguments) if arg == counted), None)
    if counter is None or limit is None:
        return None
    start, step = known_integer(op.operands[counter]), _step(body, counter)
    return max(0, -(-(limit - start) // step)) if start is not None and step else None


def _returned(block: ir.Block) -> list[ir.Value]:
    return list(block.operations[len(block.operations) - 1].operation.operands)


def _step(body: ir.Block, index: int) -> int | None:
    """What the body adds to the carried value of that number."""
    yielded = _unmarked(_returned(body)[index])
    made = None if isinstance(yielded.owner, ir.Block) else yielded.owner.operation
    if made is None or made.name != "stablehlo.add" or _unmarked(made.operands[0]) != body.arguments[index]:
        return None
    return known_integer(made.operands[1])


def _unmarked(value: ir.Value) -> ir.Value:
    """`value` without the annotations of its definition and its use."""
    while not isinstance(owner := value.owner, ir.Block) and owner.operation.name == "mesh.shard":
        value = owner.operation.operands[0]
    return value
