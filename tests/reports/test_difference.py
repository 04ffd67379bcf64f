"""What differs between two plans of one program: nothing between equal ones, and between others what both reports say."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshbridge
from meshbridge.dialect import assembly
from meshbridge.ir.mlir import MeshError, context
from meshbridge.reports import Report
from meshbridge.tools import cli
from testdata.catalogue import build
from tests.reports.transformer import exported


@pytest.fixture(scope="module")
def reports() -> tuple[Report, Report]:
    """Of the step with replicated layers, and with sharded ones, on a machine of a topology."""
    return tuple(meshbridge.report(exported(up), machine="h100:1x1x8") for up in ((None, None), (None, "b")))  # type: ignore[return-value]


def test_shardings_that_differ(reports: tuple[Report, Report]) -> None:
    found = {each.name: each for each in meshbridge.diff(*reports).resharded}
    layers = [f"['layers'][{number}]['{name}']" for number in range(2) for name in ("down", "up")]
    assert set(found) == {f"{root}{path}" for root in ("params", "result[1]") for path in layers}
    up = found["params['layers'][0]['up']"]
    assert (up.first, up.second, up.side) == (((), ()), ((), ("b",)), "arguments")
    assert up.text == 'P(None, "b") instead of P(None, None)'


def test_changes_add_up_to_what_the_reports_say(reports: tuple[Report, Report]) -> None:
    """By module, phase and kind, each amount is what a sum over the collectives of a report is; what is equal is left out."""
    found = meshbridge.diff(*reports)
    assert found.changes
    assert {each.what for each in found.changes} >= {"came", "went"}
    for report, amount in zip(reports, ("first", "second"), strict=True):
        expected: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for collective in report.collectives:
            for origin in collective.origins:
                sums = expected[origin.modules, origin.phase, collective.kind, collective.axes]
                assert collective.total_seconds is not None
                sums[0] += collective.total_bytes * origin.share
                sums[1] += collective.total_seconds * origin.share
                sums[2] += collective.executions
        for change in found.changes:
            got = getattr(change, amount)
            assert [got.wire_bytes, got.seconds, got.executions] == pytest.approx(
                expected.pop((change.modules, change.phase, change.kind, change.axes), [0.0, 0.0, 0])
            )
        assert sum(sums[0] for sums in expected.values()) == pytest.approx(
            report.wire_bytes - sum(getattr(each, amount).wire_bytes for each in found.changes)
        )
    more = sum(each.wire_bytes for each in found.changes)
    assert more == pytest.approx(reports[1].wire_bytes - reports[0].wire_bytes)
    sizes = [abs(each.wire_bytes) for each in found.changes]
    assert sizes == sorted(sizes, reverse=True)


def test_modules_and_totals(reports: tuple[Report, Report]) -> None:
    found = meshbridge.diff(*reports)
    trees = [{module.path: module for module in report.modules.walk()} for report in reports]
    assert {each.modules for each in found.modules} >= {("layer_0",), ("layer_1",)}
    for each in found.modules:
        for tree, amount in zip(trees, (each.first, each.second), strict=True):
            assert amount.wire_bytes == (tree[each.modules].wire_bytes if each.modules in tree else 0.0)
    totals = {each.name: (each.first, each.second) for each in found.totals}
    for name in ("wire_bytes", "executions", "seconds", "exposed_seconds", "peak_bytes"):
        assert totals[name] == tuple(getattr(report, name) for report in reports)


def test_the_other_way_round(reports: tuple[Report, Report]) -> None:
    """What comes one way goes the other."""
    opposite = {"came": "went", "went": "came", "grew": "shrank", "shrank": "grew"}
    there, back = (meshbridge.diff(*pair) for pair in (reports, reports[::-1]))
    key = {(each.modules, each.phase, each.kind, each.axes): each for each in back.changes}
    assert len(key) == len(there.changes)
    for each in there.changes:
        other = key[each.modules, each.phase, each.kind, each.axes]
        assert (other.what, other.wire_bytes) == (opposite[each.what], -each.wire_bytes)
        assert (other.first, other.second) == (each.second, each.first)


def test_the_table(reports: tuple[Report, Report]) -> None:
    """Layers that differ alike share a line."""
    text = meshbridge.diff(*reports).table()
    assert "8 sharded otherwise in the second plan:" in text
    assert "  params['layers'][*]['up'] (2 arrays): P(None, \"b\") instead of P(None, None)" in text
    assert "layer_* (2 modules)" in text
    assert "predicted step" in text
    unpredicted = [replace(report, step=None) for report in reports]
    assert "predicted step" not in meshbridge.diff(*unpredicted).table()


def test_repeated_layers_are_shown_however_many_there_are() -> None:
    """Of 120 layers each differs by less than 1 %."""
    one, other = (meshbridge.report(exported(up, layers=1)) for up in ((None, None), (None, "b")))

    def repeated(report: Report) -> Report:
        def moved(number: int) -> list[Any]:
            return [
                replace(each, origins=tuple(replace(origin, modules=(f"layer_{number}",)) for origin in each.origins))
                for each in report.collectives
            ]

        return replace(report, collectives=tuple(each for number in range(120) for each in moved(number)))

    text = meshbridge.diff(repeated(one), repeated(other)).table()
    assert text.count("layer_* (120 modules)") > 1  # in the table of modules, and in that of collectives


@pytest.mark.parametrize("emit", ["exported", "mesh", "local"])
def test_a_partitioned_program_is_the_plan_of_its_source(emit: Any) -> None:
    """Whatever the form, and wherever the reasons are lost."""
    source = exported((None, None))
    partitioned = meshbridge.partition(source, emit=emit, machine="neutral")
    for pair in ((source, partitioned), (partitioned, source)):
        found = meshbridge.diff(*pair, machine="neutral")
        assert (found.resharded, found.changes, found.modules, found.remarks()) == ((), (), (), ())
        assert found.is_empty
        assert "the plans shard alike and send the same" in found.table()
    beside = meshbridge.diff(meshbridge.report(source, machine="neutral"), partitioned, machine="neutral")
    assert beside.remarks() == ("the second came partitioned: there sums of partial values count for the module that reads them",)


@pytest.mark.parametrize(
    "name",
    ["moe_grad", "lstm", "loop_kmeans", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt12", "vit", "adam_zero1"))],
)
def test_measured_programs_and_what_is_partitioned_of_them(name: str) -> None:
    """Loops, collectives that stand for several, reduce-scatters, exchanges of their own."""
    source = build(name).export()
    found = meshbridge.diff(source, meshbridge.partition(source, machine="neutral"), machine="neutral")
    assert (found.resharded, found.changes, found.modules, found.remarks()) == ((), (), (), ())


def test_two_partitioned_programs() -> None:
    one, other = (meshbridge.partition(exported(up), machine="neutral") for up in ((None, None), (None, "b")))
    found = meshbridge.diff(one, other, machine="h100:1x1x8")
    assert len(found.resharded) == 8
    assert found.changes
    seconds = next(each for each in found.totals if each.name == "seconds")
    assert seconds.first is not None
    assert seconds.first != seconds.second
    assert found.first.wire_bytes == meshbridge.report(one).wire_bytes


def test_plans_of_different_meshes() -> None:
    text = """
      mesh.mesh @m(shape = {})
      func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {{
        %s = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
        %t = mesh.sharding @m split_axes = [[], [0]] : !mesh.sharding
        %0 = mesh.shard %x to %s : tensor<64x64xf32>
        %1 = stablehlo.tanh %0 : tensor<64x64xf32>
        %2 = mesh.shard %1 to %t annotate_for_users : tensor<64x64xf32>
        return %2 : tensor<64x64xf32>
      }}"""
    found = meshbridge.diff(*(assembly.read(text.format(size), "a.mlir", context()) for size in (4, 8)))
    assert found.resharded == ()
    (change,) = found.changes
    assert (change.kind, change.what, change.modules) == ("all_to_all", "shrank", ())
    assert found.remarks() == ("they are for different meshes: 0=4 and 0=8",)


def test_a_program_that_sends_nothing() -> None:
    text = "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }"
    module = assembly.read(text, "a.mlir", context())
    found = meshbridge.diff(module, module)
    assert found.is_empty
    assert "wire bytes per device and step" in found.table()
    json.loads(found.to_json())


def test_programs_that_differ(reports: tuple[Report, Report]) -> None:
    first, _ = reports
    cases = {
        r"the first has 6 arguments, the second 4|argument \d is params": exported(layers=1),
        r"argument 0 is params\['head'\], f32\[64, 512\] in the first, params\['head'\], f32\[32, 256\] in the second": exported(
            width=32
        ),
    }
    for message, other in cases.items():
        with pytest.raises(MeshError, match=f"error: these are plans of different programs: ({message})"):
            meshbridge.diff(first, other)
    needed = first.needed_work
    assert needed is not None
    more = replace(first, needed_work=needed / 2)
    assert (
        meshbridge.diff(first, more).remarks()[0].startswith("before they are partitioned, the programs compute different FLOPs")
    )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other, done = (tmp_path / name for name in ("one", "other", "done"))
    one.write_bytes(exported((None, None)).serialize())
    other.write_bytes(exported((None, "b")).serialize())
    assert cli.main(["diff", str(one), "--machine", "h100:1x1x8", str(other), "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    expected = meshbridge.diff(exported((None, None)), exported((None, "b")), machine="h100:1x1x8")
    assert read == json.loads(expected.to_json())
    assert read["changes"][0].keys() == {"modules", "phase", "kind", "axes", "first", "second", "what"}
    assert cli.main(["partition", str(one), "-o", str(done)]) == 0
    assert cli.main(["diff", str(one), str(done)]) == 0
    assert "the plans shard alike and send the same" in capsys.readouterr().out
    assert cli.main(["diff", str(one), "--but", "machine=bytes"]) == 0
    assert "they are made for different machines: neutral and bytes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("one", 2, "there is nothing to compare, expected a second plan, or --but NAME=VALUE"),
        ("one --but colour=red", 2, "expected NAME=VALUE, NAME one of resharding, machine"),
        ("one --but machine=v0", 2, "unknown machine 'v0'"),
        ("- -", 2, "both plans are standard input"),
        ("done done --resharding exact", 1, "--resharding has no effect on plans that are partitioned already"),
        ("one done --but memory-limit=1GB", 1, "--but memory-limit has no effect on a plan that is partitioned already"),
        ("one other", 1, "these are plans of different programs: argument 0 is params['head'], f32[64, 512]"),
        ("one missing", 1, "missing"),
    ],
)
def test_bad_input(
    line: str, status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one").write_bytes(exported().serialize())
    Path("other").write_bytes(exported(width=32).serialize())
    if "done" in line:
        assert cli.main(["partition", "one", "--emit", "mesh", "-o", "done"]) == 0
    assert cli.main(["diff", *line.split()]) == status
    found = capsys.readouterr()
    assert message in found.err
    assert found.out == ""
