"""Python expressions: their text, their precedence, and their layout on lines of WIDTH characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from meshbridge.text import joined, quoted, visible

WIDTH = 100
"""Columns of a line."""

INDENT = "    "

LOOSE, UNARY, ATOM = 0, 14, 20
"""Precedence: of an expression that needs parentheses beside any operator, of a unary one, and of a name or call."""

OPERATORS = {"*": 12, "/": 12, "+": 10, "-": 10, "&": 6, "^": 5, "|": 4}
"""The precedence of operators; all others are `LOOSE`."""


@dataclass(frozen=True)
class Code:
    """An expression. If it ends in brackets, `opener`, `parts` and `closer` divide it for a layout on several lines."""

    text: str
    binding: int = ATOM
    opener: str = ""
    parts: tuple[Code, ...] = ()
    closer: str = ""

    def bound(self, binding: int) -> str:
        """The text as an operand of an operator of precedence `binding`."""
        return self.text if self.binding >= binding else f"({self.text})"

    def __str__(self) -> str:
        return self.text


def bracketed(opener: str, parts: Iterable[Code], closer: str) -> Code:
    """`opener`, the parts between commas, `closer`."""
    listed = tuple(parts)
    return Code(f"{opener}{', '.join(part.text for part in listed)}{closer}", ATOM, opener, listed, closer)


def call(function: str, *positional: Code | str, **named: Code | str) -> Code:
    """`function(a, b, name=c)`."""
    parts = [*map(as_code, positional), *(_named(name, as_code(value)) for name, value in named.items())]
    return bracketed(f"{function}(", parts, ")")


def _named(name: str, value: Code) -> Code:
    opener = f"{name}={value.opener}" if value.opener else ""
    return Code(f"{name}={value.text}", LOOSE, opener, value.parts, value.closer)


def as_code(value: Code | str) -> Code:
    """Wraps a text as an atom."""
    return value if isinstance(value, Code) else Code(value)


def tuple_of(parts: Sequence[Code]) -> Code:
    """`(a, b)`; of one part `(a,)`."""
    if len(parts) == 1:
        return Code(f"({parts[0].text},)")
    return bracketed("(", parts, ")")


def list_of(parts: Iterable[Code]) -> Code:
    """`[a, b]`."""
    return bracketed("[", parts, "]")


def literal(value: object) -> Code:
    """Nested tuples and lists of numbers, texts and None as Python writes them."""
    if isinstance(value, tuple):
        return tuple_of([literal(entry) for entry in value])
    if isinstance(value, list):
        return list_of(literal(entry) for entry in value)
    if isinstance(value, str):
        return Code(quoted(value))
    return value if isinstance(value, Code) else Code(repr(value))


def docstring(lines: Iterable[str]) -> str:
    """The docstring of a file, of lines in which control characters are visible."""
    return '"""{}\n"""'.format(joined(lines).replace("\\", "\\\\").replace('"""', '\\"\\"\\"'))


def comment(text: str, indent: str) -> list[str]:
    """A text as lines of comments, with control characters visible."""
    return [f"{indent}# {part}" for part in wrap(visible(text, keep=""), WIDTH - len(indent) - 2)]


def method(owner: Code, name: str, *positional: Code | str, **named: Code | str) -> Code:
    """`owner.name(…)`."""
    return call(f"{owner.bound(ATOM)}.{name}", *positional, **named)


def infix(lhs: Code, operator: str, rhs: Code) -> Code:
    """`left operator right`."""
    binding = OPERATORS.get(operator, LOOSE)
    return Code(f"{lhs.bound(max(binding, 1))} {operator} {rhs.bound(binding + 1)}", binding)


def prefix(operator: str, operand: Code) -> Code:
    """`-x`, `~x`."""
    return Code(f"{operator}{operand.bound(UNARY)}", UNARY)


def function_head(name: str, parameters: Sequence[str], indent: str) -> list[str]:
    """`def name(a, b):`, on as many lines as it needs."""
    head = bracketed(f"def {name}(", map(Code, parameters), ")")
    return laid_out(Code(f"{head.text}:", ATOM, head.opener, head.parts, "):"), indent)


def statement(targets: Sequence[str], value: Code, indent: str) -> list[str]:
    """`a, b = value` on as many lines as it needs."""
    target = ", ".join(targets)
    if len(f"{indent}{target} = {value.opener}") > WIDTH and len(targets) > 1:
        *lines, closing_line = laid_out(Code("", ATOM, "(", tuple(map(Code, targets)), ")"), indent, is_broken=True)
        value_line, *value_lines = laid_out(_prefixed(f"{closing_line.strip()} = ", value), indent)
        return [*lines, value_line, *value_lines]
    if not value.parts and len(f"{indent}{target} = {value.text}") > WIDTH:
        return [f"{indent}{target} = (", f"{indent}{INDENT}{value.text}", f"{indent})"]
    return laid_out(_prefixed(f"{target} = ", value), indent)


def unpacked(targets: Sequence[str], source: str, indent: str) -> list[str]:
    """`a, b = source`, also of one target."""
    if len(targets) == 1:
        return [f"{indent}({targets[0]},) = {source}"]
    return statement(targets, Code(source), indent)


def _prefixed(text: str, value: Code) -> Code:
    """`value` after `text`."""
    return Code(f"{text}{value.text}", LOOSE, f"{text}{value.opener}" if value.opener else "", value.parts, value.closer)


def returned(value: Code, indent: str) -> list[str]:
    """`return value`."""
    return laid_out(_prefixed("return ", value), indent)


def laid_out(code: Code, indent: str, tail: str = "", *, is_broken: bool = False) -> list[str]:
    """The lines of an expression followed by `tail`: one line if it fits; else the parts between the brackets on a line of their
    own; else, or if `is_broken`, one line for each part."""
    if not is_broken and (not code.parts or len(indent + code.text + tail) <= WIDTH):
        return [f"{indent}{code.text}{tail}"]
    inner = indent + INDENT
    together = ", ".join(part.text for part in code.parts)
    lines = [f"{inner}{together}"]
    if is_broken or len(lines[0]) > WIDTH or code.closer == "):":
        lines = [line for part in code.parts for line in laid_out(part, inner, ",")]
    return [f"{indent}{code.opener}", *lines, f"{indent}{code.closer}{tail}"]


def keywords(named: Mapping[str, Code | None]) -> dict[str, Code]:
    """The keywords that have a value."""
    return {name: value for name, value in named.items() if value is not None}
