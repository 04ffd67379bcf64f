"""blackjax: chains along devices, and data along devices under one chain."""

from __future__ import annotations

from typing import Any

import blackjax
import jax
import jax.numpy as jnp

from testdata.codebases.mesh import mesh_of, numbers, on


def _density(x: Any, y: Any, position: Any) -> Any:
    miss = y - x @ position["weights"]
    scale = jnp.exp(position["log_scale"])
    return -0.5 * jnp.sum((miss / scale) ** 2) - len(y) * position["log_scale"] - 0.5 * jnp.sum(position["weights"] ** 2)


def chains() -> Any:
    """Eight chains of NUTS, one for each device, in the library's loop of a scan."""
    mesh = mesh_of(chain=8)
    x, y = numbers(64, 4), numbers(64, seed=1)
    nuts = blackjax.nuts(lambda position: _density(x, y, position), 0.05, jnp.ones(5))
    positions = on(mesh, {"weights": numbers(8, 4, seed=2), "log_scale": numbers(8, seed=3)}, "chain")
    states = jax.jit(jax.vmap(nuts.init))(positions)

    @jax.jit
    def sample(key: Any, states: Any) -> Any:
        def step(states: Any, key: Any) -> Any:
            states, info = jax.vmap(nuts.step)(jax.random.split(key, 8), states)
            return states, (states.position, info.acceptance_rate)

        return jax.lax.scan(step, states, jax.random.split(key, 4))

    return sample(jax.random.key(0), states)


def data() -> Any:
    """Hamiltonian Monte Carlo whose density sums over data that are sharded, with the library's window adaptation."""
    mesh = mesh_of(data=8)
    x, y = on(mesh, (numbers(256, 4), numbers(256, seed=1)), "data")
    start = {"weights": jnp.zeros(4), "log_scale": jnp.zeros(())}

    @jax.jit
    def sample(key: Any, x: Any, y: Any) -> Any:
        warmup = blackjax.window_adaptation(blackjax.hmc, lambda position: _density(x, y, position), num_integration_steps=4)
        (state, parameters), _ = warmup.run(key, start, 20)
        kernel = blackjax.hmc(lambda position: _density(x, y, position), **parameters).step
        return jax.lax.scan(lambda state, key: (kernel(key, state)[0],) * 2, state, jax.random.split(key, 4))[1].position

    return sample(jax.random.key(0), x, y)
