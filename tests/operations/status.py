"""Writes `docs/status.md`: what happens to each op of StableHLO and CHLO, from the registrations and from the samples that run.

From the repository's root: `python -m tests.operations.status`.
"""

from __future__ import annotations

from collections.abc import Callable
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
from tests.operations.sample_cases import MESHES, case, is_uneven
from tests.operations.samples import SAMPLES, Sample

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
    """One op of the table."""

    op: str
    rule: str
    lowering: str = ""
    legalization: str = ""
    parallel: bool = False
    joined: bool = False
    tests: str = ""

    def cells(self) -> list[str]:
        marks = ["yes" if mark else "" for mark in (self.parallel, self.joined)]
        return [f"`{self.op}`", self.rule, self.lowering, self.legalization, *marks, self.tests]


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
        tests=_tests(samples),
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


def _tests(samples: list[Sample]) -> str:
    """How many samples of the op run, and whether one of them runs in shards of different sizes."""
    runs = sum(sample.runs for sample in samples)
    kinds = [f"{runs} sample{'s' if runs > 1 else ''}"] if runs else []
    return ", ".join([*kinds, *["uneven"] * any(_runs_unevenly(sample) for sample in samples)])


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

Written by `python -m tests.operations.status` from the registrations and from the samples in `tests/operations/samples.py`, which
`tests/operations/test_samples.py` runs on 2x4 and 2x3 devices and compares with one device; a test holds this page to them. The
families in `tests/operations/families/` draw cases of every op at random beyond that (`tests/operations/test_properties.py`),
which are not counted here. Files are those of `bridge/meshbridge/`.

- *sharding rule*: the file that says which dimensions of operands and results correspond. Where none stands, the op has none of
  its own: it is rewritten first, or it runs replicated on gathered operands.
- *SPMD lowering*: the file that says what the op becomes on one device's shards, which is the rule's file; *default* is the same
  op on the shapes of shards.
- *legalization*: the patterns of the pass `legalize` that may rewrite the op before shardings are decided.
- *parallel*: dimensions that can be sharded without communication.
- *joined*: dimensions that can be sharded although devices then communicate: reductions, windows, indexed dimensions.
- *tests*: the samples that run; *uneven*: one of them in shards of different sizes.

"""


def page() -> str:
    """The page."""
    header = ["op", "sharding rule", "SPMD lowering", "legalization", "parallel", "joined", "tests"]
    lines = [header, ["---"] * len(header), *[row.cells() for row in rows()]]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs" / "status.md").write_text(page())
