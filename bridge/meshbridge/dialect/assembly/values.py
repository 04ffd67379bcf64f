"""Attribute values in custom and generic text: axis lists, reduction kinds, shapes, numbers.

Each syntax turns custom text, read with a Scanner, into generic text, and back. Both are plain text: most values of a module
repeat, and their conversions are memoised with the operation's text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.dialect.assembly.scanner import Scanner
from meshbridge.ir.sharding import DYNAMIC, MOST_AXES, REDUCTION_KINDS


class Mismatch(Exception):
    """The custom form cannot express a generic text. The printer then keeps the operation in generic form, as MLIR does."""


class Syntax:
    """The syntax of one kind of attribute value. `constraint`: its name in upstream's verifier."""

    constraint: ClassVar[str]

    def read(self, scanner: Scanner) -> str:
        """Custom text to generic text. Raises ParseError."""
        raise NotImplementedError

    def write(self, generic: str) -> str:
        """Generic text to custom text. Raises Mismatch."""
        raise NotImplementedError

    def fits(self, generic: str) -> bool:
        """True if generic text is a value of this kind."""
        try:
            self.write(generic)
        except Mismatch:
            return False
        return True


def listed(generic: str, element: str) -> list[str]:
    """The entries of `array<element: …>`."""
    match = re.fullmatch(rf"array<{element}(?:: (.*))?>", generic)
    if match is None:
        raise Mismatch(f"expected array<{element}: …>, found {generic}")
    return match.group(1).split(", ") if match.group(1) else []


def dense(element: str, entries: list[int]) -> str:
    """`array<element: …>`."""
    return f"array<{element}: {', '.join(map(str, entries))}>" if entries else f"array<{element}>"


def read_integers(scanner: Scanner, bits: int) -> list[int]:
    """`[0, 1]`."""
    scanner.expect("[")
    entries: list[int] = []
    while not scanner.at("]"):
        if entries:
            scanner.expect(",")
        entries.append(scanner.integer(bits))
    scanner.expect("]")
    return entries


class _Axes(Syntax):
    """`[0, 1]` for `array<i16: 0, 1>`."""

    constraint = "i16 dense array attribute"

    def read(self, scanner: Scanner) -> str:
        return dense("i16", read_integers(scanner, 16))

    def write(self, generic: str) -> str:
        return f"[{', '.join(listed(generic, 'i16'))}]"


_KEYWORD = re.compile(r"\w+")
_KIND = re.compile(r"#mesh(?:\.partial<|<partial )(\w+)>")


def read_kind(scanner: Scanner) -> str:
    """`max`, or `<max>`."""
    bracketed = scanner.accept("<")
    scanner.skip()
    start = scanner.position
    kind = scanner.word(_KEYWORD, "a reduction kind")
    if kind not in REDUCTION_KINDS:
        expected = f"expected ::mlir::mesh::ReductionKind to be one of: {', '.join(REDUCTION_KINDS)}"
        about = f"custom op '{scanner.operation}' " if scanner.operation else ""
        scanner.fail(f"{about}{expected}; found '{kind}'", start)
    if bracketed:
        scanner.expect(">")
    return kind


def written_kind(generic: str) -> str:
    """The keyword in `#mesh.partial<max>`."""
    match = _KIND.fullmatch(generic)
    if match is None:
        raise Mismatch(f"expected #mesh.partial<kind>, found {generic}")
    return match.group(1)


@dataclass(frozen=True)
class KindSyntax(Syntax):
    """`<max>` for `#mesh.partial<max>`; `template` has the spelling's form of the keyword."""

    constraint = "Reduction of an iterator/mesh dimension."
    template: str = "<{}>"

    def read(self, scanner: Scanner) -> str:
        return f"#mesh.partial<{read_kind(scanner)}>"

    def write(self, generic: str) -> str:
        return self.template.format(written_kind(generic))


@dataclass(frozen=True)
class _Integer(Syntax):
    """`1` for `1 : index`."""

    type: str
    constraint = "integer attribute"

    def read(self, scanner: Scanner) -> str:
        return f"{scanner.integer(64)} : {self.type}"

    def write(self, generic: str) -> str:
        number, _, type_name = generic.partition(" : ")
        # MLIR omits `: i64`, the default type of an integer.
        if (type_name or "i64") != self.type:
            raise Mismatch(f"expected an attribute of type {self.type}, found {generic}")
        return number


_AXIS_ARRAY = re.compile(r"#mesh(?:\.axisarray<|<axisarray)\s*(\[(?:\[[-\d, ]*\](?:, )?)*\])>")


class _AxisArray(Syntax):
    """`[[0, 1], []]` for `#mesh.axisarray<[[0, 1], []]>`. For scalars, upstream prints `[]`, which it cannot read; this class
    reads it, and prints the equivalent `[[]]`."""

    constraint = "array of axis lists"

    def read(self, scanner: Scanner) -> str:
        scanner.expect("[")
        lists: list[list[int]] = []
        while not scanner.at("]"):
            if lists:
                scanner.expect(",")
            lists.append(read_integers(scanner, 16))
        scanner.expect("]")
        return f"#mesh.axisarray<{lists}>"

    def write(self, generic: str) -> str:
        match = _AXIS_ARRAY.fullmatch(generic)
        if match is None:
            raise Mismatch(f"expected #mesh.axisarray<[[…]]>, found {generic}")
        return "[[]]" if match.group(1) == "[]" else match.group(1)


_DIMENSIONS = re.compile(r"(?:\?|\d+)(?:x(?:\?|\d+))*")


class _Dimensions(Syntax):
    """`2x?x4` for `array<i64: 2, -9223372036854775808, 4>`, `[]` for none."""

    constraint = "i64 dense array attribute"

    def read(self, scanner: Scanner) -> str:
        if scanner.accept("["):
            scanner.expect("]")
            return dense("i64", [])
        scanner.skip()
        start = scanner.position
        dimensions = _DIMENSIONS.match(scanner.text, start)
        if dimensions is None:
            hint = 'Did you mean an empty list? It must be denoted by "[]".'
            scanner.fail(f"custom op '{scanner.operation}' Failed parsing dimension list. {hint}")
        scanner.position = dimensions.end()
        digits = dimensions.group().split("x")
        if len(digits) > MOST_AXES:
            scanner.fail(f"{len(digits)} dimensions, expected at most {MOST_AXES}: axes are numbers of 16 bits", start)
        if any(len(size) > 18 for size in digits):
            scanner.fail("a dimension size does not fit 64 bits", start)
        return dense("i64", [DYNAMIC if size == "?" else int(size) for size in digits])

    def write(self, generic: str) -> str:
        sizes = listed(generic, "i64")
        if any(size.startswith("-") and int(size) != DYNAMIC for size in sizes):
            raise Mismatch("negative dimension")
        return "x".join("?" if int(size) == DYNAMIC else size for size in sizes) or "[]"

    def fits(self, generic: str) -> bool:
        # Another rule refuses negative sizes.
        return re.fullmatch(r"array<i64(?:: [-\d, ]+)?>", generic) is not None


AXES = _Axes()
KIND = KindSyntax()
INDEX = _Integer("index")
OFFSET = _Integer("i64")
AXIS_ARRAY = _AxisArray()
DIMENSIONS = _Dimensions()
