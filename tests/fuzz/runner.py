"""Runs a command in a forked child and judges how it ended.

The process that forks loads meshbridge once and never JAX, whose threads no fork survives; so tests start this module's `main`
as a process of its own.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from meshbridge.tools import cli

SECONDS = 10
"""How long a command may compute."""

PATIENCE = 60
"""How many times as long it may take in all, on a machine that has other things to do."""

MEMORY = 16 * 2**30
"""The address space of a child: a number in the input must not decide how much memory is asked for."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended: its exit status or the signal that ended it, after how long, and what it wrote."""

    status: int
    signal: int
    seconds: float
    errors: str
    output: bytes | None

    @property
    def fault(self) -> str:
        """What is wrong with it; empty for success and for a diagnostic with exit status 1 and no output.

        The verifier names every op that breaks a rule, so that there may be several.
        """
        if self.signal in (signal.SIGALRM, signal.SIGXCPU):
            return f"did not end within {SECONDS} s"
        if self.signal:
            return f"ended by {signal.Signals(self.signal).name}"
        if "Traceback" in self.errors:
            return "wrote a traceback"
        if "internal error" in self.errors:
            return "ended in an internal error"
        if self.status == 0:
            return "" if self.output else "succeeded without output"
        if self.status != 1:
            return f"ended with exit status {self.status}"
        if ": error: " not in self.errors:
            return "wrote no diagnostic"
        return "left output behind" if self.output else ""


Command = Callable[[list[str]], int]
"""The `main` of a command."""


def run(arguments: Sequence[str], data: bytes, command: Command = cli.main) -> Outcome:
    """Runs `command` with `arguments` on an input of content `data`, whose path takes the place of {}."""
    with TemporaryDirectory() as folder:
        path, written, errors = (Path(folder) / name for name in ("input", "output.mlir", "errors"))
        path.write_bytes(data)
        started = time.monotonic()
        child = os.fork()
        if child == 0:
            _child(command, [argument.replace("{}", str(path)) for argument in (*arguments, "-o", str(written))], errors)
        ended = os.waitpid(child, 0)[1]
        return Outcome(
            os.WEXITSTATUS(ended) if os.WIFEXITED(ended) else -1,
            os.WTERMSIG(ended) if os.WIFSIGNALED(ended) else 0,
            time.monotonic() - started,
            errors.read_text(errors="replace"),
            written.read_bytes() if written.exists() else None,
        )


def _child(command: Command, arguments: list[str], errors: Path) -> None:
    """Never returns."""
    status = 99
    try:
        handle = os.open(errors, os.O_WRONLY | os.O_CREAT)
        for standard in (1, 2):
            os.dup2(handle, standard)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        signal.alarm(SECONDS * PATIENCE)
        status = command(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
