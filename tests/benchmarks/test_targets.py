"""`make bench-targets`: what its tables make of the figures. The compilers themselves are asked in tests/targets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cases, target_tables, targets
from benchmarks.cases import Case, Contestant
from benchmarks.target_tables import Figure
from meshbridge.machines.target import parse
from meshbridge.tools.compare.contestants import OURS, PEER

TPU = parse("tpu:v5e:2x4")
WIRE = Figure("wire MB", "wire_bytes", 1e6, 1)


def both(ours: float, peer: float, **more: Any) -> dict[str, Contestant]:
    return {
        OURS: {"wire_bytes": ours, "compile_seconds": 9.0, **more},
        PEER: {"wire_bytes": peer, "compile_seconds": 3.0, **more},
    }


def planned_today(case: Case) -> dict[str, str]:
    """What a record says that was made today."""
    return {"program": "p", "plan": cases.todays_plan(case), "versions": cases.versions(case.target), "measured": "2026-11-28"}


def test_losses_are_bold() -> None:
    assert WIRE.cell(both(1e6, 2e6)) == "1.0 / 2.0 = 0.50"
    assert WIRE.cell(both(3e6, 2e6)) == "**3.0 / 2.0 = 1.50**"
    assert WIRE.cell(both(2.001e6, 2e6)) == "2.0 / 2.0 = 1.00"
    assert WIRE.cell(both(1e6, 7)) == "**1.0 / 0.0**"
    assert WIRE.ratio(both(1e6, 7)) is None
    assert Figure("compile s", "compile_seconds", is_plan=False).cell(both(1, 1)) == "9 / 3 = 3.00"


def test_a_model_has_its_own_unit() -> None:
    cycles, microseconds = ({"modelled": {"total": 25e5, "unit": unit}} for unit in ("cycles", "microseconds"))
    modelled = Figure("modelled", "modelled", digits=1)
    assert (modelled.text(cycles), modelled.text(microseconds)) == ("2.5", "2,500.0")
    assert modelled.text({"modelled": None}) == "-"


def test_who_fails_is_named() -> None:
    case = Case("vocab_loss", "inputs", TPU)
    text = target_tables.tables({case: {OURS: {"error": "no\nroom"}, PEER: {"wire_bytes": 1e6}}})
    assert "| vocab_loss | inputs | failed / 1.0 |" in text
    assert "- tpu:v5e:2x4, vocab_loss, inputs: meshbridge failed: no room" in text
    assert "| *inputs* | - | - |" in text


def test_means_are_of_ratios_and_count_losses() -> None:
    rows = [Case(name, "constrained", TPU) for name in ("unet", "resnet50")]
    text = target_tables.tables(dict(zip(rows, (both(1e6, 2e6), both(8e6, 1e6)), strict=True)))
    assert "| *geometric mean* | *constrained* | 2.00 of 2, 1 lost |" in text
    assert "**tpu:v5e:2x4**" in text


def test_an_overview_is_of_all_targets() -> None:
    gpu = parse("gpu:h100:1x1x8")
    found = {Case("unet", "constrained", TPU): both(1e6, 2e6), Case("unet", "constrained", gpu): both(2e6, 1e6)}
    text = target_tables.overview(found, {})
    assert "by number of steps: **0.50** of 1 on 8 TPU v5e, **2.00** of 1 on 8 NVIDIA H100 SXM" in text
    assert "older" not in text
    older = {Case("resnet50", "constrained", TPU): both(3e6, 1e6)}
    assert "(of older plans: **3.00** of 1 on 8 TPU v5e)." in target_tables.overview(found, older)
    assert "by number of steps: not measured\n(of older plans: **3.00**" in target_tables.overview({}, older)


def test_a_summary_has_the_means_and_the_losses() -> None:
    rows = [Case(name, "constrained", TPU) for name in ("unet", "resnet50")]
    found = dict(zip(rows, (both(1e6, 2e6), both(8e6, 1e6)), strict=True))
    means, losses = target_tables.summary(found, [WIRE]), target_tables.summary(found, [WIRE], losses=1.1)
    assert "| *geometric mean* | *constrained* | 2.00 of 2, 1 lost |" in means
    assert "resnet50" not in means
    assert "| resnet50 | constrained | **8.0 / 1.0 = 8.00** |" in losses
    assert "unet" not in losses


def with_memory(more: float) -> dict[str, Contestant]:
    """Two contestants with as many bytes on the wire, of whom we need so much more memory."""
    row = both(1e6, 1e6)
    return {name: row[name] | {"temporary_bytes": 1e9 * over} for name, over in ((OURS, more), (PEER, 1.0))}


def test_a_page_has_the_ratios_of_all_programs_with_constraints_in_the_order_of_the_catalogue() -> None:
    gpu = parse("gpu:h100:1x1x8")
    found = {
        Case("unet", "constrained", gpu): with_memory(1.06),
        Case("unet", "inputs", gpu): with_memory(1.5),
        Case("resnet50", "constrained", TPU): with_memory(1.04),
    }
    heading, _, *rows = target_tables.page(found, {}).partition("\n\n")[0].splitlines()
    assert heading == "| ratios of | v5e:2x4: step | v5e:2x4: temporaries | h100:1x1x8: modelled | h100:1x1x8: temporaries |"
    assert rows == ["| resnet50 | - | 1.04 |  |  |", "| unet |  |  | - | **1.06** |"]


def test_a_page_has_the_means_of_all_targets_in_one_table_and_names_who_fails() -> None:
    failed = {OURS: {"error": "no room"}, PEER: {"wire_bytes": 1e6}}
    found = {Case("unet", "constrained", TPU): both(1e6, 2e6), Case("moe_lm", "inputs", parse("gpu:h100:1x2x8")): failed}
    _, table, remarks = target_tables.page(found, {}).split("\n\n")
    assert [line.split(" | ")[:3] for line in table.splitlines()[2:]] == [
        ["| tpu:v5e:2x4", "*constrained*", "0.50 of 1"],
        ["| gpu:h100:1x2x8", "*inputs*", "-"],
    ]
    assert remarks == "- gpu:h100:1x2x8, moe_lm, inputs: meshbridge failed: no room"


def test_what_does_not_fit_is_named() -> None:
    figures = {name: {"peak_bytes": 20e9} for name in (OURS, PEER)}
    assert "xla-shardy needs 20.0 GB, a device has 1" in target_tables.tables({Case("unet", "inputs", TPU): figures})


def test_a_run_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cases, "RECORDS", tmp_path / "records")
    case, other = (Case(name, "constrained", TPU) for name in ("vocab_loss", "resnet50"))
    cases.keep(case, both(1e6, 2e6, **planned_today(case)))
    cases.keep(other, both(0, 7e6, measured="2026-11-24"))
    page, readme, out = tmp_path / "page.md", tmp_path / "readme.md", tmp_path / "out.json"
    page.write_text(f"before\n<!-- targets: begin ({targets.COMMAND}) -->\n<!-- targets: end -->\nafter")
    readme.write_text(f"<!-- overview: begin ({targets.COMMAND}) -->\n<!-- overview: end -->")
    said = ["--programs", "vocab_loss", "--annotations", "constrained", "--targets", TPU.text, "--keep"]
    assert targets.main([*said, "--json", str(out), "--page", str(page), "--overview", str(readme)]) == 0
    assert "**0.50** of 1 on 8 TPU v5e" in readme.read_text()
    assert "| vocab_loss | - | - |" in page.read_text()
    assert f"| {TPU.text} | *constrained* | 0.50 of 1 |" in page.read_text(), "without the older plan"
    assert "resnet50" not in page.read_text()
    counted = f"- Not measured since its plan changed, or without a plan on record: 1 on {TPU.text}."
    assert counted in page.read_text(), "what was not asked for now is counted, too"
    printed = capsys.readouterr().out
    assert "1.0 / 2.0 = 0.50" in printed
    assert "resnet50" not in printed
    assert targets.main(["--measured", *said[:2], "unet", *said[2:-1], "--json", str(out)]) == 0
    assert f"Not measured on {TPU.text}: unet (constrained)." in capsys.readouterr().out
    (found,) = json.loads(out.read_text())
    assert (found["program"], found["annotation"], found["target"]) == ("vocab_loss", "constrained", TPU.text)


def test_each_under_its_best_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What was measured under the defaults stays beside it, in a file and a table of its own."""
    monkeypatch.setattr(cases, "RECORDS", tmp_path)
    default, best = (Case("vocab_loss", "constrained", TPU, options) for options in ("default", "best"))
    cases.keep(default, both(1e6, 2e6))
    cases.keep(best, both(3e6, 4e6, **planned_today(best)))
    assert best.comparing(60, without=())[-6:-4] == ["--compiler-options", "best"]
    page = tmp_path / "page.md"
    mark = "targets, best options"
    page.write_text(f"<!-- {mark}: begin ({targets.COMMAND}) -->\n<!-- {mark}: end -->")
    said = ["--programs", "vocab_loss", "--annotations", "constrained", "--targets", TPU.text, "--measured", "--json"]
    assert targets.main([*said, str(tmp_path / "out.json"), "--compiler-options", "best", "--page", str(page)]) == 0
    assert f"| {TPU.text} | *constrained* | 0.75 of 1 |" in page.read_text(), "the page has the means alone"
    assert "3.0 / 4.0 = 0.75" in capsys.readouterr().out
    older = {replace(best, name="unet"): both(1e6, 4e6)}
    lines = target_tables.means({best: both(3e6, 4e6)}, older).splitlines()
    assert [line.split(" | ")[2] for line in lines if line.startswith(f"| {TPU.text}")] == ["0.75 of 1"]
    assert lines[-1] == f"- Not measured since its plan changed, or without a plan on record: 1 on {TPU.text}."


def test_figures_of_unlike_estimates_have_no_ratio() -> None:
    """What has no estimate counts as nothing: a plan with more of it looks faster than it is."""
    modelled = Figure("modelled", "modelled", digits=1)
    known = {"total": 3e3, "unit": "microseconds", "without_estimate": 0}
    row: dict[str, Contestant] = {OURS: {"modelled": known | {"without_estimate": 2}}, PEER: {"modelled": known}}
    assert modelled.cell(row) == "3.0 ≈ 3.0"
    assert modelled.ratio(row) is None
    assert not modelled.is_loss({OURS: {"modelled": known | {"total": 9e3, "without_estimate": 2}}, PEER: {"modelled": known}})
    alike = {OURS: {"modelled": known}, PEER: {"modelled": known}}
    assert modelled.cell(alike) == "3.0 / 3.0 = 1.00"


def test_the_step_of_a_tpu_has_what_is_exposed() -> None:
    """Cycles are of computation alone. A v5e has 1.5e9 in a second, and receives 90 GB in one along an axis of the torus."""
    modelled = {"total": 3e6, "unit": "cycles", "without_estimate": 0}
    row = {OURS: {"modelled": modelled, "exposed_bytes": 0.0}, PEER: {"modelled": modelled, "exposed_bytes": 9e7}}
    head, _, *rows = target_tables.tables({Case("unet", "inputs", TPU): row}).splitlines()[2:]
    column = head.split(" | ").index("step ms")
    assert rows[0].split(" | ")[column] == "2.0 / 3.0 = 0.67"
    row[OURS] = {"modelled": modelled | {"without_estimate": 1}, "exposed_bytes": 0.0}
    assert "2.0 ≈ 3.0" in target_tables.tables({Case("unet", "inputs", TPU): row})
    assert "step ms" not in target_tables.tables({Case("unet", "inputs", parse("gpu:h100:1x1x8")): row})


def test_time_outside_the_scheduler_is_named() -> None:
    modelled = {"total": 200.0, "unit": "microseconds", "without_estimate": 0, "outside": 50.0}
    text = target_tables.tables(
        {Case("unet", "inputs", TPU): {OURS: {"modelled": modelled}, PEER: {"modelled": modelled | {"outside": 1}}}}
    )
    assert "- tpu:v5e:2x4, unet, inputs: of the modelled time, 25% of meshbridge's is in loops and branches without coll" in text
    assert "xla-shardy's" not in text
    nothing = {OURS: {"modelled": modelled | {"total": 0.0, "outside": 0.0}}, PEER: {}}
    assert "unet, inputs: " not in target_tables.tables({Case("unet", "inputs", TPU): nothing})


CASE = Case("vocab_loss", "constrained", TPU)


def test_a_record_is_of_today_by_its_plan() -> None:
    """The golden file says what today's plan is, whatever is measured."""
    now = planned_today(CASE)
    golden = json.loads((cases.ROOT / "tests" / "plans" / "golden.json").read_text())
    assert now["plan"] == golden["vocab_loss, constrained, v5e:2x4, default"]["lowered"]
    row = both(1, 1, **now)
    assert cases.is_current(CASE, row)
    assert not cases.is_current(replace(CASE, annotation="inputs"), row)
    assert not cases.is_current(CASE, row | {OURS: {**row[OURS], "plan": "another"}})
    assert not cases.is_current(CASE, row | {PEER: {**row[PEER], "program": "another"}}), "the peer's is of another program"
    assert not cases.is_current(CASE, row | {PEER: {**row[PEER], "versions": "another"}}), "by another compiler"
    assert cases.is_current(CASE, row | {PEER: {**row[PEER], "plan": "another"}}), "the peer's own plan is the program"
    assert not cases.is_current(CASE, both(1, 1)), "old records have no hash"
    assert cases.split({CASE: row, replace(CASE, annotation="inputs"): row}) == (
        {CASE: row},
        {replace(CASE, annotation="inputs"): row},
    )


def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str) -> list[list[str]]:
    """The names that are left out of each comparison, of `program` as it is today; nothing is compiled."""
    monkeypatch.setattr(cases, "RECORDS", tmp_path)
    left_out: list[list[str]] = []

    def measured(case: Case, limit: int, without: list[str]) -> dict[str, Contestant]:
        left_out.append(list(without))
        found = both(5e6, 6e6, **planned_today(case) | {"program": program})
        return {name: figures for name, figures in found.items() if name not in without}

    monkeypatch.setattr(targets, "_measured", measured)
    return left_out


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        ({}, []),
        ({OURS: {"plan": "another"}}, [[PEER]]),
        ({OURS: {"plan": ""}}, [[PEER]]),
        ({OURS: {"error": "no room", "plan": ""}}, [[PEER]]),
        ({OURS: {"versions": "another"}}, [[PEER]]),
        ({PEER: {"versions": "another"}}, [[]]),
        ({OURS: {"program": "another"}, PEER: {"program": "another"}}, []),
        ({OURS: {"program": "another", "plan": "another"}, PEER: {"program": "another"}}, [[PEER], []]),
        ({PEER: {"program": ""}}, [[]]),
    ],
)
def test_what_has_changed_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, dict[str, str]], asked: list[list[str]]
) -> None:
    """Ours where its plan has, and the peer's where the program or the compiler has; what is kept stays on record."""
    left_out = measuring(monkeypatch, tmp_path, "p")
    before = both(1e6, 2e6, **planned_today(CASE))
    cases.keep(CASE, {name: figures | changed.get(name, {}) for name, figures in before.items()})
    found = targets.measure_changed(CASE, 60)
    assert left_out == asked
    assert found[OURS]["wire_bytes"] == (5e6 if asked else 1e6)
    assert found[PEER]["wire_bytes"] == (6e6 if [] in asked else 2e6)
    assert cases.known(CASE)[OURS]["wire_bytes"] == found[OURS]["wire_bytes"]
    assert cases.is_current(CASE, cases.known(CASE))
    left_out.clear()
    targets.measure_changed(CASE, 60)
    assert left_out == []


def test_a_program_that_cannot_be_made_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "FOLDER", tmp_path)
    monkeypatch.setattr(cases, "RECORDS", tmp_path)
    found = targets.measure(Case("unknown", "constrained", TPU), 60, kept=())
    assert "invalid choice: 'unknown'" in found[OURS]["error"]


def test_the_page_has_no_row_of_an_older_plan_among_todays() -> None:
    """`python -m benchmarks.targets --measured --page docs/benchmarks.md --overview README.md` sorts the rows again, where plans
    have changed. Programs without a golden plan are left out here: that of each would have to be made."""
    table = (cases.ROOT / "docs" / "benchmarks.md").read_text().partition("\n| ratios of | ")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in f"| ratios of | {table}".splitlines()]
    columns = {head.rpartition(": ")[0]: number for number, head in enumerate(rows[0])}
    cells = {row[0]: row for row in rows}
    for target in cases.TARGETS:
        for case, row in cases.recorded(targets.cases_of([target], ["constrained"], targets.BUILDERS, "default")).items():
            if case.golden in cases.golden_plans():
                column = columns.get(target.partition(":")[2])
                is_shown = case.name in cells and column is not None and cells[case.name][column] != ""
                assert is_shown == cases.is_current(case, row), case.key
