"""Attributes and types of the dialect that stand anywhere in a text: those that it does not have are refused.

MLIR knows nothing of the dialect's attributes and types: it would take any text in their brackets.
"""

from __future__ import annotations

import re

from meshbridge.dialect.assembly.scanner import Scanner
from meshbridge.dialect.assembly.spelling import Spelling
from meshbridge.dialect.assembly.values import AXIS_ARRAY, read_kind

_READERS = {"partial": read_kind, "axisarray": AXIS_ARRAY.read}
"""By attribute, what stands in its brackets. LLVM 19's and the RFC's `shard` is read where it is used."""

_QUOTED_OR_NAMED = r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[#!]{prefix}(?P<opening>\.|<\s*)(?P<name>[\w$]*)'


def refuse_unknown_names(text: str, filename: str, spelling: Spelling) -> None:
    """Raises ParseError at an attribute `#mesh.…` or a type `!mesh.…` that the dialect does not have."""
    prefix = spelling.prefix
    if not re.search(rf"#{prefix}[.<]|!{prefix}(?:<|\.(?!sharding\b))", text):  # the one type is everywhere
        return
    for found in re.finditer(_QUOTED_OR_NAMED.format(prefix=prefix), text):
        if found["name"] is None:
            continue
        scanner = Scanner(text, found.end(), filename)
        if found.group().startswith("!"):
            if found["name"] != "sharding":
                scanner.fail(f"unknown type `{found['name']}` in dialect `{prefix}`", found.start("name"))
        elif found["name"] in _READERS:
            if found["opening"] == ".":
                scanner.expect("<")
            _READERS[found["name"]](scanner)
            scanner.expect(">")
        elif found["name"] != "shard":
            scanner.fail(f"unknown attribute `{found['name']}` in dialect `{prefix}`", found.start("name"))
