"""Where a device stands, and who sends to whom, as StableHLO on `partition_id`.

Devices are numbered in row-major order of the mesh; `Mesh.ordered_devices` maps those numbers to partition ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshbridge.ir.builder import Builder, dense, element_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.resharding.steps import Digit, Digits

CHANNEL = "#stablehlo.channel_handle<handle = 1, type = 1>"
"""One number for all collectives, so that equal ones stay equal; type 1: between devices."""

Pairs = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
"""Numbers of devices: rows of sender and receiver, or rows of groups."""


class Place:
    """This device's position in `mesh`. Everything is `tensor<i32>`."""

    def __init__(self, mesh: Mesh, emit: Builder) -> None:
        self.mesh = mesh
        self.emit = emit
        number = emit.value("partition_id", tensor([], ir.IntegerType.get_unsigned(32)), [])
        self.partition = emit.convert(number, ir.IntegerType.get_signless(32))
        self.linear = self.partition
        "Row-major number of this device in the mesh."
        if mesh.device_ids:
            numbers = np.empty(mesh.size, np.int32)
            numbers[list(mesh.device_ids)] = np.arange(mesh.size)
            self.linear = emit.reshape(emit.dynamic_slice(emit.table(numbers), 0, self.partition, 1), [])

    def group(self, digits: Sequence[Digit]) -> ir.Value:
        """This device's number in its group along `digits`."""
        return self.rotated(digits, [0] * len(digits))

    def rotated(self, digits: Sequence[Digit], shifts: Sequence[int]) -> ir.Value:
        """The same with `shifts[i]` added to digit i, modulo its radix."""
        emit = self.emit
        index: ir.Value | None = None
        for digit, shift in zip(digits, shifts, strict=True):
            value = self.linear
            if digit.stride > 1:
                value = emit.elementwise("divide", value, digit.stride)
            value = emit.add(value, shift % digit.radix)
            value = emit.elementwise("remainder", value, digit.radix)
            index = value if index is None else emit.add(emit.multiply(index, digit.radix), value)
        return emit.scalar(0) if index is None else index

    def after(self, index: ir.Value, value: ir.Value) -> ir.Value:
        """`index`, but not before `value` is there.

        XLA drops optimization barriers before it schedules, and then starts all rounds of an exchange at once, each with buffers
        of its own. A number that is added on devices that do not exist is a dependence that it keeps.
        """
        emit = self.emit
        first = emit.corner(value)
        if isinstance(element_of(first), ir.ComplexType):
            first = emit.value("real", tensor([], ir.ComplexType(element_of(first)).element_type), [first])
        never = emit.compare("GE", self.partition, self.mesh.size)
        return emit.add(index, emit.select(never, emit.convert(first, element_of(index)), 0))

    def everywhere(self, digits: Digits, pairs: Pairs | Sequence[tuple[int, int]]) -> Pairs:
        """Pairs of numbers along `digits` as pairs of devices, in every group."""
        inside: Pairs = self.groups(digits)[:, np.array(pairs)]
        return inside.reshape(-1, 2)

    def groups(self, digits: Digits) -> Pairs:
        """The devices of every group along `digits`, one row for each group, in group order."""
        devices = np.arange(self.mesh.size)
        first = devices[np.all([digit.of(devices) == 0 for digit in digits], axis=0)]
        offsets = np.zeros(1, np.int64)
        for digit in digits:
            offsets = (offsets[:, None] + np.arange(digit.radix) * digit.stride).ravel()
        return first[:, None] + offsets

    def permute(self, value: ir.Value, pairs: Pairs) -> ir.Value:
        """`value` moved from sources to targets, numbered in row-major order of the mesh; zeros on devices that are no target."""
        partitions = np.array(self.mesh.ordered_devices(), np.int64)
        attrs = {
            "source_target_pairs": dense(partitions[pairs]),
            "channel_handle": ir.Attribute.parse(CHANNEL),
        }
        return self.emit.value("collective_permute", value.type, [value], attrs)
