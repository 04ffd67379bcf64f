"""Several threads partition, compile and call at once."""

from __future__ import annotations

import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from tests.jitted.programs import W, X, check_same, on_one_device
from tests.patience import PATIENCE

THREADS = 4


@pytest.fixture(autouse=True)
def _often() -> Any:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def network(depth: int) -> Any:
    def function(x: jax.Array, w: jax.Array) -> Any:
        def loss(w: jax.Array) -> jax.Array:
            y = x
            for _ in range(depth):
                y = jnp.tanh(y @ w) @ w.T
            return (y**2).sum()

        return jax.grad(loss)(w)

    return function


def test_the_same_function_and_others(mesh: Mesh) -> None:
    shardings = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model"))
    jitted = [meshbridge.jit(network(depth), in_shardings=shardings) for depth in (1, 2, 3)]
    expected = [on_one_device(network(depth), X, W) for depth in (1, 2, 3)]

    def work(first: int) -> None:
        for turn in range(6):
            each = (first + turn) % 3
            check_same(jitted[each](X, W), expected[each])
            if not turn % 3:
                check_same(jax.jit(jitted[each])(X, W), expected[each])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    assert [each._cache_size() for each in jitted] == [1, 1, 1]


def test_plans_do_not_depend_on_threads(mesh: Mesh) -> None:
    """Also where plans are compared, and the warnings of each are looked through."""
    lowered = [jax.jit(network(depth), in_shardings=(NamedSharding(mesh, P("data")), None)).lower(X, W) for depth in (1, 2, 3)]

    def text(depth: int) -> str:
        return str(meshbridge.partition(lowered[depth], machine="h100:1x1x8"))

    before, handler = [text(depth) for depth in range(3)], warnings.showwarning
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(text, [depth % 3 for depth in range(2 * THREADS)]))
    assert found == [before[depth % 3] for depth in range(2 * THREADS)]
    assert warnings.showwarning is handler


def test_the_first_contexts_of_a_process() -> None:
    """Passes are registered once, by whichever thread comes first: MLIR ends a process that does so twice."""
    code = (
        "import sys, threading; sys.setswitchinterval(1e-6); from meshbridge.ir import mlir\n"
        "gate = threading.Barrier(8)\n"
        "threads = [threading.Thread(target=lambda: (gate.wait(), mlir.context())) for _ in range(8)]\n"
        "[each.start() for each in threads]; [each.join() for each in threads]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)
