"""Refuses unknown attributes and types of the dialect anywhere in a text.

MLIR does not know the dialect's attributes and types, and would accept any text in their brackets.
"""

from __future__ import annotations

import re

from meshbridge.dialect.assembly.scanner import Scanner
from meshbridge.dialect.assembly.spelling import Spelling
from meshbridge.dialect.assembly.values import AXIS_ARRAY, read_kind

_READERS = {"partial": read_kind, "axisarray": AXIS_ARRAY.read}
"""By attribute, the reader of the text in its brackets. LLVM 19's and the RFC's `shard` is read where it is used."""

_QUOTED_OR_NAMED = r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|[#!]{prefix}(?P<opening>\.|<\s*)(?P<name>[\w$]*)'


def refuse_unknown_names(text: str, filename: str, spelling: Spelling) -> None:
    """Raises ParseError at an attribute `#mesh.…` or a type `!mesh.…` that the dialect does not have."""
    prefix = spelling.prefix
    if not re.search(rf"#{prefix}[.<]|!{prefix}(?:<|\.(?!sharding\b))", text):  # the one type is everywhere
        return
    for match in re.finditer(_QUOTED_OR_NAMED.format(prefix=prefix), text):
        if match["name"] is None:
            continue
        scanner = Scanner(text, match.end(), filename)
        if match.group().startswith("!"):
            if match["name"] != "sharding":
                scanner.fail(f"unknown type `{match['name']}` in dialect `{prefix}`", match.start("name"))
        elif match["name"] in _READERS:
            if match["opening"] == ".":
                scanner.expect("<")
            _READERS[match["name"]](scanner)
            scanner.expect(">")
        elif match["name"] != "shard":
            scanner.fail(f"unknown attribute `{match['name']}` in dialect `{prefix}`", match.start("name"))
