"""The price of bytes that a loop holds: how much a pass must save by holding more of them.

Deciding weighs by the same price what loops carry unchanged (`decide/routes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from meshbridge.cost.communication import wire_bytes_on
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.machines.compile_target import CompileTarget

LARGEST_GROWTH = 2**28
"""Bytes by which one moved collective may let what a loop holds grow. A bound on memory, not a measurement."""


class Sent(NamedTuple):
    """What an execution of a loop sends, in bytes on the wire and in collectives."""

    wire_bytes: float
    launches: float

    @staticmethod
    def by(collective: ir.Operation, meshes: Mapping[str, Mesh]) -> Sent:
        """What one execution of a collective sends."""
        return Sent(wire_bytes_on(dict(meshes))([(collective, 1)]), 1)

    def times(self, count: int | None, widening: float = 1.0) -> Sent:
        """The same so many times, of elements that are `widening` times as large; without end for a count that is not known."""
        repeated = inf if count is None else count
        return Sent(self.wire_bytes * widening * repeated, self.launches * repeated)


@dataclass(frozen=True)
class HeldPrice:
    """What holding a byte during an execution of a loop costs, in bytes on the wire."""

    byte: float = 0.0
    "The price; 0 if the machine names none, so that the bound alone counts."
    launch: float = 0.0
    "Bytes that a link carries in the time in which a collective starts."
    largest: float = LARGEST_GROWTH
    "The most bytes by which what is held may grow."

    @staticmethod
    def of(target: CompileTarget | None, largest: float = LARGEST_GROWTH) -> HeldPrice:
        """The price on the machine of a target."""
        if target is None or target.machine is None or target.held_price is None:
            return HeldPrice(largest=largest)
        return HeldPrice(target.held_price, target.machine.link.launch_bytes, largest)

    def is_paid(self, growth: float, before: Sent, after: Sent) -> bool:
        """Whether a loop may hold `growth` more bytes because it then sends what is `after` instead of `before`."""
        if growth > self.largest:
            return False
        if growth <= 0 or not self.byte or before.launches == inf:
            return True
        saved = before.wire_bytes - after.wire_bytes + self.launch * (before.launches - after.launches)
        return self.byte * growth <= saved
