"""The tokens of an HloSharding string, read one after the other (`Reader`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

_TOKEN = re.compile(r"""\s*('[^']*'|"(?:[^"\\]|\\.)*"|<=|-?[0-9]+|[A-Za-z_][A-Za-z_0-9]*|\S)""")

ReadT = TypeVar("ReadT")


class Reader:
    """The tokens of a string, the next one in sight; empty at the end."""

    def __init__(self, text: str) -> None:
        self.tokens = [(found[1], found.start(1)) for found in _TOKEN.finditer(text)]
        self.end = len(text)
        self.position = 0

    @property
    def next(self) -> str:
        return self.ahead(0)

    def ahead(self, count: int) -> str:
        """The token that stands `count` after the next one."""
        at = self.position + count
        return self.tokens[at][0] if at < len(self.tokens) else ""

    def error(self, message: str) -> ValueError:
        """The message, with what stands here instead."""
        at = self.tokens[self.position][1] if self.next else self.end
        found = f"'{self.next[:40]}'" if self.next else "its end"
        return ValueError(f"not an HloSharding: {message}, found {found} at character {at}")

    def take(self) -> str:
        token = self.next
        self.position += 1
        return token

    def accept(self, token: str) -> bool:
        """Whether `token` stands here; if so, it is taken."""
        if self.next != token:
            return False
        self.position += 1
        return True

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self.accept(token):
                raise self.error(f"expected '{token}'")

    def number(self, least: int = 1) -> int:
        """An integer that 64 bits hold."""
        if not re.fullmatch(r"-?[0-9]{1,18}", self.next) or int(self.next) < least:
            raise self.error(f"expected an integer of at least {least} and at most 18 digits")
        return int(self.take())

    def name(self) -> str:
        """A quoted name."""
        if len(self.next) < 3 or self.next[0] not in "'\"":
            raise self.error("expected the name of an axis in quotes")
        return self.take()[1:-1]

    def list_of(self, read: Callable[[Reader], ReadT], closing: str) -> list[ReadT]:
        """What `read` finds between commas, up to and with `closing`."""
        found: list[ReadT] = []
        while not self.accept(closing):
            if found:
                self.expect(",")
            found.append(read(self))
        return found
