"""Plans are those on record, and what is on record says enough."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.plans import __main__ as command
from tests.plans import golden
from tests.plans.figures import Figures
from tests.plans.measuring import measured, of_source
from tests.plans.passes import optional_passes
from tests.plans.rows import MACHINES, OF_PRICES, SAMPLE, Row, Source, every_row
from tests.versions import OF_THE_PAGES

of_the_record = pytest.mark.skipif(not OF_THE_PAGES, reason="the plans on record are of programs that another JAX has traced")

UNTOUCHED = {
    "all-reduce-folder": "plans have no reduction of what is reduced: `tests/lit` has",
}
"""Passes that change no plan on record, and why."""

ROOT = Path(__file__).parents[2]


def by_source(rows: tuple[Row, ...]) -> dict[Source, list[Row]]:
    """The rows of each export."""
    found: dict[Source, list[Row]] = {}
    for row in rows:
        found.setdefault(row.source, []).append(row)
    return found


def named(source: Source) -> str:
    """What a test of a source is called."""
    return "-".join((source.program, source.annotation.replace(" ", "-"), source.platform, str(source.devices)))


def check(source: Source, rows: list[Row]) -> None:
    """Raises AssertionError with a line for each row whose plan is not that on record."""
    on_record = golden.read()
    found = golden.changes({row.key: on_record[row.key] for row in rows}, of_source(source, rows).figures)
    assert not found, "\n".join(f"{each.key}: {each.first}: {each.before} → {each.after}" for each in found)


@of_the_record
@pytest.mark.parametrize(("source", "rows"), by_source(SAMPLE).items(), ids=map(named, by_source(SAMPLE)))
def test_a_sample_of_plans_is_as_on_record(source: Source, rows: list[Row]) -> None:
    check(source, rows)


@of_the_record
@pytest.mark.slow
@pytest.mark.parametrize(("source", "rows"), by_source(every_row()).items(), ids=map(named, by_source(every_row())))
def test_every_plan_is_as_on_record(source: Source, rows: list[Row]) -> None:
    check(source, rows)


def test_every_row_is_on_record() -> None:
    assert set(golden.read()) == {row.key for row in every_row()}
    assert {row.machine for row in SAMPLE} == set(MACHINES)
    assert set(SAMPLE) <= set(every_row())


def test_every_pass_changes_a_plan_on_record() -> None:
    touched = {name for figures in golden.read().values() for name in figures.passes}
    assert set(optional_passes()) - touched == set(UNTOUCHED)
    assert touched <= set(optional_passes())


CHILD = """
import sys
from tests.plans.measuring import of_source
from tests.plans.rows import SAMPLE
rows = [row for row in SAMPLE if row.key in sys.argv[2:]]
for row in rows[:: int(sys.argv[1])]:
    for key, figures in of_source(row.source, [row]).figures.items():
        print(key, figures)
"""


def test_neither_hash_seeds_nor_order_change_a_plan() -> None:
    keys = [row.key for row in SAMPLE if row.machine in (*OF_PRICES, "h100:1x1x8")][:4]
    found = []
    for seed, order in (("1", "1"), ("271", "-1")):
        done = subprocess.run(
            [sys.executable, "-c", CHILD, order, *keys],
            env=os.environ | {"PYTHONHASHSEED": seed, "JAX_PLATFORMS": "cpu"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        found.append(done.stdout.splitlines())
    assert len(found[0]) == len(keys)
    assert found[0] == found[1][::-1]


@of_the_record
def test_without_a_pass_the_rows_that_it_touches_change_and_no_others() -> None:
    """A pass that is left out stands for one that somebody has changed."""
    rows = [row for row in SAMPLE if row.machine == "neutral"]
    before, without = golden.read(), "combine-collectives"
    touched = {row.key for row in rows if without in before[row.key].passes}
    assert touched
    assert touched != {row.key for row in rows}
    after = {key: figures for each in measured(rows, [without], jobs=1) for key, figures in each.figures.items()}
    found = golden.changes({row.key: before[row.key] for row in rows}, after)
    assert {each.key for each in found} == touched
    assert all(each.after is not None and without not in each.after.passes for each in found)


PLAN = Figures("a", "b", "c", 1e6, 3, 1e-3, 2e6, ("merge-permutes",))


def test_a_changed_plan_is_a_line_with_what_was_and_what_is(capsys: pytest.CaptureFixture[str]) -> None:
    after = replace(PLAN, optimised="d", wire_bytes=2e6, collectives=6)
    found = golden.changes({"one": PLAN, "same": PLAN, "old": PLAN}, {"one": after, "same": PLAN, "young": PLAN})
    Console(width=200).print(golden.table(found))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["one", "optimised", "1", "→", "2", "3", "→", "6", "1", "2"] in lines
    assert [line[:2] for line in lines[1:4]] == [["old", "gone"], ["one", "optimised"], ["young", "new"]]
    assert lines[4][-4:] == ["2.0000", "2.0000", "1.0000", "1.0000"]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--programs", "gpt5"], "gpt5"),
        (["--machines", "h100:2x2"], "h100:2x2"),
        (["--without", "no-such-pass"], "no-such-pass"),
        (["--part", "5/5"], "5/5"),
        (["--jobs", "-1"], "-1"),
        (["--accept", "--without", "merge-permutes"], "--accept"),
        (["--programs", "gpt3", "--machines", "v5p:4x4x4"], "no such row"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    arguments: list[str], found: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden, "write", lambda *_: pytest.fail("the golden file was written"))
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert found in line


def test_a_run_that_is_killed_leaves_the_golden_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "golden.json"
    golden.write({"row": PLAN}, path)
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        golden.write({}, path)
    assert golden.read(path) == {"row": PLAN}
