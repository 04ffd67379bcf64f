"""How much Python runs: a number that says the same on every machine, however busy it is, where seconds do not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_run(function: Callable[[], object]) -> int:
    """How many lines of Python ``function`` runs, those of all that it calls among them; what is not Python counts as its line.

    Whoever traced before, such as a debugger, sees nothing of the call and goes on after it.
    """
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count
