"""Starts real processes on this machine that JAX connects over loopback, and says how each has ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.patience import PATIENCE
from tests.xla_flags import QUICK_TO_COMPILE

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """One process that has ended."""

    status: int
    "As `subprocess` has it: negative for a signal."
    output: str
    "What it wrote to both streams."


def free_port() -> int:
    """A port of loopback that nothing listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run(
    commands: Sequence[Sequence[str]],
    folder: Path,
    *,
    devices: int = 0,
    patience: float = PATIENCE,
    variables: Callable[[int], Mapping[str, str]] = lambda index: {},
) -> list[Ended]:
    """Runs all commands at once, Python's arguments each, with so many CPU devices each, and with variables by their index.

    All are gone when this returns, and when it raises TimeoutError after so many seconds of `patience`.
    """
    outputs = [folder / f"process{index}.txt" for index in range(len(commands))]
    running = []
    try:
        for index, (command, output) in enumerate(zip(commands, outputs, strict=True)):
            with output.open("w") as stream:
                started = subprocess.Popen(
                    [sys.executable, *command],
                    env={**_environment(index, devices), **variables(index)},
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that what they start ends with them
                )
            running.append(started)
        deadline = time.monotonic() + patience
        for process in running:
            process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        tails = "\n".join(f"{output.name}: {output.read_text()[-2000:]}" for output in outputs)
        raise TimeoutError(f"not all have ended after {patience} seconds\n{tails}") from None
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return [Ended(process.returncode, output.read_text()) for process, output in zip(running, outputs, strict=True)]


def run_program(
    name: str, processes: int, devices: int, folder: Path, *arguments: str, patience: float = PATIENCE
) -> list[Ended]:
    """A function of `tests.distributed.programs` in so many processes of so many devices each."""
    connected = str(free_port()), str(processes)
    commands = [["-m", "tests.distributed.programs", name, *connected, str(own), *arguments] for own in range(processes)]
    return run(commands, folder, devices=devices, patience=patience)


def _environment(index: int, devices: int) -> dict[str, str]:
    """Every process hashes strings in another way, as they do anyway: what is decided must not depend on it."""
    own = {
        "JAX_PLATFORMS": "cpu",
        "PYTHONHASHSEED": str(index + 1),
        "PYTHONUNBUFFERED": "1",
        "XLA_FLAGS": " ".join(QUICK_TO_COMPILE),
    }
    if devices:
        own["JAX_NUM_CPU_DEVICES"] = str(devices)
    return os.environ | own
