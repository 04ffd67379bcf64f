"""`make bench-targets ARGS=--changed` puts on record what the compilers make of today's plan, and then has nothing left to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cases, targets
from benchmarks.cases import Case
from meshbridge.tools.compare.contestants import OURS, PEER
from tests.targets.installed import target
from tests.versions import OF_THE_PAGES

pytestmark = [
    pytest.mark.targets,
    pytest.mark.skipif(not OF_THE_PAGES, reason="the golden plans are of programs that another JAX has traced"),
]


def test_a_measured_row_is_of_the_golden_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(cases, "FOLDER", tmp_path)
    monkeypatch.delenv("XLA_FLAGS")  # they are for tests that run on CPUs
    case = Case("vocab_loss", "constrained", target("gpu:h100:1x1x8"))
    found = targets.measure_changed(case, 300)
    golden = cases.golden_plans()[case.golden]
    assert found[OURS]["plan"] == golden["lowered"]
    assert found[OURS]["wire_bytes"] == pytest.approx(golden["wire_bytes"], rel=1e-3)
    assert found[PEER]["program"] == found[OURS]["program"] == found[PEER]["plan"]
    assert "jax" in found[PEER]["versions"]
    assert cases.is_current(case, cases.known(case))
    monkeypatch.setattr(targets, "_measured", lambda *_: pytest.fail("nothing has changed"))
    assert targets.measure_changed(case, 300) == cases.known(case)
