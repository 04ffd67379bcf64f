"""Writes `docs/status.md`: what happens to each op of StableHLO and CHLO, and where Shardy treats it differently.

From the registrations, and from the samples that run.

From the repository's root: `python -m tests.operations.status`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jaxlib.mlir.dialects import chlo, stablehlo

from meshbridge.ir.mlir import REGION_OPS, context, walk_all
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge.legalize.legalize import Legalize
from meshbridge.legalize.table import PATTERNS, STATIC_FORMS
from meshbridge.ops.rule import RULES, Interface, ShardingRule
from meshbridge.ops.spmd import SPMD_LOWERINGS
from meshbridge.ops.unsupported import MANUAL_ONLY, UNSUPPORTED
from tests.operations import differences
from tests.operations.sample_cases import MESHES, case, is_uneven
from tests.operations.samples import SAMPLES, Sample

PAGE = Path(__file__).parents[2] / "docs" / "status.md"

WITHOUT_SAMPLE = {
    "stablehlo.after_all": "a token; nothing to split",
    "stablehlo.create_token": "a token; nothing to split",
    "stablehlo.composite": "by its rule; without one inlined, or the CHLO op that it is named after",
    "stablehlo.custom_call": "by the rule that it carries, or that is registered or known for its target; gathered without one",
    "stablehlo.rng": "devices draw their shards; copies are what the first device draws (no two runs can be compared)",
    "stablehlo.uniform_dequantize": "refused: quantized types",
    "stablehlo.uniform_quantize": "refused: quantized types",
}
"""Ops that are tested elsewhere or not at all, and what happens to them."""


@cache
def op_names() -> tuple[str, ...]:
    """All ops of both dialects, as the bindings know them."""
    classes = [known for dialect in (stablehlo, chlo) for known in vars(dialect).values() if hasattr(known, "OPERATION_NAME")]
    return tuple(sorted({known.OPERATION_NAME for known in classes}, key=lambda name: (name.startswith("chlo"), name)))


@dataclass(frozen=True)
class Row:
    """One op."""

    op: str
    rule: str
    lowering: str = ""
    legalization: str = ""
    parallel: bool = False
    joined: bool = False
    samples: int = 0
    is_uneven: bool = False
    """Whether a test runs it in shards of different sizes."""

    def treatment(self) -> tuple[str, ...]:
        """What happens to it, as cells of the table."""
        marks = ["yes" if mark else "" for mark in (self.parallel, self.joined)]
        return (self.rule, self.lowering, self.legalization, *marks)


def rows() -> list[Row]:
    """All ops, from their registrations and samples."""
    samples: dict[str, list[Sample]] = {}
    for sample in SAMPLES:
        samples.setdefault(sample.op, []).append(sample)
    return [_row(name, samples.get(name, [])) for name in op_names()]


def _row(name: str, samples: list[Sample]) -> Row:
    if name in UNSUPPORTED:
        return Row(name, f"refused: {UNSUPPORTED[name][0]}")
    rules = [rule for sample in samples for rule in _rules(sample)]
    return Row(
        name,
        _rule(name),
        _lowering(name),
        ", ".join(f"`{step}`" for step in legalizations().get(name, ())),
        parallel=any(_parallel(rule) for rule in rules),
        joined=any(_joined(rule) for rule in rules),
        samples=sum(sample.runs for sample in samples),
        is_uneven=any(_runs_unevenly(sample) for sample in samples),
    )


def _rule(name: str) -> str:
    """Where the op's sharding rule is written down, or why it needs none."""
    if name in REGION_OPS or name == "stablehlo.return":
        return "carried values are sharded alike"
    notes = [WITHOUT_SAMPLE.get(name, ""), "in manual computations only" if name in MANUAL_ONLY else ""]
    return "; ".join(note for note in (_file(RULES[name]) if name in RULES else "", *notes) if note)


def _lowering(name: str) -> str:
    """Where the op's SPMD lowering is written down; the default one makes the same op on the shapes of shards."""
    if name in REGION_OPS or name == "stablehlo.return":
        return "regions are partitioned"
    if name in SPMD_LOWERINGS:
        return _file(SPMD_LOWERINGS[name])
    return "default" if name in RULES else ""


def _file(registered: Callable[..., Any]) -> str:
    return f"`{'/'.join(registered.__module__.split('.')[1:])}.py`"


@cache
def legalizations() -> dict[str, tuple[str, ...]]:
    """The patterns of `legalize` that rewrite each op, in their order."""
    found: dict[str, list[str]] = {name: ["stablehlo-canonicalize-dynamism"] for name in STATIC_FORMS}
    for pattern, entry in PATTERNS.items():
        for name in entry.names:
            found.setdefault(name, []).append(pattern)
    return {name: tuple(steps) for name, steps in found.items()}


def _rules(sample: Sample) -> list[ShardingRule]:
    """The loops of the op in its sample, or of the ops that it is expanded to."""
    known = Interface()
    with context() as ctx:
        module = sample.module(ctx)
        InlineCalls().run(module)
        Legalize().run(module)
        ops = walk_all(module)
        direct = [op for op in ops if op.name == sample.op and sample.op in RULES]
        chosen = direct or [op for op in ops if op.name in RULES and "constant" not in op.name]
        return [known.rule(op) for op in chosen]


def _parallel(rule: ShardingRule) -> bool:
    """Whether devices can share the op without exchanging anything."""
    return any(not loop.reduction and index not in _exchanged(rule) for index, loop in enumerate(rule.loops))


def _joined(rule: ShardingRule) -> bool:
    """Whether the op is shared where results of shards have to be joined or shards exchanged: what no result walks counts too."""
    written = {loop for dims in rule.results for loops in dims for loop in loops}
    return any(loop.reduction or index in _exchanged(rule) or index not in written for index, loop in enumerate(rule.loops))


def _exchanged(rule: ShardingRule) -> set[int]:
    return {each.loop for each in rule.exchanges}


def _runs_unevenly(sample: Sample) -> bool:
    """Whether a test runs it with an operand in shards of different sizes."""
    return any(is_uneven(case(sample, mesh_shape), mesh_shape) for mesh_shape in MESHES)


HEAD = """# Every operation of StableHLO and CHLO

What happens to an op when its program is partitioned: look it up here. Written by `python -m tests.operations.status` from the
registrations and from the samples in `tests/operations/samples.py`, which run on 2x4 and 2x3 devices and are compared with one
device (`tests/operations/test_samples.py`); drawn cases of every family run beyond that (`tests/operations/families/`).

| column | meaning |
|---|---|
| sharding rule | the file of `bridge/meshbridge/` that relates dimensions; an op without one is rewritten or gathered |
| SPMD lowering | the file that says what the op becomes on shards; *default* is the same op on the shapes of shards |
| legalization | the patterns of the pass `legalize` that may rewrite the op before shardings are decided |
| parallel | has dimensions that are sharded without communication |
| joined | has dimensions that are sharded with communication: reductions, windows, indexed dimensions |
| samples | how many run, and how many ops of the row run in shards of different sizes |

"""


def page() -> str:
    """The page: a row for all ops that are treated alike, and where Shardy treats an op differently."""
    alike: dict[tuple[str, ...], list[Row]] = {}
    for row in rows():
        alike.setdefault(row.treatment(), []).append(row)
    header = ["ops", "sharding rule", "SPMD lowering", "legalization", "parallel", "joined", "samples"]
    lines = [header, ["---"] * len(header), *[_cells(treatment, ops) for treatment, ops in alike.items()]]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{HEAD}{table}\n{differences.section()}"


def _cells(treatment: tuple[str, ...], ops: Sequence[Row]) -> list[str]:
    samples, uneven = sum(row.samples for row in ops), sum(row.is_uneven for row in ops)
    return [", ".join(f"`{row.op}`" for row in ops), *treatment, f"{samples}, {uneven} uneven" if samples else ""]


if __name__ == "__main__":
    PAGE.write_text(page())
