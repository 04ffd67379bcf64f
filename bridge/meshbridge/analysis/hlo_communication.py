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
class HloCollective:
    """One collective instruction. Bytes are per device and execution; `scattered_bytes` count an all-reduce as the reduce-scatter
    that it amounts to where it is only sliced (XLA forms none on CPU).
    """

    name: str
    kind: str
    group: int
    bytes_by_element: dict[str, float]
    "Wire bytes of the operands of each element type, by its name in HLO."
    scattered_bytes: float
    executions: int
    asynchronous: bool
    "Whether it is begun by one instruction and waited for by another."
    overlapped: bool
    "Whether one that computes is scheduled between the two."

    @property
    def wire_bytes(self) -> float:
        return sum(self.bytes_by_element.values())


@dataclass(frozen=True)
class HloCommunication:
    """All collectives of a module, with loop bodies counted as often as they run."""

    collectives: tuple[HloCollective, ...]
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
        return {kind: sum(by_element.values()) for kind, by_element in self.bytes_by_element().items()}

    def bytes_by_element(self) -> dict[str, dict[str, float]]:
        """The same by types of elements: compilers send float32 as bfloat16 where only products read it."""
        totals: dict[str, dict[str, float]] = {kind: {} for kind in KINDS if any(c.kind == kind for c in self.collectives)}
        for c in self.collectives:
            for element, wire in c.bytes_by_element.items():
                totals[c.kind][element] = totals[c.kind].get(element, 0.0) + wire * c.executions
        return totals

    def count_by_kind(self) -> dict[str, int]:
        """Instructions of each kind."""
        return dict(Counter(c.kind for c in self.collectives))


def communication(module: HloModule) -> HloCommunication:
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
    return HloCommunication(tuple(found), tuple(executions.unknown_loops))


def _collective(module: HloModule, issued: Issued) -> HloCollective:
    """As it runs once."""
    computation, op, kind = issued.computation, issued.op, issued.kind
    sent = [computation.instructions[name] for name in op.operands]
    if kind == "ragged-all-to-all":
        del sent[1:]  # the others are the buffer of the result, and offsets and sizes
    if kind == "collective-permute":
        sources = crossing_sources(op)
        group, wire = 2 if sources else 1, [each.bytes * len(sources) / module.devices for each in sent]
    else:
        group = group_size(module, op, kind)
        wire = [WIRE_BYTES[kind](group, each.bytes * (group if kind == "all-gather" else 1)) for each in sent]
    scattered = wire
    if kind == "all-reduce":
        sliced = sliced_results(module, computation, op, group)
        scattered = [size / 2 if only else size for size, only in zip(wire, sliced, strict=True)]
        if issued.fused and all(sliced):
            kind, wire = "reduce-scatter", scattered
    by_element: dict[str, float] = {}
    for each, size in zip(sent, wire, strict=True):
        for array in each.arrays:
            part = size if len(each.arrays) == 1 else size * array.bytes / each.bytes
            by_element[array.element] = by_element.get(array.element, 0.0) + part
    return HloCollective(op.name, kind, group, by_element, sum(scattered), 1, issued.asynchronous, issued.overlapped)
