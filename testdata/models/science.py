"""Graphs, symmetries, physics and differential equations: jraph, e3nn, brax, diffrax."""

from __future__ import annotations

from typing import Any

import diffrax
import e3nn_jax as e3nn
import haiku as hk
import jax
import jax.numpy as jnp
import jraph
from brax import envs

from testdata.models.model import Model, numbers, training

KEY = jax.random.key(0)


def _graph(network: Any, parameters: Any) -> Model:
    nodes, edges = numbers(256, 32), 1024
    senders, receivers = jnp.arange(edges) % 256, jnp.arange(edges) * 7 % 256

    def loss(parameters: Any, batch: Any) -> Any:
        nodes, senders, receivers = batch
        count = jnp.array([nodes.shape[0]]), jnp.array([senders.shape[0]])
        graph = jraph.GraphsTuple(nodes, jnp.ones((edges, 8)), receivers, senders, jnp.ones((1, 8)), *count)
        return jnp.mean(network(parameters)(graph).nodes ** 2)

    return training(loss, parameters, (nodes, senders, receivers))


def _convolution() -> Model:
    def network(parameters: Any) -> Any:
        first, second = parameters
        one = jraph.GraphConvolution(lambda x: jax.nn.relu(x @ first), symmetric_normalization=True)
        two = jraph.GraphConvolution(lambda x: x @ second)
        return lambda graph: two(one(graph))

    return _graph(network, (0.1 * numbers(32, 128), 0.1 * numbers(128, 64)))


def _network() -> Model:
    def network(parameters: Any) -> Any:
        edge, node = parameters
        return jraph.GraphNetwork(
            lambda edges, sent, received, _: jax.nn.relu(jnp.concatenate([edges, sent, received], -1) @ edge),
            lambda nodes, sent, received, _: jax.nn.relu(jnp.concatenate([nodes, sent, received], -1) @ node),
        )

    return _graph(network, (0.1 * numbers(8 + 64, 64), 0.1 * numbers(32 + 128, 64)))


def _equivariant() -> Model:
    hidden = e3nn.Irreps("16x0e + 16x1o")

    def network(positions: Any, senders: Any, receivers: Any) -> Any:
        towards = e3nn.IrrepsArray("1o", positions[receivers] - positions[senders])
        shape = e3nn.spherical_harmonics("0e + 1o + 2e", towards, True)
        x = e3nn.IrrepsArray("8x0e", jnp.ones((positions.shape[0], 8)))
        for _ in range(2):
            message = e3nn.tensor_product(e3nn.haiku.Linear(hidden)(x)[senders], shape).filter(hidden)
            gathered = e3nn.index_add(receivers, e3nn.haiku.Linear(hidden)(message), out_dim=positions.shape[0])
            x = e3nn.haiku.Linear(hidden)(e3nn.norm_activation(gathered, [jax.nn.gelu, jax.nn.gelu]))
        return e3nn.haiku.Linear("0e")(x).array.sum()

    transformed = hk.without_apply_rng(hk.transform(network))
    batch = (jax.random.normal(KEY, (128, 3)), jnp.arange(1024) % 128, jnp.arange(1024) * 7 % 128)

    def loss(parameters: Any, batch: Any) -> Any:
        energy, forces = jax.value_and_grad(transformed.apply, 1)(parameters, *batch)
        return energy**2 + jnp.mean(forces**2)

    return training(loss, transformed.init(KEY, *batch), batch)


def _physics(name: str) -> Model:
    env = envs.get_environment(name, backend="positional")
    states = jax.vmap(env.reset)(jax.random.split(KEY, 64))

    def step(policy: Any, batch: Any) -> Any:
        def once(states: Any, _: Any) -> Any:
            actions = jnp.tanh(states.obs @ policy)
            return jax.vmap(env.step)(states, actions), states.reward

        states, rewards = jax.lax.scan(once, batch, None, length=4)
        return states, rewards.mean()

    return Model(step, jnp.ones((env.observation_size, env.action_size)), states)


def _equation() -> Model:
    """Fits the field of an ordinary differential equation to where its solutions end."""

    def field(time: Any, state: Any, parameters: Any) -> Any:
        into, out_of = parameters
        return jnp.tanh(state @ into) @ out_of

    def end(parameters: Any, start: Any) -> Any:
        times = {"t0": 0.0, "t1": 1.0, "dt0": 0.125, "max_steps": 16}
        found = diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Tsit5(), **times, y0=start, args=parameters, throw=False
        )  # what it throws, it throws by a call of Python
        return found.ys[0]

    def loss(parameters: Any, batch: Any) -> Any:
        starts, ends = batch
        return jnp.mean((jax.vmap(lambda start: end(parameters, start))(starts) - ends) ** 2)

    return training(loss, (0.1 * numbers(32, 128), 0.1 * numbers(128, 32)), (numbers(64, 32), numbers(64, 32)))


MODELS = {
    "jraph_convolution": _convolution,
    "jraph_network": _network,
    "e3nn_forces": _equivariant,
    "brax_ant": lambda: _physics("ant"),
    "brax_inverted_pendulum": lambda: _physics("inverted_pendulum"),
    "diffrax_equation": _equation,
}
