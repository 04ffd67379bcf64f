"""Regions that combine two elements: recognised if they are one op, otherwise executed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshbridge.ir.mlir import OpError, ir, walk
from meshbridge.verification.elementwise import COMMUTATIVE, apply_binary, wrap
from meshbridge.verification.field import Array
from meshbridge.verification.machine import Evaluator, align, evaluates, integers, width_of


@dataclass(frozen=True)
class Combiner:
    """What a region does with two elements. `name` is its StableHLO op, if it is one; `combine` applies it elementwise."""

    machine: Evaluator
    name: str
    element: ir.Type
    combine: Callable[[list[Array], list[Array]], list[Array]]

    def neutral(self, like: Array) -> float | int | bool | None:
        """The neutral element in the type of `like`; None if the region is not one op."""
        if self.name in ("maximum", "minimum"):
            is_maximum = self.name == "maximum"
            if like.dtype.kind == "f":
                return -self.machine.field.infinity if is_maximum else self.machine.field.infinity
            if like.dtype == np.bool_:
                return not is_maximum
            return _limits(self.element)[0 if is_maximum else 1]
        if self.name == "and":
            return True if like.dtype == np.bool_ else _limits(self.element)[1] if like.dtype.kind == "u" else -1
        return {"add": 0, "multiply": 1, "or": 0, "xor": 0}.get(self.name)

    def scatter(self, targets: list[Array], places: Array, updates: list[Array]) -> None:
        """Combines each update with the element of the flat `targets` at its position, in order."""
        field, target, update = self.machine.field, targets[0], updates[0]
        if len(targets) > 1:
            self._one_round_each(targets, places, updates)
        elif self.name == "second":
            target[places] = update
        elif target.dtype.kind in "fc" and self.name == "add":
            target[...] = field.reduce(target + _counted(places, update, target))
        elif target.dtype.kind == "f" and self.name in ("maximum", "minimum"):
            order = field.order(target)
            with np.errstate(invalid="ignore"):  # both keep NaN
                (np.maximum if self.name == "maximum" else np.minimum).at(order, places, field.order(update))
            target[...] = field.at_place(order)
        elif target.dtype.kind in "iu" and self.name in COMMUTATIVE:
            COMMUTATIVE[self.name].at(target, places, update)
            target[...] = wrap(target, self.element)
        else:
            self._one_round_each(targets, places, updates)

    def _one_round_each(self, targets: list[Array], places: Array, updates: list[Array]) -> None:
        """Round k combines the k-th update of every position."""
        order = np.argsort(places, kind="stable")
        starts = np.flatnonzero(np.r_[True, np.diff(places[order]) != 0]) if len(order) else order
        lengths = np.diff(np.r_[starts, len(order)])
        for turn in range(int(lengths.max(initial=0))):
            chosen = order[starts[lengths > turn] + turn]
            positions = places[chosen]
            combined = self.combine([target[positions] for target in targets], [update[chosen] for update in updates])
            for target, value in zip(targets, combined, strict=True):
                target[positions] = value


def _limits(element: ir.Type) -> tuple[int, int]:
    """The smallest and the largest integer of a type."""
    width = width_of(element)
    if ir.IntegerType(element).is_unsigned:
        return 0, (1 << width) - 1
    return -(1 << (width - 1)), (1 << (width - 1)) - 1


def _counted(places: Array, updates: Array, target: Array) -> Array:
    if target.dtype.kind == "c":
        return _counted(places, updates.real, target.real) + 1j * _counted(places, updates.imag, target.imag)
    return np.bincount(places, weights=updates, minlength=len(target))


def combiner_of(machine: Evaluator, op: ir.Operation, region: int) -> Combiner:
    """The combiner of a region of an op."""
    block = op.regions[region].blocks[0]
    half = len(block.arguments) // 2
    element = ir.RankedTensorType(block.arguments[0].type).element_type
    name = _single_op(block) if half == 1 else ""
    if name and name != "second":
        return combiner_named(machine, op, name, element)

    def combine(left: list[Array], right: list[Array]) -> list[Array]:
        return run_scalars(machine, op, region, [*left, *right])

    return Combiner(machine, name, element, combine)


def combiner_named(machine: Evaluator, op: ir.Operation, name: str, element: ir.Type) -> Combiner:
    """The combiner that applies the StableHLO op of that name."""

    def combine(left: list[Array], right: list[Array]) -> list[Array]:
        result = apply_binary(machine.field, name, left[0], right[0], element)
        if result is None:
            raise OpError(op, f"has no exact evaluation of '{name}' on elements of type {element}")
        return [result]

    return Combiner(machine, name, element, combine)


def _single_op(block: ir.Block) -> str:
    """The op name of a region that only combines its two arguments; `second` if it returns the second one."""
    ops = [view.operation for view in block.operations]
    lhs, rhs = block.arguments
    if len(ops) == 1:
        return "second" if ops[0].operands[0] == rhs else ""
    if len(ops) != 2 or len(ops[0].operands) != 2 or ops[1].operands[0] != ops[0].results[0]:
        return ""
    if ops[0].results[0].type != lhs.type:
        return ""
    name = ops[0].name.removeprefix("stablehlo.")
    operands = list(ops[0].operands)
    return name if operands in ([lhs, rhs], [rhs, lhs]) and name in COMMUTATIVE else ""


def run_scalars(machine: Evaluator, op: ir.Operation, region: int, arguments: Sequence[Array]) -> list[Array]:
    """Runs a region of scalars elementwise on arrays of one shape.

    Raises OpError for a region that reads per-device values from outside.
    """
    block = op.regions[region].blocks[0]
    inside = {result for view in block.operations for below in walk(view.operation) for result in below.results}
    inside |= set(block.arguments)
    for view in block.operations:
        outside = [operand for operand in view.operation.operands if operand not in inside]
        if any(machine.value(operand).shape[0] > 1 for operand in outside):
            raise OpError(view.operation, "reads a value of each device from outside a region of scalars")
    shape = np.broadcast_shapes(*(argument.shape for argument in arguments))
    flat = [np.broadcast_to(argument, shape).reshape(-1) for argument in arguments]
    observe, machine.observe = machine.observe, None
    try:
        results = machine.run(op, region, flat)
    finally:
        machine.observe = observe
    return [np.broadcast_to(result, flat[0].shape).reshape(shape) for result in results]


def reduced(combiner: Combiner, values: list[Array], axes: tuple[int, ...]) -> list[Array]:
    """Values reduced over dimensions of at least one element, without an initial value."""
    field, operand = combiner.machine.field, values[0]
    if len(values) == 1 and operand.dtype.kind in "fc" and combiner.name == "add":
        return [field.sum(operand, axes)]
    if len(values) == 1 and operand.dtype.kind == "f" and combiner.name in ("maximum", "minimum"):
        places = field.order(operand)
        return [field.at_place(np.asarray(places.max(axis=axes) if combiner.name == "maximum" else places.min(axis=axes)))]
    if len(values) == 1 and operand.dtype.kind in "iu" and combiner.name in COMMUTATIVE:
        ufunc = COMMUTATIVE[combiner.name]
        kind = operand.dtype if combiner.name in ("add", "multiply") else None
        total = np.asarray(ufunc.reduce(operand, axis=axes, dtype=kind))
        return [wrap(total, combiner.element)]
    kept_axes = [axis for axis in range(operand.ndim) if axis not in axes]
    rows = [value.transpose(*axes, *kept_axes).reshape(-1, *(value.shape[axis] for axis in kept_axes)) for value in values]
    while len(rows[0]) > 1:
        even = len(rows[0]) // 2 * 2
        paired = combiner.combine([row[0:even:2] for row in rows], [row[1:even:2] for row in rows])
        rows = [np.concatenate([pair, row[even:]]) for pair, row in zip(paired, rows, strict=True)]
    return [row[0] for row in rows]


@evaluates("stablehlo.reduce")
def reduce(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The initial value combined with all elements along some dimensions."""
    half = len(operands) // 2
    operands = align(*operands)
    values, inits = operands[:half], operands[half:]
    axes = tuple(dim + 1 for dim in integers(op, "dimensions"))
    kept_shape = [size for axis, size in enumerate(values[0].shape) if axis not in axes]
    begun = [init.reshape(-1, *(1,) * (len(kept_shape) - 1)) for init in inits]
    if any(values[0].shape[axis] == 0 for axis in axes):
        return [np.broadcast_to(init, kept_shape) for init in begun]
    combiner = combiner_of(machine, op, 0)
    totals = reduced(combiner, values, axes) if axes else values
    return [np.broadcast_to(total, kept_shape) for total in combiner.combine(begun, totals)]
