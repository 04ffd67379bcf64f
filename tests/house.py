"""The folders of the package, what each of them may import, and what a file imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BRIDGE = ROOT / "bridge" / "meshbridge"
CONVERTERS = ROOT / "converters" / "meshbridge_converters"
TESTS = ROOT / "tests"

LAYERS = (
    "__main__",
    "__init__",
    "trials",
    "tools",
    "api",
    "pipelines",
    "jitted",
    "sharding_search",
    "solver",
    "reports conversion",
    "pages",
    "partitioning",
    "plan_variants",
    "pipeline",
    "pass_names",
    "progress",
    "runtime",
    "upstream",
    "emit",
    "lowering",
    "overlap",
    "collectives",
    "partitioner",
    "decide",
    "legalize",
    "cost",
    "ops",
    "resharding",
    "read",
    "analysis",
    "machines",
    "dialect",
    "backends",
    "verification",
    "ir",
    "text",
)
"""The folders and files of the package, each of which imports only what stands below it."""


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, by its full name."""
    return (name for _, name in imports_by_line(path))


def imports_by_line(path: Path) -> Iterator[tuple[int, str]]:
    """The same, each with the line that it is imported on."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
