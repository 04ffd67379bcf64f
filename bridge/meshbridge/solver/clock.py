"""The clocks that count the seconds of the solver."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

Clock = Callable[[], float]
"""Seconds since some moment: `time.monotonic`, or `time.process_time` for seconds of the processor."""


@final
@dataclass
class Work:
    """A clock that counts work: each call takes so many `seconds`.

    A search reads its clock after each trial, each round of the solver and each region that the solver improves. So it returns
    the same result on every machine, whatever the load.
    """

    seconds: float = 1 / 16
    nodes: int = 1
    "The number of nodes after which HiGHS stops, which only knows its own clock."
    now: float = 0.0

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


WALL: Clock = time.monotonic
"""Seconds of wall time."""
