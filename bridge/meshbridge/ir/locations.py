"""Where an operation stands in the user's source, and why a communication is there: both are kept in its MLIR location.

    loc(fused<["operand 1 of dot_general …", "chosen here …"]>["jit(step)/dot_general"(callsite("loss"("model.py":42:8) at …))])

Where several collectives travel together, their locations stand side by side, and the metadata end with how much each sends:
`fused<["2 collectives in one; …", "…", array<i64: 64, 16>]>["jit(step)/…"(…), "jit(step)/…"(…)]`.

Passes hand locations on, and common-subexpression elimination merges operations that differ in nothing else, so a reason travels
with its collective for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from meshbridge.ir.mlir import ir

# Locations are read from their text: their Python classes differ between the versions of jaxlib that we support.
_FILE = re.compile(r'(?:"(?P<function>[\w.<>]+)"\()?"(?P<file>(?:[^"\\]|\\.)*)":(?P<line>\d+):(?P<column>\d+)')
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_REASON = re.compile(rf"loc\(fused<\[{_TEXT}, {_TEXT}(?:, array<i64: ([\d, ]+)>)?\]>\[")
_SCOPE = re.compile(r'"([^"]*)/[^"/]*"\(')
_STEP = re.compile(rf"{_TEXT}(?::(\d+):(\d+)|(\())")
"A file and its line, or a name around what follows."
_LIBRARY = re.compile(r"[/\\](?:(?:site|dist)-packages|lib[/\\]python3[^/\\]*)[/\\]|^<frozen ")
_ESCAPED = re.compile(rb"\\([0-9A-F]{2})")


@dataclass(frozen=True)
class SourceLocation:
    """A line of the user's source. `file` is empty where the program does not say; so is `function`, and lines count from 1."""

    file: str = ""
    line: int = 0
    column: int = 0
    function: str = ""

    def __str__(self) -> str:
        if not self.file:
            return "<unknown>"
        position = f"{self.file}:{self.line}:{self.column}"
        return f"{position} ({self.function})" if self.function else position

    @property
    def short(self) -> str:
        """File without its folders, and line, as prose names it."""
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else "<unknown>"

    @property
    def is_library(self) -> bool:
        """Whether the file is one of an installed package, or of Python itself."""
        return _LIBRARY.search(self.file) is not None


def location_of(op: ir.Operation) -> SourceLocation:
    """The line of the user's program that asked for `op`."""
    return location_at(op.location)


def location_at(location: ir.Location) -> SourceLocation:
    """The innermost line that an MLIR location names."""
    found = _FILE.search(str(location))
    if found is None:
        return SourceLocation()
    return SourceLocation(unescaped(found["file"]), int(found["line"]), int(found["column"]), found["function"] or "")


@dataclass(frozen=True)
class Trail:
    """How a program comes to an operation: JAX's names for it, and the calls in its source."""

    stacks: tuple[str, ...]
    """Name stacks, outermost first: of the entry point, and of each function in it that JAX compiles as one of its own, such as
    the body of a scan. Each ends with the operation, or with the call: `jit(step)/jvp(LM)/while/body/closed_call`, `tanh`."""
    lines: tuple[SourceLocation, ...]
    "The calls, innermost first."

    @property
    def user_line(self) -> SourceLocation:
        """The innermost line that is not a library's; the innermost one where all are."""
        return next((line for line in self.lines if not line.is_library), self.lines[0] if self.lines else SourceLocation())


def trail_at(location: ir.Location) -> Trail:
    """The trail that an MLIR location tells; of several that are fused, the first."""
    return _trail(str(members(location)[0].location))


@lru_cache(maxsize=4096)
def _trail(text: str) -> Trail:
    stacks: list[str] = []
    lines: list[SourceLocation] = []
    function = ""
    for name, line, column, _ in _STEP.findall(text):
        if line:
            lines.append(SourceLocation(unescaped(name), int(line), int(column), function))
            function = ""
            continue
        if function:  # a name around another name is no function's
            stacks.append(function)
        is_function = "/" not in name and "(" not in name
        function = unescaped(name) if is_function else ""
        if not is_function:
            stacks.append(unescaped(name))
    if function:
        stacks.append(function)
    return Trail(tuple(reversed(stacks)), tuple(lines))


def user_line(location: ir.Location) -> SourceLocation:
    """The innermost line of an MLIR location that is not a library's."""
    return trail_at(location).user_line


def scope_of(location: ir.Location) -> str:
    """The names around an operation in the user's program, outermost first, as JAX stacks them: `jit(step)/loss`."""
    found = _SCOPE.search(str(location))
    return found[1] if found else ""


def is_repeated(op: ir.Operation) -> bool:
    """Whether JAX put `op` there to compute again what `jax.checkpoint` does not keep."""
    return "rematted_computation" in str(op.location)


def names_file(location: ir.Location) -> bool:
    """Whether `location` says where in a file it is."""
    return _FILE.search(str(location)) is not None


def because(reason: str, location: ir.Location, asked: str = "", made_at: ir.Location | None = None) -> ir.Location:
    """`location` with the reason for what stands there, with who asked for it, and with where that was made which it is about, if
    that is elsewhere: it then counts for what stands there."""
    if made_at is None:
        return together(reason, asked, [Member(without_reason(location), 1)])
    return together(reason, asked, [Member(without_reason(location), 0), Member(without_reason(made_at), 1)])


def together(reason: str, asked: str, parts: Iterable[Member]) -> ir.Location:
    """The location of what travels together: where each of its parts comes from, the reasons for that included, and how many
    bytes that sends."""
    of_parts = _distinct(parts)
    with of_parts[0].location.context:
        said: list[ir.Attribute] = [ir.StringAttr.get(reason), ir.StringAttr.get(asked)]
        if len(of_parts) > 1:
            said.append(ir.DenseI64ArrayAttr.get([int(part.weight) for part in of_parts]))
        return ir.Location.fused([part.location for part in of_parts], ir.ArrayAttr.get(said))


def reason_at(op: ir.Operation) -> str:
    """Why `op` is there, if that was written down, else the empty text."""
    found = _REASON.match(str(op.location))
    return unescaped(found[1]) if found else ""


def asked_at(op: ir.Operation) -> str:
    """Who asked for that, if it was written down, else the empty text."""
    found = _REASON.match(str(op.location))
    return unescaped(found[2]) if found else ""


def unescaped(text: str) -> str:
    """What MLIR prints so between quotes."""
    plain = text.encode().replace(rb"\\", rb"\5C")
    return _ESCAPED.sub(lambda byte: bytes.fromhex(byte[1].decode()), plain).decode(errors="replace")


class Member(NamedTuple):
    """A part of what travels together."""

    location: ir.Location
    weight: float
    "Bytes, or their share in all."


def members(location: ir.Location) -> list[Member]:
    """The parts of what travels together, without reasons, each with its share in the bytes that are sent; else one part."""
    text = str(location)
    found = _REASON.match(text)
    if found is None and not text.startswith("loc(fused["):
        return [Member(location, 1.0)]
    parts: list[ir.Location] = list(location.locations)  # type: ignore[attr-defined]  # on the base class in older versions
    sent = [int(each) for each in found[3].split(",")] if found is not None and found[3] else []
    sent = sent if any(sent) else [1] * len(parts)  # nothing is sent, or nobody has said how much
    shared = zip(parts, (weight / sum(sent) for weight in sent), strict=True)
    return _distinct(Member(inner.location, share * inner.weight) for part, share in shared for inner in members(part))


def _distinct(parts: Iterable[Member]) -> list[Member]:
    """Those of one location as one: MLIR keeps no location twice."""
    found: dict[ir.Attribute, Member] = {}
    for part in parts:
        before = found.get(part.location.attr)
        found[part.location.attr] = part if before is None else Member(part.location, before.weight + part.weight)
    return list(found.values())


def without_reason(location: ir.Location) -> ir.Location:
    """`location` as it was before `because`; of what travels together, that of the first."""
    while _REASON.match(str(location)) is not None:
        location = location.locations[0]  # type: ignore[attr-defined]  # on the base class in older versions
    return location
