"""Reads optimised HLO text of the CPU's, the TPU's and the GPU's compiler: computations and their instructions.

It only reads names, result sizes, operands and the text of attributes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod


class HloError(ValueError):
    """A text that is not HLO as this reader knows it; the message contains the line."""


ELEMENT_BITS = {
    "pred": 8, "s2": 2, "s4": 4, "u2": 2, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64,
    "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128, "f4e2m1fn": 4,
    "f8e3m4": 8, "f8e4m3": 8, "f8e4m3b11fnuz": 8, "f8e4m3fn": 8, "f8e4m3fnuz": 8, "f8e5m2": 8, "f8e5m2fnuz": 8, "f8e8m0fnu": 8,
    "token": 0, "opaque": 0,
}  # fmt: skip
"""Bits per element, by HLO's type names."""


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
    """One instruction of a computation. `arrays` are the leaves of the result's type; `attributes` is the text after the
    operands. The operand of a parameter is its number, that of a constant its value.
    """

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
        """The computations that this instruction runs (not those that it reduces with)."""
        if self.opcode == "conditional":
            return tuple(_NAME.findall(_match(_BRANCHES, self.attributes, self)))
        return tuple(_CALLED.findall(self.attributes)) if self.opcode in _CALLING else ()

    @property
    def runs_inline(self) -> bool:
        """Whether the computation that it runs is part of this one instruction, without a schedule of its own."""
        return self.opcode in INLINE_CALLS

    def attribute(self, name: str) -> str | None:
        """The text of the attribute `name=…` or, in a configuration, `"name":…`, up to the next comma or bracket."""
        match = re.search(rf'(?:\b{name}=|"{name}": ?)"?([^\s,{{}}"\]]*)', self.attributes)
        return match.group(1) if match else None

    def braced(self, name: str) -> str:
        """The text between the braces of the attribute `name={…}`; empty if there is none."""
        match = re.search(rf"\b{name}=\{{([^}}]*)\}}", self.attributes)
        return match.group(1) if match else ""


@dataclass(frozen=True)
class Computation:
    """A named list of instructions in order."""

    name: str
    instructions: dict[str, Instruction]
    "In execution order, if the module is scheduled."
    returned: str
    "The name of the returned instruction."

    @property
    def root(self) -> Instruction:
        return self.instructions[self.returned]

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """For each instruction, its users."""
        users: dict[str, list[Instruction]] = defaultdict(list)
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
        return users

    @cached_property
    def parameters(self) -> list[Instruction]:
        """Parameters by number."""
        parameters = [i for i in self.instructions.values() if i.opcode == "parameter"]
        return sorted(parameters, key=lambda instruction: int(instruction.operands[0]))


@dataclass(frozen=True)
class HloModule:
    """An optimised module, the program of one device."""

    name: str
    computations: dict[str, Computation]
    entry: str
    partitions: int
    replicas: int
    tiled: bool
    "Whether layouts have tiles, as the TPU's compiler writes them."

    @property
    def devices(self) -> int:
        return self.partitions * self.replicas

    @cached_property
    def inlined(self) -> frozenset[str]:
        """Names of computations that are part of one instruction, without a schedule of their own."""
        instructions = (op for computation in self.computations.values() for op in computation.instructions.values())
        return frozenset(name for op in instructions if op.runs_inline for name in op.called)

    def called(self, instruction: Instruction) -> list[Computation]:
        """The computations that an instruction runs. Raises HloError for one that the text does not contain."""
        missing = [name for name in instruction.called if name not in self.computations]
        if missing:
            raise HloError(f"{instruction.opcode} %{instruction.name} runs %{missing[0]}, which the text does not hold")
        return [self.computations[name] for name in instruction.called]


INLINE_CALLS = frozenset({"fusion", "async-start", "call-start"})
"""Opcodes whose computation is part of the instruction."""

_NAME = re.compile(r"%([\w.\-]+)")
_CALLING = INLINE_CALLS | {"while", "call"}
_LITERAL = frozenset({"parameter", "constant"})
_CALLED = re.compile(r"\b(?:body|condition|calls|to_apply|called_computation)=%([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}|(true_computation=%\S+, false_computation=%\S+)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,<= ]*)\]")
_MODULE = re.compile(r"HloModule ([^\s,]+)")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_COUNT = re.compile(r"\b(num_partitions|replica_count)=(\d+)")


def read(text: str) -> HloModule:
    """Reads the text of one optimised module, from `compiled.as_text()`. Raises HloError with the line that it cannot read."""
    lines = text.splitlines()
    module = _MODULE.match(lines[0]) if lines else None
    if module is None:
        raise HloError(f"expected a text that begins with 'HloModule', found {text[:40]!r}")
    computations: dict[str, Computation] = {}
    entry = ""
    for header, statements in _computations(iter(lines[1:])):
        name, root = header.group(2), ""
        instructions: dict[str, Instruction] = {}
        entry = name if header.group(1) else entry
        for statement in statements:
            instruction = _instruction(statement)
            instructions[instruction.name] = instruction
            root = instruction.name if statement.lstrip().startswith("ROOT ") else root
        computations[name] = Computation(name, instructions, root or next(reversed(instructions), ""))
    if not entry:
        raise HloError("the module has no ENTRY computation")
    counts = {name: int(number) for name, number in _COUNT.findall(lines[0])}
    partitions, replicas = (counts.get(name, 1) for name in ("num_partitions", "replica_count"))
    return HloModule(module.group(1), computations, entry, partitions, replicas, ":T(" in lines[0])


def _computations(lines: Iterator[str]) -> Iterator[tuple[re.Match[str], Iterator[str]]]:
    """The header of each computation, and the texts of its instructions, which must be read before the next one."""
    for line in lines:
        if header := _HEADER.match(line):
            yield header, _statements(lines)


def _statements(lines: Iterator[str]) -> Iterator[str]:
    """The texts of instructions up to the brace that ends a computation. An instruction ends with the line that closes all its
    brackets, since the attributes of kernels span several lines."""
    begun: list[str] = []
    depth = 0
    for line in lines:
        if not begun and line.startswith("}"):
            return
        if not begun and not line.strip():
            continue
        begun.append(line)
        depth += _opened(line)
        if depth <= 0:
            yield "\n".join(begun)
            begun, depth = [], 0
    raise HloError(f"expected the end of a computation, found that of the text{f' in {begun[0][:200]!r}' if begun else ''}")


def _opened(line: str) -> int:
    """The number of opening minus closing brackets in a line, outside of strings."""
    text = _STRING.sub("", line) if '"' in line else line
    return sum(map(text.count, "{([")) - sum(map(text.count, "})]"))


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
    names = (operands,) if opcode.group(1) in _LITERAL else tuple(_NAME.findall(operands))
    return Instruction(begin.group(1), opcode.group(1), _arrays(line[begin.end() : after_type]), names, line[close:])


def _arrays(text: str) -> tuple[Array, ...]:
    """The leaves of a type such as `(f32[2,3]{1,0}, s32[])`, without layouts."""
    arrays = [match.groups() for match in _ARRAY.finditer(text) if match.group(1) in ELEMENT_BITS]
    return tuple(Array(element, tuple(int(size.strip("<= ")) for size in shape.split(",") if size)) for element, shape in arrays)


def _closing(text: str, opening: int) -> int:
    """The position after the parenthesis that closes the one at `opening`."""
    depth = 0
    for match in _PARENTHESES.finditer(text, opening):
        depth += 1 if match.group() == "(" else -1
        if depth == 0:
            return match.end()
    raise HloError(f"a parenthesis stays open: {text[:200]!r}")


_PARENTHESES = re.compile(r"[()]")


def _match(pattern: re.Pattern[str], text: str, instruction: Instruction) -> str:
    match = pattern.search(text)
    if match is None:
        raise HloError(f"{instruction.opcode} %{instruction.name}: expected {pattern.pattern!r} in {text[:200]!r}")
    return match.group(1) or match.group(2)
