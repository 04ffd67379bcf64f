"""The ring model of a collective's cost: bytes that one device sends when the group passes its data around in a ring.

One formula per kind, used both for what a compiler emitted and for what an expert would write by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

WIRE_BYTES: dict[str, Callable[[int, float], float]] = {
    "all-gather": lambda n, size: size * (n - 1) / n,
    "all-reduce": lambda n, size: size * 2 * (n - 1) / n,
    "reduce-scatter": lambda n, size: size * (n - 1) / n,
    "all-to-all": lambda n, size: size * (n - 1) / n,
    "collective-broadcast": lambda n, size: size * (n - 1) / n,
    "collective-permute": lambda n, size: size,
}
"""Bytes on the wire per device from (devices in a group, bytes of the whole local buffer).

The buffer is the larger side: an all-gather's result, a reduce-scatter's operand. A permute's size counts only the devices
that send to another one: the caller scales it by their fraction.
"""


@dataclass(frozen=True)
class Term:
    """`times` collectives of one kind in groups of `group` devices over `size` bytes each, and why they are needed."""

    kind: str
    group: int
    size: float
    times: int
    why: str

    @property
    def wire_bytes(self) -> float:
        """Bytes per device, ring model, all `times` together."""
        return self.times * WIRE_BYTES[self.kind](self.group, self.size)


def total(terms: Iterable[Term]) -> float:
    """Wire bytes per device of a whole plan."""
    return sum(term.wire_bytes for term in terms)
