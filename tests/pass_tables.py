"""Writes the table of passes in `docs/collective-passes.md`, from the code.

From the repository's root: `python -m tests.pass_tables`.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_args

from benchmarks import marked
from meshbridge import pipeline
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.ir.passes import Pass
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.machine import OptionSet, machines
from meshbridge.pass_names import registered_passes
from tests.house import ROOT, imports

PAGE = ROOT / "docs" / "collective-passes.md"
COMMAND = "python -m tests.pass_tables"

FOLDERS = ("collectives", "overlap")
ELSEWHERE = ("largest-as-floats",)
"""A pass of another folder that chooses between forms of a collective."""

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


def _first_sentence(step: type[Pass]) -> str:
    text = " ".join((inspect.getdoc(step) or "").split())
    first = re.split(r"(?<=\.) (?=[A-Z(])", text.partition(" Input:")[0])[0]
    return first.replace("|", "\\|")


def refreshed() -> str:
    """The page with the table rewritten."""
    return marked.replaced(PAGE, "passes", COMMAND, pass_table())


if __name__ == "__main__":
    PAGE.write_text(refreshed())
