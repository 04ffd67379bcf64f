"""What a command or a call that takes long is doing, how far it is, and how long it will take: a line on the terminal, or in a
notebook's cell, which disappears at the end."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from threading import Lock, Timer
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS = 2.0
"""Shorter work shows no progress."""

LEAST_SHARE = 0.02
"""The share of a step after which its time says how long the rest takes."""

REDRAWN = 0.5
"""Seconds between two drawings in a notebook."""

RESTORED = "\r\x1b[K\x1b[?25h"
"""Restores a terminal after an interrupted line of progress: clears the line and shows the cursor."""

T = TypeVar("T")

OnProgress = Callable[[float, str], None]
"""Called with the share of the work that is done, from 0 to 1, and what is being done."""


def each(things: Sequence[T], on_progress: OnProgress | None) -> Iterator[T]:
    """`things` one after the other, with their number as progress."""
    for number, thing in enumerate(things):
        if on_progress is not None:
            on_progress(number / len(things), f"{number + 1} of {len(things)}")
        yield thing


class WorkSteps:
    """The steps of some work by name, in order, starting with the first."""

    def __init__(self, names: Sequence[str], *, alike: bool = False) -> None:
        """`alike`: the steps take about the same time, so that those that are done say how long the others will take."""
        self._names = tuple(names)
        self._alike = alike
        self._started = self._step_started = monotonic()
        self._done = 0
        self._share = 0.0
        self._remark = ""
        self._ends: float | None = None
        "When this step, or all of them if they are alike, will be over."
        self._line: _TerminalLine | _NotebookLine | None = None
        self._ended = False
        self._lock = Lock()  # the line is drawn by another thread than the one that works

    def done(self, name: str) -> None:
        """Ends this step and starts the next one. Raises ValueError if no later step has this name."""
        with self._lock:
            self._done = self._names.index(name, self._done) + 1
            now = monotonic()
            left = len(self._names) - self._done
            self._ends = now + (now - self._started) / self._done * left if self._alike and left else None
            self._step_started, self._share, self._remark = now, 0.0, ""
            self._draw()

    def part(self, share: float, remark: str = "", *, seconds_left: float | None = None) -> None:
        """Says that this `share` of the step is done, and what it is at. `seconds_left` are those of the step if they are known;
        else the share tells."""
        with self._lock:
            now = monotonic()
            self._share, self._remark = min(max(share, 0.0), 1.0), remark
            if seconds_left is not None:
                self._ends = now + seconds_left
            elif self._share >= LEAST_SHARE:
                self._ends = now + (now - self._step_started) * (1 / self._share - 1)
            self._draw()

    @property
    def text(self) -> str:
        """What is being done."""
        name = self._names[min(self._done, len(self._names) - 1)]
        return f"{name}: {self._remark}" if self._remark else name

    @property
    def count(self) -> str:
        """`2/4`: the steps that are done."""
        return f"{self._done}/{len(self._names)}"

    @property
    def completed(self) -> float:
        """The number of steps that are done, and the share of this one."""
        return min(self._done + self._share, float(len(self._names)))

    @property
    def times(self) -> str:
        """`12 s, about 30 s left`: the second is omitted if it is not known."""
        now = monotonic()
        left = None if self._ends is None else max(0.0, self._ends - now)
        return f"{_seconds_text(now - self._started)}{'' if left is None else f', about {_seconds_text(left)} left'}"

    def _draw(self) -> None:
        if self._line is not None:
            self._line.update()

    def _show(self, line: Callable[[WorkSteps], _TerminalLine | _NotebookLine]) -> None:
        """Draws the line from now until `_end`."""
        with self._lock:
            if not self._ended:
                self._line = line(self)

    def _end(self) -> None:
        with self._lock:
            self._ended = True
            if self._line is not None:
                self._line.stop()


def _seconds_text(seconds: float) -> str:
    """`12 s`, `3 min 5 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class _TerminalLine:
    """The line on a terminal, a file descriptor; another thread redraws it."""

    def __init__(self, steps: WorkSteps, terminal: int) -> None:
        from rich.console import Console  # takes a tenth of a second to import
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
        from rich.text import Text

        class Times(ProgressColumn):
            """The time that has passed, and that which is left."""

            max_refresh = REDRAWN

            def render(self, task: object) -> Text:
                return Text(steps.times, style="progress.elapsed")

        self._steps = steps
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[count]}"), Times())
        console = Console(file=os.fdopen(terminal, "w", closefd=False))
        # Other output on standard error appears above the line; standard output may be a file.
        self._line: Progress = Progress(*columns, console=console, transient=True, redirect_stdout=False, get_time=monotonic)
        self._task = self._line.add_task(steps.text, total=len(steps._names), count=steps.count)
        self.update()
        self._line.start()

    def update(self) -> None:
        """Draws what is being done now."""
        steps = self._steps
        self._line.update(self._task, completed=steps.completed, description=steps.text, count=steps.count)

    def stop(self) -> None:
        """Erases the line."""
        self._line.stop()


class _NotebookLine:
    """The line in the output of a notebook's cell."""

    def __init__(self, steps: WorkSteps) -> None:
        self._steps = steps
        self._drawn = 0.0
        self._handle: Any = None

    def update(self) -> None:
        """Draws what is being done now, if that takes long and was not just drawn."""
        now = monotonic()
        if now - self._steps._started < SECONDS or now - self._drawn < REDRAWN:
            return
        self._drawn = now
        self._write(f"{self._steps.text}  {self._steps.count}  {self._steps.times}")

    def _write(self, text: str) -> None:
        display = import_module("IPython.display").display  # a notebook has it, and no package of ours needs it

        data = {"text/plain": text}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def stop(self) -> None:
        """Erases the line."""
        if self._handle is not None:
            self._write("")


@contextmanager
def shown(names: Sequence[str], *, quiet: bool, alike: bool = False) -> Iterator[WorkSteps]:
    """Shows the steps of work that takes longer than SECONDS, unless `quiet`, or if standard error is no terminal.

    Output on standard output has to wait until the end.
    """
    steps = WorkSteps(names, alike=alike)
    if quiet or not names or sys.stderr is None or not sys.stderr.isatty():
        yield steps
        return
    terminal = os.dup(sys.stderr.fileno())  # standard error is redirected while a program is read
    timer = Timer(SECONDS, steps._show, (lambda steps: _TerminalLine(steps, terminal),))
    timer.daemon = True
    timer.start()
    try:
        yield steps
    finally:
        timer.cancel()
        steps._end()
        timer.join()
        os.close(terminal)


@contextmanager
def in_session(*names: str, alike: bool = False) -> Iterator[WorkSteps]:
    """The same for a call from Python: in a notebook's cell, or in an interactive session on a terminal, and nowhere else."""
    if not _is_notebook():
        with shown(names, quiet=not hasattr(sys, "ps1"), alike=alike) as steps:
            yield steps
        return
    steps = WorkSteps(names, alike=alike)
    steps._show(_NotebookLine)
    try:
        yield steps
    finally:
        steps._end()


def _is_notebook() -> bool:
    """Whether this process runs the cells of a notebook."""
    shell = sys.modules.get("IPython")
    return "ipykernel" in sys.modules and shell is not None and shell.get_ipython() is not None
