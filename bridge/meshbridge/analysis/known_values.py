"""Values that the program's text determines for all arguments: one number, an iota along a dimension, a short table.

    known(%0)  %0 = stablehlo.constant dense<2.0> : tensor<8xf32>               Splat(2.0 : f32)
    known(%1)  %1 = stablehlo.broadcast_in_dim (iota : tensor<8xi32>), dims [1]  Iota(dim=1, start=0, step=1)
    known(%2)  %2 = stablehlo.concatenate of the constants 1 and 3              Constant([1, 3])
    known(%3)  %3 = an argument                                                 None

A shard of a splat is a splat; other knowledge about a tensor does not hold for its shards.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meshbridge.dialect.attributes import integers
from meshbridge.ir.mlir import COMPARISONS, comparison_direction, ir
from meshbridge.ir.registry import Registry
from meshbridge.ir.uses import LOOK_THROUGH, defining_op


@dataclass(frozen=True)
class Splat:
    """A tensor whose elements all are this attribute: an integer, a float or a bool."""

    element: ir.Attribute

    @property
    def number(self) -> float | int | bool:
        """The element as a Python number."""
        value: float | int | bool = self.element.value  # type: ignore[attr-defined]
        return value


@dataclass(frozen=True)
class Iota:
    """A tensor whose element at position i of dimension `dim` is the integer `start + step*i`."""

    dim: int
    start: int = 0
    step: int = 1


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor of these integers."""

    elements: np.ndarray[Any, Any]


KnownValue = Splat | Iota | Constant | None
"""None if nothing is known."""

_LARGEST = 2**10
"""The most elements of a Constant computed from others: index vectors are shorter."""


def known(value: ir.Value) -> KnownValue:
    """The statically known value of a tensor."""
    return _Walk().known(value, LOOK_THROUGH)


def is_splat(value: ir.Value, number: float) -> bool:
    """Whether all elements of `value` are `number`."""
    static = known(value)
    return isinstance(static, Splat) and static.number == number


def known_integer(value: ir.Value) -> int | None:
    """The value of a known scalar integer, or i1."""
    if ir.RankedTensorType(value.type).rank:
        return None
    static = known(value)
    return int(static.number) if isinstance(static, Splat) and isinstance(static.number, int) else None


def known_integers(value: ir.Value) -> list[int] | None:
    """The elements of a known short list of integers, or of a scalar integer, in order."""
    elements = _elements(known(value), _shape(value)) if len(_shape(value)) <= 1 else None
    return None if elements is None else [int(element) for element in elements.reshape(-1)]


def branch(op: ir.Operation) -> int | None:
    """The branch that a `case` or `if` takes, if its index is known. A `case` takes its last branch for an index out of range."""
    index = known_integer(op.operands[0])
    if index is None:
        return None
    if op.name == "stablehlo.if":
        return 0 if index else 1
    return index if 0 <= index < len(op.regions) else len(op.regions) - 1


class _Walk:
    """One query, which visits each value once."""

    def __init__(self) -> None:
        self._seen: dict[ir.Value, KnownValue] = {}

    def known(self, value: ir.Value, depth: int) -> KnownValue:
        op = defining_op(value)
        if op is None or depth == 0 or not isinstance(value.type, ir.RankedTensorType):
            return None
        rule = _RULES.get(op.name)
        if rule is None:
            return None
        if value not in self._seen:
            self._seen[value] = rule(op, value, lambda operand: self.known(operand, depth - 1))
        return self._seen[value]


_Look = Callable[[ir.Value], KnownValue]

_RULES: Registry[str, Callable[[ir.Operation, ir.Value, _Look], KnownValue]] = Registry("known value")
"""By op, the rule for its result."""


@_RULES.register("stablehlo.constant", "arith.constant")
def _literal(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """Integers that count along one dimension are an iota."""
    literal = op.attributes["value"]
    if not isinstance(literal, ir.DenseElementsAttr) or isinstance(_element(value), ir.ComplexType):
        return None
    if literal.is_splat:
        return Splat(literal.get_splat_value())
    if not isinstance(literal, ir.DenseIntElementsAttr) or _element(value).width < 8 or not integer_bounds(_element(value)):
        return None
    elements = np.array(literal)
    if elements.ndim == 1 and len(elements) > 1:
        start, step = int(elements[0]), int(elements[1]) - int(elements[0])
        if np.array_equal(elements, start + step * np.arange(len(elements))):
            return Iota(0, start, step)
    return Constant(elements) if elements.size <= _LARGEST else None


@_RULES.register("stablehlo.iota")
def _iota(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """An iota, if its numbers fit the type."""
    return _fitting(Iota(ir.IntegerAttr(op.attributes["iota_dimension"]).value), value)


@_RULES.register("stablehlo.convert")
def _convert(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """Integers of another width, if they fit."""
    operand, element = look(op.operands[0]), _element(value)
    if isinstance(operand, Splat):
        return _splat(operand.number, value)
    if operand is None or not integer_bounds(element) or not integer_bounds(_element(op.operands[0])):
        return None
    return _fitting(operand, value)


@_RULES.register("stablehlo.reshape")
def _reshape(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """An iota keeps its dimension if only dimensions of size 1 change."""
    operand = look(op.operands[0])
    if isinstance(operand, Constant):
        return Constant(operand.elements.reshape(_shape(value)))
    if not isinstance(operand, Iota):
        return operand
    before, after = _shape(op.operands[0]), _shape(value)
    larger = [[dim for dim, size in enumerate(shape) if size != 1] for shape in (before, after)]
    if operand.dim not in larger[0] or [before[dim] for dim in larger[0]] != [after[dim] for dim in larger[1]]:
        return None
    return Iota(larger[1][larger[0].index(operand.dim)], operand.start, operand.step)


@_RULES.register("stablehlo.broadcast_in_dim")
def _broadcast(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """An iota counts along the same dimension, unless it is repeated along it."""
    operand, dims = look(op.operands[0]), integers(op.attributes["broadcast_dimensions"])
    if isinstance(operand, Iota):
        counts = _shape(op.operands[0])[operand.dim] == _shape(value)[dims[operand.dim]]
        return Iota(dims[operand.dim], operand.start, operand.step) if counts else None
    return operand if isinstance(operand, Splat) else None


@_RULES.register("stablehlo.slice")
def _slice(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """A slice of an iota has another start and step."""
    operand, names = look(op.operands[0]), ("start_indices", "limit_indices", "strides")
    cuts = [slice(*ends) for ends in zip(*(integers(op.attributes[name]) for name in names), strict=True)]
    if isinstance(operand, Iota):
        start, step = cuts[operand.dim].start, cuts[operand.dim].step
        return Iota(operand.dim, operand.start + operand.step * start, operand.step * step)
    return Constant(operand.elements[tuple(cuts)]) if isinstance(operand, Constant) else operand


@_RULES.register("stablehlo.concatenate")
def _concatenate(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """One number, or a table of the numbers of all parts."""
    parts = [look(operand) for operand in op.operands]
    if isinstance(parts[0], Splat) and all(part == parts[0] for part in parts):
        return parts[0]
    if prod(_shape(value)) > _LARGEST:
        return None
    tables = [_elements(part, _shape(operand)) for part, operand in zip(parts, op.operands, strict=True)]
    known_tables = [table for table in tables if table is not None]
    along = ir.IntegerAttr(op.attributes["dimension"]).value
    return Constant(np.concatenate(known_tables, along)) if len(known_tables) == len(tables) else None


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "stablehlo.add": operator.add,
    "stablehlo.subtract": operator.sub,
    "stablehlo.multiply": operator.mul,
}


@_RULES.register(*_ARITHMETIC)
def _arithmetic(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """Integers without overflow: of two splats, or of an iota and a splat."""
    if not integer_bounds(_element(value)) or (lhs := look(op.operands[0])) is None or (rhs := look(op.operands[1])) is None:
        return None
    combine = _ARITHMETIC[op.name]
    if isinstance(lhs, Splat) and isinstance(rhs, Splat):
        return _splat(combine(int(lhs.number), int(rhs.number)), value)
    iota, splat = (lhs, rhs) if isinstance(lhs, Iota) else (rhs, lhs)
    if not isinstance(iota, Iota) or not isinstance(splat, Splat):
        return None
    number = int(splat.number)
    start, second = ((combine(n, number) if iota is lhs else combine(number, n)) for n in (iota.start, iota.start + iota.step))
    return _fitting(Iota(iota.dim, start, second - start), value)


@_RULES.register("stablehlo.compare")
def _compare(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """A comparison with the same answer for all elements: an iota is never less than 0."""
    lhs, rhs = (_range(look(operand), operand) for operand in op.operands)
    direction = comparison_direction(op)
    if lhs is None or rhs is None or direction in ("EQ", "NE"):
        return None
    answers = {COMPARISONS[direction](smaller, larger) for smaller in lhs for larger in rhs}
    return _splat(answers.pop(), value) if len(answers) == 1 else None


@_RULES.register("stablehlo.select")
def _select(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """The selected operand, if all elements are selected alike."""
    which = look(op.operands[0])
    return look(op.operands[1 if which.number else 2]) if isinstance(which, Splat) else None


@_RULES.register("stablehlo.case", "stablehlo.if")
def _branches(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """The common result of all branches that may be taken."""
    number = ir.OpResult(value).result_number
    index = branch(op)
    regions = list(op.regions) if index is None else [op.regions[index]]
    yielded = [look(list(region.blocks[0].operations)[-1].operation.operands[number]) for region in regions]
    return yielded[0] if all(branch_value == yielded[0] for branch_value in yielded) else None


@_RULES.register("mesh.shard")
def _same(op: ir.Operation, value: ir.Value, look: _Look) -> KnownValue:
    """An annotation does not change the value."""
    return look(op.operands[0])


def _element(value: ir.Value) -> Any:
    return ir.RankedTensorType(value.type).element_type


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(value.type).shape)


def integer_bounds(element: ir.Type) -> tuple[int, int] | None:
    """The bounds of an integer type; None for other types, and for bits, whose arithmetic is Boolean."""
    if not isinstance(element, ir.IntegerType) or element.width == 1:
        return None
    return (0, 2**element.width - 1) if element.is_unsigned else (-(2 ** (element.width - 1)), 2 ** (element.width - 1) - 1)


def _splat(number: float | int, value: ir.Value) -> Splat | None:
    """`number` as an element of `value`, if the type can represent it exactly."""
    element = _element(value)
    if isinstance(element, ir.IntegerType) and element.width == 1 and number in (0, 1):
        return Splat(ir.BoolAttr.get(bool(number), context=value.context))
    bounds = integer_bounds(element)
    if bounds is None or not isinstance(number, int) or not bounds[0] <= number <= min(bounds[1], 2**63 - 1):
        return None
    return Splat(ir.IntegerAttr.get(element, int(number)))


def _range(static: KnownValue, value: ir.Value) -> tuple[int, int] | None:
    """The smallest and the largest element."""
    if isinstance(static, Splat):
        return (int(static.number), int(static.number)) if isinstance(static.number, int) else None
    if isinstance(static, Iota):
        count = _shape(value)[static.dim]
        smallest, largest = sorted((static.start, static.start + static.step * (count - 1)))
        return (smallest, largest) if count > 0 else None
    return (int(static.elements.min()), int(static.elements.max())) if static is not None and static.elements.size else None


def _fitting(static: Iota | Constant, value: ir.Value) -> KnownValue:
    """`static`, if all of its integers fit the element type of `value`."""
    bounds, ends = integer_bounds(_element(value)), _range(static, value)
    return static if bounds is not None and ends is not None and bounds[0] <= ends[0] and ends[1] <= bounds[1] else None


def _elements(static: KnownValue, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """The integers of a value of that shape, if they are few."""
    if isinstance(static, Constant):
        return static.elements
    if static is None or prod(shape) > _LARGEST:
        return None
    if isinstance(static, Splat):
        return np.full(shape, static.number) if isinstance(static.number, int) else None
    return np.asarray(static.start + static.step * np.indices(shape)[static.dim])
