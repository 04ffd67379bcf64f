"""What MLIR bytecode tells without being parsed: its producer, and the dialects that it needs.

A file is the magic, a version, the producer up to a zero byte, then sections, each a number, a length and perhaps padding.
Integers are of variable length: the number of low zero bits of the first byte is the number of bytes that follow it.
"""

from __future__ import annotations

from collections.abc import Iterator

MAGIC = b"ML\xefR"
"""The first four bytes of MLIR bytecode, and so of StableHLO's portable artifacts."""

_STRINGS, _DIALECTS, _DIALECT_VERSION = 0, 1, 7
"""The numbers of sections."""


def producer(data: bytes) -> bytes | None:
    """The producer of this MLIR bytecode (`MLIR22.1.0`, `StableHLO_v1.15.0`), or None if it is not bytecode."""
    return data[len(MAGIC) + 1 :].split(b"\0", 1)[0] if data.startswith(MAGIC) else None


def dialects(data: bytes) -> frozenset[str]:
    """The dialects of all ops, types and attributes in MLIR bytecode, registered or not. Raises ValueError for other data."""
    named = producer(data)
    if named is None:
        raise ValueError("not MLIR bytecode")
    sections = dict(_sections(_ByteReader(data, len(MAGIC) + 1 + len(named) + 1)))
    strings = list(_strings(sections[_STRINGS]))
    reader = sections[_DIALECTS]
    names = []
    for _ in range(reader.integer()):
        index, is_versioned = divmod(reader.integer(), 2)
        names.append(strings[index].decode())
        if is_versioned:
            reader.section()
    return frozenset(names)


class _ByteReader:
    """Bytes, with a read position."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, count: int) -> bytes:
        chunk = self.data[self.at : self.at + count]
        if len(chunk) < count:
            raise ValueError("bytecode ends early")
        self.at += count
        return chunk

    def integer(self) -> int:
        lead = self.take(1)[0]
        if not lead:
            return int.from_bytes(self.take(8), "little")
        following = (lead & -lead).bit_length() - 1
        return int.from_bytes(bytes((lead,)) + self.take(following), "little") >> (following + 1)

    def section(self) -> tuple[int, _ByteReader]:
        """The number of the section that begins here, and its content."""
        number, length = self.take(1)[0], self.integer()
        if number & 0x80:
            alignment = self.integer()
            self.take(-self.at % alignment)
        return number & 0x7F, _ByteReader(self.take(length))


def _sections(reader: _ByteReader) -> Iterator[tuple[int, _ByteReader]]:
    while reader.at < len(reader.data):
        yield reader.section()


def _strings(reader: _ByteReader) -> Iterator[bytes]:
    """Their lengths, zero bytes included, precede them, the last one first."""
    for length in reversed([reader.integer() for _ in range(reader.integer())]):
        yield reader.take(length)[:-1]
