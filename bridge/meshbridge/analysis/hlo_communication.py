"""What an optimised module sends: each collective with its group, its bytes in the ring model, and how often it runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from meshbridge.analysis.hlo import Computation, Execution, HloError, HloModule, Instruction
from meshbridge.analysis.ring import WIRE_BYTES

KINDS = tuple(WIRE_BYTES)


@dataclass(frozen=True)
class Collective:
    """One collective instruction. `wire_bytes` are per device and run; `scattered_bytes` count an all-reduce as the
    reduce-scatter that it amounts to where it is only sliced (XLA forms none on CPU).
    """

    name: str
    kind: str
    group: int
    wire_bytes: float
    scattered_bytes: float
    executions: int


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
    def executed(self) -> int:
        """How many collectives one run starts."""
        return sum(c.executions for c in self.collectives)

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

    Raises HloError on replica groups in a notation that it does not know.
    """

    def weigh(executed: Iterable[Execution]) -> float:
        return sum(each.wire_bytes * each.executions for each in _collectives(module, executed))

    return Communication(tuple(_collectives(module, module.executed(weigh))), tuple(module.unknown_loops))


def _collectives(module: HloModule, executed: Iterable[Execution]) -> Iterator[Collective]:
    for computation, instruction, executions in executed:
        kind = instruction.opcode.removesuffix("-start")
        if kind in WIRE_BYTES and (collective := _collective(module, computation, instruction, kind, executions)).group > 1:
            yield collective


def _collective(module: HloModule, computation: Computation, op: Instruction, kind: str, executions: int) -> Collective:
    sent = [computation.instructions[name].bytes for name in op.operands]
    if kind == "collective-permute":
        sources = _crossing_sources(op)
        wire = sum(sent) * len(sources) / module.devices
        return Collective(op.name, kind, 2 if sources else 1, wire, wire, executions)
    group = group_size(op, module.devices)
    buffers = [size * group for size in sent] if kind == "all-gather" else sent
    wire = sum(WIRE_BYTES[kind](group, size) for size in buffers)
    scattered = wire
    if kind == "all-reduce":
        halves = (WIRE_BYTES["reduce-scatter"](group, size) for size in buffers)
        results = _results(computation, op)
        scattered = sum(
            half if result and _only_sliced(module, computation, result, size / group) else 2 * half
            for half, size, result in zip(halves, buffers, results, strict=True)
        )
    return Collective(op.name, kind, group, wire, scattered, executions)


_PAIRS = re.compile(r"source_target_pairs=\{([\d,{} ]*)\}")
_PAIR = re.compile(r"\{(\d+),\s*(\d+)\}")


def _crossing_sources(permute: Instruction) -> list[int]:
    """Devices that send to another one."""
    pairs = _PAIRS.search(permute.attributes)
    if pairs is None:
        raise HloError(f"%{permute.name} has no source_target_pairs: {permute.attributes[:200]!r}")
    return [int(source) for source, target in _PAIR.findall(pairs.group(1)) if source != target]


_GROUP_LISTS = re.compile(r"replica_groups=\{(?:\{([\d,]*)\}.*?)?\}")
_GROUP_IOTA = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_GROUP_MESH = re.compile(r"replica_groups=@?\w*\[([^\]]*'[^\]]*)\][^{]*\{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'=(\d+)")
_AXIS_USE = re.compile(r"'([^']*)'(?::\(\d+\)(\d+))?")


def group_size(op: Instruction, devices: int) -> int:
    """Devices in one group, from any of HLO's three notations: lists, `[2,4]<=[8]`, and mesh axes.

    Raises HloError on another notation.
    """
    text = op.attributes
    if lists := _GROUP_LISTS.search(text):
        return len(lists.group(1).split(",")) if lists.group(1) else devices
    if iota := _GROUP_IOTA.search(text):
        return int(iota.group(1))
    if axes := _GROUP_MESH.search(text):
        sizes = dict(_AXIS.findall(axes.group(1)))
        return prod(int(sub_size or sizes[axis]) for axis, sub_size in _AXIS_USE.findall(axes.group(2)))
    raise HloError(f"%{op.name} has replica groups in an unknown notation: {text[:200]!r}")


def _results(computation: Computation, op: Instruction) -> list[str | None]:
    """The name of each result: the instruction itself, or what takes it out of the tuple; None where nothing or several do."""
    if len(op.operands) == 1:
        return [op.name]
    taken: list[str | None] = [None] * len(op.operands)
    for user in computation.users[op.name]:
        if user.opcode == "get-tuple-element" and (index := re.search(r"index=(\d+)", user.attributes)):
            taken[int(index.group(1))] = user.name
    return taken


_VIEWS = frozenset({"bitcast", "copy", "reshape", "transpose", "convert"})
"""Instructions that keep all elements of a value: what slices their result slices their operand."""


def _only_sliced(module: HloModule, computation: Computation, name: str, most: float) -> bool:
    """Whether every reader of a value takes a slice of at most `most` bytes of it, at a position that it computes."""
    readers = computation.users[name]
    return bool(readers) and all(_slices(module, computation, reader, name, most) for reader in readers)


def _slices(module: HloModule, computation: Computation, reader: Instruction, name: str, most: float) -> bool:
    if reader.opcode == "dynamic-slice":
        return reader.operands[0] == name and reader.bytes <= most
    if reader.opcode in _VIEWS:
        return _only_sliced(module, computation, reader.name, most)
    if reader.opcode in ("fusion", "call"):
        body = module.computations[reader.called[0]]
        inside = [parameter.name for parameter, operand in zip(body.parameters, reader.operands, strict=True) if operand == name]
        return all(_only_sliced(module, body, parameter, most) for parameter in inside)
    return False
