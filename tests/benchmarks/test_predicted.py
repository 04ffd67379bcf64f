"""`make bench-predicted`: what its tables make of the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import cases, predicted
from benchmarks.cases import Case
from benchmarks.predicted import Pair
from meshbridge.machines.target import parse
from meshbridge.tools.compare.contestants import OURS, PEER

TPU, GPU = parse("tpu:v5e:2x4"), parse("gpu:h100:1x1x8")


def test_tables() -> None:
    """Two programs in the other order on the TPU, in the same one on the GPU."""
    pairs = [
        Pair(Case("vocab_loss", "inputs", TPU), 2e-3, 1e-3, 3e9, 1e9),
        Pair(Case("unet", "inputs", TPU), 1e-3, 2e-3, 1e9, 3e9),
        Pair(Case("vocab_loss", "inputs", GPU), 2e-3, 4e-3, 1e9, 1e9),
        Pair(Case("unet", "inputs", GPU), 3e-3, 6e-3, 1e9, 1e9),
    ]
    lines = predicted.page(pairs, {}).splitlines()
    assert lines[2:4] == [
        "| tpu:v5e:2x4 | 2 | -1.000 | 1.00 (0.50 to 2.00) | 1.00 (0.33 to 3.00) |",
        "| gpu:h100:1x1x8 | 2 | 1.000 | 0.50 (0.50 to 0.50) | 1.00 (1.00 to 1.00) |",
    ]
    assert "| vocab_loss | inputs | 2.0 / 1.0 = 2.00 | 3.0 / 1.0 = 3.00 | 2.0 / 4.0 = 0.50 | 1.0 / 1.0 = 1.00 |" in [
        *predicted.programs(pairs)
    ]


def test_one_program_has_no_rank() -> None:
    pairs = [Pair(Case("vocab_loss", "inputs", GPU), 2e-3, 1e-3, 3e9, 1e9)]
    assert "| gpu:h100:1x1x8 | 1 | - | 2.00 (2.00 to 2.00) |" in predicted.page(pairs, {})


def test_the_five_furthest_are_named_and_older_plans_left_out() -> None:
    """A factor below counts like the same factor above."""
    names = ("vocab_loss", "unet", "resnet50", "moe_lm", "adam_zero1", "gpt4_dp_tp")
    ratios = (1.1, 0.5, 1.8, 1.0, 3.0, 0.7)
    pairs = [
        Pair(Case(name, "inputs", GPU), ratio * modelled, modelled, 1e9, 1e9)
        for name, ratio, modelled in zip(names, ratios, range(1, 7), strict=True)
    ]
    older = {Case(name, "constrained", TPU): {OURS: {"wire_bytes": 1.0}} for name in names[:2]}
    lines = predicted.page(pairs, older).splitlines()
    first = lines.index("| furthest off | annotated | target | predicted ms | modelled ms | predicted / modelled |") + 2
    assert [line.split(" | ")[0] for line in lines[first : first + 5]] == [
        f"| {name}" for name in ("adam_zero1", "unet", "resnet50", "gpt4_dp_tp", "vocab_loss")
    ]
    assert lines[first] == "| adam_zero1 | inputs | gpu:h100:1x1x8 | 15,000.0 | 5,000.0 | 3.00 |"
    assert lines[-1] == "- Not measured since its plan changed, or without a plan on record: 2 on tpu:v5e:2x4."


def test_plans_of_one_program_are_compared() -> None:
    """Ours is predicted to take half of Shardy's time, modelled to take three quarters; the other way round for the second."""
    pairs = [
        Pair(Case("vocab_loss", "inputs", GPU), 1e-3, 3e-3, 1e9, 1e9, (2e-3, 4e-3)),
        Pair(Case("unet", "inputs", GPU), 3e-3, 1e-3, 1e9, 1e9, (4e-3, 2e-3)),
        Pair(Case("resnet50", "inputs", GPU), 1e-3, 1e-3, 1e9, 1e9),
    ]
    wanted = "| gpu:h100:1x1x8 | 2 | -1.000 | 0.61 (0.50 to 0.75) | 0.61 (0.50 to 0.75) | 1.00 (0.67 to 1.50) |"
    assert wanted in predicted.page(pairs, {}).splitlines()


@pytest.mark.slow
def test_exposed_bytes_come_to_the_cycles_of_a_tpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program in which nothing is exposed and of one in which everything is, at the predicted rate."""
    monkeypatch.setattr(cases, "FOLDER", tmp_path)
    monkeypatch.setattr(cases, "RECORDS", tmp_path)
    case = Case("decode_heads", "inputs", TPU)
    found: list[Pair] = []
    for exposed in (0, 1e6):
        figures = {"modelled": {"total": 3e6, "unit": "cycles"}, "exposed_bytes": exposed, "peak_bytes": 2e9, "error": ""}
        cases.keep(case, {OURS: figures})
        pair = predicted.measure(case)
        assert pair is not None
        found.append(pair)
    assert found[0].modelled_seconds == pytest.approx(3e6 / 1.5e9, rel=1e-2)
    assert 1e6 / 100e9 < found[1].modelled_seconds - found[0].modelled_seconds < 1e-3
    assert found[0].seconds == found[1].seconds > 0
    assert found[0].peer is None
    report = predicted.predict(case, shardy=True)
    figures |= {"wire_bytes": report.wire_bytes}
    cases.keep(case, {OURS: figures, PEER: figures})
    pair = predicted.measure(case)
    assert pair is not None
    assert pair.peer == (report.seconds, pytest.approx(found[1].modelled_seconds, rel=0.1))
    cases.keep(case, {OURS: figures, PEER: figures | {"wire_bytes": 2 * report.wire_bytes}})
    pair = predicted.measure(case)
    assert pair is not None
    assert pair.peer is None
    cases.keep(case, {OURS: {"error": "no room"}})
    assert predicted.measure(case) is None
