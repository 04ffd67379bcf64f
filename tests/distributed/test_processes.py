"""Programs that several processes run together, real ones on this machine."""

from __future__ import annotations

import signal
from pathlib import Path

import jax
import pytest

import meshbridge
from tests.distributed import programs
from tests.distributed.launch import Ended, run_program


def succeeded(ended: list[Ended]) -> None:
    for process in ended:
        assert process.status == 0, process.output[-3000:]
        assert "done" in process.output.splitlines()


@pytest.mark.parametrize("name", ["training", pytest.param("leaves", marks=pytest.mark.slow)])
def test_two_processes(name: str, tmp_path: Path) -> None:
    succeeded(run_program(name, 2, 4, tmp_path))


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("1f1b", 2), pytest.param("gpipe", 4, marks=pytest.mark.slow), pytest.param("zero-bubble", 2, marks=pytest.mark.slow)],
)
def test_pipelines(schedule: str, stages: int, tmp_path: Path) -> None:
    succeeded(run_program("pipelined", 2, 4, tmp_path, schedule, str(stages)))


def test_pipelines_that_are_refused(tmp_path: Path) -> None:
    succeeded(run_program("pipelined_across", 2, 4, tmp_path))


def test_arrays_that_lie_in_other_ways(tmp_path: Path) -> None:
    succeeded(run_program("arrays", 2, 4, tmp_path, str(tmp_path)))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["training", "leaves", "kinds_of_numbers"])
def test_four_processes(name: str, tmp_path: Path) -> None:
    succeeded(run_program(name, 4, 2, tmp_path))


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_that_disagree(processes: int, tmp_path: Path) -> None:
    succeeded(run_program("disagreement", processes, 8 // processes, tmp_path))


def test_partitioned_by_one_host(tmp_path: Path) -> None:
    """What a process with 8 devices of its own partitions, 2 processes of 4 devices each run."""
    step, _ = programs.sharded_step(programs.device_mesh())
    exported = jax.export.export(step)(*programs.train_arguments())
    files = [str(tmp_path / name) for name in ("partitioned.jax_export", "original.jax_export")]
    meshbridge.save(meshbridge.partition(exported), files[0])
    meshbridge.save(exported, files[1])
    succeeded(run_program("from_a_file", 2, 4, tmp_path, *files))


def test_plans_of_one_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has planned for 8 devices of its own, 2 processes of 4 devices each find in the folder of plans."""
    folder = tmp_path / "plans"
    monkeypatch.setenv("MESHBRIDGE_CACHE_DIR", str(folder))
    programs.jitted()
    (plan,) = folder.iterdir()
    made = plan.stat().st_mtime_ns
    succeeded(run_program("jitted", 2, 4, tmp_path))
    assert [*folder.iterdir()] == [plan]
    assert plan.stat().st_mtime_ns == made


@pytest.mark.slow
def test_a_process_is_lost(tmp_path: Path) -> None:
    """The others end, and say who is missing."""
    first, last = run_program("loss_of_a_process", 2, 4, tmp_path)
    assert last.status == -signal.SIGKILL
    assert first.status != 0
    assert "step 3" in first.output.splitlines()
    assert "step 999" not in first.output.splitlines()
    assert any(word in first.output for word in ("Connection closed by peer", "stopped sending heartbeats", "heartbeat timeout"))
