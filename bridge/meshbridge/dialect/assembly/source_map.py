"""From rewritten text back to the user's: which edits were made, and where a diagnostic of MLIR's points in the original."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshbridge.dialect.assembly.scanner import place
from meshbridge.mlir import ParseError, ir, walk


@dataclass(frozen=True, slots=True)
class Edit:
    """`text` stands in the rewritten text where the original has its characters `start` to `end`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class SourceMap:
    """The original text, its name, and the edits made, in order."""

    text: str
    filename: str
    edits: list[Edit]

    def original(self, offset: int) -> int:
        """The offset in the original of one in the rewritten text; inside an edit, of the same token or of the operation."""
        shift = 0
        for edit in self.edits:
            start = edit.start + shift
            if offset < start:
                break
            if offset < start + len(edit.text):
                return self._inside(edit, offset - start)
            shift += len(edit.text) - (edit.end - edit.start)
        return min(max(offset - shift, 0), len(self.text))

    def _inside(self, edit: Edit, offset: int) -> int:
        """Finds the token at `offset` of an edit in the original; the longest text around it that stands in both decides."""
        original = self.text[edit.start : edit.end]
        found = _TOKEN.match(edit.text, offset)
        if found is None or offset == 0:
            return edit.start
        token = found.group()
        # Types follow the colon in both texts and in one order: counting from the end tells equal tokens apart.
        occurrence = len(re.findall(re.escape(token), edit.text[offset + len(token) :]))
        places = [match.start() for match in re.finditer(re.escape(token), original)]
        if not places:
            return edit.start
        return edit.start + (places[-1 - occurrence] if occurrence < len(places) else places[0])

    def shifted_lines(self) -> set[int]:
        """The lines, from 1, on which an operation follows an edit, so that its column in the rewritten text is not its own."""
        ends = [
            edit.end for edit in self.edits if not self.text.startswith("\n", edit.end) and _FOLLOWED.match(self.text, edit.end)
        ]
        return {self.text.count("\n", 0, end) + 1 for end in ends}


_TOKEN = re.compile(r"[%@#!^]?[\w$.#-]+|\S")
_FOLLOWED = re.compile(r"[ \t})]*(?!loc\(|//)[\w%\"]")


def parse_module(source: SourceMap, rewritten: str, ctx: ir.Context) -> ir.Module:
    """Parses the rewritten text.

    Raises ParseError whose places are those of the original.
    """
    with ctx:
        try:
            module = _parse(rewritten, source.filename)
        except ir.MLIRError as error:
            raise ParseError(_diagnostics(error, source, rewritten)) from None
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


def _diagnostics(error: ir.MLIRError, source: SourceMap, rewritten: str) -> str:
    """The first diagnostic with its notes, placed in the original."""
    lines: list[str] = []
    for diagnostic in error.error_diagnostics[:1]:
        lines.append(f"{_placed(diagnostic.location, source, rewritten)}: error: {diagnostic.message}")
        # A dump of the rewritten operation would show the user text that is not theirs.
        lines += [
            f"{_placed(note.location, source, rewritten)}: note: {note.message}"
            for note in diagnostic.notes
            if not note.message.startswith("see current operation")
        ]
    return "\n".join(lines) or f"{source.filename}: error: {error.message}"


_FILE_LOCATION = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')


def _placed(location: ir.Location, source: SourceMap, rewritten: str) -> str:
    found = _FILE_LOCATION.search(str(location))
    if found is None:
        return source.filename
    name, line, column = found.group(1), int(found.group(2)), int(found.group(3))
    if name not in (source.filename, "-"):
        return f"{name}:{line}:{column}"
    offset = _offset(rewritten, line, column)
    return place(source.text, source.original(offset), source.filename)


def _offset(text: str, line: int, column: int) -> int:
    """The offset of a line and a byte column, both from 1."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    end = text.find("\n", start)
    whole = text[start : end if end >= 0 else len(text)]
    return start + len(whole.encode()[: column - 1].decode(errors="ignore"))


def _restore_columns(module: ir.Module, source: SourceMap, rewritten: str, lines: set[int]) -> None:
    """Corrects the locations of operations that stand behind a rewritten one on its line."""
    for op in walk(module.operation):
        found = _FILE_LOCATION.search(str(op.location))
        if found is None or found.group(1) != source.filename or int(found.group(2)) not in lines:
            continue
        offset = _offset(rewritten, int(found.group(2)), int(found.group(3)))
        line, column = map(int, place(source.text, source.original(offset), "").rsplit(":", 2)[1:])
        op.location = ir.Location.file(source.filename, line, column)
