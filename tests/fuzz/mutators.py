"""Bad input out of good: each mutator changes a program a little, where its reader looks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

NUMBERS = ("0", "-1", "1", "3", "255", "65536", "2147483648", "9223372036854775807", "100000000000", "9" * 25, "1.5")
"""In place of a number: what does not fit, what divides nothing, what only a large machine word holds."""

WORDS = (
    "?",
    "",
    "{}",
    "[]",
    "@",
    "@nobody",
    '"',
    '""',
    "%",
    "#",
    "!",
    "<",
    ">",
    "->",
    ":",
    "loc(",
    "é",
    "\0",
    "array<i64: 7>",
    "unit",
)
"""In place of any token."""

_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[\w.$]+|[%@#!^][\w.$-]+|->|<=|[^\s\w]|\s+')

Mutator = Callable[[bytes, Random], bytes]


def tokens(text: str) -> list[str]:
    """`text` in pieces that together are all of it: words, numbers, strings, signs, white space."""
    return _TOKEN.findall(text)


def _pick(found: Sequence[str], random: Random, pattern: str) -> int | None:
    """The index of a random token that matches."""
    matching = [index for index, token in enumerate(found) if re.fullmatch(pattern, token)]
    return random.choice(matching) if matching else None


def _on_tokens(change: Callable[[list[str], Random], None]) -> Mutator:
    def mutate(data: bytes, random: Random) -> bytes:
        found = tokens(data.decode(errors="replace"))
        if found:
            change(found, random)
        return "".join(found).encode()

    return mutate


def _delete(found: list[str], random: Random) -> None:
    del found[random.randrange(len(found))]


def _repeat(found: list[str], random: Random) -> None:
    at = random.randrange(len(found))
    found[at:at] = found[at : at + random.randint(1, 8)]


def _exchange(found: list[str], random: Random) -> None:
    one, other = random.randrange(len(found)), random.randrange(len(found))
    found[one], found[other] = found[other], found[one]


def _replace(found: list[str], random: Random) -> None:
    found[random.randrange(len(found))] = random.choice((*WORDS, random.choice(found)))


def _renumber(found: list[str], random: Random) -> None:
    at = _pick(found, random, r"\d+")
    if at is not None:
        found[at] = random.choice((*NUMBERS, random.choice(found)))


def _rename(found: list[str], random: Random) -> None:
    """One name in place of another: of a value, a symbol, an op, an attribute, an axis."""
    at, other = (_pick(found, random, r'[%@#!^"]?[A-Za-z_][^\s]*|"[^"]*"|[%@][\w]+') for _ in range(2))
    if at is not None and other is not None:
        found[at] = found[other]


def _in_string(found: list[str], random: Random) -> None:
    """A change inside a string, which may have a syntax of its own: shardings of GSPMD, attributes of older JAX."""
    at = _pick(found, random, r'"[^"]{3,}"')
    if at is not None:
        inner = tokens(found[at][1:-1])
        random.choice((_delete, _repeat, _exchange, _renumber, _replace))(inner, random)
        found[at] = '"' + "".join(inner).replace('"', "'") + '"'


def _delete_line(data: bytes, random: Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        del lines[random.randrange(len(lines))]
    return b"".join(lines)


def _flip(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _set(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    changed[random.randrange(len(changed))] = random.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, random.randrange(256)))
    return bytes(changed)


def _cut(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data))]


def _cut_out(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + data[at + random.choice((1, 2, 4, 16)) :]


def _double(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + data[at : at + random.choice((1, 4, 16))] + data[at:]


OF_TEXT: tuple[Mutator, ...] = (
    *map(_on_tokens, (_delete, _repeat, _exchange, _replace, _renumber, _rename, _in_string, _in_string, _renumber)),
    _delete_line,
    _flip,
    _cut,
)
OF_BYTES: tuple[Mutator, ...] = (_flip, _set, _cut, _cut_out, _double)

MUTATORS: dict[str, tuple[Mutator, ...]] = {"text": OF_TEXT, "bytes": OF_BYTES}
"""The mutators of each kind of input."""


@dataclass(frozen=True)
class Source:
    """A good program: where it comes from, what kind of input it is (a key of MUTATORS), and its content."""

    name: str
    kind: str
    data: bytes


def mutant(source: Source, seed: int) -> bytes:
    """The mutant `seed` of a program: one to three changes."""
    random = Random(f"{seed} {source.name} {source.kind}")
    data = source.data
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        if data:
            data = random.choice(MUTATORS[source.kind])(data, random)
    return data
