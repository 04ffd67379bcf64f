"""Says what a training step of two layers communicates, which line and which module of it are to blame, and what to change.

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
    """Rows of `x` are split over `data`; the first layer over `model`."""
    with jax.named_scope("hidden"):  # libraries of layers name their modules in the same way
        hidden = jnp.tanh(x @ weights[0])
    with jax.named_scope("head"):
        return jnp.square(hidden @ weights[1]).mean()


def step(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    first, second = jax.grad(loss)(weights, x)
    return weights[0] - 0.1 * first, weights[1] - 0.1 * second


def main() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    columns, whole, batch = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((None, "model"), (), ("data",)))
    jitted = jax.jit(step, in_shardings=((columns, whole), batch), out_shardings=(columns, whole))
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((128, 512), (512, 2048), (512, 128))]
    report = meshbridge.report(export.export(jitted)(tuple(shapes[:2]), shapes[2]), suggest=2)

    by_line: dict[int, float] = defaultdict(float)
    for collective in report.collectives:
        for origin in collective.origins:  # several if it stands for several
            by_line[origin.location.line] += collective.total_bytes * origin.share
        print(f"{collective.kind} over {', '.join(collective.axes)}: {collective.total_bytes:,.0f} bytes")
        print(f"    {collective.why} ({collective.asked})")
    worst = max(by_line, key=lambda line: by_line[line])
    print(f"Line {worst} sends the most, {by_line[worst]:,.0f} of {report.wire_bytes:,.0f} bytes per device.")
    for module in report.modules.walk():
        print(f"{'/'.join(module.path) or 'The program'}: {module.share:.0%} of the bytes")
    for suggestion in report.suggestions:
        saved = 1 - suggestion.wire_bytes / report.wire_bytes
        print(f"To send {saved:.0%} less, with {suggestion.peak_bytes / report.peak_bytes - 1:+.0%} memory: {suggestion.change}")
    assert report.redundant_work is not None
    print(f"Computed twice: {report.redundant_work.contractions:,.0f} of {report.work.contractions:,.0f} FLOPs per device.")
    print(f"Memory per device: about {report.memory.peak:,.0f} bytes.")
    assert sum(report.bytes_by_kind().values()) == report.wire_bytes


if __name__ == "__main__":
    main()
