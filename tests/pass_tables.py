"""Writes the tables of `docs/collective-passes.md`: the passes on partitioned programs, and their options, from the code.

From the repository's root: `python -m tests.pass_tables`.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import get_args

from benchmarks import marked
from meshbridge import pipeline
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.ir.passes import Pass
from meshbridge.machines.compile_target import PARTS, CompileTarget
from meshbridge.machines.machine import OptionSet, machines
from meshbridge.pass_names import registered_passes
from tests.house import ROOT, imports

PAGE = ROOT / "docs" / "collective-passes.md"
COMMAND = "python -m tests.pass_tables"

FOLDERS = ("collectives", "overlap")
ELSEWHERE = ("largest-as-floats",)
"""A pass of another folder that chooses between forms of a collective."""

TARGET = "target"
"""The field of passes that ask something of a machine; its parts are options that all of them have."""

GENERAL = ("canonicalize", "cse", "simplify")
"""Passes that MLIR has too: they do for mesh operations what MLIR's do for all others."""


def passes() -> list[type[Pass]]:
    """Every pass that makes the collectives of a partitioned program fewer, smaller or better hidden, by name."""
    found = registered_passes()
    return [step for name, step in found.items() if (_folder(step) in FOLDERS and name not in GENERAL) or name in ELSEWHERE]


def _folder(step: type[Pass]) -> str:
    return step.__module__.split(".")[1]


def pass_table() -> str:
    """A row for each pass: its name, which plans it takes part in, and the first sentence of its docstring."""
    parts = _parts()
    rows = [f"| `{step.name}` | {parts.get(step.name, 'by hand')} | {_first_sentence(step)} |" for step in passes()]
    return "\n".join(["| pass | part of | what it does |", "|---|---|---|", *rows])


def _parts() -> dict[str, str]:
    """For each pass that some pipeline runs, what it is part of: all pipelines, another pass, or those of some machines."""
    whole = set(imports(Path(inspect.getfile(OptimizeCollectives))))
    found = {step.name: f"`{OptimizeCollectives.name}`" for step in passes() if any(step.__module__ in full for full in whole)}
    default = _names(pipeline.Options())
    found |= dict.fromkeys(default, "every plan")
    for _, name in sorted(machines()):
        under = [_names(pipeline.Options(target=CompileTarget.of(name, "", options))) for options in get_args(OptionSet)]
        for step in sorted(set().union(*under) - default):
            place = f"`{name}`" if step in under[0] else f"`{name}` with `best`"
            found[step] = ", ".join(filter(None, (found.get(step, ""), place)))
    return found


def _names(options: pipeline.Options) -> set[str]:
    return {step.name for stage in pipeline.build(options).stages for step in stage.passes}


def option_table() -> str:
    """A row for each option of a pass: how it is written, its default, and the docstring below its field."""
    for_a_target = ", ".join(f"`{step.name}`" for step in passes() if TARGET in {each.name for each in fields(step)})  # type: ignore[arg-type]
    parts = " ".join(f"{part.replace('_', '-')}=" for part in PARTS)
    rows = [f"| `{{{parts}}}` | | What the step is planned and compiled for by {for_a_target}. |"]
    rows += [row for step in passes() for row in _options(step)]
    return "\n".join(["| option of `mesh-opt` | default | meaning |", "|---|---|---|", *rows])


def _first_sentence(step: type[Pass]) -> str:
    text = " ".join((inspect.getdoc(step) or "").split())
    return _cell(_sentence(text.partition(" Input:")[0]))


def _sentence(text: str) -> str:
    return re.split(r"(?<=\.) (?=[A-Z(])", " ".join(text.split()))[0]


def _options(step: type[Pass]) -> Iterator[str]:
    meanings = _field_docstrings(step)
    for each in (each for each in fields(step) if each.name != TARGET):  # type: ignore[arg-type]
        default = "" if each.default is MISSING or each.default == "" else f"`{each.default}`"
        yield f"| `{step.name}{{{each.name.replace('_', '-')}=}}` | {default} | {_cell(_sentence(meanings[each.name]))} |"


def _field_docstrings(step: type[Pass]) -> dict[str, str]:
    """The docstring below each field of a dataclass, of those that it inherits too."""
    found: dict[str, str] = {}
    for cls in reversed(step.__mro__):
        if cls.__module__.startswith("meshbridge."):
            body = ast.parse(inspect.cleandoc("\n" + inspect.getsource(cls))).body[0].body  # type: ignore[attr-defined]
            for field, text in pairwise(body):
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                    found[ast.unparse(field.target)] = str(text.value.value)
    return found


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def refreshed() -> str:
    """The page with both tables rewritten."""
    text = marked.replaced(PAGE, "passes", COMMAND, pass_table())
    return marked.replaced_in(text, "options", COMMAND, option_table(), PAGE.name)


if __name__ == "__main__":
    PAGE.write_text(refreshed())
