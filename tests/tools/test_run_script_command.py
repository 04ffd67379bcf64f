"""`meshbridge run-script`: a script that knows nothing of meshbridge, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

SCRIPT = """import sys
import beside  # a module in the script's folder
import jax
jax.config.update("jax_num_cpu_devices", 8)
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
x = jax.device_put(jnp.ones((16, 32)), NamedSharding(mesh, P("data")))
w = jax.device_put(jnp.full((32, 64), 0.01, jnp.float32), NamedSharding(mesh, P(None, "model")))

@jax.jit
def step(w, x):
    return w - 0.01 * jax.grad(lambda w: (jnp.tanh(x @ w).sum(1) ** 2).mean())(w)

for _ in range(3):
    w = step(w, x)
print(sys.argv[1:], __name__, int(w.sum()))
if "raise" in sys.argv:
    raise ValueError("broken")
if "exit" in sys.argv:
    sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE)


def test_a_script_as_it_is(folder: Path) -> None:
    alone = run(folder, "train.py", "--x", "1")
    done = run(folder, "-m", "meshbridge", "run-script", "--machine", "bytes", "--report", "page.html", "train.py", "--x", "1")
    assert not done.returncode, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == alone.stdout.strip() == "['--x', '1'] __main__ -713"
    assert lines[1].split() == ["function", "devices", "collectives", "sent", "per", "device"]
    assert lines[2].split() == ["jit(step)", "8", "3", "1.6", "KB"]
    assert "train.py:14" in done.stdout
    assert (folder / "page.html").read_text().startswith("<!")


@pytest.mark.parametrize(("how", "status", "said"), [("raise", 1, "ValueError: broken"), ("exit", 3, "")])
def test_a_script_that_fails(folder: Path, how: str, status: int, said: str) -> None:
    done = run(folder, "-m", "meshbridge", "run-script", "train.py", how)
    assert done.returncode == status
    assert said in done.stderr
    assert "run_script_command" not in done.stderr
    assert "jit(step)" in done.stdout


def test_a_script_that_is_not_there(folder: Path) -> None:
    done = run(folder, "-m", "meshbridge", "run-script", "absent.py")
    assert done.returncode == 1
    assert done.stderr == "meshbridge run-script: error: absent.py: expected a Python script, found no such file\n"


def test_functions_that_send_nothing_are_counted(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT + "print(float((2 * x).max(1).shape[0]))\n")
    done = run(folder, "-m", "meshbridge", "run-script", "train.py")
    rows = done.stdout.split("sent per device\n")[1].split("\n\n")[0].splitlines()
    assert rows[0].split()[0] == "jit(step)"
    assert rows[-1].endswith("more functions sent nothing")
    assert not any(row.endswith(" 0 B") for row in rows)


def test_a_function_that_is_compiled_again_says_why(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT + 'step(jax.device_put(w, NamedSharding(mesh, P("data"))), x)\n')
    done = run(folder, "-m", "meshbridge", "run-script", "--machine", "bytes", "train.py")
    again = [line for line in done.stdout.splitlines() if "compiled again" in line]
    assert again == ['jit(step) was compiled again: w came as P("data", None), before as P(None, "model")'], done.stdout


def test_a_program_is_no_script(folder: Path) -> None:
    (folder / "step.jax_export").write_bytes(b"\0\1")
    done = run(folder, "-m", "meshbridge", "run-script", "step.jax_export")
    assert done.returncode == 1
    assert "step.jax_export: expected a Python script, found a binary file\n  hint: meshbridge run takes" in done.stderr


def test_a_function_is_left_to_xla(folder: Path) -> None:
    done = run(folder, "-m", "meshbridge", "run-script", "--leave-to-xla", "step", "--leave-to-xla", "eval*", "train.py")
    assert not done.returncode, done.stderr
    assert done.stdout.splitlines()[0] == "[] __main__ -713"
    assert "jit(step)" not in done.stdout
