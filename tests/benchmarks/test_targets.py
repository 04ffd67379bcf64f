"""`make bench-targets`: what its tables make of the figures. The compilers themselves are asked in tests/targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import targets
from benchmarks.targets import OURS, PEER, Case, Figure
from meshbridge.machines.target import parse

TPU = parse("tpu:v5e:2x4")
WIRE = Figure("wire MB", "wire_bytes", 1e6, 1)


def both(ours: float, peer: float) -> dict[str, targets.Contestant]:
    return {OURS: {"wire_bytes": ours, "compile_seconds": 9.0}, PEER: {"wire_bytes": peer, "compile_seconds": 3.0}}


def test_losses_are_bold() -> None:
    assert WIRE.cell(both(1e6, 2e6)) == "1.0 / 2.0 = 0.50"
    assert WIRE.cell(both(3e6, 2e6)) == "**3.0 / 2.0 = 1.50**"
    assert WIRE.cell(both(2.001e6, 2e6)) == "2.0 / 2.0 = 1.00"
    assert WIRE.cell(both(1e6, 7)) == "**1.0 / 0.0**"
    assert WIRE.ratio(both(1e6, 7)) is None
    assert Figure("compile s", "compile_seconds", is_plan=False).cell(both(1, 1)) == "9 / 3 = 3.00"


def test_a_model_has_its_own_unit() -> None:
    cycles, microseconds = ({"modelled": {"total": 25e5, "unit": unit}} for unit in targets.MODELLED)
    modelled = Figure("modelled", "modelled", digits=1)
    assert (modelled.text(cycles), modelled.text(microseconds)) == ("2.5", "2,500.0")
    assert modelled.text({"modelled": None}) == "-"


def test_who_fails_is_named() -> None:
    case = Case("vocab_loss", "inputs", TPU)
    text = targets.tables({case: {OURS: {"error": "no\nroom"}, PEER: {"wire_bytes": 1e6}}})
    assert "| vocab_loss | inputs | failed / 1.0 |" in text
    assert "- vocab_loss, inputs: meshbridge failed: no room" in text
    assert "| *inputs* | - | - |" in text


def test_means_are_of_ratios_and_count_losses() -> None:
    cases = [Case(name, "constrained", TPU) for name in ("unet", "resnet50")]
    text = targets.tables(dict(zip(cases, (both(1e6, 2e6), both(8e6, 1e6)), strict=True)))
    assert "| *geometric mean* | *constrained* | 2.00 of 2, 1 lost |" in text
    assert "**tpu:v5e:2x4**" in text


def test_an_overview_is_of_all_targets() -> None:
    gpu = parse("gpu:h100:1x1x8")
    found = {Case("unet", "constrained", TPU): both(1e6, 2e6), Case("unet", "constrained", gpu): both(2e6, 1e6)}
    text = targets.overview(found)
    assert "ours over XLA's with Shardy: **0.50** on 8 TPU v5e, **2.00** on 8 NVIDIA H100 SXM" in text
    assert "up to 1 training and decoding steps" in text


def test_a_summary_has_the_means_and_the_losses() -> None:
    cases = [Case(name, "constrained", TPU) for name in ("unet", "resnet50")]
    found = dict(zip(cases, (both(1e6, 2e6), both(8e6, 1e6)), strict=True))
    means, losses = targets.summary(found, [WIRE]), targets.summary(found, [WIRE], losses=1.1)
    assert "| *geometric mean* | *constrained* | 2.00 of 2, 1 lost |" in means
    assert "resnet50" not in means
    assert "| resnet50 | constrained | **8.0 / 1.0 = 8.00** |" in losses
    assert "unet" not in losses


def test_a_page_has_rows_of_programs_with_constraints() -> None:
    found = {Case("unet", annotation, TPU): both(1e6, 2e6) for annotation in ("constrained", "inputs")}
    text = targets.page(found)
    assert "| unet | constrained | 1.0 / 2.0 = 0.50 |" in text
    assert "| unet | inputs |" not in text
    assert "| *geometric mean* | *inputs* | 0.50 of 1 |" in text


def test_what_does_not_fit_is_named() -> None:
    figures = {name: {"peak_bytes": 20e9} for name in (OURS, PEER)}
    assert "xla-shardy needs 20.0 GB, a device has 1" in targets.tables({Case("unet", "inputs", TPU): figures})


def test_a_run_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(targets, "RECORDS", tmp_path / "records")
    case, other = (Case(name, "constrained", TPU) for name in ("vocab_loss", "resnet50"))
    targets.keep(case, both(1e6, 2e6))
    targets.keep(other, both(0, 7e6))
    page, readme, out = tmp_path / "page.md", tmp_path / "readme.md", tmp_path / "out.json"
    page.write_text(f"before\n<!-- targets: begin ({targets.COMMAND}) -->\n<!-- targets: end -->\nafter")
    readme.write_text(f"<!-- overview: begin ({targets.COMMAND}) -->\n<!-- overview: end -->")
    said = ["--programs", "vocab_loss", "--annotations", "constrained", "--targets", TPU.text, "--keep"]
    assert targets.main([*said, "--json", str(out), "--page", str(page), "--overview", str(readme)]) == 0
    assert "**0.50** on 8 TPU v5e" in readme.read_text()
    assert "1.0 / 2.0 = 0.50" in page.read_text()
    assert "| resnet50 | constrained | 0.0 / 7.0 |" in page.read_text(), "the page holds what was not asked for now, too"
    printed = capsys.readouterr().out
    assert "1.0 / 2.0 = 0.50" in printed
    assert "resnet50" not in printed
    assert targets.main(["--measured", *said[:2], "unet", *said[2:-1], "--json", str(out)]) == 0
    assert f"Not measured on {TPU.text}: unet (constrained)." in capsys.readouterr().out
    (found,) = json.loads(out.read_text())
    assert (found["program"], found["annotation"], found["target"]) == ("vocab_loss", "constrained", TPU.text)


def test_each_under_its_best_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured under the defaults stays beside it, in a file and a table of its own."""
    monkeypatch.setattr(targets, "RECORDS", tmp_path)
    default, best = (Case("vocab_loss", "constrained", TPU, options) for options in ("default", "best"))
    targets.keep(default, both(1e6, 2e6))
    targets.keep(best, both(3e6, 4e6))
    assert best.comparing(60, without=())[-6:-4] == ["--compiler-options", "best"]
    page = tmp_path / "page.md"
    mark = "targets, best options"
    page.write_text(f"<!-- {mark}: begin ({targets.COMMAND}) -->\n<!-- {mark}: end -->")
    said = ["--programs", "vocab_loss", "--annotations", "constrained", "--targets", TPU.text, "--measured", "--json"]
    assert targets.main([*said, str(tmp_path / "out.json"), "--compiler-options", "best", "--page", str(page)]) == 0
    assert "| *geometric mean* | *constrained* | 0.75 of 1 |" in page.read_text(), "the page has the means alone"
    assert "3.0 / 4.0 = 0.75" in capsys.readouterr().out


def test_a_program_that_cannot_be_made_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "FOLDER", tmp_path)
    monkeypatch.setattr(targets, "RECORDS", tmp_path)
    found = targets.measure(Case("unknown", "constrained", TPU), 60, kept=())
    assert "invalid choice: 'unknown'" in found[OURS]["error"]
