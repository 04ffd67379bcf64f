"""Runs a child process under limits of time and memory, and describes how it ended.

Memory is watched, not limited by the operating system: XLA reserves far more address space than it uses, and ends its process
silently if it gets none.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from select import select
from tempfile import TemporaryFile
from threading import Thread
from time import monotonic
from typing import IO, overload

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


Run = Callable[[Sequence[str], Path, Limits], str]
"""Runs a child with these arguments, whose standard error is that file, under limits; returns how it failed, or ""."""


@contextmanager
def forking(module: str, environment: Mapping[str, str] | None = None) -> Iterator[Run]:
    """Runs `module.main` in children of one process (`fork_server`), which imports the module once, and ends with the context.

    The function raises MeshError if memory is limited and the system does not tell how much a process uses, and if the module
    cannot be imported.
    """
    command = [sys.executable, "-m", "meshbridge.tools.compare.fork_server", module]
    with (
        TemporaryFile() as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, bufsize=0
        ) as server,
    ):
        forks = _Forks(server, log)
        try:
            yield forks.run
        finally:
            forks.end()


class _Forks:
    """The children of a server, one after the other."""

    def __init__(self, server: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        assert server.stdin is not None
        assert server.stdout is not None
        self._server, self._requests, self._answers, self._log = server, server.stdin, server.stdout, log
        self._text = b""
        self._running: int | None = None
        "The number of the process of the present child."

    def run(self, arguments: Sequence[str], errors: Path, limits: Limits) -> str:
        """See `Run`."""
        try:
            self._requests.write(json.dumps({"arguments": [*arguments], "errors": str(errors)}).encode() + b"\n")
            process = self._running = self._next()
            excess, status = _watch(self._next, process, limits)
            if status is None:
                os.kill(process, signal.SIGKILL)
                self._next()
            self._running = None
        except (BrokenPipeError, EOFError):
            self._log.seek(0)
            said = _last_words(self._log.read().decode(errors="replace").splitlines())
            raise MeshError(f"error: no process can be started: {said}") from None
        return excess or _ended(status or 0, errors)

    @overload
    def _next(self) -> int: ...

    @overload
    def _next(self, seconds: float | None) -> int | None: ...

    def _next(self, seconds: float | None = None) -> int | None:
        """The next number that the server says; None if it says none within so many seconds. Raises EOFError if it has ended."""
        while b"\n" not in self._text:
            if seconds is not None and not select([self._answers], [], [], max(0.0, seconds))[0]:
                return None
            piece = self._answers.read(64)
            if not piece:
                raise EOFError
            self._text += piece
        line, _, self._text = self._text.partition(b"\n")
        return int(line)

    def end(self) -> None:
        """Ends the server, and a child that still runs."""
        self._server.kill()
        if self._running is not None:
            with suppress(ProcessLookupError):
                os.kill(self._running, signal.SIGKILL)


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
            excess, _ = _watch(lambda seconds: _waited(child, seconds), child.pid, limits)
        finally:
            child.kill()  # if it still runs
    return excess or _ended(child.returncode, errors)


def _waited(child: subprocess.Popen[bytes], seconds: float | None) -> int | None:
    """The status of a process, None if it still runs after so many seconds."""
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _ended(status: int, errors: Path) -> str:
    """How a process failed, by its status and the file with its standard error; "" if it did not."""
    return f"{_ending(status)}: {_last_words(errors.read_text(errors='replace').splitlines())}" if status else ""


def end_with_parent() -> None:
    """Ends this process, which `run` has started, as soon as its parent ends, which enforces the limits."""

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    Thread(target=wait, daemon=True).start()


def _watch(wait: Callable[[float | None], int | None], process: int, limits: Limits) -> tuple[str, int | None]:
    """Waits until a process ends, or exceeds a limit; returns which, or "", and its status if it has ended. `wait` returns the
    status, or None if the process still runs after so many seconds."""
    started = monotonic()
    while True:
        remaining = None if limits.seconds is None else limits.seconds - (monotonic() - started)
        if remaining is not None and remaining <= 0:
            return f"not done within {limits.seconds:g} seconds", None
        step = remaining if limits.gigabytes is None else min(WATCHED_SECONDS, remaining or WATCHED_SECONDS)
        if (status := wait(step)) is not None:
            return "", status
        if limits.gigabytes is not None and _memory(process) > limits.gigabytes * 1e9:
            return f"needs more than {limits.gigabytes:g} GB of memory", None


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
    if status == -signal.SIGKILL:
        return "ended by SIGKILL, as the system does where memory is short"
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _last_words(lines: Sequence[str]) -> str:
    """XLA's fatal message, else the last line that is no log line."""
    fatal = [line for line in lines if re.match(r"F\d{4} ", line) or "Check failed" in line]
    messages = [line for line in lines if line.strip() and not re.match(r"[IW]\d{4} ", line)]
    return (fatal or messages or ["it said nothing"])[-1].strip()
