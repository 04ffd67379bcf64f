"""How far a verification is: by the time that each evaluation takes, which the first run shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from meshbridge.ir.mlir import ir
from meshbridge.verification.field import Array
from meshbridge.verification.machine import Observer

OnProgress = Callable[[float, str], None]
"""Called with the share of the work that is done, from 0 to 1, and what is being done."""

SAID = 0.2
"""Seconds between two calls."""


class VerifyProgress:
    """The progress of the evaluations of a verification, two for each run."""

    def __init__(self, runs: int, on_progress: OnProgress | None) -> None:
        self._runs = runs
        self._on_progress = on_progress
        self._begun = 0
        "The number of evaluations that have begun."
        self._started = self._said = monotonic()
        self._operations = 0
        "Those that this evaluation has executed."
        self._taken: list[tuple[int, float]] = []
        "Operations and seconds of the evaluations that are over."

    def observing(self, program: str) -> Observer | None:
        """An observer of the next evaluation, which is of `program`; None if nobody listens."""
        if self._on_progress is None:
            return None
        now = monotonic()
        if self._begun:
            self._taken.append((self._operations, now - self._started))
        self._begun, self._started, self._operations = self._begun + 1, now, 0
        run = f"run {(self._begun + 1) // 2} of {self._runs}, {program}"
        self._say(run)

        def observe(op: ir.Operation, operands: Sequence[Array], results: Sequence[Array]) -> None:
            self._operations += 1
            if monotonic() - self._said >= SAID:
                self._say(run)

        return observe

    def _say(self, run: str) -> None:
        assert self._on_progress is not None
        self._said = monotonic()
        of = f" of {self._taken[(self._begun - 1) % 2][0]:,}" if len(self._taken) >= 2 else ""
        self._on_progress(self._share(), f"{run}, operation {self._operations:,}{of}")

    def _share(self) -> float:
        """The share of the work that is done; 0 in the first run, whose time is not known."""
        if len(self._taken) < 2:
            return 0.0
        operations, seconds = zip(*self._taken[:2], strict=True)
        now = (self._begun - 1) % 2
        part = min(1.0, self._operations / operations[now]) if operations[now] else 0.0
        done = len(self._taken) // 2 * sum(seconds) + now * seconds[0] + part * seconds[now]
        return done / (self._runs * sum(seconds)) if any(seconds) else 0.0
