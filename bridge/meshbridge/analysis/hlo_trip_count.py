"""Trip counts of the loops of an optimised module.

The CPU's and the GPU's compiler write the number into the loop. For the TPU's, it is derived from the condition, which compares a
carried integer with a constant, the loop's operand, which has the initial value, and the body, which adds a constant. Integers
wrap around.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshbridge.analysis.counters import MIRRORED, Counter
from meshbridge.analysis.hlo import Array, Computation, HloError, HloModule, Instruction

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BODY = re.compile(r"\bbody=%([\w.\-]+)")
_CONDITION = re.compile(r"\bcondition=%([\w.\-]+)")
_INTEGER = re.compile(r"-?\d+")
_ELEMENT = re.compile(r"([su])(\d+)")
_SAME_VALUE = frozenset({"bitcast", "copy", "copy-start", "copy-done", "convert", "reshape", "optimization-barrier"})


def _bounds(arrays: tuple[Array, ...]) -> tuple[int, int] | None:
    """The bounds of an HLO integer type; None for other types. Of several arrays the first counts, as for a copy in progress."""
    match = _ELEMENT.fullmatch(arrays[0].element) if arrays else None
    if match is None:
        return None
    width = int(match.group(2))
    return (0, 2**width - 1) if match.group(1) == "u" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)


def trip_count(module: HloModule, computation: Computation, loop: Instruction) -> int | None:
    """The trip count of a loop; None if it is unknown."""
    if match := _KNOWN.search(loop.attributes):
        return int(match.group(1))
    return _HloLoop(module, computation, loop).trip_count()


@dataclass(frozen=True)
class _HloValue:
    """The value of an instruction, in a computation of its own or in a fusion that `caller` runs."""

    module: HloModule
    computation: Computation
    instruction: Instruction
    caller: _HloValue | None = None

    def operand(self, number: int) -> _HloValue:
        return self._at(self.instruction.operands[number]).origin()

    def member(self, number: int) -> _HloValue | None:
        """The tuple element of that number, if the value is a tuple."""
        whole = self.origin()
        return whole.operand(number) if whole.instruction.opcode == "tuple" else None

    def origin(self) -> _HloValue:
        """The instruction that computes it, through copies, fusions and tuples."""
        before = self._before()
        return self if before is None else before.origin()

    @property
    def integer(self) -> int | None:
        """The number, if the value is a constant."""
        text = self.instruction.operands[0] if self.instruction.opcode == "constant" else ""
        return int(text) if _INTEGER.fullmatch(text) else None

    @property
    def element(self) -> int | None:
        """The index of the loop's carried element, if the value is one."""
        if self.instruction.opcode != "get-tuple-element" or self.caller is not None:
            return None
        return _index(self.instruction) if self._at(self.instruction.operands[0]).instruction.opcode == "parameter" else None

    def _at(self, name: str) -> _HloValue:
        return _HloValue(self.module, self.computation, self.computation.instructions[name], self.caller)

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The bounds of its type, if that is an integer type."""
        return _bounds(self.instruction.arrays)

    def _before(self) -> _HloValue | None:
        op = self.instruction
        if op.opcode in _SAME_VALUE:
            source = self._at(op.operands[0])
            return source if _holds(self.bounds, source) else None
        if op.opcode == "parameter" and self.caller is not None:
            return self.caller._at(self.caller.instruction.operands[int(op.operands[0])])
        if op.opcode == "fusion":
            (body,) = self.module.called(op)
            return _HloValue(self.module, body, body.root, self)
        if op.opcode == "get-tuple-element":
            return self._at(op.operands[0]).member(_index(op))
        return None


@dataclass(frozen=True)
class _HloLoop:
    """A `while` instruction."""

    module: HloModule
    computation: Computation
    op: Instruction

    def trip_count(self) -> int | None:
        test = self._returned(_CONDITION).origin()
        direction = test.instruction.attribute("direction")
        if test.instruction.opcode != "compare" or direction not in MIRRORED:
            return None
        counter, limit = (test.operand(number) for number in (0, 1))
        if counter.element is None or self._fixed(limit) is None:
            counter, limit, direction = limit, counter, MIRRORED[direction]
        if counter.element is None or counter.bounds is None:
            return None
        start, end, step = self._start(counter.element), self._fixed(limit), self._step(counter.element)
        if start is None or end is None or step is None:
            return None
        return Counter(direction, start, step, end, *counter.bounds).trip_count

    def _returned(self, part: re.Pattern[str]) -> _HloValue:
        """The value that the condition or the body returns."""
        match = part.search(self.op.attributes)
        called = self.module.computations.get(match.group(1)) if match else None
        if called is None:
            raise HloError(f"while %{self.op.name}: expected {part.pattern!r} in {self.op.attributes[:200]!r}")
        return _HloValue(self.module, called, called.root)

    def _start(self, element: int) -> int | None:
        initial = _HloValue(self.module, self.computation, self.computation.instructions[self.op.operands[0]]).member(element)
        return initial.integer if initial else None

    def _fixed(self, limit: _HloValue) -> int | None:
        """A number that no iteration changes: a constant, or an unchanged carried value."""
        if limit.element is None:
            return limit.integer
        after = self._returned(_BODY).member(limit.element)
        return self._start(limit.element) if after and after.element == limit.element else None

    def _step(self, counter: int) -> int | None:
        """The increment of the counter in the body."""
        after = self._returned(_BODY).member(counter)
        if after is None or after.instruction.opcode not in ("add", "subtract"):
            return None
        counted, step = (after.operand(number) for number in (0, 1))
        if after.instruction.opcode == "add" and step.element == counter:
            counted, step = step, counted
        if counted.element != counter or step.integer is None:
            return None
        return step.integer if after.instruction.opcode == "add" else -step.integer


def _holds(bounds: tuple[int, int] | None, source: _HloValue) -> bool:
    """Whether a type of these bounds can represent the value of `source`: its type is the same or wider, or `source` is a
    constant that fits."""
    before = source.bounds
    if bounds is None or before is None or bounds == before:
        return bounds == before
    low, high = before if source.integer is None else (source.integer, source.integer)
    return bounds[0] <= low and high <= bounds[1]


def _index(element: Instruction) -> int:
    return int(element.attribute("index") or 0)
