"""Entries of a list of numbers, one for each device of a group, as arithmetic on the device's number.

`PerDevice` records how the numbers are computed. Any other list is divided into runs. Within a run, every `period` entries the
numbers grow by the same `step`:

    0 0 1 1 2 2 3 3    one run of period 2 and step 1
    5 4 3 2 1 0 0 0    a run of period 1 and step -1, and one of period 1 and step 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from meshbridge.ir.builder import MAX_POSITIONS, Builder
from meshbridge.ir.digits import Numbers
from meshbridge.ir.mlir import ir

LISTED = 64
"""The most entries of a table; longer lists are computed. Such a table is half a KB of text, as much as the arithmetic."""

_RUNS = 8
_PERIODS = 16
"""The most runs of a list that is computed, and the longest period of one. Each run costs three to eight ops."""


@dataclass(frozen=True, eq=False)
class PerDevice:
    """One number for each device of a group, and the arithmetic on the devices' numbers in the group that computes it."""

    values: Numbers
    operation: str
    "Of StableHLO; empty for the devices' numbers themselves, and for a constant."
    operands: tuple[PerDevice, ...]

    @property
    def is_computed(self) -> bool:
        """Whether there is arithmetic, and it fits 32 bits."""
        values = [numbers.values for numbers in (self, *self.operands)]
        return len(values) > 1 and all(array.min() >= -MAX_POSITIONS and array.max() < MAX_POSITIONS for array in values)

    def __add__(self, other: PerDevice | int) -> PerDevice:
        return self._with("add", np.add, other)

    def __sub__(self, other: PerDevice | int) -> PerDevice:
        return self._with("subtract", np.subtract, other)

    def __mul__(self, factor: int) -> PerDevice:
        return self._with("multiply", np.multiply, factor)

    def __floordiv__(self, divisor: int) -> PerDevice:
        raised = self._raised(divisor)
        return raised._with("divide", np.floor_divide, divisor) - raised._above(self) // divisor

    def __mod__(self, divisor: int) -> PerDevice:
        return self._raised(divisor)._with("remainder", np.remainder, divisor)

    def __abs__(self) -> PerDevice:
        return PerDevice(np.abs(self.values), "abs", (self,))

    def at_least(self, other: PerDevice | int, devices: Numbers | None = None) -> PerDevice:
        """The elementwise maximum; only its values on `devices` matter."""
        return self._bounded("maximum", np.maximum, other, devices)

    def at_most(self, other: PerDevice | int, devices: Numbers | None = None) -> PerDevice:
        """The elementwise minimum; only its values on `devices` matter."""
        return self._bounded("minimum", np.minimum, other, devices)

    def _bounded(self, operation: str, compute: np.ufunc, other: PerDevice | int, devices: Numbers | None) -> PerDevice:
        bounded = self._with(operation, compute, other)
        if devices is not None and np.array_equal(bounded.values[devices], self.values[devices]):
            return self
        return bounded

    def _with(self, operation: str, compute: np.ufunc, other: PerDevice | int) -> PerDevice:
        """The result of an operation; one of its operands if they are equal."""
        second = other if isinstance(other, PerDevice) else PerDevice(np.broadcast_to(np.int64(other), self.values.shape), "", ())
        values: Numbers = compute(self.values, second.values)
        equal = [
            numbers for numbers in (self, second) if values[-1] == numbers.values[-1] and np.array_equal(values, numbers.values)
        ]
        return equal[0] if equal else PerDevice(values, operation, (self, second))

    def _raised(self, divisor: int) -> PerDevice:
        """The numbers plus a multiple of `divisor`, so that none is negative: StableHLO divides towards 0."""
        return self + max(0, -(int(self.values.min()) // divisor)) * divisor

    def _above(self, other: PerDevice) -> int:
        return int(self.values[0] - other.values[0])


def members(count: int) -> PerDevice:
    """The numbers of the devices of a group."""
    return PerDevice(np.arange(count, dtype=np.int64), "", ())


class Run(NamedTuple):
    """Entries from number `start`: `pattern`, and for every further `len(pattern)` entries the same plus `step`."""

    start: int
    pattern: tuple[int, ...]
    step: int


def entry(emit: Builder, numbers: PerDevice | Numbers | Sequence[int], index: ir.Value) -> ir.Value:
    """The number at the run-time `index`, tensor<i32>, from a table or computed. Raises TooLargeError for large numbers."""
    listed = numbers.values if isinstance(numbers, PerDevice) else np.asarray(numbers, np.int64)
    if len(listed) > 1 and _is_line(listed):
        return _of_run(emit, Run(0, (int(listed[0]),), int(listed[1] - listed[0])), index)
    if len(listed) > LISTED and isinstance(numbers, PerDevice) and numbers.is_computed:
        left, *right = [entry(emit, operand, index) for operand in numbers.operands]
        return emit.elementwise(numbers.operation, left, *right)
    pieces = runs(listed) if len(listed) > LISTED else None
    if pieces is None:
        return emit.entry(emit.table(listed), index)
    value = _of_run(emit, pieces[0], index)
    for piece in pieces[1:]:
        value = emit.select(emit.compare("GE", index, piece.start), _of_run(emit, piece, index), value)
    return value


def _of_run(emit: Builder, run: Run, index: ir.Value) -> ir.Value:
    period = len(run.pattern)
    own = emit.subtract(index, run.start) if run.start else index
    if period == 1:
        return _line(emit, own, run.step, run.pattern[0])
    within = entry(emit, run.pattern, emit.elementwise("remainder", own, period))
    return emit.add(_line(emit, emit.elementwise("divide", own, period), run.step, 0), within)


def _is_line(numbers: Numbers) -> bool:
    step = numbers[1] - numbers[0]
    return bool(numbers[-1] - numbers[0] == step * (len(numbers) - 1) and (np.diff(numbers) == step).all())


def _line(emit: Builder, index: ir.Value, step: int, first: int) -> ir.Value:
    if not step:
        return emit.scalar(first)
    grown = emit.multiply(index, step)
    return emit.add(grown, first) if first else grown


def runs(numbers: Numbers) -> list[Run] | None:
    """A few runs of short periods that follow each other; None if they contain a quarter of the numbers or more."""
    changes: list[Numbers] = []
    for period in range(1, _PERIODS + 1):
        grown = numbers[period:] - numbers[:-period]
        changes.append(np.append(np.flatnonzero(np.diff(grown)) + 1, len(grown)))
        if period & (period - 1) == 0 and (pieces := _with_periods(numbers, changes)) is not None:
            return pieces
    return None


def _with_periods(numbers: Numbers, changes: Sequence[Numbers]) -> list[Run] | None:
    """The fewest runs; `changes` has, for each period from 1 on, the entries from which the numbers grow by another step."""
    pieces: list[Run] = []
    start = 0
    while start < len(numbers):
        if len(pieces) == _RUNS or 4 * sum(len(run.pattern) for run in pieces) > len(numbers):
            return None
        ends = [_end(len(numbers), start, period, ends_of_period) for period, ends_of_period in enumerate(changes, 1)]
        end = max(ends)
        after = start + ends.index(end) + 1
        step = int(numbers[after] - numbers[start]) if after < len(numbers) else 0
        pieces.append(Run(start, tuple(numbers[start:after].tolist()), step))
        start = end
    return pieces


def _end(count: int, start: int, period: int, changes: Numbers) -> int:
    """The end of the run of that period from `start`."""
    return int(changes[np.searchsorted(changes, start, side="right")]) + period if start < count - period else count
