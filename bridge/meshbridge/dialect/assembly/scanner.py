"""A cursor over MLIR text that skips blanks and comments, steps over balanced brackets and types, and locates its errors."""

from __future__ import annotations

import re
from typing import NoReturn

from meshbridge.ir.mlir import ParseError

Span = tuple[int, int]
"""Start and end offset of a piece of the text."""

_BLANKS = re.compile(r"(?:\s+|//[^\n]*)*")
_TOKEN = re.compile(r"[%@#!^]?[\w$.-]+|\S")
_WORD = re.compile(r"[\w$.-]")
_TYPE_NAME = re.compile(r"[!\w][\w$.]*")
_INTEGER = re.compile(r"-?\d+")
_NEXT_BRACKET = re.compile(r'"(?:[^"\\\n]|\\.)*"|"|//[^\n]*|->|[()<>{}\[\]]')
_CLOSING = {"(": ")", "<": ">", "{": "}", "[": "]"}


def location_at(text: str, offset: int, filename: str) -> str:
    """`file:line:col` of an offset; columns count bytes, as MLIR's do."""
    start = text.rfind("\n", 0, offset) + 1
    return f"{filename}:{text.count(chr(10), 0, offset) + 1}:{len(text[start:offset].encode('utf-8', 'replace')) + 1}"


def byte_location_at(data: bytes, offset: int, filename: str) -> str:
    """`file:line:col` of an offset in bytes that are no text."""
    return f"{filename}:{data.count(bytes([10]), 0, offset) + 1}:{offset - data.rfind(bytes([10]), 0, offset)}"


class Scanner:
    """Reads `text` from `position` on, as part of `operation` if that is known."""

    def __init__(self, text: str, position: int, filename: str, operation: str = "") -> None:
        self.text = text
        self.position = position
        self.filename = filename
        self.operation = operation

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Raises ParseError at offset `at`, or at the next token."""
        if at is None:
            self.skip()
        raise ParseError(f"{location_at(self.text, self.position if at is None else at, self.filename)}: error: {message}")

    def unexpected(self, expected: str) -> NoReturn:
        """Raises ParseError with the expected and the actual token."""
        self.skip()
        token = _TOKEN.match(self.text, self.position)
        self.fail(f"expected {expected}, found {f'{token.group()!r}' if token else 'the end of the input'}")

    def skip(self) -> None:
        """Moves to the next token."""
        blanks = _BLANKS.match(self.text, self.position)
        assert blanks is not None  # the pattern matches the empty string
        self.position = blanks.end()

    def at(self, token: str) -> bool:
        """True if `token` comes next, as a whole word if it is one. Does not move."""
        return self._end_of(token) >= 0

    def _end_of(self, token: str) -> int:
        """The end of `token` if it comes next, or -1."""
        blanks = _BLANKS.match(self.text, self.position)
        assert blanks is not None  # the pattern matches the empty string
        end = blanks.end() + len(token)
        if not self.text.startswith(token, blanks.end()):
            return -1
        return -1 if _WORD.match(token[-1]) and end < len(self.text) and _WORD.match(self.text[end]) else end

    def accept(self, token: str) -> bool:
        """Steps over `token` if it comes next."""
        end = self._end_of(token)
        if end >= 0:
            self.position = end
        return end >= 0

    def expect(self, token: str) -> None:
        """Steps over `token`."""
        if not self.accept(token):
            self.unexpected(f"'{token}'")

    def match(self, pattern: re.Pattern[str], expected: str) -> Span:
        """Steps over a match of `pattern` and returns its span."""
        self.skip()
        matched = pattern.match(self.text, self.position)
        if matched is None:
            self.unexpected(expected)
        self.position = matched.end()
        return matched.span()

    def word(self, pattern: re.Pattern[str], expected: str) -> str:
        """Like `match`, but returns the text."""
        start, end = self.match(pattern, expected)
        return self.text[start:end]

    def integer(self, bits: int) -> int:
        """A decimal integer that fits `bits` bits, two's complement."""
        start, end = self.match(_INTEGER, "an integer")
        digits = self.text[start:end]
        # Every 64-bit integer fits 20 characters; longer ones are refused before Python spends time on them.
        if len(digits) > 20 or not -(1 << (bits - 1)) <= int(digits) < 1 << (bits - 1):
            self.fail(f"integer {digits[:40]} does not fit {bits} bits", start)
        return int(digits)

    def balanced(self) -> Span:
        """Steps over a bracketed group, with strings, comments and arrows inside it; returns its span."""
        self.skip()
        start = self.position
        open_brackets = [_CLOSING[self.text[start]]]
        position = start + 1
        while open_brackets:
            bracket = _NEXT_BRACKET.search(self.text, position)
            if bracket is None:
                self.fail(f"'{self.text[start]}' is never closed", start)
            token, position = bracket.group(), bracket.end()
            if token == '"':
                self.fail("expected '\"' in string literal", bracket.start())
            if token in _CLOSING:
                open_brackets.append(_CLOSING[token])
            elif token in ")>}]" and token != (expected := open_brackets.pop()):
                self.fail(f"expected '{expected}', found '{token}'", bracket.start())
        self.position = position
        return start, position

    def type(self) -> Span:
        """Steps over one type: a name with its parameters, or a function type."""
        self.skip()
        start = self.position
        if self.at("("):
            self.balanced()
            self.expect("->")
            if self.at("("):
                self.balanced()
            else:
                self.type()
            return start, self.position
        self.match(_TYPE_NAME, "a type")
        if self.text.startswith("<", self.position):
            self.balanced()
        return start, self.position

    def types(self) -> list[Span]:
        """Steps over one or more types with commas between them."""
        spans = [self.type()]
        while self.accept(","):
            spans.append(self.type())
        return spans
