"""The collectives of an optimised module, with their groups, bytes in the ring model, and number of executions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from meshbridge.analysis.hlo import Computation, HloModule, Instruction
from meshbridge.analysis.hlo_executions import Executions
from meshbridge.analysis.hlo_groups import crossing_sources, group_size
from meshbridge.analysis.hlo_issued import IssuedCollective, issued_collectives
from meshbridge.analysis.hlo_slices import sliced_results
from meshbridge.analysis.ring import WIRE_BYTES

KINDS = tuple(WIRE_BYTES)


@dataclass(frozen=True)
class HloCollective:
    """One collective instruction. Bytes are per device and execution; `scattered_bytes` count an all-reduce whose result is only
    sliced as a reduce-scatter (XLA forms none on CPU).
    """

    name: str
    kind: str
    group: int
    bytes_by_element: dict[str, float]
    "Wire bytes of the operands of each element type, by HLO's type names."
    scattered_bytes: float
    executions: int
    asynchronous: bool
    "Whether it has a start and a done instruction."
    overlapped: bool
    "Whether a computing instruction is scheduled between the two."

    @property
    def wire_bytes(self) -> float:
        return sum(self.bytes_by_element.values())


@dataclass(frozen=True)
class HloCommunication:
    """All collectives of a module, with loop bodies counted by their trip counts."""

    collectives: tuple[HloCollective, ...]
    unknown_loops: tuple[str, ...]

    @property
    def wire_bytes(self) -> float:
        """Bytes per device, ring model."""
        return sum(c.wire_bytes * c.executions for c in self.collectives)

    @property
    def scattered_bytes(self) -> float:
        """Wire bytes with all-reduces whose results are only sliced counted as reduce-scatters."""
        return sum(c.scattered_bytes * c.executions for c in self.collectives)

    @property
    def overlapped_bytes(self) -> float:
        """The wire bytes of collectives that overlap with computation; the others are exposed."""
        return sum(c.wire_bytes * c.executions for c in self.collectives if c.overlapped)

    @property
    def executed(self) -> int:
        """The number of collectives that one run executes."""
        return sum(c.executions for c in self.collectives)

    @property
    def asynchronous(self) -> int:
        """The number of asynchronous collectives that one run executes."""
        return sum(c.executions for c in self.collectives if c.asynchronous)

    def bytes_by_kind(self) -> dict[str, float]:
        """Wire bytes per device, by kind."""
        return {kind: sum(by_element.values()) for kind, by_element in self.bytes_by_element().items()}

    def bytes_by_element(self) -> dict[str, dict[str, float]]:
        """Wire bytes per device, by kind and element type: compilers send float32 as bfloat16 if only products read it."""
        totals: dict[str, dict[str, float]] = {kind: {} for kind in KINDS if any(c.kind == kind for c in self.collectives)}
        for c in self.collectives:
            for element, wire in c.bytes_by_element.items():
                totals[c.kind][element] = totals[c.kind].get(element, 0.0) + wire * c.executions
        return totals

    def count_by_kind(self) -> dict[str, int]:
        """Number of instructions, by kind."""
        return dict(Counter(c.kind for c in self.collectives))


def communication(module: HloModule) -> HloCommunication:
    """Finds every executed collective, and of branches those of the one that sends most. Collectives within groups of one device
    send nothing and are left out.

    Raises HloError for text that it cannot read: replica groups in an unknown notation, a start without a done instruction.
    """
    issued = issued_collectives(module)
    executions = Executions(module)
    collective_of = partial(_collective, module)
    collectives = {key: [c for c in map(collective_of, begun) if c.group > 1] for key, begun in issued.items()}

    def cost(computation: Computation, op: Instruction) -> float:
        return sum(collective.wire_bytes for collective in collectives.get((computation.name, op.name), ()))

    executed = (
        replace(collective, executions=times)
        for computation, op, times in executions.of(cost)
        for collective in collectives.get((computation.name, op.name), ())
    )
    return HloCommunication(tuple(executed), tuple(executions.unknown_loops))


def _collective(module: HloModule, issued: IssuedCollective) -> HloCollective:
    """One execution of a collective."""
    computation, op, kind = issued.computation, issued.op, issued.kind
    operands = [computation.instructions[name] for name in op.operands]
    if kind == "ragged-all-to-all":
        del operands[1:]  # the others are the buffer of the result, and offsets and sizes
    if kind == "collective-permute":
        sources = crossing_sources(op)
        group, wire = 2 if sources else 1, [operand.bytes * len(sources) / module.devices for operand in operands]
    else:
        group = group_size(module, op, kind)
        wire = [WIRE_BYTES[kind](group, operand.bytes * (group if kind == "all-gather" else 1)) for operand in operands]
    scattered = wire
    if kind == "all-reduce":
        sliced = sliced_results(module, computation, op, group)
        scattered = [size / 2 if only else size for size, only in zip(wire, sliced, strict=True)]
        if issued.fused and all(sliced):
            kind, wire = "reduce-scatter", scattered
    by_element: dict[str, float] = {}
    for operand, size in zip(operands, wire, strict=True):
        for array in operand.arrays:
            part = size if len(operand.arrays) == 1 else size * array.bytes / operand.bytes
            by_element[array.element] = by_element.get(array.element, 0.0) + part
    return HloCollective(op.name, kind, group, by_element, sum(scattered), 1, issued.asynchronous, issued.overlapped)
