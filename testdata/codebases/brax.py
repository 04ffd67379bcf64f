"""brax: environments along 8 devices, and the step of its own PPO loss on what they give."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from brax import envs
from brax.training import gradients, types
from brax.training.agents.ppo import losses as ppo_losses
from brax.training.agents.ppo import networks as ppo_networks
from brax.training.acting import generate_unroll

from testdata.codebases.mesh import mesh_of, on


def ppo() -> Any:
    """Rollouts and gradient steps of proximal policy optimisation in an inverted pendulum, by the library's parts."""
    mesh = mesh_of(data=8)
    environment = envs.training.wrap(envs.get_environment("inverted_pendulum", backend="generalized"), episode_length=32)
    networks = ppo_networks.make_ppo_networks(environment.observation_size, environment.action_size)
    policy_of = ppo_networks.make_inference_fn(networks)
    first, second, third, fourth = jax.random.split(jax.random.PRNGKey(0), 4)
    params = ppo_losses.PPONetworkParams(policy=networks.policy_network.init(first), value=networks.value_network.init(second))
    params = on(mesh, params)
    optimizer = optax.sgd(1e-2)
    loss_of = functools.partial(ppo_losses.compute_ppo_loss, ppo_network=networks, entropy_cost=1e-2)
    update = gradients.loss_and_pgrad(loss_of, None, has_aux=True)

    @jax.jit
    def step(params: Any, state: Any, key: Any) -> Any:
        acting, losing = jax.random.split(key)
        policy = policy_of((None, params.policy, params.value))
        state, data = generate_unroll(environment, state, policy, acting, 8, extra_fields=("truncation",))
        data = jax.tree.map(lambda each: jnp.swapaxes(each, 0, 1), data)
        (loss, _), gradient = update(params, None, data, losing)
        updates, _ = optimizer.update(gradient, optimizer.init(params))
        return optax.apply_updates(params, updates), state, loss

    state = jax.jit(environment.reset)(on(mesh, jax.random.split(third, 16), "data"))
    losses = []
    for key in jax.random.split(fourth, 2):
        params, state, loss = step(params, state, key)
        losses.append(loss)
    return losses, params, state.obs
