"""How long a call of `meshbridge.jit` takes beside one of `jax.jit`: python -m benchmarks.calls

A step that scales a tree of arrays and donates it, on 1 and on 8 virtual devices. The time is that until the call returns, before
the devices are done: the calls of both take turns, and the medians are printed.
"""

from __future__ import annotations

import os
import time
from statistics import median

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.text import table

WARM, CALLS = 20, 200


def _measured(leaves: int, devices: int) -> tuple[float, float]:
    """Microseconds of a call of `jax.jit` and of `meshbridge.jit`."""
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    rows = NamedSharding(mesh, P("data"))
    steps = [make(lambda tree: jax.tree.map(lambda x: x * 1.001, tree), donate_argnums=0) for make in (jax.jit, meshbridge.jit)]
    states = [{str(leaf): jax.device_put(np.ones((16, 8), np.float32), rows) for leaf in range(leaves)} for _ in steps]
    times: list[list[float]] = [[], []]
    for _ in range(WARM + CALLS):
        for number, step in enumerate(steps):
            started = time.perf_counter()
            states[number] = step(states[number])
            times[number].append(time.perf_counter() - started)
            jax.block_until_ready(states[number])
    jax_jit, ours = (median(each[WARM:]) * 1e6 for each in times)
    return jax_jit, ours


def main() -> None:
    rows = [("arrays", "devices", "jax.jit", "meshbridge.jit", "ratio")]
    for leaves in (1, 100):
        for devices in (1, 8):
            theirs, ours = _measured(leaves, devices)
            rows.append((str(leaves), str(devices), f"{theirs:.0f} µs", f"{ours:.0f} µs", f"{ours / theirs:.2f}"))
    print(table(rows, left=()))


if __name__ == "__main__":
    main()
