"""`--verify-diagnostics`: the diagnostics that a test file expects, in mlir-opt's notation.

// expected-error @+1 {{mesh axis 3 is out of range}}
// expected-note@below {{a part of the message}}
// expected-error-re @above {{axis {{[0-9]+}} is out of range}}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_EXPECTED = re.compile(
    r"expected-(?P<kind>error|warning|note|remark)(?P<regex>-re)?\s*"
    r"(?:@\s*(?P<where>[+-]\d+|above|below|unknown))?\s*\{\{(?P<text>.*?)\}\}\s*$"
)
_REGEX_PART = re.compile(r"\{\{(.*?)\}\}")
_DIAGNOSTIC = re.compile(r"^(?P<file>.*?)(?::(?P<line>\d+):(?P<column>\d+))?: (?P<kind>error|warning|note|remark): (?P<text>.*)$")


@dataclass(frozen=True)
class Diagnostic:
    """A diagnostic; `line` is None if it names no line of the file."""

    kind: str
    line: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.kind}{'' if self.line is None else f' at line {self.line}'}: {self.text}"


@dataclass(frozen=True)
class Expectation:
    """An expected diagnostic of that kind at that line, with a text that contains `pattern`."""

    kind: str
    line: int | None
    pattern: re.Pattern[str]
    written: str

    def fits(self, diagnostic: Diagnostic) -> bool:
        return self.kind == diagnostic.kind and self.line == diagnostic.line and self.pattern.search(diagnostic.text) is not None


def expectations(text: str) -> list[Expectation]:
    """The expectations in `text`, with resolved lines."""
    result: list[Expectation] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        comment = _EXPECTED.search(line)
        if comment is not None:
            where = _line(comment["where"], number, lines)
            result.append(Expectation(comment["kind"], where, _pattern(comment["text"], bool(comment["regex"])), comment["text"]))
    return result


def _line(where: str | None, number: int, lines: Sequence[str]) -> int | None:
    """The line that an expectation means: `above` and `below` skip other expectations, as in mlir-opt."""
    if where == "unknown":
        return None
    if where in ("above", "below"):
        step = -1 if where == "above" else 1
        number += step
        while 0 < number <= len(lines) and _EXPECTED.search(lines[number - 1]):
            number += step
        return number
    return number + int(where or 0)


def _pattern(text: str, regex: bool) -> re.Pattern[str]:
    if not regex:
        return re.compile(re.escape(text))
    pieces = _REGEX_PART.split(text)  # literal, expression, literal, …
    return re.compile("".join(piece if index % 2 else re.escape(piece) for index, piece in enumerate(pieces)))


def diagnostics(text: str) -> list[Diagnostic]:
    """Parses the text of an error: lines `file:line:column: kind: message`; other lines continue the previous one."""
    parsed: list[Diagnostic] = []
    for line in text.splitlines():
        head = _DIAGNOSTIC.match(line)
        if head is not None:
            parsed.append(Diagnostic(head["kind"], int(head["line"]) if head["line"] else None, head["text"]))
        elif parsed:
            previous = parsed[-1]
            parsed[-1] = Diagnostic(previous.kind, previous.line, f"{previous.text}\n{line}")
    return parsed


def mismatches(expected: Sequence[Expectation], produced: Sequence[Diagnostic]) -> list[str]:
    """The unexpected diagnostics, and the expectations that are not met.

    Unexpected notes are allowed: as in mlir-opt, only errors and warnings must all be expected.
    """
    open_expectations = list(expected)
    complaints: list[str] = []
    for diagnostic in produced:
        met = next((entry for entry in open_expectations if entry.fits(diagnostic)), None)
        if met is not None:
            open_expectations.remove(met)
        elif diagnostic.kind != "note":
            complaints.append(f"unexpected {diagnostic}")
    for entry in open_expectations:
        at = "" if entry.line is None else f" at line {entry.line}"
        complaints.append(f"expected {entry.kind}{at} was not produced: {entry.written}")
    return complaints
