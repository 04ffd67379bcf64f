"""Maps rewritten text back to the user's: the edits, and the original location of MLIR's diagnostics."""

from __future__ import annotations

import bisect
import re
from dataclasses import dataclass
from functools import cached_property

from meshbridge.ir.mlir import FILE_LOCATION, ParseError, diagnostics_text, ir, walk
from meshbridge.text import did_you_mean


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces the characters `start` to `end` of the original by `text`."""

    start: int
    end: int
    text: str


class Lines:
    """Converts offsets in a text to lines and byte columns, and back, by bisection."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(newline.end() for newline in re.finditer("\n", text))]
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
        """The start of each edit in the rewritten text."""
        starts: list[int] = []
        shift = 0
        for edit in self.edits:
            starts.append(edit.start + shift)
            shift += len(edit.text) - (edit.end - edit.start)
        return starts

    @cached_property
    def lines(self) -> Lines:
        """The lines of the original."""
        return Lines(self.text)

    def original(self, offset: int) -> int:
        """The original offset of one in the rewritten text; inside an edit, that of the same token, or of the operation."""
        number = bisect.bisect_right(self._starts, offset) - 1
        if number < 0:
            return offset
        edit, into = self.edits[number], offset - self._starts[number]
        if into < len(edit.text):
            return self._inside(edit, into)
        return min(edit.end + into - len(edit.text), len(self.text))

    def _inside(self, edit: Edit, offset: int) -> int:
        """Finds the token at `offset` of an edit in the original. Both texts have the tokens in one order, types last."""
        original = self.text[edit.start : edit.end]
        token_match = _TOKEN.match(edit.text, offset)
        if token_match is None or offset == 0:
            return edit.start
        token = re.escape(token_match.group())
        # Counting from the end tells equal tokens apart.
        occurrence = len(re.findall(token, edit.text[token_match.end() :]))
        places = [match.start() for match in re.finditer(token, original)]
        if not places:
            return edit.start
        return edit.start + (places[-1 - occurrence] if occurrence < len(places) else places[0])

    def shifted_lines(self) -> set[int]:
        """The lines, from 1, on which an operation follows an edit, so that its column in the rewritten text is shifted."""
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
            text = diagnostics_text(error, source.filename, lambda at: _original_location(at, source, index))
            raise ParseError(text + _axes_hint(text, rewritten)) from None
        except MemoryError:
            raise ParseError(f"{source.filename}: error: a number in it asks for more memory than there is") from None
        if shifted := source.shifted_lines():
            _restore_columns(module, source, rewritten, shifted)
        return module


_UNKNOWN_AXIS = re.compile(r'unknown axis name: "([^"]*)"')
_MESH = re.compile(r"(?:sdy\.mesh @\w+ =|sdy\.sharding<mesh<|#sdy\.mesh)\s*<?\[([^\]]*)\]")
_AXIS = re.compile(r'"([^"]*)"\s*=')


def _axes_hint(diagnostic: str, text: str) -> str:
    """A hint with the axes that the meshes of a program have, for a diagnostic of Shardy about one that they do not have."""
    unknown = _UNKNOWN_AXIS.search(diagnostic)
    axes = dict.fromkeys(axis for mesh in _MESH.findall(text) for axis in _AXIS.findall(mesh))
    if unknown is None or not axes:
        return ""
    return f"\n  hint: the axes are {', '.join(axes)}{did_you_mean(unknown[1], axes)}"


def _parse(text: str, filename: str) -> ir.Module:
    """Parses a module whose locations name `filename`. The bindings take a file name for a single operation only."""
    if _STARTS_WITH_MODULE.match(text):
        try:
            return as_module(ir.Operation.parse(text, source_name=filename).operation)
        except ir.MLIRError as error:
            if not any(_SEVERAL in diagnostic.message for diagnostic in error.error_diagnostics):
                raise
    module = ir.Module.parse(text)
    for op in walk(module.operation):
        if (unnamed := _UNNAMED.fullmatch(str(op.location))) is not None:
            op.location = ir.Location.file(filename, int(unnamed.group(1)), int(unnamed.group(2)))
    return module


# Possessive, because backtracking over the blank lines before a later module of a split input would take exponential time.
_STARTS_WITH_MODULE = re.compile(r'(?:\s++|//[^\n]*+|[#!][\w$.]+ = [^\n]*+)*+(?:module\b|"builtin\.module")')
_SEVERAL = "source must contain a single top-level operation"
_UNNAMED = re.compile(r'loc\("-":(\d+):(\d+)\)')


def as_module(op: ir.Operation) -> ir.Module:
    """Moves the body of a `builtin.module` operation to a new Module: the bindings cannot convert the operation."""
    module = ir.Module.create(op.location)
    for name in op.attributes:
        module.operation.attributes[name] = op.attributes[name]
    for child in list(op.regions[0].blocks[0].operations):
        module.body.append(child)
    return module


def _original_location(location: str, source: SourceMap, rewritten: Lines) -> str:
    location_match = FILE_LOCATION.search(location)
    if location_match is None:
        return source.filename
    name, line, column = location_match.group(1), int(location_match.group(2)), int(location_match.group(3))
    if name not in (source.filename, "-"):
        return f"{name}:{line}:{column}"
    line, column = source.lines.position(source.original(rewritten.offset(line, column)))
    return f"{source.filename}:{line}:{column}"


def _restore_columns(module: ir.Module, source: SourceMap, rewritten: str, shifted: set[int]) -> None:
    """Corrects the locations of operations that follow a rewritten one on its line."""
    index = Lines(rewritten)
    for op in walk(module.operation):
        location_match = FILE_LOCATION.search(str(op.location))
        if location_match is None or location_match.group(1) != source.filename or int(location_match.group(2)) not in shifted:
            continue
        offset = index.offset(int(location_match.group(2)), int(location_match.group(3)))
        op.location = ir.Location.file(source.filename, *source.lines.position(source.original(offset)))
