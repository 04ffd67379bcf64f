"""Finds blocks of scores that a mask hides entirely, by interval arithmetic on the compared positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np

from meshbridge.analysis.known_values import Splat, known
from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.builder import op_of, shape_of
from meshbridge.ir.mlir import comparison_direction, ir
from meshbridge.ir.uses import is_argument, look_through
from meshbridge.ops.dimensions import BROADCAST, operand_dims
from meshbridge.ops.einsum import DOT
from meshbridge.ops.traits import Trait, has, ops_with

Numbers = Any
"""Broadcastable arrays of integers."""

_IOTA = "stablehlo.iota"
_SELECT = "stablehlo.select"
_CONVERT = "stablehlo.convert"
_MASKED = ops_with(Trait.SHAPING) | {_CONVERT, _SELECT}
"""Operations between a mask and the masked scores."""

_HIDDEN = -1e9
"""A score that is replaced by this has no weight beside another one: exp(-1e9 - x) is 0 for a product x."""


@dataclass(frozen=True)
class Range:
    """The minimum and maximum of a value within each block."""

    low: Numbers
    high: Numbers

    @staticmethod
    def of(number: Numbers) -> Range:
        """The range of known values."""
        return Range(number, number)


_ANY = Range(np.int64(0), np.int64(1))
"""The range of an unknown mask."""


def _products(a: Range, b: Range) -> Range:
    products = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = products[0], products[0]
    for product in products[1:]:
        low, high = np.minimum(low, product), np.maximum(high, product)
    return Range(low, high)


def _selected(condition: Range, a: Range, b: Range) -> Range:
    surely, never = condition.low == 1, condition.high == 0
    low = np.where(surely, a.low, np.where(never, b.low, np.minimum(a.low, b.low)))
    high = np.where(surely, a.high, np.where(never, b.high, np.maximum(a.high, b.high)))
    return Range(low, high)


def _holds(surely: Numbers, perhaps: Numbers) -> Range:
    return Range(np.asarray(surely).astype(np.int64), np.asarray(perhaps).astype(np.int64))


_COMPUTED: dict[str, Callable[..., Range]] = {
    "stablehlo.add": lambda a, b: Range(a.low + b.low, a.high + b.high),
    "stablehlo.subtract": lambda a, b: Range(a.low - b.high, a.high - b.low),
    "stablehlo.multiply": _products,
    "stablehlo.maximum": lambda a, b: Range(np.maximum(a.low, b.low), np.maximum(a.high, b.high)),
    "stablehlo.minimum": lambda a, b: Range(np.minimum(a.low, b.low), np.minimum(a.high, b.high)),
    "stablehlo.negate": lambda a: Range(-a.high, -a.low),
    "stablehlo.convert": lambda a: a,
    "stablehlo.select": _selected,
}
_OF_MASKS: dict[str, Callable[..., Range]] = {
    "stablehlo.and": lambda a, b: Range(np.minimum(a.low, b.low), np.minimum(a.high, b.high)),
    "stablehlo.or": lambda a, b: Range(np.maximum(a.low, b.low), np.maximum(a.high, b.high)),
    "stablehlo.not": lambda a: Range(1 - a.high, 1 - a.low),
}
_COMPARED: dict[str, Callable[[Range, Range], Range]] = {
    "LT": lambda a, b: _holds(a.high < b.low, a.low < b.high),
    "LE": lambda a, b: _holds(a.high <= b.low, a.low <= b.high),
    "GT": lambda a, b: _holds(a.low > b.high, a.high > b.low),
    "GE": lambda a, b: _holds(a.low >= b.high, a.high >= b.low),
}


@dataclass(frozen=True)
class BlockPositions:
    """The positions of devices along a mesh axis, of queries and of keys, block by block."""

    axis: int
    device: Numbers
    row: Range
    "Queries of the device."
    column: Range
    "Keys, globally."

    def of(self, value: ir.Value, row: int | None, column: int | None) -> Range | None:
        """The range of `value`, whose dimension `row` is queries and `column` keys, if given; None if unknown."""
        element = ir.RankedTensorType(value.type).element_type
        if not isinstance(element, ir.IntegerType):
            return None
        numbers = self._computed(value, row, column)
        if element.width == 1:
            return numbers or _ANY
        return numbers if numbers is not None and _fits(numbers, element) else None

    def _computed(self, value: ir.Value, row: int | None, column: int | None) -> Range | None:
        if is_argument(value):
            return None
        op = op_of(value)
        if isinstance(number := known(value), Splat):
            return Range.of(np.int64(int(number.number))) if isinstance(number.number, int | bool) else None
        if op.name == _IOTA:
            dim = ir.IntegerAttr(op.attributes["iota_dimension"]).value
            whole = Range(np.int64(0), np.int64(shape_of(value)[dim] - 1))
            return {row: self.row, column: self.column}.get(dim, whole)
        if op.name == AllSliceOp.OPERATION_NAME:
            return self._of_slice(op, row, column)
        along = [_along(op, dim) for dim in (row, column)]
        if any(dims is None for dims in along):
            return None
        return self._of_operands(op, *(dims or () for dims in along))

    def _of_slice(self, op: ir.Operation, row: int | None, column: int | None) -> Range | None:
        """The range of a device's slice along the mesh axis."""
        view = AllSliceOp(op)
        dim = view.slice_axis
        if list(view.mesh_axes) != [self.axis] or dim == column or row not in (None, dim):
            return None
        size = shape_of(op.results[0])[dim]
        inside = self.row if row == dim else Range(np.int64(0), np.int64(size - 1))
        among = Range(size * self.device + inside.low, size * self.device + inside.high)
        return replace(self, row=among).of(op.operands[0], dim, column)

    def _of_operands(self, op: ir.Operation, rows: tuple[int | None, ...], columns: tuple[int | None, ...]) -> Range | None:
        mask = ir.RankedTensorType(op.results[0].type).element_type == ir.IntegerType.get_signless(1)
        if op.name == "stablehlo.compare":
            compute: Callable[..., Range] | None = _COMPARED.get(comparison_direction(op))
        elif has(op.name, Trait.SHAPING):
            compute = _COMPUTED[_CONVERT]
        else:
            compute = _OF_MASKS.get(op.name) if mask and op.name != _SELECT else _COMPUTED.get(op.name)
        if compute is None:
            return None
        ranges = [self.of(*entry) for entry in zip(op.operands, rows, columns, strict=True)]
        return None if any(entry is None for entry in ranges) else compute(*ranges)


def _along(op: ir.Operation, dim: int | None) -> tuple[int | None, ...] | None:
    return (None,) * len(op.operands) if dim is None else operand_dims(op, dim)


def _fits(numbers: Range, element: ir.IntegerType) -> bool:
    """True if numbers fit into a type, so that none has wrapped around."""
    low, high = (0, element.width) if element.is_unsigned else (-(1 << element.width - 1), element.width - 1)
    return bool(np.min(numbers.low) >= low and np.max(numbers.high) < 1 << high)


@dataclass(frozen=True)
class _ScoreMask:
    """Scores that a number replaces under a condition."""

    condition: ir.Value
    row: int | None
    column: int | None
    keeps: bool
    "True if scores that fulfil the condition are kept, False if the others are."
    number: float


def hides_later_keys(scores: ir.Value, row: int, column: int, axis: int, count: int, *, own: bool) -> bool:
    """True if no half of a device's queries sees a key of a later half. Dimension `row` of scores has the queries of one of
    `count` devices along a mesh axis, and `column` has all keys.

    With `own`, every query must also see its own key. A hidden score has no weight: it is -inf, or negligible beside the score of
    the query's own key; the latter cannot be shown if scores contain sums other than products.
    """
    links = list(_masks(scores, row, column))
    masks, (unmasked, *_) = (
        [mask for mask in links if isinstance(mask, _ScoreMask)],
        [mask for mask in links if isinstance(mask, ir.Value)],
    )
    size = shape_of(scores)[row] // 2
    half = np.arange(2 * count)
    first_rows, numbers = size * (half % 2)[:, None], size * half[None]
    blocks = BlockPositions(
        axis, (half // 2)[:, None], Range(first_rows, first_rows + size - 1), Range(numbers, numbers + size - 1)
    )
    hidden = np.zeros((2 * count, 2 * count), bool)
    for mask in masks:
        values = blocks.of(mask.condition, mask.row, mask.column) or _ANY
        hidden |= np.broadcast_to(values.high == 0 if mask.keeps else values.low == 1, hidden.shape)
    if not hidden[np.triu_indices(2 * count, 1)].all():
        return False
    infinite = all(mask.number == -inf for mask in masks)
    if infinite and not own:
        return True
    key = np.arange(2 * size * count)
    alike = BlockPositions(axis, key // (2 * size), Range.of(key % (2 * size)), Range.of(key))
    sees_own = all(_keeps_all(alike.of(mask.condition, mask.row, mask.column) or _ANY, mask) for mask in masks)
    return sees_own and (infinite or _is_of_products(unmasked))


def _keeps_all(values: Range, mask: _ScoreMask) -> bool:
    return bool(np.all(values.low == 1) if mask.keeps else np.all(values.high == 0))


def _masks(scores: ir.Value, row: int | None, column: int | None) -> Iterator[_ScoreMask | ir.Value]:
    """The masks of scores, then the masked value."""
    value = scores
    while not is_argument(value):
        op = op_of(value)
        along = [_along(op, dim) for dim in (row, column)]
        if any(dims is None for dims in along) or op.name not in _MASKED:
            break
        rows, columns = (dims or () for dims in along)
        side = 0
        if op.name == _SELECT:
            fills = [_number(operand) for operand in op.operands[1:]]
            side = next((2 - at for at, fill in enumerate(fills) if fill <= _HIDDEN), 0)
            if not side:
                break
            yield _ScoreMask(op.operands[0], rows[0], columns[0], side == 1, fills[2 - side])
        value, row, column = op.operands[side], rows[side], columns[side]
    yield value


def _number(value: ir.Value) -> float:
    """The number that all elements are, perhaps converted; infinite if unknown."""
    value = look_through(value, (_CONVERT, BROADCAST))
    constant = known(value)
    return float(constant.number) if isinstance(constant, Splat) and isinstance(constant.number, int | float) else inf


def _is_of_products(value: ir.Value) -> bool:
    """True if `value` is computed from products and constants without further sums."""
    if is_argument(value):
        return False
    op = op_of(value)
    if op.name == DOT:
        return True
    if op.name not in ops_with(Trait.SHAPING, Trait.ZERO_PRESERVING):
        return False
    return all(isinstance(known(operand), Splat) or _is_of_products(operand) for operand in op.operands)
