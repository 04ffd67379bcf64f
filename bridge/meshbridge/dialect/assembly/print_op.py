"""Converts one mesh operation from generic to custom form."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshbridge.dialect.assembly import formats, values
from meshbridge.dialect.assembly.scanner import Scanner
from meshbridge.dialect.assembly.values import Mismatch
from meshbridge.ir.sharding import DYNAMIC

Part = str | int
"""Text of the custom form, or the number of an operand of the generic form."""


def custom_form(name: str, operand_count: int, signature: str, forms: tuple[formats.OpFormat, ...]) -> list[Part]:
    """The custom form of `"op"(operands) rest`, where `rest` is ` {attributes} : type`.

    Raises Mismatch if no form can express it: the operation then keeps its generic form.
    """
    scanner = Scanner(signature, 0, "")
    attributes = _dictionary(scanner)
    scanner.expect(":")
    operand_types, result_types = _functional_type(scanner)
    if len(operand_types) != operand_count:
        raise Mismatch("operand types do not match the operands")
    for form in forms[:-1]:
        if form.attributes & attributes.keys():
            return _Writer(name, dict(attributes), operand_types, result_types).write(form)
    return _Writer(name, dict(attributes), operand_types, result_types).write(forms[-1])


_BRACKETS = re.compile(r'"(?:[^"\\\n]|\\.)*"|->|[()<>{}\[\]]|,|=')


def _dictionary(scanner: Scanner) -> dict[str, str]:
    """The entries of `{a = 1 : i32, b}` as text; unit attributes have the value ""."""
    if not scanner.at("{"):
        return {}
    start, end = scanner.balanced()
    entries: dict[str, str] = {}
    for entry in _split(scanner.text[start + 1 : end - 1]):
        key, _, value = entry.partition("=")
        entries[key.strip()] = value.strip()
    return entries


def _split(text: str) -> list[str]:
    """Splits at the commas outside all brackets."""
    parts: list[str] = []
    depth = start = 0
    for bracket in _BRACKETS.finditer(text):
        token = bracket.group()
        if token in ("(", "<", "{", "["):
            depth += 1
        elif token in (")", ">", "}", "]"):
            depth -= 1
        elif token == "," and depth == 0:
            parts.append(text[start : bracket.start()])
            start = bracket.end()
    return [*parts, text[start:]] if text.strip() else []


def _functional_type(scanner: Scanner) -> tuple[list[str], list[str]]:
    def listed() -> list[str]:
        start, end = scanner.balanced()
        return [entry.strip() for entry in _split(scanner.text[start + 1 : end - 1])]

    operands = listed()
    scanner.expect("->")
    if scanner.at("("):
        return operands, listed()
    start, end = scanner.type()
    return operands, [scanner.text[start:end]]


@dataclass
class _Writer:
    """Writes one operation; each element of the form removes the attributes and operands that it writes."""

    name: str
    attributes: dict[str, str]
    operand_types: list[str]
    result_types: list[str]

    def write(self, form: formats.OpFormat) -> list[Part]:
        segments = self._segments(form)
        parts: list[Part] = [self.name]
        for element in form.elements:
            parts += self._element(element, segments)
        if any(segments):
            raise Mismatch("more operands than the form has")
        if self.attributes:
            entries = (f"{key} = {value}" if value else key for key, value in self.attributes.items())
            parts.append(f" {{{', '.join(entries)}}}")
        return [*parts, self._types(form)]

    def _segments(self, form: formats.OpFormat) -> list[list[int]]:
        """The operands' numbers by segment."""
        count = len(self.operand_types)
        if not form.segments:
            return [list(range(count)), [], []]
        sizes = [int(size) for size in values.listed(self._take("operandSegmentSizes"), "i32")]
        if len(sizes) != form.segments or sum(sizes) != count:
            raise Mismatch("operand segments do not add up")
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]

    def _take(self, attribute: str) -> str:
        value = self.attributes.pop(attribute, None)
        if value is None:
            raise Mismatch(f"attribute {attribute} is missing")
        return value

    def _operand(self, segment: list[int], expected: str | None) -> int:
        if not segment:
            raise Mismatch("fewer operands than the form has")
        number = segment.pop(0)
        if expected is not None and self.operand_types[number] != expected:
            raise Mismatch(f"operand {number} is not of type {expected}")
        return number

    def _element(self, element: formats.Element, segments: list[list[int]]) -> list[Part]:
        match element:
            case formats.Literal(text, spaced):
                return [f" {text}" if spaced else text]
            case formats.OperandClause(type_, segment):
                return [" ", self._operand(segments[segment], type_)]
            case formats.Operands(type_, segment):
                return self._comma_separated([self._operand(segments[segment], type_) for _ in list(segments[segment])])
            case formats.Symbol(attribute, declares):
                return [" " + (_as_symbol(self._take(attribute)) if declares else self._take(attribute))]
            case formats.ValueClause():
                return self._value(element)
            case formats.Flag(attribute):
                return [f" {attribute}"] if self.attributes.pop(attribute, None) is not None else []
            case formats.IndexList():
                return self._index_list(element, segments[element.segment])
            case formats.PartialClause():
                return self._partial(element)

    @staticmethod
    def _comma_separated(entries: list[Part]) -> list[Part]:
        parts: list[Part] = []
        for number, entry in enumerate(entries):
            parts += [", ", entry] if number else [entry]
        return parts

    def _value(self, element: formats.ValueClause) -> list[Part]:
        generic = self._take(element.attribute)
        if generic == element.default:
            return []
        lead = element.lead if element.lead is not None else f" {element.keyword} = " if element.keyword else " "
        return [lead + element.syntax.write(generic)]

    def _index_list(self, element: formats.IndexList, segment: list[int]) -> list[Part]:
        if element.default == "" and element.attribute not in self.attributes:
            return []
        entries = values.listed(self._take(element.attribute), "i64")
        if not entries and element.default:
            return []
        listed = self._comma_separated([self._operand(segment, element.type) if int(e) == DYNAMIC else e for e in entries])
        return [f" {element.keyword} = [", *listed, "]"]

    def _partial(self, element: formats.PartialClause) -> list[Part]:
        if "partial_axes" not in self.attributes:
            return []
        axes = values.AXES.write(self._take("partial_axes"))
        return [" " + element.template.format(values.written_kind(self._take("partial_type")), axes)]

    def _types(self, form: formats.OpFormat) -> str:
        if form.types is formats.Types.NONE:
            if self.operand_types or self.result_types:
                raise Mismatch("the form has no types")
            return ""
        operands, results = ", ".join(self.operand_types), ", ".join(self.result_types)
        if form.types is formats.Types.FUNCTIONAL:
            return f" : ({operands}) -> {results if len(self.result_types) == 1 else f'({results})'}"
        if form.types is formats.Types.ONE_TO_ONE:
            if len(self.operand_types) != 1 or len(self.result_types) != 1:
                raise Mismatch("the form has one operand and one result")
            return f" : {operands} -> {results}"
        if not self.result_types:
            raise Mismatch("the form has results")
        if (
            any(isinstance(e, formats.OperandClause) and e.type is None for e in form.elements)
            and self.operand_types[0] != self.result_types[0]
        ):
            raise Mismatch("the result has another type than the operand")
        return f" : {results}"


_PLAIN = re.compile(r"[A-Za-z_][\w$.]*")


def _as_symbol(quoted: str) -> str:
    """`"m"` as `@m`; names that are no identifiers stay quoted."""
    inner = quoted[1:-1]
    return f"@{inner}" if _PLAIN.fullmatch(inner) else f"@{quoted}"
