"""Converts one mesh operation from custom to generic form, as pieces that keep their positions in the user's text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from meshbridge.dialect.assembly import formats, values
from meshbridge.dialect.assembly.scanner import Scanner, Span
from meshbridge.ir.sharding import DYNAMIC

Piece = str | Span
"""Generated text, or the span of the user's text to copy."""

OPERAND = re.compile(r"%(?:\d+|[A-Za-z_$.-][\w$.-]*)(?:#\d+)?")
_SYMBOL = re.compile(r'@(?:[A-Za-z_][\w$.]*|"(?:[^"\\\n]|\\.)*")')


@dataclass
class _Parsed:
    """The attributes and operands of one operation."""

    attributes: list[tuple[str, str]] = field(default_factory=list)
    operands: list[list[tuple[Span, str | None]]] = field(default_factory=lambda: [[], [], []])
    """By segment: the span of each operand, and its type if the text does not give it."""

    def ordered(self) -> list[tuple[Span, str | None]]:
        return [operand for segment in self.operands for operand in segment]


def parse_op(scanner: Scanner, name: str, form: formats.OpFormat) -> list[Piece]:
    """Reads the text after the operation's name and returns the generic form.

    Raises ParseError at an unexpected token.
    """
    parsed = _Parsed()
    for element in form.elements:
        _read(element, scanner, parsed)
    discardable = _attribute_dictionary(scanner)
    types = _types(scanner, form, parsed)
    if form.segments:
        sizes = ", ".join(str(len(segment)) for segment in parsed.operands[: form.segments])
        parsed.attributes.append(("operandSegmentSizes", f"array<i32: {sizes}>"))
    return _generic(name, parsed, discardable, types)


def _read(element: formats.Element, scanner: Scanner, parsed: _Parsed) -> None:
    match element:
        case formats.Literal(text):
            scanner.expect(text)
        case formats.OperandClause(type_, segment):
            parsed.operands[segment].append((scanner.match(OPERAND, "an operand"), type_))
        case formats.Operands(type_, segment):
            while not scanner.at("]"):
                if parsed.operands[segment]:
                    scanner.expect(",")
                parsed.operands[segment].append((scanner.match(OPERAND, "an operand"), type_))
        case formats.Symbol(attribute, declares):
            symbol = scanner.word(_SYMBOL, "a mesh symbol such as @mesh0")
            if scanner.at("::"):
                scanner.fail(
                    f"custom op '{scanner.operation}' invalid kind of attribute specified", scanner.position - len(symbol)
                )
            name = symbol[1:]
            parsed.attributes.append((attribute, (name if name[0] == '"' else f'"{name}"') if declares else symbol))
        case formats.ValueClause():
            _read_value(element, scanner, parsed)
        case formats.Flag(attribute):
            if scanner.accept(attribute):
                parsed.attributes.append((attribute, ""))
        case formats.IndexList():
            _read_index_list(element, scanner, parsed)
        case formats.PartialClause(keyword):
            if scanner.accept(keyword):
                scanner.expect("=")
                kind = values.read_kind(scanner)
                axes = values.AXES.read(scanner)
                parsed.attributes += [("partial_axes", axes), ("partial_type", f"#mesh.partial<{kind}>")]


def _clause(keyword: str, optional: bool, scanner: Scanner) -> bool:
    """Steps over `keyword =`; False if an optional clause is left out."""
    if optional and not scanner.at(keyword):
        return False
    scanner.expect(keyword)
    scanner.expect("=")
    return True


def _read_value(element: formats.ValueClause, scanner: Scanner, parsed: _Parsed) -> None:
    if element.keyword and not _clause(element.keyword, element.default is not None, scanner):
        assert element.default is not None
        parsed.attributes.append((element.attribute, element.default))
    else:
        parsed.attributes.append((element.attribute, element.syntax.read(scanner)))


def _read_index_list(element: formats.IndexList, scanner: Scanner, parsed: _Parsed) -> None:
    if not _clause(element.keyword, element.default is not None, scanner):
        if element.default:
            parsed.attributes.append((element.attribute, element.default))
        return
    scanner.expect("[")
    entries: list[int] = []
    while not scanner.at("]"):
        if entries:
            scanner.expect(",")
        if scanner.at("%"):
            parsed.operands[element.segment].append((scanner.match(OPERAND, "an operand"), element.type))
            entries.append(DYNAMIC)
        else:
            entries.append(scanner.integer(64))
    scanner.expect("]")
    parsed.attributes.append((element.attribute, values.dense("i64", entries)))


def _attribute_dictionary(scanner: Scanner) -> Span | None:
    """The span of the entries of a trailing `{…}`, or None."""
    if not scanner.at("{"):
        return None
    start, end = scanner.balanced()
    return (start + 1, end - 1) if scanner.text[start + 1 : end - 1].strip() else None


def _types(scanner: Scanner, form: formats.OpFormat, parsed: _Parsed) -> list[Piece]:
    """The functional type of the generic form."""
    if form.types is formats.Types.NONE:
        return ["() -> ()"]
    scanner.expect(":")
    if form.types is formats.Types.FUNCTIONAL:
        if not scanner.at("("):
            scanner.unexpected("the operand types in parentheses")
        return [scanner.type()]
    if form.types is formats.Types.ONE_TO_ONE:
        operand = scanner.type()
        scanner.expect("->")
        return ["(", operand, ") -> ", scanner.type()]
    results = scanner.types()
    pieces: list[Piece] = ["("]
    for number, (_, implied) in enumerate(parsed.ordered()):
        pieces += [", "] if number else []
        pieces.append(implied or results[0])
    pieces.append(") -> (")
    for number, result in enumerate(results):
        pieces += [", ", result] if number else [result]
    return [*pieces, ")"]


def _generic(name: str, parsed: _Parsed, discardable: Span | None, types: list[Piece]) -> list[Piece]:
    pieces: list[Piece] = [f'"{name}"(']
    for number, (operand, _) in enumerate(parsed.ordered()):
        pieces += [", ", operand] if number else [operand]
    entries = ", ".join(f"{key} = {value}" if value else key for key, value in parsed.attributes)
    pieces.append(f") {{{entries}")
    if discardable:
        pieces += [", " if entries else "", discardable]
    return [*pieces, "} : ", *types]
