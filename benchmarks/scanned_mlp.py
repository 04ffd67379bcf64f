"""Writes the scanned MLP of docs/notes/experiments.md: as wide as a llama of 70 billion parameters.

From the repository's root: `python -m benchmarks.scanned_mlp OUT.jax_export [--mesh 16x4] [--layers 80] [--sequences 4]
[--ungated] [--platform tpu]`. A training step of gated layers, 8,192 x 28,672 in bfloat16, under `lax.scan` and `jax.checkpoint`:
parameters fully sharded over the first axis and tensor-parallel over the second, four sequences of 2,048 tokens for each device
of the first. Layers that are `--ungated` have two products, not three. Nothing runs: `meshbridge compare OUT.jax_export
--target tpu:v5p:4x4x4 --compiler-options best` compiles it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jax.export import Exported

WIDTH, HIDDEN, TOKENS = 8192, 28672, 2048


def exported(mesh_shape: tuple[int, int], layers: int, sequences: int, *, gated: bool, platform: str) -> Exported:
    """The step: parameters and activations are given, updated parameters come out, written over those that were given."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    mesh = jax.make_mesh(mesh_shape, ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def sharded(*spec: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*spec))

    def held(value: jax.Array, *spec: str | None) -> jax.Array:
        return jax.lax.with_sharding_constraint(value, sharded(*spec))

    def layer(x: jax.Array, weights: Any) -> tuple[jax.Array, None]:
        *gate, up, down = weights
        x = held(x, "data", None, None)
        hidden = held(jax.nn.silu(x @ gate[0]) * (x @ up) if gated else jax.nn.silu(x @ up), "data", None, "model")
        return held(x + hidden @ down, "data", None, None), None

    def loss(weights: Any, x: jax.Array) -> jax.Array:
        result, _ = jax.lax.scan(jax.checkpoint(layer), x, weights)
        return jnp.mean(result.astype(jnp.float32) ** 2)

    def step(weights: Any, x: jax.Array) -> Any:
        gradients = jax.grad(loss)(weights, x)
        return jax.tree.map(lambda weight, gradient: weight - 0.01 * gradient.astype(weight.dtype), weights, gradients)

    into = 2 if gated else 1
    shapes = [*[(layers, WIDTH, HIDDEN)] * into, (layers, HIDDEN, WIDTH)]
    weights = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    shardings = (*(sharded(None, "data", "model") for _ in range(into)), sharded(None, "model", "data"))
    x = jax.ShapeDtypeStruct((sequences * mesh_shape[0], TOKENS, WIDTH), jnp.bfloat16)
    jitted = jax.jit(step, in_shardings=(shardings, sharded("data")), out_shardings=shardings, donate_argnums=0)
    return jax.export.export(jitted, platforms=(platform,))(weights, x)


def main() -> None:
    """Writes the program; the file appears whole or not at all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--mesh", default="16x4", help="devices along the two axes (default: 16x4)")
    parser.add_argument("--layers", type=int, default=80)
    parser.add_argument("--sequences", type=int, default=4, help="for each device of the first axis (default: 4)")
    parser.add_argument("--ungated", action="store_true", help="two products in a layer")
    parser.add_argument("--platform", choices=["cpu", "cuda", "tpu"], default="tpu")
    options = parser.parse_args()
    data, model = map(int, options.mesh.split("x"))
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={data * model}"
    beside = options.output.with_suffix(".partly")
    step = exported((data, model), options.layers, options.sequences, gated=not options.ungated, platform=options.platform)
    beside.write_bytes(step.serialize())
    beside.replace(options.output)


if __name__ == "__main__":
    main()
