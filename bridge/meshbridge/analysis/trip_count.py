"""Trip counts of loops whose text determines them."""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.analysis.counters import MIRRORED, Counter
from meshbridge.analysis.known_values import integer_bounds, known_integer
from meshbridge.ir.mlir import comparison_direction, ir
from meshbridge.ir.uses import defining_op, look_through


@dataclass(frozen=True)
class CountedLoop:
    """A loop with a carried integer of number `counter`, which it compares with the limit: operand `limit_operand` of the
    comparison that its condition returns."""

    counter: int
    limit_operand: int
    values: Counter
    trip_count: int
    """The trip count."""


def trip_count(op: ir.Operation) -> int | None:
    """The trip count of a `stablehlo.while` that adds a constant to a carried integer and compares that with a constant, like
    lax.scan's. Annotations between the operations are ignored."""
    loop = counted_loop(op)
    return None if loop is None else loop.trip_count


def counted_loop(op: ir.Operation) -> CountedLoop | None:
    """The counter of such a loop; None for other loops, and for those that never end."""
    condition, body = (region.blocks[0] for region in op.regions)
    compare = _definition(_returned(condition)[0])
    if compare is None or compare.name != "stablehlo.compare":
        return None
    direction = comparison_direction(compare)
    for counter, limit, holds in ((0, 1, direction), (1, 0, MIRRORED[direction])):
        number = _number(condition, _unmarked(compare.operands[counter]))
        end = known_integer(compare.operands[limit])
        if number is not None and end is not None:
            return _counted(op, body, number, limit, holds, end)
    return None


def _counted(op: ir.Operation, body: ir.Block, number: int, limit_operand: int, direction: str, limit: int) -> CountedLoop | None:
    bounds = integer_bounds(ir.RankedTensorType(body.arguments[number].type).element_type)
    start, step = known_integer(op.operands[number]), _step(body, number)
    if bounds is None or start is None or step is None:
        return None
    values = Counter(direction, start, step, limit, *bounds)
    return None if values.trip_count is None else CountedLoop(number, limit_operand, values, values.trip_count)


def _number(block: ir.Block, value: ir.Value) -> int | None:
    """The number of the argument of `block` that is `value`."""
    return next((number for number, argument in enumerate(block.arguments) if argument == value), None)


def _returned(block: ir.Block) -> list[ir.Value]:
    return list(block.operations[len(block.operations) - 1].operation.operands)


def _step(body: ir.Block, index: int) -> int | None:
    """The increment of the carried value of that number in the body."""
    change = _definition(_returned(body)[index])
    if change is None or change.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    operand, increment = change.operands
    if change.name == "stablehlo.add" and _unmarked(increment) == body.arguments[index]:
        operand, increment = increment, operand
    step = known_integer(increment) if _unmarked(operand) == body.arguments[index] else None
    return -step if step is not None and change.name == "stablehlo.subtract" else step


def _definition(value: ir.Value) -> ir.Operation | None:
    """The operation that defines `value`, before annotations; None for an argument."""
    return defining_op(_unmarked(value))


def _unmarked(value: ir.Value) -> ir.Value:
    """`value` without the annotations of its definition and its use."""
    return look_through(value, ("mesh.shard",))
