"""Runs a child process under limits of time and memory, and describes how it ended.

Memory is watched, not limited by the operating system: XLA reserves far more address space than it uses, and ends its process
silently if it gets none.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import monotonic

from meshbridge.ir.mlir import MeshError

WATCHED_SECONDS = 0.1
"""The interval at which the memory of a process is read."""


@dataclass(frozen=True)
class Limits:
    """The limits of a process; None means no limit."""

    seconds: float | None = None
    gigabytes: float | None = None
    "Memory in use, in powers of 1,000."


NO_LIMITS = Limits()


def run(command: Sequence[str], errors: Path, limits: Limits = NO_LIMITS, environment: Mapping[str, str] | None = None) -> str:
    """Runs `command`, with the file `errors` as its standard error. Returns how it failed, or "".

    Its standard input stays open as long as this process lives (see `end_with_parent`).

    Raises MeshError if memory is limited and the system does not tell how much a process uses.
    """
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr, env=environment) as child,
    ):
        try:
            excess = _watch(child, limits)
        finally:
            child.kill()  # if it still runs
    if excess:
        return excess
    if child.returncode == 0:
        return ""
    return f"{_ending(child.returncode)}: {_last_words(errors.read_text(errors='replace').splitlines())}"


def end_with_parent() -> None:
    """Ends this process, which `run` has started, as soon as its parent ends, which enforces the limits."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def _watch(child: subprocess.Popen[bytes], limits: Limits) -> str:
    """Waits until a process ends, or exceeds a limit; returns which, or ""."""
    started = monotonic()
    while True:
        remaining = None if limits.seconds is None else limits.seconds - (monotonic() - started)
        if remaining is not None and remaining <= 0:
            return f"not done within {limits.seconds:g} seconds"
        step = remaining if limits.gigabytes is None else min(WATCHED_SECONDS, remaining or WATCHED_SECONDS)
        try:
            child.wait(step)
        except subprocess.TimeoutExpired:
            if limits.gigabytes is not None and _memory(child.pid) > limits.gigabytes * 1e9:
                return f"needs more than {limits.gigabytes:g} GB of memory"
        else:
            return ""


def _memory(process: int) -> int:
    """The bytes of memory that a process uses; 0 if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        if Path("/proc/self/status").exists():
            return 0
        raise MeshError("error: this system does not say how much memory a process uses: leave out the limit") from None
    resident = re.search(r"VmRSS:\s*(\d+) kB", status)
    return int(resident[1]) * 1024 if resident else 0


def _ending(status: int) -> str:
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _last_words(lines: Sequence[str]) -> str:
    """XLA's fatal message, else the last line that is no log line."""
    fatal = [line for line in lines if re.match(r"F\d{4} ", line) or "Check failed" in line]
    messages = [line for line in lines if line.strip() and not re.match(r"[IW]\d{4} ", line)]
    return (fatal or messages or ["it said nothing"])[-1].strip()
