"""Which rows the trips of a loop write, where its text says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshbridge.analysis.known_values import known_integer
from meshbridge.analysis.trip_count import counting
from meshbridge.ir.builder import op_of
from meshbridge.ir.mlir import comparison_direction, ir
from meshbridge.ir.uses import is_argument

_COMPUTED: dict[str, Callable[..., Any]] = {
    "stablehlo.add": np.add,
    "stablehlo.subtract": np.subtract,
    "stablehlo.multiply": np.multiply,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.select": np.where,
    "stablehlo.convert": np.asarray,
}
_COMPARED: dict[str, Callable[..., Any]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}


def row_numbers(loop: ir.Operation, index: ir.Value, most: int) -> list[int] | None:
    """What `index`, a scalar integer of the body of `loop`, is in each trip, where it is computed of the counter alone; None
    elsewhere, and for a loop that runs more than `most` times or not at all."""
    counted = counting(loop)
    if counted is None or not 0 < counted.trips <= most:
        return None
    counter, values = loop.regions[1].blocks[0].arguments[counted.counter], counted.values
    numbers = [values.wrapped(values.start + values.step * trip) for trip in range(counted.trips)]
    if max(numbers) >= 1 << 63:  # numpy computes of such and of signed integers in floats
        return None
    found = _Numbers({counter: np.array(numbers)}).of(index)
    return None if found is None else [int(number) for number in np.broadcast_to(found, counted.trips)]


class _Numbers(dict[ir.Value, Any]):
    """Values of a body by what they are in each trip; None for what is not known, or has more bits than its type."""

    def of(self, value: ir.Value) -> Any:
        if value not in self:
            self[value] = self._computed(value)
        return self[value]

    def _computed(self, value: ir.Value) -> Any:
        if (number := known_integer(value)) is not None:
            return np.int64(number)
        if is_argument(value):
            return None
        op = op_of(value)
        compute = _COMPARED.get(comparison_direction(op)) if op.name == "stablehlo.compare" else _COMPUTED.get(op.name)
        operands = [self.of(operand) for operand in op.operands] if compute is not None else [None]
        if compute is None or any(operand is None for operand in operands):
            return None
        found = compute(*operands)
        return found if _fits(found, ir.RankedTensorType(value.type).element_type) else None


def _fits(numbers: Any, element: ir.Type) -> bool:
    """Whether integers are of a type, to which bits belong as they are."""
    if not isinstance(element, ir.IntegerType):
        return False
    if element.width == 1:
        return True
    low, high = (0, element.width) if element.is_unsigned else (-(1 << element.width - 1), element.width - 1)
    return bool(np.min(numbers) >= low and np.max(numbers) < 1 << high)
