"""What a call takes in a process of its own: measurements by `benchmarks.probe`, and the CPU time of whole commands.

The measuring process must stay small: a child's `ru_maxrss` begins with what its parent held. So this imports no JAX.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.clock import Spent

ROOT = Path(__file__).parent.parent
PATIENCE = 10
"""Seconds by the wall that a process gets for each second of CPU time: other work may share the machine."""
ENOUGH = 3.0
"""Seconds of CPU time from which on a first call is measured once: what disturbs a measurement is then small beside it."""


@dataclass(frozen=True)
class Probe:
    """The figures of one program (see `benchmarks.probe`), None where the process ended before; `error` says why it did."""

    operations: int | None = None
    first: Spent | None = None
    second: Spent | None = None
    stages: dict[str, float] = field(default_factory=dict)
    peak_bytes: int | None = None
    text_bytes: int | None = None
    propagation: Spent | None = None
    planned: dict[str, tuple[Spent, Spent]] = field(default_factory=dict)
    error: str = ""


def probe(program: Path, *, limit: int, repeats: int = 3, propagation: bool = False, targets: Sequence[str] = ()) -> Probe:
    """The fastest first call of up to `repeats` processes of up to `limit` seconds of CPU time each."""
    options = [*(["--propagation"] if propagation else []), *(["--planned-for", *targets] if targets else [])]
    found = [_probe(program, limit, options)]
    while len(found) < repeats and not found[-1].error and found[-1].first and found[-1].first.cpu < ENOUGH:
        found.append(_probe(program, limit, options))
    return min(found, key=lambda each: each.first.cpu if each.first and not each.error else float("inf"))


def _probe(program: Path, limit: int, options: Sequence[str]) -> Probe:
    done = _run([sys.executable, "-m", "benchmarks.probe", str(program), "--limit", str(limit), *options], limit)
    figures: dict[str, Any] = {}
    for line in done.stdout.splitlines():
        figures |= json.loads(line)
    spent = {name: Spent(**figures[name]) for name in ("first", "second", "propagation") if name in figures}
    calls = {target: (Spent(**first), Spent(**second)) for target, (first, second) in figures.get("planned", {}).items()}
    return Probe(**figures | spent | {"planned": calls}, error=_error(done, limit))


def _run(command: Sequence[str], limit: int) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit * PATIENCE, check=False)
    except subprocess.TimeoutExpired as error:
        printed = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        return subprocess.CompletedProcess(command, -signal.SIGXCPU, printed, "")


def _error(done: subprocess.CompletedProcess[str], limit: int) -> str:
    if done.returncode == 0:
        return ""
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"did not end within {limit} s"
    return (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]


def command_seconds(arguments: Sequence[str], repeats: int = 5) -> float:
    """Seconds of CPU time of a whole Python process, its start included: the fewest of several."""
    return min(_command_seconds(arguments) for _ in range(repeats))


def _command_seconds(arguments: Sequence[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
