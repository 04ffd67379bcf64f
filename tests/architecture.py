"""Writes `docs/architecture.md`: the folders with what they import, the stages with their passes, what each does to a program.

From the repository's root: `python -m tests.architecture`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from meshbridge import pipeline
from tests.house import BRIDGE, LAYERS, ROOT, imports

PAGE = ROOT / "docs" / "architecture.md"

STAGES = {
    "source": ("the user", "StableHLO with `sdy.*` or `mhlo.sharding`, or mesh IR in any spelling"),
    "annotated": ("read", "StableHLO on global shapes; `mesh.shard` where the user annotated"),
    "legal": ("legalize", "the same, calls inlined; every op has a sharding rule, or is known to have none"),
    "decided": ("decide", "`Decisions`, in memory: a sharding for every definition and use, an option for every op, and why"),
    "partitioned": ("partitioner", "one device's program: shapes of shards, all communication in `mesh.*` collectives"),
    "optimised": ("collectives", "the same with fewer and smaller collectives, perhaps ahead of their readers (`overlap/`)"),
    "lowered": ("lowering", "StableHLO collectives: `exported`, which JAX calls, or `local`, which PJRT runs"),
}
"""Who makes each stage, a folder but for the first, and its IR."""

REMARKS = {
    "source": "two layers: the batch is sharded along `data`, the hidden dimension along `model`; the results are left open",
    "annotated": "the same with `mesh.shard`; axes have numbers: `data` is 0, `model` is 1",
    "legal": "the call of `@relu` is inlined; `dot`, which has no sharding rule, becomes `dot_general`",
    "decided": "options give the mesh axes of each loop: the second product contracts a dimension sharded along axis 1",
    "partitioned": "a device holds 4 of 8 rows and half of each weight; both sums over axis 1 are partial, and all-reduced",
    "optimised": "the two all-reduces over one axis are combined, because a collective takes time to start",
    "lowered": "global shapes outside, one manual computation over all axes inside, StableHLO collectives in it",
}
"""What each stage makes of `testdata/walkthrough/two_layers.mlir`."""


def page() -> str:
    """The page."""
    return "\n".join([HEAD.replace("{way}", _way()), *_folders(), STAGES_HEAD, *_stage_rows()])


def _way() -> str:
    """The stages in a row, the folders between them."""
    first, *others = STAGES
    steps = [first, *(f" ──{STAGES[stage][0]}──► {stage}" for stage in others)]
    return f"{''.join(steps[:4])}\n{' ' * len(first)}{''.join(steps[4:])} ──runtime──► results"


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in [header, ["---"] * len(header), *rows])


def _folders() -> Iterator[str]:
    levels = [name for layer in LAYERS for name in layer.split()]
    yield _table(["", "holds", "imports"], [[f"`{_label(name)}`", _summary(name), _imports(name, levels)] for name in levels])


def _label(name: str) -> str:
    return f"{name}/" if (BRIDGE / name).is_dir() else f"{name}.py"


def _summary(name: str) -> str:
    """The first sentence of its docstring."""
    path = BRIDGE / name / "__init__.py" if (BRIDGE / name).is_dir() else BRIDGE / f"{name}.py"
    text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
    return text.partition(". ")[0].rstrip(".")


def _imports(name: str, levels: list[str]) -> str:
    paths = sorted((BRIDGE / name).rglob("*.py")) if (BRIDGE / name).is_dir() else [BRIDGE / f"{name}.py"]
    parts = [full.split(".") for path in paths for full in imports(path)]
    found = {part[1] for part in parts if part[0] == "meshbridge" and len(part) > 1} - {name}
    return ", ".join(f"`{other}`" for other in levels if other in found)


def _stage_rows() -> Iterator[str]:
    rows = []
    for stage in pipeline.build().stages:
        who, what = STAGES[stage.name]
        passes = ", ".join(f"`{step.name}`" for step in stage.passes)
        rows.append([f"**{stage.name}**", what, f"`{who}/`: {passes}" if passes else who, REMARKS[stage.name]])
    yield _table(["stage", "IR", "made by", "of the example"], rows)


HEAD = """# Architecture

How the code is organised, and what happens to a program on its way. Written by `python -m tests.architecture` from the code; a
test holds this page to it. [CONTRIBUTING.md](../CONTRIBUTING.md) says how to change what is described here,
[references.md](references.md) names the documents that specify the dialect.

```text
{way}
```

A folder stands between two stages if its passes lead from one to the other. Every stage is IR that you can print, save and
continue from. The stages share `cost`, `ops`, `resharding`, `analysis`, `dialect` and `ir`. `verification` shares nothing with
the code that it checks, except the bindings of MLIR. `upstream` has what only LLVM's `mlir-opt` has. The formats (jax.export,
Shardy, GSPMD, LLVM's spellings) are a package of their own, `converters/meshbridge_converters/`, which imports meshbridge and
is found by entry points.

## The folders

`bridge/meshbridge/`, from the top down. Each imports only folders below it (`tests/test_house.py`). The tests of a folder are in
the folder of `tests/` with the same name.
"""

STAGES_HEAD = """## The stages

The passes of the pipeline `exported`, in order, and what each stage makes of `testdata/walkthrough/two_layers.mlir`.
[CONTRIBUTING.md](../CONTRIBUTING.md#a-day-with-the-code) has the commands that print it, `--emit annotated` writes decisions
down, and [the tutorial of mesh-opt](tutorials/mesh-opt.md) takes another program through the passes.
"""

if __name__ == "__main__":
    PAGE.write_text(page())
