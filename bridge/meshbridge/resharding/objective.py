"""What deciding and resharding minimise: bytes on the wire of a device, and in such bytes the starts of collectives and what is
held in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from meshbridge.resharding.plan import DEFAULTS, Options


@dataclass(frozen=True)
class Objective:
    """One scale for everything that costs time, in bytes on the wire."""

    launch: float = 0.0
    "Bytes that a link carries in the time in which a collective starts."
    memory: float = 0.0
    "Bytes sent that it costs as much to hold a byte throughout the program."

    @cached_property
    def planning(self) -> Options:
        """How plans are chosen. Of equal bytes, fewer collectives are better in any case."""
        return replace(DEFAULTS, alpha=max(DEFAULTS.alpha, self.launch * DEFAULTS.beta))

    @cached_property
    def pricing(self) -> Options:
        """The same for plans that are priced and not emitted."""
        return replace(self.planning, check=False)

    @cached_property
    def _hash(self) -> int:
        return hash((self.launch, self.memory))

    def __hash__(self) -> int:
        """Computed once: prices are looked up by objective."""
        return self._hash


BYTES = Objective()
"""Bytes alone."""
