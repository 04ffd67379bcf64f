"""`python -m benchmarks.on_gpu`: the way to a record, on virtual CPU devices, and what its tables and its fit make of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import on_gpu, one_device
from benchmarks.marked import replaced_in
from benchmarks.on_gpu import Setting
from benchmarks.one_device import Request
from meshbridge.tools.compare.contestants import OURS, PEER
from testdata import catalogue

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"

FIGURES = {
    "step_seconds": 0.030,
    "kernel_seconds": 0.025,
    "modelled": {"total": 26e3, "wasted": 2e3, "unit": "microseconds"},
    "predicted": {"compute_seconds": 0.020, "launch_seconds": 0.005, "work_seconds": 0.0135},
    "allocated_bytes": 30e9,
    "peak_bytes": 29e9,
}

RECORD: dict[str, Any] = {
    "device": "NVIDIA H100 80GB HBM3",
    "measured": "2026-11-28",
    "versions": "jax 0.10.2",
    "collectives": "mocked: they do nothing",
    "numbers": {"numbers": {"gpt3": 2e-7, "decode_seq": 1e-7}, "tolerance": 1e-3},
    "rows": {"unet, constrained": {OURS: FIGURES, PEER: FIGURES | {"kernel_seconds": None, "modelled": None, "predicted": {}}}},
    "not_run": [],
}


@dataclass
class Event:
    """Of a profile."""

    start_ns: float
    duration_ns: float


@dataclass
class Line:
    """Of a plane: events in any order."""

    name: str
    events: list[Event]


@dataclass
class Plane:
    """Of a profile."""

    name: str
    lines: list[Line]


def test_kernels_of_two_streams_count_once_where_they_overlap() -> None:
    """The lines that XLA derives of the streams repeat what they hold."""
    streams = [
        Line("Stream #13(Compute)", [Event(5e9, 1e9), Event(0, 2e9)]),
        Line("Stream #14(MemcpyD2D)", [Event(1e9, 3e9), Event(5.5e9, 0.25e9)]),
        Line("XLA Ops", [Event(0, 9e9)]),
    ]
    assert one_device.kernel_seconds([Plane("/host:CPU", streams), Plane("/device:GPU:0", streams)]) == pytest.approx(5)
    assert one_device.kernel_seconds([Plane("/host:CPU", streams)]) is None


def test_jax_is_asked_for_seven_devices_that_are_not_there() -> None:
    """By options of its client, before it makes one: the environment does not set them."""
    asked = (
        "from benchmarks.one_device import mock; from benchmarks.on_gpu import MOCK; mock(MOCK)\n"
        "from jax._src.xla_bridge import _options_from_jax_configs as options; print(options('cuda'))"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True, env=os.environ)
    wanted = {"visible_devices": [0], "enable_mock_nccl": True, "num_nodes": 8, "mock_gpu_topology": "1x8x1"}
    assert done.stdout.strip() == str(wanted)


def test_a_step_is_run_and_predicted(tmp_path: Path) -> None:
    """In this process, on its eight virtual devices: the way of a GPU but for the mocks, the profile, and XLA's model."""
    program = tmp_path / "decode_seq.jax_export"
    program.write_bytes(catalogue.build("decode_seq").export().serialize())
    found = one_device.step(Request(str(program), OURS, "gpu:h100:1x1x8", repeats=2, warm=1), tmp_path)
    assert 0 < found["fastest_seconds"] <= found["step_seconds"] <= found["slowest_seconds"]
    assert (found["kernel_seconds"], found["modelled"]) == (None, None), "a CPU has no GPU's kernels"
    assert found["argument_bytes"] > 0
    assert found["wire_bytes"] > 0
    predicted = found["predicted"]
    again = predicted["launch_seconds"] + predicted["work_seconds"] / predicted["efficiency"]
    assert again == pytest.approx(predicted["compute_seconds"])
    assert predicted["work_seconds"] > 0
    assert predicted["launch_seconds"] > 0


def test_numbers_are_those_of_jit() -> None:
    found = one_device.numbers(["decode_seq"])
    assert found["numbers"]["decode_seq"] <= 1e-5
    assert on_gpu.is_right({"numbers": found, "rows": {}})
    assert not on_gpu.is_right({"numbers": found | {"numbers": {"decode_seq": 0.1}}, "rows": {}})
    assert not on_gpu.is_right({"numbers": {"error": "no GPU"}, "rows": {}})
    assert not on_gpu.is_right({"numbers": found, "rows": {"unet": {OURS: {"error": "no room"}}}})


@pytest.mark.slow
def test_a_dry_run_leaves_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Processes and all; what fails in a process of its own is named."""
    monkeypatch.setattr(on_gpu, "NUMBERS", ("decode_seq",))
    path = tmp_path / "record.json"
    assert on_gpu.main(["--dry-run", "--programs", "decode_seq", "--record", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "collectives run on virtual CPU devices" in printed
    assert "| decode_seq, as written | meshbridge |" in printed
    both = json.loads(path.read_text())["rows"]["decode_seq, as written"]
    assert both[OURS]["plan"] != both[PEER]["plan"]
    assert both[PEER]["predicted"] == {}
    assert on_gpu.main(["--measured", "--record", str(path)]) == 0
    assert capsys.readouterr().out == printed
    assert on_gpu.main(["--fit", "--record", str(path)]) == 1
    assert "error: record.json: the record has no program with measured kernels" in capsys.readouterr().err
    failed = on_gpu.child(Request(program="nowhere.jax_export", contestant=OURS, target="gpu:h100:1x1x8"), on_gpu.dry([]), 60)
    assert "nowhere.jax_export" in failed["error"]
    assert on_gpu.child(Request(), on_gpu.dry([]), 0)["error"] == "not done within 1 seconds"


def test_a_run_ends_between_programs_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is whole all the while."""
    now, path = [0.0], tmp_path / "record.json"
    seen: list[tuple[list[str], list[str]]] = []

    def run(request: Request, _setting: Setting, seconds: float) -> dict[str, Any]:
        assert seconds > 0
        if path.exists():
            record = json.loads(path.read_text())
            seen.append(([*record["rows"]], record["not_run"]))
        now[0] += 20
        return {"device": "a GPU"} | ({"numbers": {"gpt3": 0.0}, "tolerance": 1e-3} if request.numbers else FIGURES)

    monkeypatch.setattr(on_gpu.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(on_gpu, "child", run)
    monkeypatch.setattr(on_gpu, "export", lambda _: subprocess.CompletedProcess([], 0))
    on_gpu.run(on_gpu.on_a_gpu(("unet", "resnet50", "moe_lm")), 1.5, path)
    record = json.loads(path.read_text())
    assert [*record["rows"]] == ["unet, constrained", "resnet50, constrained"]
    assert record["not_run"] == ["moe_lm, constrained"]
    assert record["device"] == "a GPU"
    assert record["rows"]["unet, constrained"][PEER] == FIGURES
    assert seen[0] == ([], ["unet, constrained", "resnet50, constrained", "moe_lm, constrained"])
    assert seen[2] == (["unet, constrained"], ["resnet50, constrained", "moe_lm, constrained"])
    assert "- Not run, for want of time: moe_lm, constrained." in on_gpu.page(record)


def test_a_table_has_kernels_beside_the_models() -> None:
    """Of both models without what waits for communication, which is mocked."""
    lines = on_gpu.page(RECORD).splitlines()
    assert lines[0] == "NVIDIA H100 80GB HBM3, 2026-11-28, jax 0.10.2; collectives mocked: they do nothing."
    assert "gpt3, decode_seq through every pass equal those of `jax.jit` (largest relative difference 2.0e-07)." in lines[2]
    assert lines[-2:] == [
        "| unet, constrained | meshbridge | 30.00 | 25.00 | 24.00 | 20.00 | 30.00 | 29.00 |",
        "| unet, constrained | xla-shardy | 30.00 | - | - | - | 30.00 | 29.00 |",
    ]
    wrong = RECORD | {"numbers": {"numbers": {"gpt3": 0.5}, "tolerance": 1e-3}, "rows": {"unet": {OURS: {"error": "no room"}}}}
    text = on_gpu.page(wrong)
    assert "**differ from** those of" in text
    assert "- unet: meshbridge failed: no room" in text
    assert "Numbers were not compared: no GPU" in on_gpu.page(RECORD | {"numbers": {"error": "no GPU"}})


def test_efficiency_is_what_makes_predicted_kernels_as_long_as_measured_ones() -> None:
    assert on_gpu.fit(RECORD) == pytest.approx(0.0135 / (0.025 - 0.005))
    slower = FIGURES | {"kernel_seconds": 0.005 + 0.0135 / 0.3}
    rows = RECORD["rows"] | {"vocab_loss, constrained": {OURS: slower}, "moe_lm, constrained": {OURS: {"error": "no room"}}}
    assert on_gpu.fit(RECORD | {"rows": rows}) == pytest.approx((0.675 * 0.3) ** 0.5)
    with pytest.raises(ValueError, match="no program with measured kernels"):
        on_gpu.fit(RECORD | {"rows": {}})


def test_a_dry_run_writes_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        on_gpu.main(["--dry-run", "--page", "page.md"])
    assert "--page: not allowed with argument --dry-run" in capsys.readouterr().err


def test_the_page_says_what_is_on_record() -> None:
    """`python -m benchmarks.on_gpu --measured --page docs/benchmarks.md` writes it."""
    record = json.loads(on_gpu.RECORD.read_text()) if on_gpu.RECORD.exists() else None
    text = PAGE.read_text()
    assert replaced_in(text, "on one GPU", on_gpu.COMMAND, on_gpu.page(record), PAGE.name) == text
