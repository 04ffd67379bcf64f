"""The user's own expressions: where in a source file one stands, read off a location, and what to write there instead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from meshbridge.ir.locations import SourceLocation
from meshbridge.ir.mlir import ir

_RANGE = r'{}":{}:{}(?: to (\d*):(\d+))?'


class SourceExpression(NamedTuple):
    """An expression in a source file; lines count from 1, columns from 0, in bytes, as Python's own."""

    file: str
    line: int
    column: int
    end_line: int
    "That of `line`, and a column of -1, where the location does not say where the expression ends."
    end_column: int


def place_of(location: ir.Location, line: SourceLocation) -> SourceExpression:
    """Where the expression stands that begins at a `line` which the location names."""
    text = str(location)
    found = re.search(_RANGE.format(re.escape(line.file), line.line, line.column), text)
    end = found[1] if found is not None else None
    column = found[2] if found is not None else None
    return SourceExpression(line.file, line.line, line.column, int(end or line.line), int(column) if column else -1)


def constrained_text(place: SourceExpression, spec: str, otherwise: str) -> str:
    """What to write so that the value of an expression is sharded as `spec` says: an assignment to paste behind the one that
    gives the value its name, else what to put in the expression's stead. Where the source cannot be read, the value is called
    `otherwise`."""
    expression, name = _written(place)
    if name:
        return f"{name} = jax.lax.with_sharding_constraint({name}, {spec})"
    return f"jax.lax.with_sharding_constraint({expression or otherwise}, {spec})"


def _written(place: SourceExpression) -> tuple[str, str]:
    """The text of the expression, and the name that it is assigned to; empty where there is none, or the source is not there."""
    source, tree = _parsed(place.file)
    if tree is None:
        return "", ""
    found = [node for node in _expressions(tree) if _is_at(node, place)]
    if not found:
        return "", ""
    widest = max(found, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    text = " ".join((ast.get_source_segment(source, widest) or "").split())
    return text, _names(tree).get((widest.lineno, widest.col_offset, widest.end_lineno, widest.end_col_offset), "")


def _is_at(node: ast.expr, place: SourceExpression) -> bool:
    begins = (node.lineno, node.col_offset) == (place.line, place.column)
    return (
        begins and place.end_column in (-1, node.end_col_offset) and (place.end_column < 0 or node.end_lineno == place.end_line)
    )


def _expressions(tree: ast.Module) -> Iterator[ast.expr]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.expr))


def _names(tree: ast.Module) -> dict[tuple[int, int, int | None, int | None], str]:
    """By where an expression stands that is assigned to one name, that name."""
    return {
        (each.value.lineno, each.value.col_offset, each.value.end_lineno, each.value.end_col_offset): each.targets[0].id
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.targets[0], ast.Name)
    }


@lru_cache(maxsize=64)
def _parsed(file: str) -> tuple[str, ast.Module | None]:
    try:
        source = Path(file).read_text()
        return source, ast.parse(source)
    except (OSError, SyntaxError, ValueError):  # the program was made elsewhere, or in a notebook
        return "", None
