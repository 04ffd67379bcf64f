"""Runs what `emit="shard_map"` writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def run(text: str, values: Sequence[Any]) -> list[np.ndarray]:
    """The results of the file's `main` for these arguments."""
    defined: dict[str, Any] = {}
    exec(compile(text, "program.py", "exec"), defined)
    found = defined["main"](*values)
    return [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]
