"""Which of NaN, infinities, zero, negative and positive numbers a value may hold.

class_of(%0)  %0 = stablehlo.exponential %x                            ZERO | POSITIVE | INFINITY | NAN
class_of(%1)  %1 = stablehlo.multiply %x, %x                           the same: a square is not negative
class_of(%2)  %2 = stablehlo.rsqrt (%1 + 1.0e-6)                       ZERO | POSITIVE | NAN: never infinite
class_of(%3)  %3 = sum along keys of exponential (%x - its maximum)    POSITIVE | NAN: one term is exp(0)

A rewrite that moves an operation past a sum, a select or a collective is valid for finite numbers. This module says whether
others can occur.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from functools import lru_cache
from math import inf
from typing import Any

import numpy as np

from meshbridge.analysis.known_values import Splat, is_splat, known
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.ops import AllGatherOp, AllReduceOp, AllSliceOp, AllToAllOp, CollectiveOpView
from meshbridge.ir.builder import element_of, op_of, shape_of
from meshbridge.ir.mlir import COMPARISONS, comparison_direction, ir
from meshbridge.ir.uses import defining_op, is_argument
from meshbridge.ops.dimensions import BROADCAST, REDUCE, RESHAPE, SLICE, TRANSPOSE, operand_dims
from meshbridge.ops.einsum import DOT
from meshbridge.ops.linear import WIDER
from meshbridge.ops.reductions import body_kind

Array = np.ndarray[Any, Any]


class NumberClass(Flag):
    """A set of classes of floating-point numbers."""

    NAN = auto()
    NEGATIVE_INFINITY = auto()
    NEGATIVE = auto()
    ZERO = auto()
    POSITIVE = auto()
    INFINITY = auto()


NAN, ZERO, INFINITY = NumberClass.NAN, NumberClass.ZERO, NumberClass.INFINITY
INFINITE = NumberClass.NEGATIVE_INFINITY | INFINITY
ANY = ~NumberClass(0)
FINITE = ANY & ~NAN & ~INFINITE

_LIMIT = 64
"""The most operations that are followed for one value, to bound the time. A normalization has about ten."""

_TINY, _HUGE = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
_SAMPLES: dict[NumberClass, tuple[float, ...]] = {
    NumberClass.NAN: (np.nan,),
    NumberClass.NEGATIVE_INFINITY: (-np.inf,),
    NumberClass.NEGATIVE: (-_HUGE, -100.0, -1.0, -0.5, -_TINY),
    NumberClass.ZERO: (0.0,),
    NumberClass.POSITIVE: (_TINY, 0.5, 1.0, 100.0, _HUGE),
    NumberClass.INFINITY: (np.inf,),
}
"""Samples of each class, with its smallest and largest numbers, so that overflow and underflow are seen. -0 counts as 0: signs of
zeros are not followed, and a division by zero may give either infinity."""

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "stablehlo.abs": np.abs,
    "stablehlo.add": np.add,
    "stablehlo.divide": np.divide,
    "stablehlo.exponential": np.exp,
    "stablehlo.log": np.log,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.multiply": np.multiply,
    "stablehlo.negate": np.negative,
    "stablehlo.rsqrt": lambda x: 1 / np.sqrt(x),
    "stablehlo.sqrt": np.sqrt,
    "stablehlo.subtract": np.subtract,
    "stablehlo.tanh": np.tanh,
}
_EXP, _SUBTRACT, _SELECT, _CONVERT, _DIVIDE = (
    f"stablehlo.{name}" for name in ("exponential", "subtract", "select", "convert", "divide")
)
_VIEWS = (BROADCAST, RESHAPE, TRANSPOSE)
_REARRANGING = frozenset((*_VIEWS, SLICE, *(view.OPERATION_NAME for view in (AllGatherOp, AllSliceOp, AllToAllOp))))
_MIRRORED = {"EQ": "EQ", "NE": "NE", "LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}


def class_of(value: ir.Value) -> NumberClass:
    """The classes of the elements of `value`. Sums of finite numbers count as finite or of one sign: the order of additions is
    not followed."""
    return _Classes().of(value)


class _Classes:
    """The classes of the values that one value is computed from."""

    def __init__(self) -> None:
        self.known: dict[ir.Value, NumberClass] = {}

    def of(self, value: ir.Value) -> NumberClass:
        if value not in self.known:
            self.known[value] = _unknown(value)  # during the computation, and beyond the limit
            if len(self.known) <= _LIMIT:
                self.known[value] = self._computed(value) & _unknown(value)
        return self.known[value]

    def _computed(self, value: ir.Value) -> NumberClass:
        constant = known(value)
        if isinstance(constant, Splat):
            return _classes(np.asarray(float(constant.number), np.float32))
        if is_argument(value):
            return ANY
        op = op_of(value)
        if len(op.results) != 1:
            return ANY
        if op.name in _REARRANGING:
            return self.of(op.operands[0])
        if op.name == _CONVERT:
            return self._converted(op)
        if op.name == _SELECT:
            return self._selected(op)
        if op.name == DOT:
            return _summed(_applied("stablehlo.multiply", *map(self.of, op.operands)))
        if op.name == AllReduceOp.OPERATION_NAME or (op.name == REDUCE and body_kind(op)):
            return self._reduced(op)
        if op.name not in _FUNCTIONS:
            return ANY
        samples = [self._samples(operand) for operand in op.operands]
        if len(samples) == 2 and op.operands[0] == op.operands[1]:
            return _classes(_call(op.name, *samples))
        if op.name == _DIVIDE and ZERO in self.of(op.operands[1]):  # of either sign
            samples[1] = (*samples[1], -0.0)
        return _of_all(op.name, *samples)

    def _samples(self, value: ir.Value) -> tuple[float, ...]:
        constant = known(value)
        return (float(constant.number),) if isinstance(constant, Splat) else _samples(self.of(value))

    def _converted(self, op: ir.Operation) -> NumberClass:
        source, result = (element_of(value) for value in (op.operands[0], op.results[0]))
        classes = self.of(op.operands[0])
        if source == result or not isinstance(source, ir.FloatType) or str(result) in WIDER.get(str(source), ()):
            return classes
        lost = NumberClass(0) if _keeps_range(op) else ZERO
        for finite, infinite in ((NumberClass.NEGATIVE, NumberClass.NEGATIVE_INFINITY), (NumberClass.POSITIVE, INFINITY)):
            classes |= lost | infinite if finite in classes else NumberClass(0)
        return classes

    def _selected(self, op: ir.Operation) -> NumberClass:
        condition, on_true, on_false = op.operands
        return self._where(condition, on_true, holds=True) | self._where(condition, on_false, holds=False)

    def _where(self, condition: ir.Value, value: ir.Value, *, holds: bool) -> NumberClass:
        """The classes of `value` where `condition` equals `holds`; a comparison of `value` with a constant excludes some."""
        classes = self.of(value)
        op = defining_op(condition)
        if op is None or value not in list(op.operands):
            return classes
        if op.name == "stablehlo.is_finite":
            return classes & (FINITE if holds else ~FINITE)
        side = list(op.operands).index(value)
        constant = known(op.operands[1 - side])
        if op.name != "stablehlo.compare" or not isinstance(constant, Splat):
            return classes
        direction = comparison_direction(op)
        compare, bound = COMPARISONS[_MIRRORED[direction] if side else direction], np.float32(constant.number)
        possible = NumberClass(0)
        for number_class in classes:
            samples = np.asarray(
                [*_samples(number_class), *([bound] if _classes(np.asarray(bound)) == number_class else [])], np.float32
            )
            possible |= number_class if np.any(compare(samples, np.asarray(bound)) == holds) else NumberClass(0)
        return possible

    def _reduced(self, op: ir.Operation) -> NumberClass:
        kind = CollectiveOpView(op).reduction if op.name == AllReduceOp.OPERATION_NAME else body_kind(op)
        classes = self.of(op.operands[0])
        if kind in ("max", "min"):
            initial = self.of(op.operands[1]) if op.name == REDUCE else NumberClass(0)
            return classes | initial
        if kind != "sum":
            return ANY
        if _has_largest_term(op):
            return NumberClass.POSITIVE | NAN
        return _summed(classes) if op.name != REDUCE else _applied("stablehlo.add", self.of(op.operands[1]), _summed(classes))


def _has_largest_term(total: ir.Operation) -> bool:
    """True if the sum `total` has a term exp(x - m) for each x, with m their maximum: one term is exp(0), or all are NaN."""
    added = _Reduction.of(total.results[0], "sum")
    exponential = None if added is None else _producer(added.op.operands[0], _CONVERT)
    difference = None if exponential is None or exponential.name != _EXP else _producer(exponential.operands[0])
    if added is None or difference is None or difference.name != _SUBTRACT:
        return False
    scores, subtracted = difference.operands
    largest = _Reduction.of(subtracted, "max")
    if largest is None or largest.op.operands[0] != scores:
        return False
    if (largest.dims, largest.devices) != (added.dims, added.devices):
        return False
    return largest.is_shown_by_rows(subtracted)


@dataclass(frozen=True)
class _Reduction:
    """A `reduce`, perhaps followed by an all-reduce."""

    op: ir.Operation
    dims: tuple[int, ...]
    devices: object
    "The mesh and the axes of the all-reduce; None if there is none."

    @staticmethod
    def of(value: ir.Value, kind: str) -> _Reduction | None:
        """The reduction of that kind that `value` is a view of."""
        passed = (*_VIEWS, _CONVERT) if kind == "sum" else _VIEWS  # rounding changes a maximum
        op, devices = _producer(value, *passed), None
        if op is not None and op.name == AllReduceOp.OPERATION_NAME and CollectiveOpView(op).reduction == kind:
            devices = CollectiveOpView(op).mesh, frozenset(CollectiveOpView(op).mesh_axes)
            op = _producer(op.operands[0], *passed)
        if op is None or op.name != REDUCE or body_kind(op) != kind:
            return None
        return _Reduction(op, tuple(sorted(integers(op.attributes["dimensions"]))), devices)

    def is_shown_by_rows(self, value: ir.Value) -> bool:
        """True if `value`, in the shape of the reduced operand, holds the reduction of its row at every element."""
        shape = shape_of(self.op.operands[0])
        kept_dims = [dim for dim in range(len(shape)) if dim not in self.dims]
        return shape_of(value) == shape and all(
            self._read(value, dim) == number for number, dim in enumerate(kept_dims) if shape[dim] != 1
        )

    def _read(self, value: ir.Value, dim: int | None) -> int | None:
        """The dimension of the result of `op` that dimension `dim` of `value` corresponds to."""
        while value != self.op.results[0] and dim is not None:
            op = op_of(value)
            shown = _shown(op, (*_VIEWS, _CONVERT, AllReduceOp.OPERATION_NAME))
            assert shown is not None
            along = operand_dims(op, dim) if op.name in _VIEWS else (dim,)  # other viewed ops keep dimensions
            value, dim = shown, along[0] if along else None
        return dim


def _producer(value: ir.Value, *passed: str) -> ir.Operation | None:
    """The operation that computes `value`, looking through operations of the names `passed`."""
    while not is_argument(value):
        op = op_of(value)
        shown = _shown(op, passed)
        if shown is None:
            return op
        value = shown
    return None


def _shown(op: ir.Operation, passed: Sequence[str]) -> ir.Value | None:
    """The operand that `op` returns: the first one if its name is in `passed`; the other operand of a maximum with -inf."""
    if op.name in passed and (op.name != _CONVERT or _keeps_range(op)):
        operand: ir.Value = op.operands[0]
        return operand
    if op.name == "stablehlo.maximum":
        for operand, bound in (op.operands, reversed(list(op.operands))):
            if is_splat(bound, -inf):
                return operand
    return None


def _unknown(value: ir.Value) -> NumberClass:
    """The classes that the element type allows."""
    element = element_of(value)
    if isinstance(element, ir.IntegerType):
        unsigned = element.is_unsigned or element.width == 1
        return NumberClass.POSITIVE | ZERO | (NumberClass(0) if unsigned else NumberClass.NEGATIVE)
    return ANY


@lru_cache(maxsize=1 << 12)
def _samples(classes: NumberClass) -> tuple[float, ...]:
    return tuple(number for number_class in classes for number in _SAMPLES[number_class])


def _applied(name: str, *operands: NumberClass) -> NumberClass:
    """The classes of the results of an elementwise operation on numbers of these classes."""
    return _of_all(name, *map(_samples, operands))


@lru_cache(maxsize=1 << 12)
def _of_all(name: str, *operands: tuple[float, ...]) -> NumberClass:
    """The classes of the results of an elementwise operation on every combination of these numbers."""
    return _classes(_call(name, *np.meshgrid(*(np.asarray(numbers, np.float32) for numbers in operands), indexing="ij")))


def _call(name: str, *operands: Any) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(_FUNCTIONS[name](*(np.asarray(numbers, np.float32) for numbers in operands)))


@lru_cache(maxsize=1 << 12)
def _summed(terms: NumberClass) -> NumberClass:
    """The classes of sums of one or more terms."""
    classes = terms
    while (wider := classes | _applied("stablehlo.add", classes, terms)) != classes:
        classes = wider
    return classes


def _classes(numbers: Array) -> NumberClass:
    tests: Iterable[tuple[NumberClass, Array]] = (
        (NAN, np.isnan(numbers)),
        (NumberClass.NEGATIVE_INFINITY, np.isneginf(numbers)),
        (NumberClass.NEGATIVE, np.isfinite(numbers) & (numbers < 0)),
        (ZERO, numbers == 0),
        (NumberClass.POSITIVE, np.isfinite(numbers) & (numbers > 0)),
        (INFINITY, np.isposinf(numbers)),
    )
    classes = NumberClass(0)
    for number_class, holds in tests:
        classes |= number_class if np.any(holds) else NumberClass(0)
    return classes


def scales_exactly(op: ir.Operation, factor: ir.Value, *, masked: bool) -> bool:
    """True if scaling by `factor` with `op`, a multiplication or division, after a sum gives the same numbers as before it, NaN
    and infinities included. `masked`: scaled terms may be replaced by zeros before the sum.

    An infinite factor, or a divisor of zero, gives terms of both signs, whose sum is NaN, while the sum of finite terms scales to
    an infinity. If all terms are masked, their sum is zero, which NaN or an infinity scales to NaN.
    """
    wrong = ZERO if op.name == _DIVIDE else INFINITE
    if masked:
        wrong |= NAN
    return not class_of(factor) & wrong or (op.name == _DIVIDE and not masked and _is_total_of(op.operands[0], factor))


def _keeps_range(op: ir.Operation) -> bool:
    """True if a conversion returns zero only for zero."""
    source, result = (str(element_of(value)) for value in (op.operands[0], op.results[0]))
    return result in WIDER.get(source, ()) or (source, result) == ("f32", "bf16")


def _unconverted(value: ir.Value) -> ir.Value:
    """The operand of the conversion that computes `value`, if that has the same zeros."""
    while not is_argument(value) and op_of(value).name == _CONVERT and _keeps_range(op_of(value)):
        value = op_of(value).operands[0]
    return value


def _is_total_of(terms: ir.Value, total: ir.Value) -> bool:
    """True if `total` is the sum of the magnitudes of `terms`. All terms are zero where it is, so that 0 / 0 is NaN for each term
    and for their sum."""
    reduction = _Reduction.of(total, "sum")
    if reduction is None or not reduction.is_shown_by_rows(total):
        return False
    added = _unconverted(reduction.op.operands[0])
    magnitude = _producer(added)
    if magnitude is not None and magnitude.name == "stablehlo.abs":
        return bool(magnitude.operands[0] == terms)
    return bool(added == terms) and not class_of(terms) & (NumberClass.NEGATIVE | NumberClass.NEGATIVE_INFINITY)
