"""Which blocks of scores a mask hides entirely: interval arithmetic on the positions that the mask compares."""

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
"""Arrays of integers, which broadcast against one another."""

_IOTA = "stablehlo.iota"
_SELECT = "stablehlo.select"
_CONVERT = "stablehlo.convert"
_MASKED = ops_with(Trait.SHAPING) | {_CONVERT, _SELECT}
"""What stands between scores and what is masked of them."""

_HIDDEN = -1e9
"""A score that is replaced by so little has no weight beside one that is not: exp(-1e9 - x) is 0 where x is a product."""


@dataclass(frozen=True)
class Range:
    """The least and the largest that a value is within each block."""

    low: Numbers
    high: Numbers

    @staticmethod
    def of(number: Numbers) -> Range:
        """Of values that are known."""
        return Range(number, number)


_ANY = Range(np.int64(0), np.int64(1))
"""Of a mask of which nothing is known."""


def _products(a: Range, b: Range) -> Range:
    found = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    low, high = found[0], found[0]
    for each in found[1:]:
        low, high = np.minimum(low, each), np.maximum(high, each)
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
    """What devices along an axis of the mesh, queries and keys have as numbers, block by block."""

    axis: int
    device: Numbers
    row: Range
    "Of queries, among those of the device."
    column: Range
    "Of keys, among all."

    def of(self, value: ir.Value, row: int | None, column: int | None) -> Range | None:
        """`value`, of which dimension `row` runs over queries and `column` over keys, if any do; None where nothing is known."""
        element = ir.RankedTensorType(value.type).element_type
        if not isinstance(element, ir.IntegerType):
            return None
        found = self._computed(value, row, column)
        if element.width == 1:
            return found or _ANY
        return found if found is not None and _fits(found, element) else None

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
        if any(each is None for each in along):
            return None
        return self._of_operands(op, *(each or () for each in along))

    def _of_slice(self, op: ir.Operation, row: int | None, column: int | None) -> Range | None:
        """Of a device's piece, along the axis of the mesh, of what all devices have."""
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
        found = [self.of(*each) for each in zip(op.operands, rows, columns, strict=True)]
        return None if any(each is None for each in found) else compute(*found)


def _along(op: ir.Operation, dim: int | None) -> tuple[int | None, ...] | None:
    return (None,) * len(op.operands) if dim is None else operand_dims(op, dim)


def _fits(found: Range, element: ir.IntegerType) -> bool:
    """Whether numbers are of a type, so that none of them has wrapped around."""
    low, high = (0, element.width) if element.is_unsigned else (-(1 << element.width - 1), element.width - 1)
    return bool(np.min(found.low) >= low and np.max(found.high) < 1 << high)


@dataclass(frozen=True)
class _ScoreMask:
    """Scores that are replaced by a number."""

    condition: ir.Value
    row: int | None
    column: int | None
    keeps: bool
    "Whether what fulfils the condition is kept; else the rest."
    number: float


def hides_later_keys(scores: ir.Value, row: int, column: int, axis: int, count: int, *, own: bool) -> bool:
    """Whether no half of a device's queries sees a key of a later half. Dimension `row` of scores runs over the queries of one of
    `count` devices along an axis of the mesh, and `column` over all keys.

    With `own`, whether every query sees its own key, too. What is hidden has no weight: it is -inf, or so little that a score
    beside it, which every query has of its own key, is infinitely more; where something but products is added up in scores, that
    cannot be told.
    """
    found = list(_masks(scores, row, column))
    masks, (kept, *_) = (
        [each for each in found if isinstance(each, _ScoreMask)],
        [each for each in found if isinstance(each, ir.Value)],
    )
    size = shape_of(scores)[row] // 2
    half = np.arange(2 * count)
    first, numbers = size * (half % 2)[:, None], size * half[None]
    blocks = BlockPositions(axis, (half // 2)[:, None], Range(first, first + size - 1), Range(numbers, numbers + size - 1))
    hidden = np.zeros((2 * count, 2 * count), bool)
    for each in masks:
        held = blocks.of(each.condition, each.row, each.column) or _ANY
        hidden |= np.broadcast_to(held.high == 0 if each.keeps else held.low == 1, hidden.shape)
    if not hidden[np.triu_indices(2 * count, 1)].all():
        return False
    infinite = all(each.number == -inf for each in masks)
    if infinite and not own:
        return True
    key = np.arange(2 * size * count)
    alike = BlockPositions(axis, key // (2 * size), Range.of(key % (2 * size)), Range.of(key))
    seen = all(_keeps_all(alike.of(each.condition, each.row, each.column) or _ANY, each) for each in masks)
    return seen and (infinite or _is_of_products(kept))


def _keeps_all(held: Range, mask: _ScoreMask) -> bool:
    return bool(np.all(held.low == 1) if mask.keeps else np.all(held.high == 0))


def _masks(scores: ir.Value, row: int | None, column: int | None) -> Iterator[_ScoreMask | ir.Value]:
    """The masks of scores, and what is masked."""
    value = scores
    while not is_argument(value):
        op = op_of(value)
        along = [_along(op, dim) for dim in (row, column)]
        if any(each is None for each in along) or op.name not in _MASKED:
            break
        rows, columns = (each or () for each in along)
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
    """The number that every element is, perhaps one that is converted; infinite where nothing says so."""
    value = look_through(value, (_CONVERT, BROADCAST))
    found = known(value)
    return float(found.number) if isinstance(found, Splat) and isinstance(found.number, int | float) else inf


def _is_of_products(value: ir.Value) -> bool:
    """Whether `value` is computed of products and numbers alone, by what adds nothing up."""
    if is_argument(value):
        return False
    op = op_of(value)
    if op.name == DOT:
        return True
    if op.name not in ops_with(Trait.SHAPING, Trait.ZERO_PRESERVING):
        return False
    return all(isinstance(known(operand), Splat) or _is_of_products(operand) for operand in op.operands)
