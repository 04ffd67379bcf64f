"""Where an operation stands in the user's source, and why a communication is there: both are kept in its MLIR location.

    loc(fused<"operand 1 of dot_general …">["jit(step)/dot_general"(callsite("loss"("model.py":42:8) at …))])

Passes hand locations on, and common-subexpression elimination merges operations that differ in nothing else, so a reason travels
with its collective for nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshbridge.ir.mlir import ir

# Locations are read from their text: their Python classes differ between the versions of jaxlib that we support.
_FILE = re.compile(r'(?:"(?P<function>[\w.<>]+)"\()?"(?P<file>(?:[^"\\]|\\.)*)":(?P<line>\d+):(?P<column>\d+)')
_REASON = re.compile(r'loc\(fused<"((?:[^"\\]|\\.)*)">\[')
_SCOPE = re.compile(r'"([^"]*)/[^"/]*"\(')
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


def location_of(op: ir.Operation) -> SourceLocation:
    """The line of the user's program that asked for `op`."""
    return location_at(op.location)


def location_at(location: ir.Location) -> SourceLocation:
    """The innermost line that an MLIR location names."""
    found = _FILE.search(str(location))
    if found is None:
        return SourceLocation()
    return SourceLocation(found["file"], int(found["line"]), int(found["column"]), found["function"] or "")


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


def because(reason: str, location: ir.Location) -> ir.Location:
    """`location` with the reason for what stands there."""
    with location.context:
        return ir.Location.fused([without_reason(location)], ir.StringAttr.get(reason))


def reason_at(op: ir.Operation) -> str:
    """Why `op` is there, if that was written down, else the empty text."""
    found = _REASON.match(str(op.location))
    text = found[1].encode().replace(rb"\\", rb"\5C") if found else b""
    return _ESCAPED.sub(lambda byte: bytes.fromhex(byte[1].decode()), text).decode()


def without_reason(location: ir.Location) -> ir.Location:
    """`location` as it was before `because`."""
    if _REASON.match(str(location)) is None:
        return location
    inner: ir.Location = location.locations[0]  # type: ignore[attr-defined]  # on the base class in older versions
    return inner
