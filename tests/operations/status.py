"""Writes `docs/status.md`: what happens to each op of StableHLO and CHLO, from the registrations and from the samples that run.

From the repository's root: `python -m tests.operations.status`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jaxlib.mlir.dialects import chlo, stablehlo

from meshbridge import ops
from meshbridge.ir.mlir import REGION_OPS, context, walk_all
from meshbridge.legalize.expand_ops import EXPANSIONS, STATIC_FORMS, ExpandOps
from meshbridge.legalize.inline_calls import InlineCalls
from meshbridge.ops.refused import INSIDE_ONLY, REFUSED
from meshbridge.ops.rule import RULES, Interface, ShardingRule
from tests.operations.sample_cases import MESHES, case, is_uneven
from tests.operations.samples import SAMPLES, Sample

assert ops.__all__  # registers the loops

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
    how: str
    parallel: bool = False
    joined: bool = False
    tested: bool = False
    uneven: bool = False

    def cells(self) -> list[str]:
        marks = ["yes" if mark else "" for mark in (self.parallel, self.joined, self.uneven, self.tested)]
        return [f"`{self.op}`", self.how, *marks]


def rows() -> list[Row]:
    """All ops, from their registrations and samples."""
    samples: dict[str, list[Sample]] = {}
    for sample in SAMPLES:
        samples.setdefault(sample.op, []).append(sample)
    return [_row(name, samples.get(name, [])) for name in op_names()]


def _row(name: str, samples: list[Sample]) -> Row:
    if name in REFUSED:
        return Row(name, f"refused: {REFUSED[name][0]}")
    if name in INSIDE_ONLY:
        return Row(name, "in manual computations, whose parts other axes may split; refused elsewhere", parallel=name in RULES)
    if name in WITHOUT_SAMPLE:
        return Row(name, WITHOUT_SAMPLE[name])
    rules = [rule for sample in samples for rule in _rules(sample)]
    runs = [sample for sample in samples if sample.runs]
    return Row(
        name,
        _how(name),
        parallel=any(_parallel(rule) for rule in rules),
        joined=any(_joined(rule) for rule in rules),
        tested=bool(runs),
        uneven=any(_runs_unevenly(sample) for sample in runs),
    )


def _how(name: str) -> str:
    if name in EXPANSIONS or name in STATIC_FORMS or name in ("stablehlo.tuple", "stablehlo.get_tuple_element"):
        return "in terms of simpler ops"
    if name in REGION_OPS or name == "stablehlo.return":
        return "its regions are partitioned; what they carry lies alike"
    return "loops declared" if name in RULES else "gathered, runs replicated"


def _rules(sample: Sample) -> list[ShardingRule]:
    """The loops of the op in its sample, or of the ops that it is expanded to."""
    known = Interface()
    with context() as ctx:
        module = sample.module(ctx)
        InlineCalls().run(module)
        ExpandOps().run(module)
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
`tests/operations/test_samples.py` runs on 2x4 and 2x3 devices and compares with one device; a test holds this page to them. What
is drawn at random beyond that (`tests/operations/test_properties.py`) is not counted here.

- *parallel*: dimensions that devices can share without exchanging anything.
- *joined*: dimensions that are shared although shards have to be joined or exchanged: reductions, windows, indexed dimensions.
- *uneven*: a test runs it in shards of different sizes. *tested*: a test runs it at all.

"""


def page() -> str:
    """The page."""
    header = ["op", "how", "parallel", "joined", "uneven", "tested"]
    lines = [header, ["---"] * len(header), *[row.cells() for row in rows()]]
    return HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs" / "status.md").write_text(page())
