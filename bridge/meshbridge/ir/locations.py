"""Source locations of operations, and the reasons for collectives; MLIR locations contain both.

    loc(fused<["operand 1 of dot_general …", "chosen here …"]>["jit(step)/dot_general"(callsite("loss"("model.py":42:8) at …))])

The location of a combined collective lists those of its parts, and the metadata end with the bytes of each:
`fused<["2 collectives in one; …", "…", array<i64: 64, 16>]>["jit(step)/…"(…), "jit(step)/…"(…)]`.

Passes preserve locations, and common-subexpression elimination merges operations that differ only in these, so reasons follow
their collectives for free.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from meshbridge.ir import cells
from meshbridge.ir.mlir import ir

# Locations are read from their text: their Python classes differ between the versions of jaxlib that we support.
_FILE = re.compile(r'(?:"(?P<function>[\w.<>]+)"\()?"(?P<file>(?:[^"\\]|\\.)*)":(?P<line>\d+):(?P<column>\d+)')
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_REASON = re.compile(rf"loc\(fused<\[{_TEXT}, {_TEXT}(?:, array<i64: ([\d, ]+)>)?\]>\[")
_SCOPE = re.compile(r'"([^"]*)/[^"/]*"\(')
_STEP = re.compile(rf"{_TEXT}(?::(\d+):(\d+)|(\())")
"A file and its line, or a name around the rest."
_LIBRARY = re.compile(
    r"[/\\](?:lib[/\\]python3[^/\\]*[/\\])?(?:site|dist)-packages[/\\](?P<package>[^/\\.]*)"
    r"|[/\\]lib[/\\]python3[^/\\]*[/\\]|^<frozen "
)
_COMPILED = re.compile(r"(?:jit|pjit)\(([^()]*)\)")
"The outermost name of a compiled function."
_MESHBRIDGE = str(Path(__file__).parents[1])
_ESCAPED = re.compile(rb"\\([0-9A-F]{2})")


@dataclass(frozen=True)
class SourceLocation:
    """A line of the user's source, counted from 1. `file` and `function` are empty if unknown. The file of a notebook's cell is
    `cell 3`."""

    file: str = ""
    line: int = 0
    column: int = 0
    function: str = ""

    def __str__(self) -> str:
        if not self.file:
            return "<unknown>"
        position = self.short if cells.is_cell(self.file) else f"{self.file}:{self.line}:{self.column}"
        return f"{position} ({self.function})" if self.function else position

    @property
    def short(self) -> str:
        """File without its folders, and line: `model.py:42`, `cell 3, line 2`."""
        if cells.is_cell(self.file):
            return f"{self.file}, line {self.line}"
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.file else "<unknown>"

    @property
    def is_library(self) -> bool:
        """Whether the file belongs to an installed package, or to Python itself."""
        return _LIBRARY.search(self.file) is not None

    @property
    def package(self) -> str:
        """The installed package of the file; empty outside of packages."""
        match = _LIBRARY.search(self.file)
        return "" if match is None else match["package"] or ""


def location_of(op: ir.Operation) -> SourceLocation:
    """The line of the user's program that asked for `op`."""
    return location_at(op.location)


def location_at(location: ir.Location) -> SourceLocation:
    """The innermost line that an MLIR location names."""
    match = _FILE.search(str(location))
    if match is None:
        return SourceLocation()
    return SourceLocation(
        cells.name_of(unescaped(match["file"])), int(match["line"]), int(match["column"]), match["function"] or ""
    )


@dataclass(frozen=True)
class Trail:
    """The path to an operation: JAX's name stacks, and the calls in the source."""

    stacks: tuple[str, ...]
    """Name stacks, outermost first: of the entry point, and of each function in it that JAX compiles separately, such as the body
    of a scan. Each ends with the operation, or with the call: `jit(step)/jvp(LM)/while/body/closed_call`, `tanh`."""
    lines: tuple[SourceLocation, ...]
    "The calls, innermost first."

    @property
    def of_user(self) -> tuple[SourceLocation, ...]:
        """The calls in the user's code within the compiled function: outside of installed packages, or else in the package of the
        compiled function, such as an installed trainer's. Calls of ours, below which functions are traced, are neither."""
        ends = self._compiled()
        outside = (
            set(self.lines[ends:]) if ends is not None else set()
        )  # for a loop's body, JAX repeats the calls that lead to it
        within = [line for line in self.lines[:ends] if line not in outside and not line.file.startswith(_MESHBRIDGE)]
        own = [line for line in within if not line.is_library]
        if not own and within and ends is not None:
            own = [line for line in within if line.package == within[-1].package]
        return tuple(own)

    def _compiled(self) -> int | None:
        """How many calls are within the compiled function, which the outermost name stack names; None if no call has its name."""
        compiled = _COMPILED.match(self.stacks[0]) if self.stacks else None
        names = [line.function.rpartition("<locals>.")[2] for line in self.lines]
        numbers = [number for number, name in enumerate(names, 1) if compiled is not None and name == compiled[1]]
        return max(numbers, default=None)

    @property
    def user_line(self) -> SourceLocation:
        """The innermost line of the user's code; the innermost one if there is none."""
        return next(iter((*self.of_user, *self.lines)), SourceLocation())


def trail_at(location: ir.Location) -> Trail:
    """The trail of an MLIR location; the first one if several are fused."""
    return _trail(str(members(location)[0].location))


@lru_cache(maxsize=4096)
def _trail(text: str) -> Trail:
    stacks: list[str] = []
    lines: list[SourceLocation] = []
    function = ""
    for name, line, column, _ in _STEP.findall(text):
        if line:
            lines.append(SourceLocation(cells.name_of(unescaped(name)), int(line), int(column), function))
            function = ""
            continue
        if function:  # a name around another name is not a function's
            stacks.append(function)
        is_function = "/" not in name and "(" not in name
        function = unescaped(name) if is_function else ""
        if not is_function:
            stacks.append(unescaped(name))
    if function:
        stacks.append(function)
    return Trail(tuple(reversed(stacks)), tuple(lines))


def user_line(location: ir.Location) -> SourceLocation:
    """The innermost line of the user's code in an MLIR location."""
    return trail_at(location).user_line


def scope_of(location: ir.Location) -> str:
    """The names around an operation in the user's program, outermost first, as JAX stacks them: `jit(step)/loss`."""
    match = _SCOPE.search(str(location))
    return match[1] if match else ""


def is_rematerialized(op: ir.Operation) -> bool:
    """Whether `op` recomputes a value that `jax.checkpoint` does not save."""
    return "rematted_computation" in str(op.location)


def names_file(location: ir.Location) -> bool:
    """Whether `location` has a file."""
    return _FILE.search(str(location)) is not None


def with_reason(reason: str, location: ir.Location, asked: str = "", made_at: ir.Location | None = None) -> ir.Location:
    """`location` with the reason for an op, who asked for it, and the location of the value that it is about, if that is
    elsewhere: the op's bytes then count for that location."""
    if made_at is None:
        return combined_location(reason, asked, [Member(without_reason(location), 1)])
    return combined_location(reason, asked, [Member(without_reason(location), 0), Member(without_reason(made_at), 1)])


def combined_location(reason: str, asked: str, parts: Iterable[Member]) -> ir.Location:
    """The location of a combined op: those of its parts, with their reasons, and the bytes of each."""
    of_parts = _distinct(parts)
    with of_parts[0].location.context:
        metadata: list[ir.Attribute] = [ir.StringAttr.get(reason), ir.StringAttr.get(asked)]
        if len(of_parts) > 1:
            metadata.append(ir.DenseI64ArrayAttr.get([int(part.weight) for part in of_parts]))
        return ir.Location.fused([part.location for part in of_parts], ir.ArrayAttr.get(metadata))


def reason_at(op: ir.Operation) -> str:
    """The reason for `op`; empty if there is none."""
    match = _REASON.match(str(op.location))
    return unescaped(match[1]) if match else ""


def requester_at(op: ir.Operation) -> str:
    """Who asked for `op`; empty if unknown."""
    match = _REASON.match(str(op.location))
    return unescaped(match[2]) if match else ""


def unescaped(text: str) -> str:
    """The text that MLIR prints escaped between quotes."""
    plain = text.encode().replace(rb"\\", rb"\5C")
    return _ESCAPED.sub(lambda byte: bytes.fromhex(byte[1].decode()), plain).decode(errors="replace")


class Member(NamedTuple):
    """A part of a combined op."""

    location: ir.Location
    weight: float
    "Bytes, or their share of the total."


def members(location: ir.Location) -> list[Member]:
    """The parts of a combined op, without reasons, each with its share of the bytes; one part for any other op."""
    text = str(location)
    match = _REASON.match(text)
    if match is None and not text.startswith("loc(fused["):
        return [Member(location, 1.0)]
    parts: list[ir.Location] = list(location.locations)  # type: ignore[attr-defined]  # on the base class in older versions
    sizes = [int(size) for size in match[3].split(",")] if match is not None and match[3] else []
    sizes = sizes if any(sizes) else [1] * len(parts)  # no bytes, or unknown ones
    shared = zip(parts, (size / sum(sizes) for size in sizes), strict=True)
    return _distinct(Member(inner.location, share * inner.weight) for part, share in shared for inner in members(part))


def _distinct(parts: Iterable[Member]) -> list[Member]:
    """Merges members of the same location: MLIR keeps no location twice."""
    by_location: dict[ir.Attribute, Member] = {}
    for part in parts:
        before = by_location.get(part.location.attr)
        by_location[part.location.attr] = part if before is None else Member(part.location, before.weight + part.weight)
    return list(by_location.values())


def without_reason(location: ir.Location) -> ir.Location:
    """`location` without the reason of `with_reason`; for a combined op, the location of the first part."""
    while _REASON.match(str(location)) is not None:
        location = location.locations[0]  # type: ignore[attr-defined]  # on the base class in older versions
    return location
