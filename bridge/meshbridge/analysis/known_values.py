"""What the text of a program says of its values, whatever the arguments: one number, an iota along a dimension, a short table.

    known(%0)  %0 = stablehlo.constant dense<2.0> : tensor<8xf32>               Splat(2.0 : f32)
    known(%1)  %1 = stablehlo.broadcast_in_dim (iota : tensor<8xi32>), dims [1]  Iota(dim=1, start=0, step=1)
    known(%2)  %2 = stablehlo.concatenate of the constants 1 and 3              Constant([1, 3])
    known(%3)  %3 = an argument                                                 None

A shard of a splat is a splat; nothing else that is known of a tensor is known of its shards.
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
from meshbridge.ir.uses import defining_op


@dataclass(frozen=True)
class Splat:
    """Every element is this attribute: an integer, a float or a bool."""

    element: ir.Attribute

    @property
    def number(self) -> float | int | bool:
        """The element as a number of Python."""
        value: float | int | bool = self.element.value  # type: ignore[attr-defined]
        return value


@dataclass(frozen=True)
class Iota:
    """The element in position i of dimension `dim` is the integer `start + step*i`."""

    dim: int
    start: int = 0
    step: int = 1


@dataclass(frozen=True, eq=False)
class Constant:
    """These integers, in the shape of the value."""

    elements: np.ndarray[Any, Any]


Known = Splat | Iota | Constant | None
"""None where nothing is known."""

_DEPTH = 32
"""How many operations in a row are looked through. Not measured: a bound on time and recursion."""

_LARGEST = 2**10
"""Elements of a Constant that is computed from others: index vectors are shorter."""


def known(value: ir.Value) -> Known:
    """What is known of a tensor."""
    return _Walk().known(value, _DEPTH)


def is_splat(value: ir.Value, number: float) -> bool:
    """Whether all elements of `value` are `number`."""
    found = known(value)
    return isinstance(found, Splat) and found.number == number


def known_integer(value: ir.Value) -> int | None:
    """The scalar integer, or i1, that `value` is."""
    if ir.RankedTensorType(value.type).rank:
        return None
    found = known(value)
    return int(found.number) if isinstance(found, Splat) and isinstance(found.number, int) else None


def known_integers(value: ir.Value) -> list[int] | None:
    """The elements of a short list of integers, or of a scalar integer, in order."""
    found = _elements(known(value), _shape(value)) if len(_shape(value)) <= 1 else None
    return None if found is None else [int(element) for element in found.reshape(-1)]


def branch(op: ir.Operation) -> int | None:
    """The number of the branch that a `case` or `if` takes, where its index is known. A `case` takes its last one for an index
    out of range."""
    index = known_integer(op.operands[0])
    if index is None:
        return None
    if op.name == "stablehlo.if":
        return 0 if index else 1
    return index if 0 <= index < len(op.regions) else len(op.regions) - 1


class _Walk:
    """One question, in which each value is looked at once."""

    def __init__(self) -> None:
        self._seen: dict[ir.Value, Known] = {}

    def known(self, value: ir.Value, depth: int) -> Known:
        op = defining_op(value)
        if op is None or depth == 0 or not isinstance(value.type, ir.RankedTensorType):
            return None
        rule = _RULES.get(op.name)
        if rule is None:
            return None
        if value not in self._seen:
            self._seen[value] = rule(op, value, lambda operand: self.known(operand, depth - 1))
        return self._seen[value]


_Look = Callable[[ir.Value], Known]

_RULES: Registry[str, Callable[[ir.Operation, ir.Value, _Look], Known]] = Registry("known value")
"""By op, what is known of its result."""


@_RULES.register("stablehlo.constant", "arith.constant")
def _literal(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """A table of integers that counts along its one dimension is an iota."""
    held = op.attributes["value"]
    if not isinstance(held, ir.DenseElementsAttr) or isinstance(_element(value), ir.ComplexType):
        return None
    if held.is_splat:
        return Splat(held.get_splat_value())
    if not isinstance(held, ir.DenseIntElementsAttr) or _element(value).width < 8 or not integer_bounds(_element(value)):
        return None
    elements = np.array(held)
    if elements.ndim == 1 and len(elements) > 1:
        start, step = int(elements[0]), int(elements[1]) - int(elements[0])
        if np.array_equal(elements, start + step * np.arange(len(elements))):
            return Iota(0, start, step)
    return Constant(elements) if elements.size <= _LARGEST else None


@_RULES.register("stablehlo.iota")
def _iota(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """Where its numbers are those of the type."""
    return _fitting(Iota(ir.IntegerAttr(op.attributes["iota_dimension"]).value), value)


@_RULES.register("stablehlo.convert")
def _convert(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """Integers of another width, where they fit."""
    found, element = look(op.operands[0]), _element(value)
    if isinstance(found, Splat):
        return _splat(found.number, value)
    if found is None or not integer_bounds(element) or not integer_bounds(_element(op.operands[0])):
        return None
    return _fitting(found, value)


@_RULES.register("stablehlo.reshape")
def _reshape(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """An iota keeps its dimension where only dimensions of size 1 come and go."""
    found = look(op.operands[0])
    if isinstance(found, Constant):
        return Constant(found.elements.reshape(_shape(value)))
    if not isinstance(found, Iota):
        return found
    before, after = _shape(op.operands[0]), _shape(value)
    larger = [[dim for dim, size in enumerate(shape) if size != 1] for shape in (before, after)]
    if found.dim not in larger[0] or [before[dim] for dim in larger[0]] != [after[dim] for dim in larger[1]]:
        return None
    return Iota(larger[1][larger[0].index(found.dim)], found.start, found.step)


@_RULES.register("stablehlo.broadcast_in_dim")
def _broadcast(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """An iota counts along the same dimension, unless that is repeated."""
    found, dims = look(op.operands[0]), integers(op.attributes["broadcast_dimensions"])
    if isinstance(found, Iota):
        kept = _shape(op.operands[0])[found.dim] == _shape(value)[dims[found.dim]]
        return Iota(dims[found.dim], found.start, found.step) if kept else None
    return found if isinstance(found, Splat) else None


@_RULES.register("stablehlo.slice")
def _slice(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """The same numbers from another start on, in larger steps."""
    found, names = look(op.operands[0]), ("start_indices", "limit_indices", "strides")
    cuts = [slice(*ends) for ends in zip(*(integers(op.attributes[name]) for name in names), strict=True)]
    if isinstance(found, Iota):
        start, step = cuts[found.dim].start, cuts[found.dim].step
        return Iota(found.dim, found.start + found.step * start, found.step * step)
    return Constant(found.elements[tuple(cuts)]) if isinstance(found, Constant) else found


@_RULES.register("stablehlo.concatenate")
def _concatenate(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """One number, or a table of those of all parts."""
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
def _arithmetic(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """Integers that do not overflow: of two splats, or of an iota and a splat."""
    if not integer_bounds(_element(value)) or (left := look(op.operands[0])) is None or (right := look(op.operands[1])) is None:
        return None
    combine = _ARITHMETIC[op.name]
    if isinstance(left, Splat) and isinstance(right, Splat):
        return _splat(combine(int(left.number), int(right.number)), value)
    iota, other = (left, right) if isinstance(left, Iota) else (right, left)
    if not isinstance(iota, Iota) or not isinstance(other, Splat):
        return None
    number = int(other.number)
    first, second = ((combine(n, number) if iota is left else combine(number, n)) for n in (iota.start, iota.start + iota.step))
    return _fitting(Iota(iota.dim, first, second - first), value)


@_RULES.register("stablehlo.compare")
def _compare(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """An order that holds between all elements, or between none: an iota is never less than 0."""
    left, right = (_range(look(operand), operand) for operand in op.operands)
    direction = comparison_direction(op)
    if left is None or right is None or direction in ("EQ", "NE"):
        return None
    answers = {COMPARISONS[direction](one, other) for one in left for other in right}
    return _splat(answers.pop(), value) if len(answers) == 1 else None


@_RULES.register("stablehlo.select")
def _select(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """What is selected, if all elements are selected alike."""
    which = look(op.operands[0])
    return look(op.operands[1 if which.number else 2]) if isinstance(which, Splat) else None


@_RULES.register("stablehlo.case", "stablehlo.if")
def _branches(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """What all branches yield that may be taken."""
    number = ir.OpResult(value).result_number
    index = branch(op)
    regions = list(op.regions) if index is None else [op.regions[index]]
    yielded = [look(list(region.blocks[0].operations)[-1].operation.operands[number]) for region in regions]
    return yielded[0] if all(each == yielded[0] for each in yielded) else None


@_RULES.register("mesh.shard")
def _same(op: ir.Operation, value: ir.Value, look: _Look) -> Known:
    """An annotation makes no difference."""
    return look(op.operands[0])


def _element(value: ir.Value) -> Any:
    return ir.RankedTensorType(value.type).element_type


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(ir.RankedTensorType(value.type).shape)


def integer_bounds(element: ir.Type) -> tuple[int, int] | None:
    """The smallest and the largest integer of a type; None for other numbers, and for bits, whose arithmetic is Boolean."""
    if not isinstance(element, ir.IntegerType) or element.width == 1:
        return None
    return (0, 2**element.width - 1) if element.is_unsigned else (-(2 ** (element.width - 1)), 2 ** (element.width - 1) - 1)


def _splat(number: float | int, value: ir.Value) -> Splat | None:
    """`number` as an element of `value`, if it is one exactly."""
    element = _element(value)
    if isinstance(element, ir.IntegerType) and element.width == 1 and number in (0, 1):
        return Splat(ir.BoolAttr.get(bool(number), context=value.context))
    bounds = integer_bounds(element)
    if bounds is None or not isinstance(number, int) or not bounds[0] <= number <= min(bounds[1], 2**63 - 1):
        return None
    return Splat(ir.IntegerAttr.get(element, int(number)))


def _range(found: Known, value: ir.Value) -> tuple[int, int] | None:
    """The smallest and the largest element."""
    if isinstance(found, Splat):
        return (int(found.number), int(found.number)) if isinstance(found.number, int) else None
    if isinstance(found, Iota):
        count = _shape(value)[found.dim]
        first, last = sorted((found.start, found.start + found.step * (count - 1)))
        return (first, last) if count > 0 else None
    return (int(found.elements.min()), int(found.elements.max())) if found is not None and found.elements.size else None


def _fitting(found: Iota | Constant, value: ir.Value) -> Known:
    """What was found, if all of it are integers of the element type of `value`."""
    bounds, ends = integer_bounds(_element(value)), _range(found, value)
    return found if bounds is not None and ends is not None and bounds[0] <= ends[0] and ends[1] <= bounds[1] else None


def _elements(found: Known, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """The integers of a value of that shape, if they are few."""
    if isinstance(found, Constant):
        return found.elements
    if found is None or prod(shape) > _LARGEST:
        return None
    if isinstance(found, Splat):
        return np.full(shape, found.number) if isinstance(found.number, int) else None
    return np.asarray(found.start + found.step * np.indices(shape)[found.dim])
