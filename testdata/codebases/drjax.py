"""drjax: federated averaging, whose placement of clients is an axis of the mesh."""

from __future__ import annotations

from typing import Any

import drjax
import jax
import jax.numpy as jnp

from testdata.codebases.mesh import STEPS, mesh_of, numbers, on


def federated_averaging() -> Any:
    """Local steps of each client, whose models are averaged by `drjax.reduce_mean`, and a gradient through all of it."""
    mesh = mesh_of(clients=8)

    @drjax.program(placements={"clients": 16})
    def round_of(model: Any, data: Any, rate: Any) -> Any:
        def local(model: Any, data: Any) -> Any:
            def loss_of(model: Any, batch: Any) -> Any:
                x, y = batch
                return jnp.mean((jnp.tanh(x @ model["in"]) @ model["out"] - y) ** 2)

            def step(model: Any, batch: Any) -> Any:
                loss, gradient = jax.value_and_grad(loss_of)(model, batch)
                return jax.tree.map(lambda each, by: each - rate * by, model, gradient), loss

            model, losses = jax.lax.scan(step, model, data)
            return model, losses.mean()

        models, losses = drjax.map_fn(local, (drjax.broadcast(model), data))
        return drjax.reduce_mean(models), drjax.reduce_mean(losses)

    model = {"in": jnp.asarray(numbers(16, 32)) / 4, "out": jnp.asarray(numbers(32, 4, seed=1)) / 8}
    losses = []
    with jax.set_mesh(mesh):
        for turn in range(STEPS):
            data = on(mesh, (numbers(16, 4, 8, 16, seed=turn), numbers(16, 4, 8, 4, seed=turn)), "clients")
            model, loss = jax.jit(round_of)(model, data, 0.1)
            losses.append(loss)
        slope = jax.jit(jax.grad(lambda rate, model, data: round_of(model, data, rate)[1]))(0.1, model, data)
    return losses, model, slope
