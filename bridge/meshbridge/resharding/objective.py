"""What deciding and resharding minimise: bytes on the wire of a device, and in such bytes the starts of collectives and what is
held in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.plan import DEFAULTS, Options
from meshbridge.resharding.slowness import Rates, exchanges, slowness

HIDDEN_LAUNCH = 0.5
"""The part of its launch that a collective is taken to cost beside which products can run.

Measured on llamas of `testdata/realistic` for 8 H100, by XLA:GPU's model. Fully sharded, with constraints, 32 layers take 308 ms
with a half; with 1 small parameters are gathered before the loops, and it takes 318 ms and half as much memory again. With 0.2
that of 4 layers and two axes sends a quarter more, and takes 57.0 ms instead of 54.6."""


class Beside(NamedTuple):
    """What goes on while a tensor is gathered or reduced."""

    joined: int = 1
    "How many tensors the compiler gathers or reduces in the same launch."
    part: float = 1.0
    "The part of its time that counts: less than all where products wait neither before nor behind it."


ALONE = Beside()


class Work(NamedTuple):
    """What one device's arithmetic takes, in bytes on the wire."""

    multiply_add: float
    "Of a contraction, which takes as long as these, or as its bytes if that is longer."
    iteration: float
    "Of any other op."
    byte: float
    "That a contraction reads from memory, or writes there."


@dataclass(frozen=True)
class Objective:
    """One scale for everything that costs time, in bytes on the wire."""

    launch: float = 0.0
    "Bytes that a link carries in the time in which a collective starts."
    memory: float = 0.0
    "Bytes sent that it costs as much to hold a byte throughout the program."

    is_thorough: bool = False
    "Whether deciding also starts from the plan of the fewest bytes, and takes the better one, for twice the time."
    rates: Rates | None = None
    "How much longer collectives take along axes of the mesh; None where all axes are alike."
    joined_bytes: float = 0.0
    "Bytes up to which the compiler joins independent gathers, or independent reductions, into one launch; 0 where it joins none."
    hidden_gathers: float = 1.0
    "The part of their time that gathers cost beside which products can run."
    hidden_reductions: float = 1.0
    "The same of reductions."
    work: Work | None = None
    "What arithmetic takes; None for the prices that `decide.choice` has for programs which their users have sharded."
    beside: Beside = ALONE
    "Of the gathers and reductions that are priced: of their launch each costs its part."

    @cached_property
    def planning(self) -> Options:
        """How plans are chosen. Of equal bytes, fewer collectives are better in any case."""
        return replace(DEFAULTS, alpha=max(DEFAULTS.alpha, self.launch * DEFAULTS.beta))

    def planning_on(self, mesh: Mesh) -> Options:
        """The same on a mesh, some axes of which may be slower than others."""
        if self.rates is None:
            return self.planning
        rates = {
            name: self.rates.gathering(frozenset((name,))).bytes for name in mesh.runs if mesh.group_size(mesh.runs[name]) > 1
        }
        slow = {axis: rate for name, rate in rates.items() for axis in mesh.runs[name]}
        least = min(slow.values(), default=0.0)
        slowest = sorted((axis for axis in slow if slow[axis] > least), key=lambda axis: -slow[axis])
        return replace(self.planning, slowest=tuple(slowest))

    @cached_property
    def pricing(self) -> Options:
        """The same for plans that are priced and not emitted."""
        return replace(self.planning, check=False)

    def price(self, mesh: Mesh, source: Sharding, target: Sharding, size: float, collectives: float) -> float:
        """What a resharding costs in which a device receives `size` bytes in so many collectives."""
        launches = collectives * self.launch
        if self.beside is not ALONE and not exchanges(source, target):
            joined, part = self.beside
            if joined > 1 and self.joined_bytes:
                launches *= min(1.0, max(1 / joined, size / self.joined_bytes))
            size *= part
            if part < 1:
                launches *= HIDDEN_LAUNCH
        if self.rates is None:
            return size + launches
        slow = slowness(mesh, source, target, self.rates)
        return size * slow.bytes + launches * slow.launch

    def of(self, beside: Beside) -> Objective:
        """The same for gathers or reductions of one tensor."""
        return self if beside == ALONE else replace(self, beside=beside)

    @property
    def hides(self) -> bool:
        """Whether what runs beside products costs less."""
        return self.hidden_gathers < 1 or self.hidden_reductions < 1

    @cached_property
    def routes(self) -> tuple[tuple[Objective, ...], ...]:
        """The ways to the best plan: what is minimised, one after the other. Prices of links and of launches, which may be many
        times those of bytes, hold only where the rest of a plan is good already."""
        whole = (self,) if self.rates is None else (self.plain, self)
        return (whole, (replace(self.plain, launch=0.0), *whole)) if self.is_thorough else (whole,)

    @cached_property
    def plain(self) -> Objective:
        """The same where all axes are alike."""
        return replace(self, rates=None) if self.rates else self

    @cached_property
    def _hash(self) -> int:
        hidden = (self.hidden_gathers, self.hidden_reductions)
        return hash((self.launch, self.memory, self.is_thorough, self.rates, self.joined_bytes, hidden, self.work, self.beside))

    def __hash__(self) -> int:
        """Computed once: prices are looked up by objective."""
        return self._hash


BYTES = Objective()
"""Bytes alone."""
