"""haliax: `named_jit` over named axes, whose resources are axes of the mesh."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import haliax as hax
import jax
import optax
from haliax.partitioning import set_mesh

from testdata.codebases.mesh import STEPS, mesh_of, numbers

Batch, In, Hidden, Out = hax.make_axes(batch=64, features=32, hidden=64, out=8)


class _Network(eqx.Module):
    layers: Any
    first: Any
    last: Any

    def __init__(self, key: Any) -> None:
        first, second, third = jax.random.split(key, 3)
        self.first = hax.nn.Linear.init(In, Hidden, key=first)
        blocks = hax.Axis("block", 3)
        self.layers = hax.nn.Stacked.init(blocks, _Block, gradient_checkpointing=True)(key=jax.random.split(second, 3))
        self.last = hax.nn.Linear.init(Hidden, Out, key=third)

    def __call__(self, x: Any) -> Any:
        return self.last(self.layers.fold(hax.nn.gelu(self.first(x))))


class _Block(eqx.Module):
    inner: Any
    norm: Any

    @staticmethod
    def init(*, key: Any) -> _Block:
        return _Block(hax.nn.Linear.init(Hidden, Hidden.alias("hidden2"), key=key), hax.nn.LayerNorm.init(Hidden))

    def __call__(self, x: Any) -> Any:
        return x + hax.nn.relu(self.inner(self.norm(x))).rename({"hidden2": "hidden"})


def named() -> Any:
    """A network whose layers are stacked under a scan, parameters sharded one way and computations another."""
    mesh = mesh_of(data=2, model=4)
    compute, stored = {"batch": "data", "hidden2": "model"}, {"features": "data", "hidden2": "model"}
    optimizer = optax.sgd(0.1)

    @hax.named_jit(axis_resources=stored)
    def create(key: Any) -> Any:
        return hax.shard(_Network(key), stored)

    @hax.named_jit(axis_resources=stored, donate_args=(True, False, False))
    def step(model: Any, x: Any, y: Any) -> Any:
        @eqx.filter_value_and_grad
        def loss_of(model: Any) -> Any:
            with hax.axis_mapping(compute):
                return hax.mean((hax.auto_sharded(model(x)) - y) ** 2).scalar()

        loss, gradients = loss_of(model)
        updates, _ = optimizer.update(gradients, optimizer.init(eqx.filter(model, eqx.is_array)))
        return hax.shard(eqx.apply_updates(model, updates), stored), loss

    losses = []
    with set_mesh(mesh), hax.axis_mapping(stored):
        model = create(jax.random.key(0))
        for turn in range(STEPS):
            x, y = (hax.named(numbers(64, axis.size, seed=turn), (Batch, axis)) for axis in (In, Out))
            model, loss = step(model, hax.shard(x, compute), hax.shard(y, compute))
            losses.append(loss)
    return losses, model
