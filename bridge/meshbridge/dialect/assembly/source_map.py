"""From rewritten text back to the user's: which edits were made, and where a diagnostic of MLIR's points in the original."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from functools import cached_property

from meshbridge.ir.mlir import FILE_LOCATION, ParseError, diagnostics_text, ir, walk


@dataclass(frozen=True, slots=True)
class Edit:
    """`text` stands in the rewritten text where the original has its characters `start` to `end`."""

    start: int
    end: int
    text: str


class Lines:
    """Offsets to lines and byte columns of one text, and back, by bisection."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]
        self._ascii = text.isascii()

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect.bisect_right(self._starts, offset)
        start = self._starts[line - 1]
        return line, (offset - start if self._ascii else len(self.text[start:offset].encode())) + 1

    def offset(self, line: int, column: int) -> int:
        """The offset of a line and a column."""
        start = self._starts[min(line, len(self._starts)) - 1]
        if self._ascii:
            return start + column - 1
        end = self._starts[line] if line < len(self._starts) else len(self.text)
        return start + len(self.text[start:end].encode()[: column - 1].decode(errors="ignore"))


@dataclass(frozen=True)
class SourceMap:
    """The original text, its name, and the edits made, in order."""

    text: str
    filename: str
    edits: list[Edit]

    @cached_property
    def _starts(self) -> list[int]:
        """Where each edit begins in the rewritten text."""
        starts: list[int] = []
        shift = 0
        for edit in self.edits:
            starts.append(edit.start + shift)
            shift += len(edit.text) - (edit.end - edit.start)
        return starts

    @cached_property
    def lines(self) -> Lines:
        """The original's."""
        return Lines(self.text)

    def original(self, offset: int) -> int:
        """The offset in the original of one in the rewritten text; inside an edit, of the same token or of the operation."""
        number = bisect.bisect_right(self._starts, offset) - 1
        if number < 0:
            return offset
        edit, into = self.edits[number], offset - self._starts[number]
        if into < len(edit.text):
            return self._inside(edit, into)
        return min(edit.end + into - len(edit.text), len(self.text))

    def _inside(self, edit: Edit, offset: int) -> int:
        """Finds the token at `offset` of an edit in the original. Tokens stand in both texts in one order, types last."""
        original = self.text[edit.start : edit.end]
        found = _TOKEN.match(edit.text, offset)
        if found is None or offset == 0:
            return edit.start
        token = re.escape(found.group())
        # Counting from the end tells equal tokens apart.
        occurrence = len(re.findall(token, edit.text[found.end() :]))
        places = [match.start() for match in re.finditer(token, original)]
        if not places:
            return edit.start
        return edit.start + (places[-1 - occurrence] if occurrence < len(places) else places[0])

    def shifted_lines(self) -> set[int]:
        """The lines, from 1, on which an operation follows an edit, so that its column in the rewritten text is not its own."""
        ends = [
            edit.end for edit in self.edits if not self.text.startswith("\n", edit.end) and _FOLLOWED.match(self.text, edit.end)
        ]
        return {self.lines.position(end)[0] for end in ends}


_TOKEN = re.compile(r"[%@#!^]?[\w$.#-]+|\S")
_FOLLOWED = re.compile(r"[ \t})]*(?!loc\(|//)[\w%\"]")


def parse_module(source: SourceMap, rewritten: str, ctx: ir.Context) -> ir.Module:
    """Parses the rewritten text.

    Raises ParseError with source locations of the original.
    """
    with ctx:
        try:
            module = _parse(rewritten, source.filename)
        except ir.MLIRError as error:
            index = Lines(rewritten)
            raise ParseError(diagnostics_text(error, source.filename, lambda at: _placed(at, source, index))) from None
        except MemoryError:
            raise ParseError(f"{source.filename}: error: a number in it asks for more memory than there is") from None
        if shifted := source.shifted_lines():
            _restore_columns(module, source, rewritten, shifted)
        return module


def _parse(text: str, filename: str) -> ir.Module:
    """A module whose locations name `filename`. A single operation can be parsed under a name, a list of them cannot."""
    if _STARTS_WITH_MODULE.match(text):
        try:
            return as_module(ir.Operation.parse(text, source_name=filename).operation)
        except ir.MLIRError as error:
            if not any(_SEVERAL in diagnostic.message for diagnostic in error.error_diagnostics):
                raise
    module = ir.Module.parse(text)
    for op in walk(module.operation):
        if (found := _UNNAMED.fullmatch(str(op.location))) is not None:
            op.location = ir.Location.file(filename, int(found.group(1)), int(found.group(2)))
    return module


# Possessive: without it the blank lines before a later module of a split input take exponential time.
_STARTS_WITH_MODULE = re.compile(r'(?:\s++|//[^\n]*+|[#!][\w$.]+ = [^\n]*+)*+(?:module\b|"builtin\.module")')
_SEVERAL = "source must contain a single top-level operation"
_UNNAMED = re.compile(r'loc\("-":(\d+):(\d+)\)')


def as_module(op: ir.Operation) -> ir.Module:
    """The bindings make no Module of a `builtin.module` operation: its body moves to a new one."""
    module = ir.Module.create(op.location)
    for name in op.attributes:
        module.operation.attributes[name] = op.attributes[name]
    for child in list(op.regions[0].blocks[0].operations):
        module.body.append(child)
    return module


def _placed(location: str, source: SourceMap, rewritten: Lines) -> str:
    found = FILE_LOCATION.search(location)
    if found is None:
        return source.filename
    name, line, column = found.group(1), int(found.group(2)), int(found.group(3))
    if name not in (source.filename, "-"):
        return f"{name}:{line}:{column}"
    line, column = source.lines.position(source.original(rewritten.offset(line, column)))
    return f"{source.filename}:{line}:{column}"


def _restore_columns(module: ir.Module, source: SourceMap, rewritten: str, shifted: set[int]) -> None:
    """Corrects the locations of operations that stand behind a rewritten one on its line."""
    index = Lines(rewritten)
    for op in walk(module.operation):
        found = FILE_LOCATION.search(str(op.location))
        if found is None or found.group(1) != source.filename or int(found.group(2)) not in shifted:
            continue
        offset = index.offset(int(found.group(2)), int(found.group(3)))
        op.location = ir.Location.file(source.filename, *source.lines.position(source.original(offset)))
