"""Reads optimised HLO text: computations, their instructions, and how often each one runs.

Only what the accounting needs: names, result sizes, operands and the attributes as text.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod


class HloError(ValueError):
    """The text is not the HLO that this reader knows; the message holds the line."""


ELEMENT_BITS = {
    "pred": 8, "s2": 2, "s4": 4, "u2": 2, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64,
    "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "f4e2m1fn": 4,
    "f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
    "token": 0, "opaque": 0,
}  # fmt: skip
"""Bits per element by HLO's name of the type."""


@dataclass(frozen=True)
class Array:
    """The type of one array."""

    element: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> float:
        return prod(self.shape) * ELEMENT_BITS[self.element] / 8


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. `arrays` are the leaves of the result's type; `attributes` is the text after the operands."""

    name: str
    opcode: str
    arrays: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str

    @property
    def bytes(self) -> float:
        return sum(array.bytes for array in self.arrays)

    @cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that this instruction runs (not those that it folds with, such as a reduction's body)."""
        if self.opcode == "conditional":
            return tuple(_NAME.findall(_match(_BRANCHES, self.attributes, self)))
        return tuple(_CALLED.findall(self.attributes)) if self.opcode in _CALLING else ()

    @cached_property
    def trip_count(self) -> int | None:
        """How often a `while` runs its body, where XLA knows it."""
        found = _TRIP_COUNT.search(self.attributes)
        return int(found.group(1)) if found else None


@dataclass(frozen=True)
class Computation:
    """A named list of instructions in order."""

    name: str
    instructions: dict[str, Instruction]

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """For each instruction, those that read it."""
        users: dict[str, list[Instruction]] = defaultdict(list)
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
        return users

    @cached_property
    def parameters(self) -> list[Instruction]:
        """Parameters by number; the number stands where other instructions have their operands."""
        found = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return sorted(found, key=lambda instruction: int(instruction.operands[0]))


@dataclass(frozen=True)
class HloModule:
    """An optimised module: what one device runs."""

    computations: dict[str, Computation]
    entry: str
    devices: int
    unknown_loops: list[str] = field(default_factory=list)
    """Loops without a known trip count: their bodies are counted once."""

    def executed(self, weigh: Weigh) -> Iterator[Execution]:
        """Every instruction that runs, with its computation and how often. Of branches, the first that weighs most runs."""
        return self._instructions(self._runs(self.entry, 1, weigh))

    def _runs(self, name: str, times: int, weigh: Weigh) -> Counter[str]:
        """How often each computation runs if that of this name does so many times."""
        counts = Counter({name: times})
        for instruction in self.computations[name].instructions.values():
            loops = self._loops(instruction) if instruction.opcode == "while" else 1
            called = [self._runs(each, times * loops, weigh) for each in instruction.called]
            if instruction.opcode == "conditional":
                called = [max(called, key=lambda runs: weigh(self._instructions(runs)))]
            for runs in called:
                counts.update(runs)
        return counts

    def _loops(self, loop: Instruction) -> int:
        if loop.trip_count is None:
            if loop.name not in self.unknown_loops:
                self.unknown_loops.append(loop.name)
            return 1
        return loop.trip_count

    def _instructions(self, runs: Counter[str]) -> Iterator[Execution]:
        for name, times in runs.items():
            computation = self.computations[name]
            for instruction in computation.instructions.values():
                yield computation, instruction, times


Execution = tuple[Computation, Instruction, int]
"""An instruction, its computation, and how often it runs."""

Weigh = Callable[[Iterable[Execution]], float]
"""What the instructions of a branch cost."""


_NAME = re.compile(r"%([\w.\-]+)")
_CALLING = frozenset({"while", "call", "fusion", "async-start"})
_CALLED = re.compile(r"\b(?:body|calls|to_apply|called_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(true_computation=%\S+, false_computation=%\S+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<= ]*)\]")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_COUNT = re.compile(r"\b(num_partitions|replica_count)=(\d+)")


def read(text: str) -> HloModule:
    """Reads the text of one optimised module, as `compiled.as_text()` gives it. Raises HloError with the line it cannot read."""
    lines = text.splitlines()
    if not lines or not lines[0].startswith("HloModule"):
        raise HloError(f"expected a text that begins with 'HloModule', found {text[:40]!r}")
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in lines[1:]:
        if header := _HEADER.match(line):
            current = Computation(header.group(2), {})
            computations[current.name] = current
            entry = current.name if header.group(1) else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and line.strip():
            instruction = _instruction(line)
            current.instructions[instruction.name] = instruction
    if not entry:
        raise HloError("the module has no ENTRY computation")
    counts = {name: int(number) for name, number in _COUNT.findall(lines[0])}
    return HloModule(computations, entry, counts.get("num_partitions", 1) * counts.get("replica_count", 1))


def _instruction(line: str) -> Instruction:
    begin = _LINE.match(line)
    if begin is None:
        raise HloError(f"expected an instruction, found {line[:200]!r}")
    after_type = _closing(line, begin.end()) if line[begin.end()] == "(" else line.index(" ", begin.end())
    opcode = _OPCODE.match(line, after_type)
    if opcode is None:
        raise HloError(f"expected an opcode at column {after_type}, found {line[:200]!r}")
    close = _closing(line, opcode.end() - 1)
    operands = line[opcode.end() : close - 1]
    names = (operands,) if opcode.group(1) == "parameter" else tuple(_NAME.findall(operands))
    return Instruction(begin.group(1), opcode.group(1), _arrays(line[begin.end() : after_type]), names, line[close:])


def _arrays(text: str) -> tuple[Array, ...]:
    """The leaves of a type such as `(f32[2,3]{1,0}, s32[])`; layouts are passed over."""
    found = [match.groups() for match in _ARRAY.finditer(text) if match.group(1) in ELEMENT_BITS]
    return tuple(Array(element, tuple(int(size.strip("<= ")) for size in shape.split(",") if size)) for element, shape in found)


def _closing(text: str, opening: int) -> int:
    """The position behind the parenthesis that closes the one at `opening`."""
    depth = 0
    for place in _PARENTHESES.finditer(text, opening):
        depth += 1 if place.group() == "(" else -1
        if depth == 0:
            return place.end()
    raise HloError(f"a parenthesis stays open: {text[:200]!r}")


_PARENTHESES = re.compile(r"[()]")


def _match(pattern: re.Pattern[str], text: str, instruction: Instruction) -> str:
    found = pattern.search(text)
    if found is None:
        raise HloError(f"{instruction.opcode} %{instruction.name}: expected {pattern.pattern!r} in {text[:200]!r}")
    return found.group(1) or found.group(2)
