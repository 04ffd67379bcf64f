"""How often a loop runs, where its text says so."""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.analysis.counters import MIRRORED, Counter
from meshbridge.analysis.known_values import integer_bounds, known_integer
from meshbridge.ir.mlir import comparison_direction, ir
from meshbridge.ir.uses import defining_op, look_through


@dataclass(frozen=True)
class Counting:
    """A loop that counts one carried integer, of number `counter`, and compares it with the limit: operand `limit_operand` of the
    comparison that its condition returns."""

    counter: int
    limit_operand: int
    values: Counter
    trips: int
    """How often the loop runs."""


def trip_count(op: ir.Operation) -> int | None:
    """How often a `stablehlo.while` runs if it adds a constant to one carried integer and compares that with a constant, as
    lax.scan does.

    Annotations between the operations make no difference.
    """
    found = counting(op)
    return None if found is None else found.trips


def counting(op: ir.Operation) -> Counting | None:
    """How such a loop counts; None for others, and for those that never end."""
    condition, body = (region.blocks[0] for region in op.regions)
    compare = _definition(_returned(condition)[0])
    if compare is None or compare.name != "stablehlo.compare":
        return None
    direction = comparison_direction(compare)
    for counter, limit, holds in ((0, 1, direction), (1, 0, MIRRORED[direction])):
        number = _number(condition, _unmarked(compare.operands[counter]))
        end = known_integer(compare.operands[limit])
        if number is not None and end is not None:
            return _counting(op, body, number, limit, holds, end)
    return None


def _counting(op: ir.Operation, body: ir.Block, number: int, limit_operand: int, direction: str, limit: int) -> Counting | None:
    bounds = integer_bounds(ir.RankedTensorType(body.arguments[number].type).element_type)
    start, step = known_integer(op.operands[number]), _step(body, number)
    if bounds is None or start is None or step is None:
        return None
    values = Counter(direction, start, step, limit, *bounds)
    return None if values.trips is None else Counting(number, limit_operand, values, values.trips)


def _number(block: ir.Block, value: ir.Value) -> int | None:
    """Which argument of `block` a value is."""
    return next((number for number, argument in enumerate(block.arguments) if argument == value), None)


def _returned(block: ir.Block) -> list[ir.Value]:
    return list(block.operations[len(block.operations) - 1].operation.operands)


def _step(body: ir.Block, index: int) -> int | None:
    """What the body adds to the carried value of that number."""
    change = _definition(_returned(body)[index])
    if change is None or change.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = change.operands
    if change.name == "stablehlo.add" and _unmarked(right) == body.arguments[index]:
        left, right = right, left
    step = known_integer(right) if _unmarked(left) == body.arguments[index] else None
    return -step if step is not None and change.name == "stablehlo.subtract" else step


def _definition(value: ir.Value) -> ir.Operation | None:
    """The operation that defines `value`, behind annotations; None for an argument."""
    return defining_op(_unmarked(value))


def _unmarked(value: ir.Value) -> ir.Value:
    """`value` without the annotations of its definition and its use."""
    return look_through(value, ("mesh.shard",))
