"""How often a loop runs, where its text says so."""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.analysis.known_values import known_integer
from meshbridge.ir.mlir import ir


@dataclass(frozen=True)
class Counting:
    """A loop that counts one carried integer, of number `counter`, from `start` by `step` while it is less than `limit`."""

    counter: int
    start: int
    step: int
    limit: int

    @property
    def trips(self) -> int:
        """How often the loop runs."""
        return max(0, -(-(self.limit - self.start) // self.step))


def trip_count(op: ir.Operation) -> int | None:
    """How often a `stablehlo.while` runs if it counts one carried integer up by a constant to a constant, as lax.scan does.

    Annotations between the operations make no difference.
    """
    found = counting(op)
    return None if found is None else found.trips


def counting(op: ir.Operation) -> Counting | None:
    """How such a loop counts; None for others."""
    condition, body = (region.blocks[0] for region in op.regions)
    tested = _unmarked(_returned(condition)[0])
    compare = None if isinstance(tested.owner, ir.Block) else tested.owner.operation
    if compare is None or compare.name != "stablehlo.compare" or "LT" not in str(compare.attributes["comparison_direction"]):
        return None
    counter, limit = _unmarked(compare.operands[0]), known_integer(compare.operands[1])
    number = next((i for i, arg in enumerate(condition.arguments) if arg == counter), None)
    if number is None or limit is None:
        return None
    start, step = known_integer(op.operands[number]), _step(body, number)
    return Counting(number, start, step, limit) if start is not None and step else None


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
