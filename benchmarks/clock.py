"""What a call takes, and what Shardy's own propagation takes on the same program.

It imports no JAX: processes that are to be small and new measure with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from meshbridge.ir import mlir

REPEATS = 3
"""Times are the shortest of so many runs, where it is not the first that counts."""


@dataclass(frozen=True, order=True)
class Spent:
    """Seconds that passed, and seconds that this process computed: what is left of the former where nothing else runs."""

    wall: float
    cpu: float


def shortest(run: Callable[[], Any], repeats: int = REPEATS) -> tuple[Any, Spent]:
    """The last result of `run`, and what its fastest run took."""
    times = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        result = run()
        times.append(Spent(time.perf_counter() - wall, time.process_time() - cpu))
    return result, min(times)


def sdy_propagation(text: str) -> Spent:
    """What Shardy's own `sdy-propagation-pipeline` alone takes on a module: the price of a C++ propagation.

    It runs as MLIR's pass manager runs any pipeline, with the module verified after each pass: ours verifies, too.
    """
    times = []
    for _ in range(REPEATS):
        module = mlir.parse(text, "program.mlir", mlir.context())
        with module.context:
            manager = mlir.passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)")
            times.append(shortest(partial(manager.run, module.operation), repeats=1)[1])
    return min(times)
