"""How far the house is from one vocabulary, in figures: `python -m tests.house_figures` prints them.

Counted in `bridge/`: tables of op names outside `ops/`, signatures with a machine and a layout as text, names of classes that
several files give to classes of their own, assignments to names that do not say what they hold, lines, and lengths of functions.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.table import Table

from tests.house import BRIDGE

VAGUE = frozenset(
    (
        *("found", "held", "made", "taken", "each", "rest", "known", "left", "seen", "asked", "given", "moved", "cut", "joined"),
        *("what", "one", "other", "others", "more", "less", "first", "last", "here", "there", "both", "same", "new", "old"),
        *("said", "sent", "wide", "kept"),
    )
)
"""Names of variables that leave out what they hold."""

MOST_NAMES = 2
"""A set of fewer op names is a pattern on these, no table."""

READERS = ("api.py", "machines/compile_target.py")
"""Where targets are texts: what users call, and what reads them."""

_OP_NAME = re.compile(r"(stablehlo|chlo|mhlo|mesh|sdy)\.[a-z_]+")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    """The source files of the package, by path below it."""
    for path in sorted(BRIDGE.rglob("*.py")):
        yield path.relative_to(BRIDGE), ast.parse(path.read_text())


def op_tables() -> list[str]:
    """Sets and tables of op names at the top of files outside of `ops/`, as `file:line`."""
    return [
        f"{path}:{statement.lineno}"
        for path, tree in modules()
        if path.parts[0] not in ("ops", "dialect", "verification")
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        and statement.value is not None
        and _op_names(statement.value) > MOST_NAMES
    ]


def _op_names(value: ast.expr) -> int:
    """How many ops an expression names; a comprehension over names that it completes counts as those."""
    texts = [node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    full = sum(bool(_OP_NAME.fullmatch(text)) for text in texts)
    prefixed = any(text in ("stablehlo.", "chlo.", "mhlo.", "mesh.") for text in texts)
    views = sum(isinstance(node, ast.Attribute) and node.attr == "OPERATION_NAME" for node in ast.walk(value))
    return full + views + (len(texts) - 1 if prefixed else 0)


def texts_of_targets() -> list[str]:
    """Functions and classes that take `machine: str` beside `layout: str`, as `file:line`, without those of READERS."""
    found = []
    for path, tree in modules():
        if str(path) in READERS:
            continue
        for node in ast.walk(tree):
            names = _strings(node)
            if {"machine", "layout"} <= names:
                found.append(f"{path}:{node.lineno}")  # type: ignore[attr-defined]
    return found


def _strings(node: ast.AST) -> set[str]:
    """The parameters of a function, or the fields of a class, that are `str`."""
    if isinstance(node, ast.FunctionDef):
        pairs = [(each.arg, each.annotation) for each in (*node.args.args, *node.args.kwonlyargs)]
    elif isinstance(node, ast.ClassDef):
        pairs = [
            (each.target.id, each.annotation)
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        ]
    else:
        return set()
    return {name for name, kind in pairs if isinstance(kind, ast.Name) and kind.id == "str"}


def reused_class_names() -> dict[str, list[str]]:
    """Names that several files give to classes of their own."""
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name.lstrip("_")].append(str(path))
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def assignments() -> Counter[str]:
    """How often each name is assigned."""
    return Counter(
        node.id
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


def function_lengths() -> list[int]:
    """Lines of each function, without its docstring."""
    return [
        node.end_lineno - (node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]).lineno + 1
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None
    ]


def main() -> None:
    """Prints the figures."""
    names, lengths = assignments(), function_lengths()
    vague = sum(count for name, count in names.items() if name in VAGUE)
    table = Table("figure", "now", box=None)
    table.add_row("tables of op names outside ops/", str(len(op_tables())))
    table.add_row("signatures with machine: str and layout: str", str(len(texts_of_targets())))
    table.add_row("class names of several classes", str(len(reused_class_names())))
    table.add_row("assignments to vague names", f"{vague / names.total():.1%}")
    table.add_row("lines of bridge/", f"{sum(len(path.read_text().splitlines()) for path in BRIDGE.parent.rglob('*.py')):,}")
    table.add_row(
        "lines of functions, median and 99th percentile", f"{median(lengths):.0f} / {quantiles(lengths, n=100)[98]:.0f}"
    )
    Console().print(table)


if __name__ == "__main__":
    main()
