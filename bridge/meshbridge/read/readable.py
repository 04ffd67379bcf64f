"""What MLIR allows and its Python bindings cannot read: strings that are not UTF-8, for which they raise various errors, and
attributes that are source locations, for which they end the process."""

from __future__ import annotations

import re
from typing import Any

from meshbridge.ir.mlir import ParseError, ir

_ESCAPED = re.compile(r"\\[89A-Fa-f][0-9A-Fa-f]")
"""How MLIR text writes a byte that is not ASCII inside of a string."""

_LITERAL = re.compile(r'((?<![%\w.])[\w.]+ = )?"((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(rb"\\([0-9A-Fa-f]{2})")
_LOCATION = re.compile(r"(?<![#\w.])([\w.]+|\"\") *= *(?:loc\(|#loc\b|#loc\d)")
"""An attribute that is a source location; `#loc1 = loc(…)` names one for the locations of ops."""

_BINARY = ("backend_config = ",)
"""Attributes that hold bytes, which are never read as text."""


def is_suspect(data: bytes) -> bool:
    """Whether MLIR text may hold what `check` refuses."""
    text = data.decode()
    return bool(_ESCAPED.search(text) or _LOCATION.search(text))


def check(module: ir.Module, filename: str) -> None:
    """Raises ParseError where `module` holds a name, a string or a source location that is not UTF-8, or an attribute that is a
    source location."""
    printed: Any = module.operation.get_asm(
        binary=True, large_elements_limit=8, print_generic_op_form=True, enable_debug_info=True
    )
    try:
        text = printed.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"{filename}: error: damaged input: a name in it is not UTF-8: {error.reason}") from None
    if _LOCATION.search(text) and (match := _LOCATION.search(_LITERAL.sub(r'\1""', text))):
        raise ParseError(f"{filename}: error: the attribute '{match[1]}' is a source location, expected one of another kind")
    if not _ESCAPED.search(text):
        return
    for attribute, literal in _LITERAL.findall(text):
        if _ESCAPED.search(literal) and attribute not in _BINARY:
            raw = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), literal.encode())
            try:
                raw.decode()
            except UnicodeDecodeError:
                raise ParseError(f'{filename}: error: the string {attribute}"{literal[:80]}" is not UTF-8') from None
