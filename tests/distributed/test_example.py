"""The example of a training loop that is killed, and goes on in another number of processes."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import jax
import pytest

from tests.distributed.launch import ROOT, Ended, free_port, run

EXAMPLE = ROOT / "examples" / "multi_process_train.py"
STEPS = 12


def train(folder: Path, *arguments: str) -> Ended:
    (ended,) = run([[str(EXAMPLE), "--steps", str(STEPS), "--checkpoints", str(folder / "saved"), *arguments]], folder)
    return ended


def losses(output: str) -> dict[int, float]:
    """Of the steps that say theirs."""
    return {int(step): float(loss) for step, loss in re.findall(r"^step (\d+): loss ([\d.]+)$", output, re.M)}


def on_one_device() -> dict[int, float]:
    """What JAX computes by itself, of the whole arrays."""
    example = load()
    state, found = example.initial(), {}
    for step in range(STEPS):
        state, value = jax.jit(example.train_step)(state, example.batch(step))
        found[step] = float(value)
    return found


def load() -> Any:
    spec = importlib.util.spec_from_file_location("multi_process_train", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("then", ["1", "4"])
def test_killed_and_continued(then: str, tmp_path: Path) -> None:
    """The process is killed while a checkpoint is being written: what is read later is a whole one."""
    lost = train(tmp_path, "--processes", "2", "--lose", "10")
    assert lost.status == 1, lost.output[-3000:]
    assert "process 1 ended with status -9" in lost.output
    assert "process 0 ended with status" in lost.output
    continued = train(tmp_path, "--processes", then)
    assert continued.status == 0, continued.output[-3000:]
    first = int(re.search(rf"^{then} processes, 4 devices, from step (\d+)$", continued.output, re.M)[1])  # type: ignore[index]
    assert first in (5, 10)
    expected = on_one_device()
    found = losses(lost.output) | losses(continued.output)
    assert found == pytest.approx({step: expected[step] for step in found}, abs=2e-5)
    assert {4, 9, 11} <= set(found)


@pytest.mark.slow
def test_started_by_a_scheduler(tmp_path: Path) -> None:
    """JAX finds the processes by SLURM's variables, which stand in for `srun`."""
    port = str(free_port())

    def variables(index: int) -> dict[str, str]:
        names = {"JOB_ID": "1", "STEP_NODELIST": "localhost", "NTASKS": "2", "PROCID": str(index), "LOCALID": str(index)}
        own = {f"SLURM_{name}": value for name, value in names.items()}
        return own | {"JAX_COORDINATOR_PORT": port, "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}

    command = [str(EXAMPLE), "--cluster", "--steps", "5", "--checkpoints", str(tmp_path / "saved")]
    first, second = run([command, command], tmp_path, devices=2, variables=variables)
    assert (first.status, second.status) == (0, 0), first.output[-2000:] + second.output[-2000:]
    assert losses(first.output) == pytest.approx({4: on_one_device()[4]}, abs=2e-5)


@pytest.mark.slow
def test_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of docs/distributed.md, one after the other: to the end, killed, and continued."""
    page = (ROOT / "docs" / "distributed.md").read_text()
    commands = [shlex.split(line, comments=True)[1:] for line in page.splitlines() if line.startswith("python examples/")]
    monkeypatch.chdir(tmp_path)
    ended = [run([[str(ROOT / file), *arguments]], tmp_path)[0] for file, *arguments in commands]
    assert [each.status for each in ended] == [0, 1, 0], [each.output[-2000:] for each in ended]
    assert set(losses(ended[0].output)) == {4, 9, 14, 19}
    assert 19 in losses(ended[2].output)
