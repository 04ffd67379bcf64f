"""What an optimised module sends: each collective with its group, its bytes in the ring model, and how often it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from meshbridge.analysis.hlo import Computation, HloModule, Instruction
from meshbridge.analysis.hlo_executions import Executions
from meshbridge.analysis.hlo_groups import crossing_sources, group_size
from meshbridge.analysis.hlo_issued import Issued, issued_collectives
from meshbridge.analysis.hlo_slices import sliced_results
from meshbridge.analysis.ring import WIRE_BYTES

KINDS = tuple(WIRE_BYTES)


@dataclass(frozen=True)
class Collective:
    """One collective instruction. `wire_bytes` are per device and execution; `scattered_bytes` count an all-reduce as the
    reduce-scatter that it amounts to where it is only sliced (XLA forms none on CPU).
    """

    name: str
    kind: str
    group: int
    wire_bytes: float
    scattered_bytes: float
    executions: int
    asynchronous: bool
    "Whether it is begun by one instruction and waited for by another."
    overlapped: bool
    "Whether one that computes is scheduled between the two."


@dataclass(frozen=True)
class Communication:
    """All collectives of a module, with loop bodies counted as often as they run."""

    collectives: tuple[Collective, ...]
    unknown_loops: tuple[str, ...]

    @property
    def wire_bytes(self) -> float:
        """Bytes per device, ring model."""
        return sum(c.wire_bytes * c.executions for c in self.collectives)

    @property
    def scattered_bytes(self) -> float:
        """The same with all-reduces that are only sliced counted as reduce-scatters."""
        return sum(c.scattered_bytes * c.executions for c in self.collectives)

    @property
    def overlapped_bytes(self) -> float:
        """Of the wire bytes, those of collectives during which something computes; the others are exposed."""
        return sum(c.wire_bytes * c.executions for c in self.collectives if c.overlapped)

    @property
    def executed(self) -> int:
        """How many collectives one run starts."""
        return sum(c.executions for c in self.collectives)

    @property
    def asynchronous(self) -> int:
        """How many of those run beside other instructions."""
        return sum(c.executions for c in self.collectives if c.asynchronous)

    def bytes_by_kind(self) -> dict[str, float]:
        """Wire bytes per device of each kind that occurs."""
        totals: Counter[str] = Counter()
        for c in self.collectives:
            totals[c.kind] += c.wire_bytes * c.executions  # type: ignore[assignment]  # Counter is typed for int only
        return {kind: totals[kind] for kind in KINDS if kind in totals}

    def count_by_kind(self) -> dict[str, int]:
        """Instructions of each kind."""
        return dict(Counter(c.kind for c in self.collectives))


def communication(module: HloModule) -> Communication:
    """Finds every collective that runs, of branches those of the one that sends most. Those within groups of one device send
    nothing and are left out.

    Raises HloError on what it cannot read: replica groups in an unknown notation, a collective begun that nothing waits for.
    """
    issued = issued_collectives(module)
    executions = Executions(module)
    sent = {key: [each for each in map(partial(_collective, module), begun) if each.group > 1] for key, begun in issued.items()}

    def cost(computation: Computation, op: Instruction) -> float:
        return sum(each.wire_bytes for each in sent.get((computation.name, op.name), ()))

    found = (
        replace(each, executions=times)
        for computation, op, times in executions.of(cost)
        for each in sent.get((computation.name, op.name), ())
    )
    return Communication(tuple(found), tuple(executions.unknown_loops))


def _collective(module: HloModule, issued: Issued) -> Collective:
    """As it runs once."""
    computation, op, kind = issued.computation, issued.op, issued.kind
    sent = [computation.instructions[name].bytes for name in op.operands]
    begun = partial(Collective, op.name, executions=1, asynchronous=issued.asynchronous, overlapped=issued.overlapped)
    if kind == "collective-permute":
        sources = crossing_sources(op)
        wire = sum(sent) * len(sources) / module.devices
        return begun(kind, 2 if sources else 1, wire, wire)
    group = group_size(module, op, kind)
    if kind == "ragged-all-to-all":
        del sent[1:]  # the others are the buffer of the result, and offsets and sizes
    buffers = [size * group for size in sent] if kind == "all-gather" else sent
    if kind != "all-reduce":
        wire = sum(WIRE_BYTES[kind](group, size) for size in buffers)
        return begun(kind, group, wire, wire)
    halves = [WIRE_BYTES["reduce-scatter"](group, size) for size in buffers]
    sliced = sliced_results(module, computation, op, group)
    scattered = sum(half if only else 2 * half for half, only in zip(halves, sliced, strict=True))
    if issued.fused and all(sliced):
        return begun("reduce-scatter", group, scattered, scattered)
    return begun(kind, group, 2 * sum(halves), scattered)
