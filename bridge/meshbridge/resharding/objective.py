"""What deciding and resharding minimise, in bytes on the wire of a device: bytes sent, and the price of launches and of memory in
such bytes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.resharding.link_costs import Rates, exchanges, link_cost
from meshbridge.resharding.plan import DEFAULTS, PlanOptions

HIDDEN_LAUNCH = 0.5
"""The part of its launch that a collective costs if products can run at the same time.

Measured on llamas of `testdata/realistic` for 8 H100 by XLA:GPU's model. 32 layers, fully sharded with constraints, take 308 ms
with one half. With 1, small parameters are gathered before the loops: 318 ms, and half as much memory again. With 0.2, 4 layers
on two axes send a quarter more and take 57.0 ms instead of 54.6."""


class Concurrency(NamedTuple):
    """What runs at the same time as a gather or a reduction of a tensor."""

    combined: int = 1
    "How many tensors the compiler gathers or reduces in the same launch."
    part: float = 1.0
    "The part of its time that counts: less than 1 if products can run beside it."


ALONE = Concurrency()


class ComputeCosts(NamedTuple):
    """What one device's arithmetic takes, as bytes on the wire."""

    multiply_add: float
    "Of a contraction, which is bound by these or by its bytes."
    iteration: float
    "Of any other op."
    byte: float
    "That a contraction reads from or writes to memory."


@dataclass(frozen=True)
class Objective:
    """The price of everything that takes time, in bytes on the wire."""

    launch: float = 0.0
    "Bytes that a link carries in the time in which a collective starts."
    memory: float = 0.0
    "The price of a byte of memory that is held throughout the program, in bytes sent."
    held_factor: float = field(default=1.0, compare=False)
    """The factor on that price of what loops carry unchanged, for each execution of the loops that read it. No resharding's price
    depends on it."""

    is_thorough: bool = False
    "Whether deciding also starts from the plan of the fewest bytes, and takes the better result, in twice the time."
    rates: Rates | None = None
    "How much longer collectives take along axes of the mesh; None if all axes are alike."
    combined_bytes: float = 0.0
    "The compiler combines independent gathers, or independent reductions, into one launch up to this many bytes; 0 if never."
    hidden_gathers: float = 1.0
    "The part of their time that gathers cost if products can run beside them."
    hidden_reductions: float = 1.0
    "The same for reductions."
    work: ComputeCosts | None = None
    "The price of arithmetic; None for the defaults of `decide.choice`."
    beside: Concurrency = ALONE
    "What runs beside the gathers and reductions that are priced."

    @cached_property
    def planning(self) -> PlanOptions:
        """The options for planning. At equal bytes, fewer collectives are always better."""
        return replace(DEFAULTS, alpha=max(DEFAULTS.alpha, self.launch * DEFAULTS.beta))

    def planning_on(self, mesh: Mesh) -> PlanOptions:
        """The options on a mesh, some axes of which may be slower than others."""
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
    def pricing(self) -> PlanOptions:
        """The options for plans that are priced and not emitted."""
        return replace(self.planning, check=False)

    def price(self, mesh: Mesh, source: Sharding, target: Sharding, size: float, collectives: float) -> float:
        """The price of a resharding in which a device receives `size` bytes in so many collectives."""
        launches = collectives * self.launch
        if self.beside is not ALONE and not exchanges(source, target):
            combined, part = self.beside
            if combined > 1 and self.combined_bytes:
                launches *= min(1.0, max(1 / combined, size / self.combined_bytes))
            size *= part
            if part < 1:
                launches *= HIDDEN_LAUNCH
        if self.rates is None:
            return size + launches
        slow = link_cost(mesh, source, target, self.rates)
        return size * slow.bytes + launches * slow.launch

    def of(self, beside: Concurrency) -> Objective:
        """The objective for gathers or reductions of one tensor."""
        return self if beside == ALONE else replace(self, beside=beside)

    @property
    def hides(self) -> bool:
        """Whether what runs beside products costs less."""
        return self.hidden_gathers < 1 or self.hidden_reductions < 1

    @cached_property
    def routes(self) -> tuple[tuple[Objective, ...], ...]:
        """Sequences of objectives to minimise one after the other: the prices of links and launches, which may be many times
        those of bytes, hold only where the rest of a plan is good already."""
        direct = (self,) if self.rates is None else (self.plain, self)
        return (direct, (replace(self.plain, launch=0.0), *direct)) if self.is_thorough else (direct,)

    @cached_property
    def plain(self) -> Objective:
        """The objective without differences between axes."""
        return replace(self, rates=None) if self.rates else self

    @cached_property
    def alone(self) -> Objective:
        """The price of a resharding beside which nothing runs and that costs no memory, as if all axes were alike: equal for all
        variants of a plan."""
        return replace(self.plain, memory=0.0, is_thorough=False, hidden_gathers=1.0, hidden_reductions=1.0)

    @cached_property
    def _hash(self) -> int:
        hidden = (self.hidden_gathers, self.hidden_reductions)
        return hash((self.launch, self.memory, self.is_thorough, self.rates, self.combined_bytes, hidden, self.work, self.beside))

    def __hash__(self) -> int:
        """The hash, computed once: prices are looked up by objective."""
        return self._hash


BYTES = Objective()
"""Bytes alone."""
