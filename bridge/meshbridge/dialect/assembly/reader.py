"""Reads MLIR text with mesh operations in the dialect's syntax.

Each mesh operation is rewritten into generic form on its line, and MLIR parses the result. Operations keep their lines, and the
columns of diagnostics are mapped back to the user's text.

In:   %1 = mesh.all_reduce %0 on @m mesh_axes = [1] reduction = <max> : tensor<4xf32> -> tensor<4xf32>
Out:  %1 = "mesh.all_reduce"(%0) {mesh = @m, mesh_axes = array<i16: 1>, reduction = #mesh.partial<max>} : (tensor<4xf32>) -> …
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from meshbridge.dialect.assembly.names import refuse_unknown_names
from meshbridge.dialect.assembly.parse_op import OPERAND, Piece, parse_op
from meshbridge.dialect.assembly.scanner import Scanner, byte_location_at, location_at
from meshbridge.dialect.assembly.source_map import Edit, SourceMap, parse_module
from meshbridge.dialect.assembly.spelling import CANONICAL, Spelling
from meshbridge.ir.mlir import ParseError, ir
from meshbridge.ir.mlir import parse as parse_bytecode

_BYTECODE = b"ML\xefR"


def read(source: str | bytes, filename: str, ctx: ir.Context, spelling: Spelling = CANONICAL) -> ir.Module:
    """Reads MLIR text or bytecode, with mesh operations in `spelling`'s custom form or in generic form.

    Raises ParseError with the exact `filename:line:col` of the text.
    """
    if isinstance(source, bytes):
        if source.startswith(_BYTECODE):
            return parse_bytecode(source, filename, ctx)
        source = decoded(source, filename)
    _refuse_unreadable(source, filename)
    if spelling.mention.search(source):
        refuse_unknown_names(source, filename, spelling)
    rewriter = _GenericFormWriter(source, filename, spelling)
    rewriter.run()
    return parse_module(SourceMap(source, filename, rewriter.edits), rewriter.rewritten(), ctx)


def decoded(source: bytes, filename: str) -> str:
    """Decodes the bytes of a file. Raises ParseError if they are no text."""
    try:
        return source.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"{byte_location_at(source, error.start, filename)}: error: not UTF-8 text: {error.reason}") from None


def split_input(text: str) -> list[str]:
    """The modules between lines of `// -----`, each preceded by empty lines, so that its line numbers are those of the file."""
    parts: list[str] = []
    line = 0
    for part in re.split(r"(?m)^// -----[^\n]*", text):
        parts.append("\n" * line + part)
        line += part.count("\n")
    return parts


_DEPTH_LIMIT = 256
"""The most brackets open at once. MLIR's parser recurses on the C++ stack, and walks of regions on Python's; real programs stay
below 50."""

_OUTSIDE_CODE = r'"(?:[^"\\\n]|\\.)*"|//[^\n]*'
"""A string or a comment."""

_NO_BRACKETS = bytes(set(range(256)) - set(b"()<>{}[]-"))
"""All characters that are part of no bracket and no arrow."""

_BRACKETS = re.compile(rf"{_OUTSIDE_CODE}|->|([(<{{\[])|([)>}}\]])")


def _refuse_unreadable(text: str, filename: str) -> None:
    """Raises ParseError on what MLIR's C++ parser cannot take: lone surrogates, NUL characters, endless nesting."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ParseError(f"{location_at(text, error.start, filename)}: error: not a Unicode character") from None
    if (nul := text.find("\0")) >= 0:
        raise ParseError(f"{location_at(text, nul, filename)}: error: NUL character")
    for is_suspect, in_code, message in _REFUSED:
        if is_suspect(text):
            for match in in_code.finditer(text):
                if match.group(1):
                    raise ParseError(f"{location_at(text, match.start(), filename)}: error: {message}")
    if _nests_deeply(text):
        _refuse_deep_nesting(text, filename)


_PLAIN = b"\t\n\r" + bytes(range(0x20, 0x7F))

_REFUSED: tuple[tuple[Callable[[str], object], re.Pattern[str], str], ...] = tuple(
    (is_suspect, re.compile(f"{_OUTSIDE_CODE}|({pattern})"), message)
    for is_suspect, pattern, message in (
        # Non-ASCII letters, digits and blanks, which Python's patterns would accept.
        (lambda text: text.encode().translate(None, _PLAIN), r"[^\t\n\r\x20-\x7e]", "unexpected character"),
        # Sdy's parser of `#sdy.propagation_edges` ends the process over one.
        (
            re.compile("--").search,
            r"\b(?:operand|result)--",
            "expected the number of an operand or result, found a negative one",
        ),
    )
)
"""Text that MLIR only allows in strings and comments: a quick test for it, a pattern, and the diagnostic."""


def _nests_deeply(text: str) -> bool:
    """True if brackets may nest beyond the limit. Removes the innermost pairs, a layer at a time, at C speed."""
    brackets = text.encode().translate(None, _NO_BRACKETS).replace(b"->", b"").replace(b"-", b"")
    for layers in range(_DEPTH_LIMIT + 1):
        if layers + len(brackets) <= _DEPTH_LIMIT:
            return False
        inner = brackets.replace(b"()", b"").replace(b"<>", b"").replace(b"{}", b"").replace(b"[]", b"")
        if len(inner) == len(brackets):
            break
        brackets = inner
    return True


def _refuse_deep_nesting(text: str, filename: str) -> None:
    depth = 0
    for bracket in _BRACKETS.finditer(text):
        if bracket.group(1):
            depth += 1
            if depth > _DEPTH_LIMIT:
                raise ParseError(
                    f"{location_at(text, bracket.start(), filename)}: error: more than {_DEPTH_LIMIT} brackets are open"
                )
        elif bracket.group(2):
            depth -= 1


@dataclass(frozen=True)
class _Template:
    """The generic form of an operation's line without operands: `head operands tail`, operands in `order`."""

    head: str
    order: tuple[int, ...] | None
    tail: str

    def fill(self, operands: list[str]) -> str:
        chosen = operands if self.order is None else [operands[index] for index in self.order]
        return f"{self.head}{', '.join(chosen)}{self.tail}"


_GOES_ON = re.compile(r"\s*[,{<(:\-]")
"""The start of a line on which an operation continues."""


class _GenericFormWriter:
    """Rewrites the mesh operations of one text into generic form.

    Lines that only differ in their operands share one template, so that most operations cost one look-up.
    """

    def __init__(self, text: str, filename: str, spelling: Spelling) -> None:
        self.text = text
        self.filename = filename
        self.spelling = spelling
        self.edits: list[Edit] = []
        self._templates: dict[str, _Template] = {}
        self._clear = 0
        """An offset outside comments and strings, up to which the text has been scanned."""

    def run(self) -> None:
        """Collects the edits."""
        text, position = self.text, 0
        search = self.spelling.mention.search
        while mention := search(text, position):
            position = self._visit(mention.start(), mention.end())
        self.edits.sort(key=lambda edit: edit.start)

    def rewritten(self) -> str:
        """The text with all edits made."""
        pieces: list[str] = []
        copied = 0
        for edit in self.edits:
            pieces += [self.text[copied : edit.start], edit.text]
            copied = edit.end
        return "".join([*pieces, self.text[copied:]])

    def _visit(self, start: int, end: int) -> int:
        """Handles one mention of the dialect's name; returns where to continue."""
        text = self.text
        clear = max(text.rfind("\n", self._clear, start) + 1, self._clear)
        before = text[start - 1] if start > clear else ""
        quoted = self._end_of_quotation(clear, start)
        if quoted > start:
            return max(self._generic_op(start, end), quoted) if before == '"' else quoted
        if before == "!" or (before and (before.isalnum() or before in "_$.%@-^")):
            if before == "!" and self.spelling.renames:
                self.edits.append(Edit(start, start + len(self.spelling.prefix), "mesh"))
            return end
        if before == "#":
            return self._attribute(start, end)
        return self._custom_op(start, end) if text[end - 1] == "." else end

    def _end_of_quotation(self, clear: int, position: int) -> int:
        """The end of the comment or string around `position`, 0 if there is none. Neither crosses a line.

        `clear` is before `position`, on its line, and outside both.
        """
        if "//" not in (line := self.text[clear:position]) and '"' not in line:
            return 0
        end_of_line = self.text.find("\n", position)
        end_of_line = len(self.text) if end_of_line < 0 else end_of_line
        for quotation in _QUOTED.finditer(self.text, clear, end_of_line):
            if quotation.start() >= position:
                break
            if quotation.group().startswith("//"):
                return end_of_line
            if quotation.end() > position:
                return quotation.end()
            self._clear = quotation.end()
        return 0

    def _attribute(self, start: int, end: int) -> int:
        """`#mesh<partial max>` and `#mesh<axisarray[[0]]>`, LLVM 21's generic form, to `#mesh.partial<max>` and so on."""
        prefix = len(self.spelling.prefix)
        if opaque := _OPAQUE.match(self.text, start + prefix):
            self.edits.append(Edit(start, opaque.end(), f"mesh.{opaque.group(1)}<"))
            return opaque.end()
        if self.spelling.renames:
            self.edits.append(Edit(start, start + prefix, "mesh"))
        return end

    def _generic_op(self, start: int, end: int) -> int:
        """`"mesh.x"(…) <{a}> {b}`: unregistered operations keep all their attributes in one dictionary."""
        opening = _GENERIC.match(self.text, start)
        if opening is None:
            return end
        name = self.spelling.names.get(opening.group(1))
        if name is None:
            Scanner(self.text, start, self.filename).fail(f"unknown operation '{opening.group(1)}'", start - 1)
        if name != opening.group(1):
            self.edits.append(Edit(start, start + len(opening.group(1)), name))
        scanner = Scanner(self.text, opening.end() - 1, self.filename)
        scanner.balanced()
        if not scanner.at("<"):
            self._rename_keys(scanner.position, end=None)
            return opening.end()
        outer_start, outer_end = scanner.balanced()
        inherent = self.text[outer_start + 2 : outer_end - 2].strip()
        self.edits.append(Edit(outer_start, outer_start + 2, " {"))
        self._rename_keys(outer_start + 1, outer_end)
        if scanner.at("{"):
            inner_start, inner_end = scanner.balanced()
            comma = ", " if inherent and self.text[inner_start + 1 : inner_end - 1].strip() else " "
            self.edits.append(Edit(outer_end - 2, inner_start + 1, comma))
        else:
            self.edits.append(Edit(outer_end - 2, outer_end, "} "))
        return opening.end()

    def _rename_keys(self, start: int, end: int | None) -> None:
        """Renames the spelling's attribute names inside a generic operation's dictionary."""
        if not self.spelling.keys:
            return
        if end is None:
            scanner = Scanner(self.text, start, self.filename)
            if not scanner.at("{"):
                return
            start, end = scanner.balanced()
        for key in _KEY.finditer(self.text, start, end):
            if renamed := self.spelling.keys.get(key.group(1)):
                self.edits.append(Edit(key.start(1), key.end(1), renamed))

    def _custom_op(self, start: int, end: int) -> int:
        stop = self._by_template(start, end) or self._by_parsing(start)
        self._clear = max(stop, end)
        return self._clear

    def _by_template(self, start: int, end: int) -> int:
        """Rewrites an operation by a known template; returns its end, or 0."""
        line = self._rest_of_line(start, end)
        template = self._templates.get(OPERAND.sub("%", line)) if line else None
        stop = start + len(line)
        if template is None or _GOES_ON.match(self.text, stop):
            return 0
        self.edits.append(Edit(start, stop, template.fill(OPERAND.findall(line))))
        return stop

    def _rest_of_line(self, start: int, end: int) -> str:
        """The line from `start` up to its location, or "" if it is too long for a template."""
        line_end = self.text.find("\n", end, end + _LONGEST_LINE)
        line = self.text[start:line_end] if line_end >= 0 else ""
        return line[:location] if (location := line.find(" loc(")) >= 0 else line

    def _by_parsing(self, start: int) -> int:
        """Rewrites an operation token by token; returns its end, or 0 if it is an attribute's name."""
        pieces, stop = self.parse(start)
        if not pieces:
            return 0
        text = self.text
        generic = self.spelling.canonical("".join(self._text_of(piece) for piece in pieces))
        line = self._rest_of_line(start, start)
        if stop == start + len(line.rstrip()):
            self._templates[OPERAND.sub("%", line)] = self._template(start, line, pieces)
        # Keeps the number of lines, so that everything below keeps its line number.
        self.edits.append(Edit(start, stop, generic.replace("\n", " ") + "\n" * text.count("\n", start, stop)))
        return stop

    def _text_of(self, piece: Piece) -> str:
        return piece if isinstance(piece, str) else self.text[piece[0] : piece[1]]

    def _template(self, start: int, line: str, pieces: list[Piece]) -> _Template:
        spans = [operand.span() for operand in OPERAND.finditer(line)]
        order = [
            spans.index((piece[0] - start, piece[1] - start))
            for piece in pieces
            if not isinstance(piece, str) and OPERAND.fullmatch(self.text, *piece)
        ]
        tail = 2 * len(order) or 1
        texts = [self.spelling.canonical(self._text_of(piece)) for piece in pieces]
        return _Template(texts[0], None if order == list(range(len(spans))) else tuple(order), "".join(texts[tail:]))

    def parse(self, start: int) -> tuple[list[Piece], int]:
        """The pieces of the operation whose name begins at `start`, and where it ends; no pieces if it is an attribute's name."""
        name_match = _NAME.match(self.text, start)
        if name_match is None or _ATTRIBUTE_KEY.match(self.text, name_match.end()):
            return [], start
        name = name_match.group()
        if name not in self.spelling.formats:
            Scanner(self.text, start, self.filename).fail(f"custom op '{name}' is unknown", start)
        forms = self.spelling.formats[name]
        scanner = Scanner(self.text, name_match.end(), self.filename, name)
        form = next((form for form in forms[1:] if scanner.at(form.leading)), forms[0])
        return parse_op(scanner, self.spelling.names[name], form), scanner.position


_LONGEST_LINE = 2000
"""Longer lines have several operations, or one that is not repeated."""

_QUOTED = re.compile(r'//|"(?:[^"\\\n]|\\.)*"')
_OPAQUE = re.compile(r"<\s*(partial|axisarray)\s*")
_GENERIC = re.compile(r'([\w.]+)"\s*\(')
_NAME = re.compile(r"[\w$.]+")
_ATTRIBUTE_KEY = re.compile(r"\s*[=,}]")
_KEY = re.compile(r"[{,]\s*(\w+)(?=\s*[=,}])")
