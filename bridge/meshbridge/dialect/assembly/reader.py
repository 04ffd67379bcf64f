"""Reads MLIR text whose mesh operations stand in the dialect's syntax.

Each mesh operation is rewritten into generic form where it stands, line by line, and MLIR parses the result: operation locations
come out right by themselves, and the column of a diagnostic is mapped back to the text that the user wrote.

In:   %1 = mesh.all_reduce %0 on @m mesh_axes = [1] reduction = <max> : tensor<4xf32> -> tensor<4xf32>
Out:  %1 = "mesh.all_reduce"(%0) {mesh = @m, mesh_axes = array<i16: 1>, reduction = #mesh.partial<max>} : (tensor<4xf32>) -> …
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from meshbridge.dialect.assembly.names import refuse_unknown_names
from meshbridge.dialect.assembly.parse_op import OPERAND, Piece, parse_op
from meshbridge.dialect.assembly.scanner import Scanner, byte_place, place
from meshbridge.dialect.assembly.source_map import Edit, SourceMap, parse_module
from meshbridge.dialect.assembly.spelling import CANONICAL, Spelling
from meshbridge.ir.mlir import ParseError, ir
from meshbridge.ir.mlir import parse as parse_bytecode

_BYTECODE = b"ML\xefR"


def read(source: str | bytes, filename: str, ctx: ir.Context, spelling: Spelling = CANONICAL) -> ir.Module:
    """Reads MLIR text, or bytecode, that holds mesh operations in `spelling`'s custom form or in generic form.

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
    """The text in the bytes of a file. Raises ParseError where they are none."""
    try:
        return source.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"{byte_place(source, error.start, filename)}: error: not UTF-8 text: {error.reason}") from None


def split_input(text: str) -> list[str]:
    """The modules between lines of `// -----`, each preceded by empty lines, so that its line numbers are those of the file."""
    parts: list[str] = []
    line = 0
    for part in re.split(r"(?m)^// -----[^\n]*", text):
        parts.append("\n" * line + part)
        line += part.count("\n")
    return parts


_DEPTH_LIMIT = 256
"""Brackets open at once. MLIR's parser recurses on the C++ stack, walks of regions on Python's; real programs stay below 50."""

_OUTSIDE_CODE = r'"(?:[^"\\\n]|\\.)*"|//[^\n]*'
"""A string or a comment."""

_NO_BRACKETS = bytes(set(range(256)) - set(b"()<>{}[]-"))
"""What stands in no bracket and no arrow."""

_BRACKETS = re.compile(rf"{_OUTSIDE_CODE}|->|([(<{{\[])|([)>}}\]])")


def _refuse_unreadable(text: str, filename: str) -> None:
    """Raises ParseError on what MLIR's C++ parser cannot take: lone surrogates, NUL characters, endless nesting."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ParseError(f"{place(text, error.start, filename)}: error: not a Unicode character") from None
    if (nul := text.find("\0")) >= 0:
        raise ParseError(f"{place(text, nul, filename)}: error: NUL character")
    for is_suspect, in_code, message in _REFUSED:
        if is_suspect(text):
            for found in in_code.finditer(text):
                if found.group(1):
                    raise ParseError(f"{place(text, found.start(), filename)}: error: {message}")
    if _nests_deeply(text):
        _refuse_deep_nesting(text, filename)


_PLAIN = b"\t\n\r" + bytes(range(0x20, 0x7F))

_REFUSED: tuple[tuple[Callable[[str], object], re.Pattern[str], str], ...] = tuple(
    (is_suspect, re.compile(f"{_OUTSIDE_CODE}|({pattern})"), message)
    for is_suspect, pattern, message in (
        # Other letters, digits and blanks, which Python would take for ASCII's.
        (lambda text: text.encode().translate(None, _PLAIN), r"[^\t\n\r\x20-\x7e]", "unexpected character"),
        # Sdy's parser of `#sdy.propagation_edges` ends the process over one.
        (
            re.compile("--").search,
            r"\b(?:operand|result)--",
            "expected the number of an operand or result, found a negative one",
        ),
    )
)
"""What MLIR's text holds in strings and comments alone: what is quickly found where it may be, itself, and the diagnostic."""


def _nests_deeply(text: str) -> bool:
    """Whether brackets may nest beyond the limit: takes innermost pairs away, a layer at a time, at C speed."""
    left = text.encode().translate(None, _NO_BRACKETS).replace(b"->", b"").replace(b"-", b"")
    for layers in range(_DEPTH_LIMIT + 1):
        if layers + len(left) <= _DEPTH_LIMIT:
            return False
        inner = left.replace(b"()", b"").replace(b"<>", b"").replace(b"{}", b"").replace(b"[]", b"")
        if len(inner) == len(left):
            break
        left = inner
    return True


def _refuse_deep_nesting(text: str, filename: str) -> None:
    depth = 0
    for found in _BRACKETS.finditer(text):
        if found.group(1):
            depth += 1
            if depth > _DEPTH_LIMIT:
                raise ParseError(f"{place(text, found.start(), filename)}: error: more than {_DEPTH_LIMIT} brackets are open")
        elif found.group(2):
            depth -= 1


@dataclass(frozen=True)
class _Template:
    """The generic form of an operation's line with its operands taken out: `head operands tail`, operands in `order`."""

    head: str
    order: tuple[int, ...] | None
    tail: str

    def fill(self, operands: list[str]) -> str:
        chosen = operands if self.order is None else [operands[index] for index in self.order]
        return f"{self.head}{', '.join(chosen)}{self.tail}"


_GOES_ON = re.compile(r"\s*[,{<(:\-]")
"""What the next line begins with where an operation goes on there."""


class _GenericFormWriter:
    """Turns the mesh operations of one text into generic form.

    A module repeats itself: lines that differ in their operands alone share one template, so that most operations cost a look-up.
    """

    def __init__(self, text: str, filename: str, spelling: Spelling) -> None:
        self.text = text
        self.filename = filename
        self.spelling = spelling
        self.edits: list[Edit] = []
        self._templates: dict[str, _Template] = {}
        self._clear = 0
        """Outside of comments and strings, as far as the text has been looked at."""

    def run(self) -> None:
        """Collects the edits."""
        text, position = self.text, 0
        search = self.spelling.mention.search
        while found := search(text, position):
            position = self._visit(found.start(), found.end())
        self.edits.sort(key=lambda edit: edit.start)

    def rewritten(self) -> str:
        """The text with all edits made."""
        pieces: list[str] = []
        last = 0
        for edit in self.edits:
            pieces += [self.text[last : edit.start], edit.text]
            last = edit.end
        return "".join([*pieces, self.text[last:]])

    def _visit(self, start: int, end: int) -> int:
        """Handles one mention of the dialect's name; returns where to look on."""
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
        """Where the comment or string around `position` ends, 0 if there is none. Neither crosses a line.

        `clear` is before `position`, on its line, outside of both.
        """
        if "//" not in (line := self.text[clear:position]) and '"' not in line:
            return 0
        end_of_line = self.text.find("\n", position)
        end_of_line = len(self.text) if end_of_line < 0 else end_of_line
        for found in _QUOTED.finditer(self.text, clear, end_of_line):
            if found.start() >= position:
                break
            if found.group().startswith("//"):
                return end_of_line
            if found.end() > position:
                return found.end()
            self._clear = found.end()
        return 0

    def _attribute(self, start: int, end: int) -> int:
        """`#mesh<partial max>` and `#mesh<axisarray[[0]]>`, LLVM 21's generic form, to `#mesh.partial<max>` and so on."""
        prefix = len(self.spelling.prefix)
        if found := _OPAQUE.match(self.text, start + prefix):
            self.edits.append(Edit(start, found.end(), f"mesh.{found.group(1)}<"))
            return found.end()
        if self.spelling.renames:
            self.edits.append(Edit(start, start + prefix, "mesh"))
        return end

    def _generic_op(self, start: int, end: int) -> int:
        """`"mesh.x"(…) <{a}> {b}`: unregistered operations keep all their attributes in one dictionary."""
        found = _GENERIC.match(self.text, start)
        if found is None:
            return end
        name = self.spelling.names.get(found.group(1))
        if name is None:
            Scanner(self.text, start, self.filename).fail(f"unknown operation '{found.group(1)}'", start - 1)
        if name != found.group(1):
            self.edits.append(Edit(start, start + len(found.group(1)), name))
        scanner = Scanner(self.text, found.end() - 1, self.filename)
        scanner.balanced()
        if not scanner.at("<"):
            self._rename_keys(scanner.position, end=None)
            return found.end()
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
        return found.end()

    def _rename_keys(self, start: int, end: int | None) -> None:
        """Renames the spelling's attribute names inside a generic operation's dictionary."""
        if not self.spelling.keys:
            return
        if end is None:
            scanner = Scanner(self.text, start, self.filename)
            if not scanner.at("{"):
                return
            start, end = scanner.balanced()
        for found in _KEY.finditer(self.text, start, end):
            if renamed := self.spelling.keys.get(found.group(1)):
                self.edits.append(Edit(found.start(1), found.end(1), renamed))

    def _custom_op(self, start: int, end: int) -> int:
        stop = self._by_template(start, end) or self._by_parsing(start)
        self._clear = max(stop, end)
        return self._clear

    def _by_template(self, start: int, end: int) -> int:
        """Rewrites an operation that another one has shown the template of; returns where it ends, or 0."""
        line = self._rest_of_line(start, end)
        template = self._templates.get(OPERAND.sub("%", line)) if line else None
        stop = start + len(line)
        if template is None or _GOES_ON.match(self.text, stop):
            return 0
        self.edits.append(Edit(start, stop, template.fill(OPERAND.findall(line))))
        return stop

    def _rest_of_line(self, start: int, end: int) -> str:
        """The line from `start` up to its location, or "" if it is longer than an operation of a template would be."""
        line_end = self.text.find("\n", end, end + _LONGEST_LINE)
        line = self.text[start:line_end] if line_end >= 0 else ""
        return line[:cut] if (cut := line.find(" loc(")) >= 0 else line

    def _by_parsing(self, start: int) -> int:
        """Rewrites an operation token by token; returns where it ends, or 0 if it is an attribute's name."""
        pieces, stop = self.parse(start)
        if not pieces:
            return 0
        text = self.text
        generic = self.spelling.canonical("".join(self._text_of(piece) for piece in pieces))
        line = self._rest_of_line(start, start)
        if stop == start + len(line.rstrip()):
            self._templates[OPERAND.sub("%", line)] = self._template(start, line, pieces)
        # The lines that the operation spanned stay, so that everything below keeps its line number.
        self.edits.append(Edit(start, stop, generic.replace("\n", " ") + "\n" * text.count("\n", start, stop)))
        return stop

    def _text_of(self, piece: Piece) -> str:
        return piece if isinstance(piece, str) else self.text[piece[0] : piece[1]]

    def _template(self, start: int, line: str, pieces: list[Piece]) -> _Template:
        places = [found.span() for found in OPERAND.finditer(line)]
        order = [
            places.index((piece[0] - start, piece[1] - start))
            for piece in pieces
            if not isinstance(piece, str) and OPERAND.fullmatch(self.text, *piece)
        ]
        first = 2 * len(order) or 1
        texts = [self.spelling.canonical(self._text_of(piece)) for piece in pieces]
        return _Template(texts[0], None if order == list(range(len(places))) else tuple(order), "".join(texts[first:]))

    def parse(self, start: int) -> tuple[list[Piece], int]:
        """The pieces of the operation whose name begins at `start`, and where it ends; no pieces if it is an attribute's name."""
        found = _NAME.match(self.text, start)
        if found is None or _ATTRIBUTE_KEY.match(self.text, found.end()):
            return [], start
        name = found.group()
        if name not in self.spelling.formats:
            Scanner(self.text, start, self.filename).fail(f"custom op '{name}' is unknown", start)
        forms = self.spelling.formats[name]
        scanner = Scanner(self.text, found.end(), self.filename, name)
        form = next((form for form in forms[1:] if scanner.at(form.leading)), forms[0])
        return parse_op(scanner, self.spelling.names[name], form), scanner.position


_LONGEST_LINE = 2000
"""Longer lines hold several operations, or one that no other repeats."""

_QUOTED = re.compile(r'//|"(?:[^"\\\n]|\\.)*"')
_OPAQUE = re.compile(r"<\s*(partial|axisarray)\s*")
_GENERIC = re.compile(r'([\w.]+)"\s*\(')
_NAME = re.compile(r"[\w$.]+")
_ATTRIBUTE_KEY = re.compile(r"\s*[=,}]")
_KEY = re.compile(r"[{,]\s*(\w+)(?=\s*[=,}])")
