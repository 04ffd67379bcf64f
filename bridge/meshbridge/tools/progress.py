"""A line on the terminal with the present step of a command that takes long; it disappears at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock, Timer
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS = 2.0
"""Shorter work shows no progress."""

RESTORED = "\r\x1b[K\x1b[?25h"
"""Restores a terminal after an interrupted line of progress: clears the line and shows the cursor."""


class CommandSteps:
    """The steps of a command by name, in order, starting with the first."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._started = monotonic()
        self._done = 0
        self._line: Progress | None = None
        self._ended = False
        self._lock = Lock()  # the line is drawn by another thread than the one that works

    def done(self, name: str) -> None:
        """Ends this step and starts the next one. Raises ValueError if no later step has this name."""
        with self._lock:
            self._done = self._names.index(name, self._done) + 1
            if self._line is not None:
                self._line.update(self._line.task_ids[0], completed=self._done, description=self._running())

    def _running(self) -> str:
        return self._names[min(self._done, len(self._names) - 1)]

    def _show(self, terminal: int) -> None:
        """Draws the line on a file descriptor, from now until `_end`."""
        from rich.console import Console  # takes a tenth of a second to import
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(file=os.fdopen(terminal, "w", closefd=False))
        # Other output on standard error appears above the line; standard output may be a file.
        line = Progress(*columns, console=console, transient=True, redirect_stdout=False, get_time=monotonic)
        with self._lock:
            if self._ended:
                return
            task = line.add_task(self._running(), total=len(self._names), completed=self._done)
            line.tasks[task].start_time = self._started
            line.start()
            self._line = line

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            if self._line is not None:
                self._line.stop()


@contextmanager
def shown(names: Sequence[str], *, quiet: bool) -> Iterator[CommandSteps]:
    """Shows the steps of work that takes longer than SECONDS, unless `quiet`, or if standard error is no terminal.

    Output on standard output has to wait until the end.
    """
    steps = CommandSteps(names)
    if quiet or not names or sys.stderr is None or not sys.stderr.isatty():
        yield steps
        return
    terminal = os.dup(sys.stderr.fileno())  # standard error is redirected while a program is read
    timer = Timer(SECONDS, steps._show, (terminal,))
    timer.daemon = True
    timer.start()
    try:
        yield steps
    finally:
        timer.cancel()
        steps._end()
        timer.join()
        os.close(terminal)
