"""How often a loop of an optimised module goes round.

The CPU's and the GPU's compiler write the number down. The TPU's does not: it is read off the condition, which compares a carried
integer with a constant, the loop's operand, from which that integer starts, and the body, which adds a constant to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from meshbridge.analysis.hlo import Computation, HloModule, Instruction

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_BODY = re.compile(r"\bbody=%([\w.\-]+)")
_CONDITION = re.compile(r"\bcondition=%([\w.\-]+)")
_INTEGER = re.compile(r"-?\d+")
_SAME_VALUE = frozenset({"bitcast", "copy", "copy-start", "copy-done", "convert", "reshape", "optimization-barrier"})
_LIMITS: dict[str, Callable[[int, int, int], int]] = {
    "LT": lambda start, limit, step: -(-(limit - start) // step) if step > 0 else 0,
    "LE": lambda start, limit, step: (limit - start) // step + 1 if step > 0 else 0,
    "GT": lambda start, limit, step: -(-(start - limit) // -step) if step < 0 else 0,
    "GE": lambda start, limit, step: (start - limit) // -step + 1 if step < 0 else 0,
    "NE": lambda start, limit, step: (limit - start) // step if (limit - start) % step == 0 else 0,
}
"""Trip counts by the direction of the comparison of counter and limit."""
_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}


def trip_count(module: HloModule, computation: Computation, loop: Instruction) -> int | None:
    """None where nothing says it."""
    if known := _KNOWN.search(loop.attributes):
        return int(known.group(1))
    condition, body = (module.computations[_name(pattern, loop)] for pattern in (_CONDITION, _BODY))
    test = _Value(module, condition, condition.root).origin()
    direction = test.instruction.attribute("direction")
    if test.instruction.opcode != "compare" or direction not in _LIMITS:
        return None
    counter, limit = (test.operand(number) for number in (0, 1))
    if counter.element is None:
        counter, limit, direction = limit, counter, _MIRRORED[direction]
    start, step = _start(module, computation, loop, counter), _step(module, body, counter)
    end = limit.integer if limit.element is None else _unchanged(module, computation, loop, body, limit)
    if start is None or end is None or not step:
        return None
    return max(0, _LIMITS[direction](start, end, step))


@dataclass(frozen=True)
class _Value:
    """The value of an instruction, inside of a fusion that `caller` runs or of a computation of its own."""

    module: HloModule
    computation: Computation
    instruction: Instruction
    caller: _Value | None = None

    def operand(self, number: int) -> _Value:
        return self._at(self.instruction.operands[number]).origin()

    def origin(self) -> _Value:
        """The instruction that computes it: copies, fusions and tuples on the way are passed through."""
        before = self._before()
        return self if before is None else before.origin()

    @property
    def integer(self) -> int | None:
        """The number, if it is a constant."""
        text = self.instruction.operands[0] if self.instruction.opcode == "constant" else ""
        return int(text) if _INTEGER.fullmatch(text) else None

    @property
    def element(self) -> int | None:
        """Which element of what the loop carries it is."""
        if self.instruction.opcode != "get-tuple-element" or self.caller is not None:
            return None
        return _index(self.instruction) if self._at(self.instruction.operands[0]).instruction.opcode == "parameter" else None

    def _at(self, name: str) -> _Value:
        return _Value(self.module, self.computation, self.computation.instructions[name], self.caller)

    def _before(self) -> _Value | None:
        op = self.instruction
        if op.opcode in _SAME_VALUE:
            return self._at(op.operands[0])
        if op.opcode == "parameter" and self.caller is not None:
            return self.caller._at(self.caller.instruction.operands[int(op.operands[0])])
        if op.opcode == "fusion":
            (body,) = self.module.called(op)
            return _Value(self.module, body, body.root, self)
        if op.opcode == "get-tuple-element":
            whole = self._at(op.operands[0]).origin()
            if whole.instruction.opcode == "tuple":
                return whole._at(whole.instruction.operands[_index(op)])
        return None


def _index(element: Instruction) -> int:
    return int(element.attribute("index") or 0)


def _name(pattern: re.Pattern[str], loop: Instruction) -> str:
    found = pattern.search(loop.attributes)
    return found.group(1) if found else ""


def _carried(value: _Value, number: int) -> _Value | None:
    """Element `number` of a tuple."""
    tuple_ = value.origin()
    return tuple_.operand(number) if tuple_.instruction.opcode == "tuple" else None


def _start(module: HloModule, computation: Computation, loop: Instruction, counter: _Value) -> int | None:
    if counter.element is None:
        return None
    first = _carried(_Value(module, computation, computation.instructions[loop.operands[0]]), counter.element)
    return first.integer if first else None


def _step(module: HloModule, body: Computation, counter: _Value) -> int | None:
    """What the body adds to the counter."""
    assert counter.element is not None
    after = _carried(_Value(module, body, body.root), counter.element)
    if after is None or after.instruction.opcode not in ("add", "subtract"):
        return None
    terms = [after.operand(number) for number in (0, 1)]
    if after.instruction.opcode == "add" and terms[1].element == counter.element:
        terms.reverse()
    if terms[0].element != counter.element or terms[1].integer is None:
        return None
    return terms[1].integer if after.instruction.opcode == "add" else -terms[1].integer


def _unchanged(module: HloModule, computation: Computation, loop: Instruction, body: Computation, value: _Value) -> int | None:
    """The number that a loop carries from its start on."""
    assert value.element is not None
    after = _carried(_Value(module, body, body.root), value.element)
    return _start(module, computation, loop, value) if after and after.element == value.element else None
