"""Says what a training step of two layers communicates, and which line of it is to blame.

python examples/report.py
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from collections import defaultdict

import jax
import jax.numpy as jnp
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import meshbridge


def loss(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
    """Rows of `x` are split over `data`; the hidden layer over `model`."""
    hidden = jnp.tanh(x @ weights[0])
    return jnp.square(hidden @ weights[1]).mean()


def step(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    first, second = jax.grad(loss)(weights, x)
    return weights[0] - 0.1 * first, weights[1] - 0.1 * second


def main() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    columns, rows, batch = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((None, "model"), ("model",), ("data",)))
    jitted = jax.jit(step, in_shardings=((columns, rows), batch), out_shardings=(columns, rows))
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((128, 512), (512, 128), (64, 128))]
    report = meshbridge.report(export.export(jitted)(tuple(shapes[:2]), shapes[2]))

    by_line: dict[int, float] = defaultdict(float)
    for collective in report.collectives:
        by_line[collective.location.line] += collective.total_bytes
        print(f"{collective.kind} over {', '.join(collective.axes)}: {collective.total_bytes:,.0f} bytes")
        print(f"    {collective.why}")
    worst = max(by_line, key=lambda line: by_line[line])
    print(f"Line {worst} sends the most, {by_line[worst]:,.0f} of {report.wire_bytes:,.0f} bytes per device.")
    assert report.redundant_work is not None
    print(f"Computed twice: {report.redundant_work.contractions:,.0f} of {report.work.contractions:,.0f} FLOPs per device.")
    print(f"Memory per device: about {report.memory.peak:,.0f} bytes.")
    assert sum(report.bytes_by_kind().values()) == report.wire_bytes


if __name__ == "__main__":
    main()
