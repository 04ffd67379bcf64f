"""Converts scripts of mutations, in the transform dialect's own syntax, to the generic one that the bindings know.

In:   transform.named_sequence @__transform_main(%root: !transform.any_op {transform.readonly}) {
        %dots = transform.structured.match ops{["stablehlo.dot_general"]} in %root : (!transform.any_op) -> !transform.any_op
        transform.mesh.mutate %dots, [["data"], [], []] {index = 1} : !transform.any_op
        transform.yield
      }
Out:  "transform.named_sequence"() ({ ^bb0(%root: !transform.any_op):
        %dots = "transform.structured.match"(%root) {ops = ["stablehlo.dot_general"]} : (!transform.any_op) -> !transform.any_op
        "transform.mesh.mutate"(%dots) {option = [["data"], [], []], index = 1} : (!transform.any_op) -> ()
        "transform.yield"() : () -> ()
      }) {sym_name = "__transform_main"} : () -> ()
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from meshbridge.dialect.assembly.parse_op import OPERAND
from meshbridge.dialect.assembly.reader import decoded
from meshbridge.dialect.assembly.scanner import Scanner
from meshbridge.dialect.assembly.source_map import Edit, SourceMap, parse_module
from meshbridge.ir.mlir import ir

MUTATE = "transform.mesh.mutate"
MATCH = "transform.structured.match"
SEQUENCE = "transform.named_sequence"

ANY_OP = "!transform.any_op"
"""The type of a handle without a type."""

_MENTION = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|(?<![\w$.%@#!-])(transform(?:\.\w+)++)')
"""A string, a comment, or an op name in its own syntax."""

_AFTER_KEY = re.compile(r"\s*[=,}]")
"""The text after an attribute of that name."""

_NAME = re.compile(r'@([\w$.]+|"(?:[^"\\\n]|\\.)*")')


def read_script(source: str | bytes, filename: str, ctx: ir.Context) -> ir.Module:
    """The module of a script, in either syntax. Raises ParseError with the position in the text."""
    text = decoded(source, filename) if isinstance(source, bytes) else source
    edits = sorted(_edits(text, filename), key=lambda edit: edit.start)
    return parse_module(SourceMap(text, filename, edits), _rewritten(text, edits), ctx)


def _rewritten(text: str, edits: list[Edit]) -> str:
    pieces, end = [], 0
    for edit in edits:
        pieces += [text[end : edit.start], edit.text]
        end = edit.end
    return "".join([*pieces, text[end:]])


def _edits(text: str, filename: str) -> Iterator[Edit]:
    """The replacement of each op in its own syntax; line numbers do not change."""
    for match in _MENTION.finditer(text):
        if (name := match[1]) is None or (name not in _FORMS and _AFTER_KEY.match(text, match.end())):
            continue
        scanner = Scanner(text, match.end(), filename, name)
        if name not in _FORMS:
            scanner.fail(f"found the op '{name}', expected one of {', '.join(sorted(_FORMS))}", match.start())
        generic, tail = _FORMS[name](scanner)
        yield Edit(match.start(), scanner.position, generic + "\n" * text.count("\n", match.start(), scanner.position))
        if tail:  # the op has a region, which ends at the bracket that closes the one just read
            start = scanner.position - 1
            _, end = Scanner(text, start, filename).balanced()
            yield Edit(end - 1, end, "}" + tail)


def _mutate(scanner: Scanner) -> tuple[str, str]:
    """`%handle result 0, [[0], []] {…} : type`; only the list is required."""
    entries, handle = [], ""
    if scanner.at("%"):
        handle = scanner.word(OPERAND, "a handle")
    for side in ("result", "operand"):
        if scanner.accept(side):
            entries.append(f"{side} = {scanner.integer(64)}")
    if handle or entries:
        scanner.expect(",")
    entries.append(f"option = {_lists(scanner)}")
    return _generic(scanner, MUTATE, handle, entries), ""


def _lists(scanner: Scanner) -> str:
    """`[[0], []]`, or `#mesh.axisarray<[[0], []]>`."""
    scanner.skip()
    start = scanner.position
    if not scanner.at("<" if scanner.accept("#mesh.axisarray") else "["):
        scanner.unexpected("an option as in [[0], []]")
    scanner.balanced()
    return scanner.text[start : scanner.position]


def _match(scanner: Scanner) -> tuple[str, str]:
    """`ops{["a.b"]} in %handle : (type) -> type`."""
    scanner.expect("ops")
    scanner.expect("{")
    if not scanner.at("["):
        scanner.unexpected("an array of op names")
    names = _text(scanner, scanner.balanced())
    scanner.expect("}")
    scanner.expect("in")
    return _generic(scanner, MATCH, scanner.word(OPERAND, "a handle"), [f"ops = {names}"], ANY_OP), ""


def _generic(scanner: Scanner, name: str, handle: str, entries: list[str], result: str = "()") -> str:
    """The op with at most one handle; its attributes are `entries` and those of a dictionary that follows."""
    if scanner.at("{") and (written := _text(scanner, scanner.balanced())[1:-1].strip()):
        entries.append(written)
    type_ = f"({ANY_OP if handle else ''}) -> {result}"
    if scanner.accept(":"):
        text = _text(scanner, scanner.type())
        type_ = text if text.startswith("(") else f"({text}) -> {result}"
    return f'"{name}"({handle}) {{{", ".join(entries)}}} : {type_}'


def _sequence(scanner: Scanner) -> tuple[str, str]:
    """`@name(%handle: type {…}, …) -> type attributes {…} {`, up to the bracket that opens its region."""
    name = scanner.word(_NAME, "a name such as @__transform_main").removeprefix("@").strip('"')
    scanner.expect("(")
    arguments: list[str] = []
    while not scanner.accept(")"):
        if arguments:
            scanner.expect(",")
        argument = scanner.word(OPERAND, "a handle")
        scanner.expect(":")
        arguments.append(f"{argument}: {_text(scanner, scanner.type())}")
        if scanner.at("{"):
            scanner.balanced()
    if scanner.accept("->"):
        scanner.balanced() if scanner.at("(") else scanner.type()
    if scanner.accept("attributes"):
        scanner.balanced() if scanner.at("{") else scanner.unexpected("'{'")
    scanner.expect("{")
    head = f"^bb0({', '.join(arguments)}): " if arguments else ""
    return f'"{SEQUENCE}"() ({{ {head}', f') {{sym_name = "{name}"}} : () -> ()'


def _unnamed(scanner: Scanner) -> tuple[str, str]:
    """`failures(propagate) {`, up to the bracket."""
    scanner.expect("failures")
    scanner.balanced() if scanner.at("(") else scanner.unexpected("'('")
    scanner.expect("{")
    return '"transform.sequence"() ({', ") : () -> ()"


def _yield(scanner: Scanner) -> tuple[str, str]:
    """Nothing, or `%handle, … : type, …`, which no script needs."""
    handles, types = [], ""
    while scanner.at("%"):
        handles.append(scanner.word(OPERAND, "a handle"))
        if not scanner.accept(","):
            scanner.expect(":")
            types = ", ".join(_text(scanner, span) for span in scanner.types())
    return f'"transform.yield"({", ".join(handles)}) : ({types}) -> ()', ""


def _text(scanner: Scanner, span: tuple[int, int]) -> str:
    return scanner.text[slice(*span)].replace("\n", " ")


_FORMS: dict[str, Callable[[Scanner], tuple[str, str]]] = {
    MUTATE: _mutate,
    MATCH: _match,
    SEQUENCE: _sequence,
    "transform.sequence": _unnamed,
    "transform.yield": _yield,
}
"""By op, what reads the rest of it and returns its generic form up to its region, and the text after that, if any."""
