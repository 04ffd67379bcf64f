"""A layer that a program repeats is worked out once: what partitioning derives does not grow with the number of layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from meshbridge import pass_names, pipeline, resharding
from meshbridge.decide.decisions import Decisions
from meshbridge.ir.mlir import context, walk_all
from meshbridge.ir.passes import Analyses
from meshbridge.ops import spmd
from meshbridge.partitioner import mesh_spmdization
from meshbridge.read import formats
from testdata.gpt import gpt

STAGES = pipeline.build()

DERIVATIONS: dict[object, tuple[str, ...]] = {
    resharding: ("emit", "plan"),
    spmd: ("_shard", "computed_sharding"),
    mesh_spmdization: ("partition_template",),
}
"""By where they are defined."""


def _derived(layers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], int]:
    """How often each derivation of partitioning ran on a model with so many layers, and the ops that came out."""
    module = formats.unpack(gpt(layers).export_for("cpu"), context()).module
    analyses: Analyses = {}
    pipeline.run(STAGES.until("decided").passes, module, analyses=analyses)
    assert Decisions in analyses
    counts: Counter[str] = Counter()

    def counting(owner: object, name: str) -> None:
        original: Callable[..., object] = getattr(owner, name)

        def counted(*args: object, **options: object) -> object:
            counts[name] += 1
            return original(*args, **options)

        monkeypatch.setattr(owner, name, counted)

    with monkeypatch.context() as patched:
        monkeypatch = patched
        counting(mesh_spmdization, "lower_op")
        for owner, names in DERIVATIONS.items():
            for name in names:
                counting(owner, name)
        pipeline.run((pass_names.make_pass("mesh-spmdization", "boundary=true"),), module, analyses=analyses)
    return counts, len(walk_all(module))


def test_more_layers_derive_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reshardings are planned and emitted, shards and what options compute described once for each kind of them; and what becomes
    of an op is worked out once for all that are decided alike."""
    few, ops = _derived(6, monkeypatch)
    many, more_ops = _derived(14, monkeypatch)
    assert more_ops > 2 * ops
    assert set(few) == {"lower_op", *(name for names in DERIVATIONS.values() for name in names)}
    lowered = many.pop("lower_op") - few.pop("lower_op")
    assert many == few
    assert lowered <= (more_ops - ops) / 20, "all but a few ops stay as they are, but for their types"
