"""What the seconds of a search are of."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

Clock = Callable[[], float]
"""Seconds since some moment, such as `time.monotonic` or, for those of the processor, `time.process_time`."""


@final
@dataclass
class Work:
    """A clock that counts work: each look at it takes so many `seconds`.

    A search looks at its clock after each trial, each round of the solver and each region that this improves. So it finds the
    same on every machine, whatever else that does.
    """

    seconds: float = 1 / 16
    nodes: int = 1
    "After so many HiGHS ends, which knows no clock but its own."
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


WALL: Clock = time.monotonic
"""Seconds of the wall."""


def usual() -> Clock:
    """The clock of a search that is given none. Tests put another function in its place, which counts work."""
    return WALL
