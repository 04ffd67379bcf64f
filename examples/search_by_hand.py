"""A search for shardings as the RFC describes it: measure, mutate the sharding option of an operation, measure again.

python examples/search_by_hand.py
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import meshbridge


def mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
    return jnp.tanh(x @ up) @ down


def seconds(report: meshbridge.Report) -> float:
    """What is minimised: the time of a device of 50 GB/s, 2 us for a collective, and 1 TFLOP/s, if nothing overlaps."""
    return report.wire_bytes / 50e9 + report.executions * 2e-6 + report.work.contractions / 1e12


def search(program: meshbridge.Program) -> meshbridge.Program:
    """Takes the best mutation of any product, again and again, until none is better."""
    best = meshbridge.report(program)
    while True:
        tried = []
        for operation in meshbridge.operations(program):
            for option in operation.options() if operation.name == "stablehlo.dot_general" else ():
                mutated = meshbridge.mutate(program, mutations=[meshbridge.Mutation(option, index=operation.index)])
                tried.append((meshbridge.report(mutated), mutated, operation, option))
        report, mutated, operation, option = min(tried, key=lambda each: seconds(each[0]))
        if seconds(report) >= seconds(best):
            return program
        print(f"{operation.name} at {operation.location.short} as {list(map(list, option))}: {1e6 * seconds(report):.1f} us")
        best, program = report, mutated


def main() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    batch = NamedSharding(mesh, PartitionSpec("data"))
    jitted = jax.jit(mlp, in_shardings=(batch, None, None))  # of the weights nothing is said
    arrays = [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((2, 512), (512, 8192), (8192, 512))]
    start = meshbridge.mutate(jitted, *arrays, mutations=())
    found = search(start)
    before, after = map(meshbridge.report, (start, found))
    print(f"{1e6 * seconds(before):.1f} us before, {1e6 * seconds(after):.1f} us after; the arguments are sharded as")
    print("    " + ", ".join(str(PartitionSpec(*(axes or None for axes in each.sharding))) for each in after.arguments))
    np.testing.assert_allclose(meshbridge.compile(found)(*arrays), mlp(*arrays), rtol=1e-3, atol=5e-2)
    assert seconds(after) < seconds(before)


if __name__ == "__main__":
    main()
