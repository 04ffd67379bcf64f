"""This device's position on the mesh, as integer arithmetic on its logical number (see `groups`).

All values are `tensor<i32>`. Their size does not depend on the number of devices, except for the table from logical numbers to
row-major ones, which only a mesh needs whose device order does not transpose digits.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np

from meshbridge.ir.builder import Builder, tensor
from meshbridge.ir.digits import Digit, Digits, axis_digits, logical_digits
from meshbridge.ir.groups import Form
from meshbridge.ir.mlir import ir
from meshbridge.ir.per_device import entry
from meshbridge.ir.sharding import Mesh


@dataclass
class Positions:
    """This device's numbers, computed once per block, at the first use."""

    form: Form = "exported"
    _known: dict[Hashable, ir.Value] = field(default_factory=dict)

    def logical(self, emit: Builder) -> ir.Value:
        """The number of this device in XLA's device assignment."""
        name = "partition_id" if self.form == "exported" else "replica_id"
        unsigned = tensor([], ir.IntegerType.get_unsigned(32))
        return self._once(name, lambda: emit.convert(emit.value(name, unsigned, []), ir.IntegerType.get_signless(32)))

    def linear(self, mesh: Mesh, emit: Builder) -> ir.Value:
        """The row-major number of this device in the mesh."""
        logical = self.logical(emit)
        if not mesh.device_ids:
            return logical
        if (digits := logical_digits(mesh, axis_digits(mesh, tuple(range(mesh.rank))))) is not None:
            return self._once(mesh.name, lambda: number_along(logical, mesh, digits, emit))
        numbers = np.empty(mesh.size, np.int64)
        numbers[list(mesh.device_ids)] = np.arange(mesh.size)
        return self._once(mesh.name, lambda: entry(emit, numbers, logical))

    def along(self, mesh: Mesh, digits: Digits, emit: Builder) -> ir.Value:
        """The number of this device in its group along `digits`."""
        logical = logical_digits(mesh, digits)
        number, of_number = (self.linear(mesh, emit), digits) if logical is None else (self.logical(emit), logical)
        return self._once((mesh.name, digits), lambda: number_along(number, mesh, of_number, emit))

    def _once(self, key: Hashable, compute: Callable[[], ir.Value]) -> ir.Value:
        if (number := self._known.get(key)) is None:
            number = self._known[key] = compute()
        return number


def number_along(linear: ir.Value, mesh: Mesh, digits: Digits, emit: Builder) -> ir.Value:
    """The number, in its group along `digits`, of the device with number `linear`: at most one division and one remainder for
    each run of digits that follow each other in that number."""
    index: ir.Value | None = None
    for run in _merged(digits):
        part = emit.elementwise("divide", linear, run.stride) if run.stride > 1 else linear
        if run.stride * run.radix < mesh.size:
            part = emit.elementwise("remainder", part, run.radix)
        index = part if index is None else emit.add(emit.multiply(index, run.radix), part)
    return emit.scalar(0) if index is None else index


def _merged(digits: Digits) -> list[Digit]:
    """The fewest digits of the same numbers, without digits of radix 1."""
    merged: list[Digit] = []
    for digit in digits:
        if digit.radix > 1:
            if merged and merged[-1].stride == digit.stride * digit.radix:
                digit = Digit(digit.axis, merged.pop().radix * digit.radix, digit.stride)
            merged.append(digit)
    return merged
