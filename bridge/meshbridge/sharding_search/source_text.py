"""The user's own expressions: where one stands in a source file, by its location, and what to write there."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from meshbridge.ir import cells
from meshbridge.ir.locations import SourceLocation
from meshbridge.ir.mlir import ir

_RANGE = r'{}":{}:{}(?: to (\d*):(\d+))?'


class SourceExpression(NamedTuple):
    """An expression in a source file; lines count from 1, columns from 0, in bytes, as in Python's `ast`."""

    file: str
    line: int
    column: int
    end_line: int
    "`line`, with a column of -1, if the location does not say where the expression ends."
    end_column: int


def expression_at(location: ir.Location, line: SourceLocation) -> SourceExpression:
    """The expression that begins at a `line` which the location names."""
    text, file = str(location), cells.file_of(line.file)
    match = re.search(_RANGE.format(re.escape(file), line.line, line.column), text)
    end = match[1] if match is not None else None
    column = match[2] if match is not None else None
    return SourceExpression(file, line.line, line.column, int(end or line.line), int(column) if column else -1)


def constrained_text(at: SourceExpression, spec: str, otherwise: str) -> str:
    """What to write so that the value of an expression is sharded as `spec`: an assignment to add after the one that names the
    value, or a replacement of the expression. If the source cannot be read, the value is called `otherwise`."""
    expression, name = _written(at)
    if name:
        return f"{name} = jax.lax.with_sharding_constraint({name}, {spec})"
    return f"jax.lax.with_sharding_constraint({expression or otherwise}, {spec})"


def _written(at: SourceExpression) -> tuple[str, str]:
    """The text of the expression, and the name that it is assigned to; empty without a name, or without the source."""
    source, tree = _parsed(at.file)
    if tree is None:
        return "", ""
    nodes = [node for node in _expressions(tree) if _is_at(node, at)]
    if not nodes:
        return "", ""
    widest = max(nodes, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    text = " ".join((ast.get_source_segment(source, widest) or "").split())
    return text, _names(tree).get((widest.lineno, widest.col_offset, widest.end_lineno, widest.end_col_offset), "")


def _is_at(node: ast.expr, at: SourceExpression) -> bool:
    begins = (node.lineno, node.col_offset) == (at.line, at.column)
    return begins and at.end_column in (-1, node.end_col_offset) and (at.end_column < 0 or node.end_lineno == at.end_line)


def _expressions(tree: ast.Module) -> Iterator[ast.expr]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.expr))


def _names(tree: ast.Module) -> dict[tuple[int, int, int | None, int | None], str]:
    """The name that each expression is assigned to, by the expression's position."""
    return {
        (node.value.lineno, node.value.col_offset, node.value.end_lineno, node.value.end_col_offset): node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    }


@lru_cache(maxsize=64)
def _parsed(file: str) -> tuple[str, ast.Module | None]:
    try:
        source = "".join(linecache.getlines(file))  # which also has the cells of a notebook
        return source, ast.parse(source)
    except (SyntaxError, ValueError):  # the file is not the one that was traced
        return "", None
