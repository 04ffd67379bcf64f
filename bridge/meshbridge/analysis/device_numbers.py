"""The values, on every device, of scalars that depend only on a device's number, like `lax.axis_index`.

%0 = stablehlo.partition_id : tensor<ui32>            [0, 1, 2, 3, 4, 5, 6, 7]  on a mesh of 4x2
%1 = stablehlo.divide %0, (2 : tensor<ui32>)          [0, 0, 1, 1, 2, 2, 3, 3]  numbers devices along axis 0
%2 = stablehlo.multiply %1, (16 : tensor<ui32>)       [0, 0, 16, 16, 32, 32, 48, 48]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meshbridge.analysis.known_values import Iota, Splat, integer_bounds, known
from meshbridge.dialect.ops import AllSliceOp
from meshbridge.ir.digits import Numbers, axis_digits, group_index
from meshbridge.ir.mlir import COMPARISONS, comparison_direction, ir
from meshbridge.ir.sharding import DYNAMIC, Axes, Mesh
from meshbridge.ir.uses import LOOK_THROUGH, defining_op

_LARGEST = 2**31
"""Products of numbers below this are exact in 64 bits."""


class DeviceNumbers:
    """The values of scalars on the devices of a mesh, in a program that runs on each device."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._numbers: dict[ir.Value, Numbers | None] = {}

    def of(self, value: ir.Value, depth: int = LOOK_THROUGH) -> Numbers | None:
        """The integer or bit `value` on each device, by mesh position; None if it depends on more than the device's number."""
        if value in self._numbers:
            return self._numbers[value]
        op = defining_op(value)
        if op is None or depth == 0 or not _is_integer(value):
            return None
        numbers = self._computed(op, value, depth)
        self._numbers[value] = None if numbers is None or not _fits(numbers, value) else numbers
        return self._numbers[value]

    def is_same(self, value: ir.Value, axes: Axes) -> bool:
        """Whether `value` is certainly the same on all devices of a group along `axes`."""
        if DYNAMIC in self.mesh.shape or (numbers := self.of(value)) is None:
            return False
        on_mesh = numbers.reshape(self.mesh.shape)
        return all(bool((on_mesh == on_mesh.take([0], axis)).all()) for axis in axes)

    def _computed(self, op: ir.Operation, value: ir.Value, depth: int) -> Numbers | None:
        everywhere = np.arange(self.mesh.size)
        if op.name == "stablehlo.partition_id":
            return np.array(self.mesh.device_ids, np.int64) if self.mesh.device_ids else everywhere
        if op.name == AllSliceOp.OPERATION_NAME:
            view, whole = AllSliceOp(op), known(op.operands[0])
            if view.mesh != self.mesh.name or not isinstance(whole, Iota) or whole.dim != view.slice_axis:
                return None
            return whole.start + whole.step * group_index(axis_digits(self.mesh, view.mesh_axes), everywhere)
        constant = known(value)
        if isinstance(constant, Splat):
            return np.full(self.mesh.size, int(constant.number)) if abs(constant.number) < _LARGEST else None
        rule = _RULES.get(op.name)
        if rule is None:
            return None
        operands = []
        for operand in op.operands:
            if (numbers := self.of(operand, depth - 1)) is None:
                return None
            operands.append(numbers)
        return rule(op, *operands)


def axes_numbered(numbers: Numbers, mesh: Mesh) -> Axes:
    """The axes, outer first, along which each device's number is its number in its group; () for any other numbers."""
    on_mesh = numbers.reshape(mesh.shape)
    origin = [0] * mesh.rank
    next_along = {axis: (*origin[:axis], 1, *origin[axis + 1 :]) for axis, size in enumerate(mesh.shape) if size > 1}
    steps = {axis: int(on_mesh[coordinates]) - int(on_mesh[tuple(origin)]) for axis, coordinates in next_along.items()}
    axes = tuple(sorted((axis for axis, step in steps.items() if step > 0), key=lambda axis: -steps[axis]))
    return axes if np.array_equal(group_index(axis_digits(mesh, axes), np.arange(mesh.size)), numbers) else ()


def _is_integer(value: ir.Value) -> bool:
    """Whether `value` is one integer or bit."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or any(size != 1 for size in type_.shape):
        return False
    return isinstance(type_.element_type, ir.IntegerType)


def _fits(numbers: Numbers, value: ir.Value) -> bool:
    low, high = integer_bounds(ir.RankedTensorType(value.type).element_type) or (0, 1)
    return bool(max(low, -_LARGEST) <= numbers.min() and numbers.max() <= min(high, _LARGEST))


_Rule = Callable[..., "Numbers | None"]


def _same(op: ir.Operation, operand: Numbers) -> Numbers:
    return operand


def _combined(combine: Callable[[Numbers, Numbers], Numbers]) -> _Rule:
    return lambda op, left, right: combine(left, right)


def _divided(op: ir.Operation, left: Numbers, right: Numbers) -> Numbers | None:
    """Division, rounded towards zero."""
    return None if (right == 0).any() else (left - np.fmod(left, right)) // right


def _remainder(op: ir.Operation, left: Numbers, right: Numbers) -> Numbers | None:
    """The remainder, with the sign of the dividend."""
    return None if (right == 0).any() else np.fmod(left, right)


def _compared(op: ir.Operation, left: Numbers, right: Numbers) -> Numbers:
    return np.asarray(COMPARISONS[comparison_direction(op)](left, right), np.int64)


def _selected(op: ir.Operation, which: Numbers, on_true: Numbers, on_false: Numbers) -> Numbers:
    return np.where(which != 0, on_true, on_false)


def _clamped(op: ir.Operation, low: Numbers, value: Numbers, high: Numbers) -> Numbers:
    return np.minimum(np.maximum(value, low), high)


_RULES: dict[str, _Rule] = {
    **dict.fromkeys(("stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.reshape"), _same),
    "stablehlo.add": _combined(np.add),
    "stablehlo.subtract": _combined(np.subtract),
    "stablehlo.multiply": _combined(np.multiply),
    "stablehlo.divide": _divided,
    "stablehlo.remainder": _remainder,
    "stablehlo.maximum": _combined(np.maximum),
    "stablehlo.minimum": _combined(np.minimum),
    "stablehlo.compare": _compared,
    "stablehlo.select": _selected,
    "stablehlo.clamp": _clamped,
}
"""By op, its number on each device, given those of its operands. A number that its type cannot represent is unknown."""
