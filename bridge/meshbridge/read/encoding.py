"""Names and strings of a program that are not UTF-8: MLIR allows them, its Python bindings raise at each in another way."""

from __future__ import annotations

import re
from typing import Any

from meshbridge.ir.mlir import ParseError, ir

ESCAPED = re.compile(r"\\[89A-Fa-f][0-9A-Fa-f]")
"""How MLIR text writes a byte that is not ASCII inside of a string."""

_LITERAL = re.compile(r'((?<![%\w.])[\w.]+ = )?"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2})")

BINARY = ("backend_config = ",)
"""Attributes that hold bytes, and that nobody here reads as text."""


def check(module: ir.Module, filename: str) -> None:
    """Raises ParseError where `module` holds a name, a string or a source location that is not UTF-8."""
    printed: Any = module.operation.get_asm(
        binary=True, large_elements_limit=8, print_generic_op_form=True, enable_debug_info=True
    )
    try:
        text = printed.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"{filename}: error: damaged input: a name in it is not UTF-8: {error.reason}") from None
    if not ESCAPED.search(text):
        return
    for attribute, literal in _LITERAL.findall(text):
        if ESCAPED.search(literal) and attribute not in BINARY:
            raw = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), literal.encode())
            try:
                raw.decode()
            except UnicodeDecodeError:
                raise ParseError(f'{filename}: error: the string {attribute}"{literal[:80]}" is not UTF-8') from None
