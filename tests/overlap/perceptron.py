"""A perceptron whose products stand beside collectives, and its training step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from meshbridge.ir.mlir import find, ir

P = PartitionSpec


def mlp(weights: Any, x: Any, *, constrain: Any = lambda value, *_: value) -> Any:
    """The loss of an MLP whose tokens are sharded along "model" between products."""
    gate, up, down = weights
    x = constrain(jnp.tanh(x), ("data", "model"), None)
    middle = constrain(jnp.tanh(x @ gate) * (x @ up), "data", "model")
    return (constrain(middle @ down, ("data", "model"), None).astype(jnp.float32) ** 2).sum()


def training_step(mesh: jax.sharding.Mesh, tokens: int, width: int, hidden: int, dtype: Any, loss: Any = mlp) -> Any:
    """Gradients of an MLP whose weights are sharded along "model", with the constraints of `loss` and without; and arguments."""

    def pinned(value: Any, *spec: Any) -> Any:
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P(*spec)))

    specs = ((P(None, "model"), P(None, "model"), P("model", None)), P(("data", "model")))
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = [(width, hidden), (width, hidden), (hidden, width), (tokens, width)]
    *weights, x = (0.3 * jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))

    def sharded(weights: Any, x: Any) -> Any:
        return jax.grad(lambda weights, x: loss(weights, x, constrain=pinned), (0, 1))(weights, x)

    jitted = jax.jit(sharded, in_shardings=shardings, out_shardings=shardings)
    return jitted, jax.grad(loss, (0, 1)), (tuple(weights), x)


def counted(module: ir.Module, *names: str) -> Counter[str]:
    """How many operations have each of `names`."""
    return Counter(op.name for op in find(module.operation, names))
