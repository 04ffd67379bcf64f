"""Probabilistic programs: numpyro, tinygp, distrax, blackjax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import blackjax
import distrax
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import tinygp
from numpyro.infer.util import initialize_model

from testdata.models.model import Model, integers, numbers, training


def _numpyro(model: Callable[[Any], None], batch: Any) -> Model:
    """Gradient steps on a model's potential energy."""
    found = initialize_model(jax.random.key(0), model, model_args=(batch,), dynamic_args=True)
    return training(lambda z, batch: found.potential_fn(batch)(z), found.param_info.z, batch)


def _regression(batch: Any) -> None:
    weights = numpyro.sample("weights", dist.Normal(0, jnp.ones((64, 16))).to_event(2))
    more = numpyro.sample("more", dist.Normal(0, jnp.ones(16)).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(jnp.tanh(batch[0] @ weights) @ more, spread).to_event(1), obs=batch[1])


def _mixture(batch: Any) -> None:
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(8)))
    centres = numpyro.sample("centres", dist.Normal(0, jnp.ones((8, 4))).to_event(2))
    parts = dist.Independent(dist.Normal(centres, 1.0), 1)
    with numpyro.plate("points", batch.shape[0]):
        numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(shares), parts), obs=batch)


def _hidden_markov(batch: Any) -> None:
    changes = numpyro.sample("changes", dist.Dirichlet(jnp.ones((16, 16))).to_event(1))
    shown = numpyro.sample("shown", dist.Dirichlet(jnp.ones((16, 32))).to_event(1))

    def forward(before: Any, seen: Any) -> Any:
        return jax.nn.logsumexp(before[:, :, None] + jnp.log(changes), 1) + jnp.log(shown).T[seen], None

    last, _ = jax.lax.scan(forward, jnp.zeros((batch.shape[0], 16)), batch.T)
    numpyro.factor("likelihood", jax.nn.logsumexp(last, -1).sum())


def _gaussian_process() -> Model:
    def loss(scales: Any, batch: Any) -> Any:
        kernel = jnp.exp(scales[0]) * tinygp.kernels.Matern52(jnp.exp(scales[1]))
        return -tinygp.GaussianProcess(kernel, batch[0], diag=0.1).log_probability(batch[1])

    return training(loss, jnp.zeros(2), (jnp.linspace(0, 1, 256), numbers(256)))


def _spline_flow() -> Model:
    mask = jnp.arange(16) % 2 == 0

    def loss(parameters: Any, x: Any) -> Any:
        total, base = 0.0, x
        for first, second in parameters:

            def conditioner(known: Any, first: Any = first, second: Any = second) -> Any:
                return (jax.nn.relu(known @ first) @ second).reshape(*known.shape, 25)

            layer = distrax.MaskedCoupling(mask, conditioner, lambda p: distrax.RationalQuadraticSpline(p, -3.0, 3.0))
            base, apart = layer.inverse_and_log_det(base)
            total += apart
        return -jnp.mean(total + distrax.MultivariateNormalDiag(jnp.zeros(16)).log_prob(base))

    keys = jax.random.split(jax.random.key(0), 4)
    parameters = [(0.1 * jax.random.normal(k, (16, 64)), 0.1 * jax.random.normal(k, (64, 400))) for k in keys[:2]]
    return training(loss, parameters, numbers(256, 16))


def _chains() -> Model:
    def energy(data: Any) -> Callable[[Any], Any]:
        return lambda w: -jnp.sum(jnp.logaddexp(0.0, data @ w)) - jnp.sum(w**2)

    def step(data: Any, batch: Any) -> Any:
        kernel = blackjax.hmc(energy(data), 1e-2, jnp.ones(32), 8)

        def one(position: Any, seed: Any) -> Any:
            return kernel.step(jax.random.key(seed), kernel.init(position))[0].position

        return jax.vmap(one)(*batch)

    return Model(step, numbers(128, 32), (jnp.zeros((64, 32)), jnp.arange(64)))


MODELS = {
    "numpyro_regression": lambda: _numpyro(_regression, (numbers(512, 64), numbers(512))),
    "numpyro_mixture": lambda: _numpyro(_mixture, numbers(512, 4)),
    "numpyro_hidden_markov": lambda: _numpyro(_hidden_markov, integers(32, 64, 32)),
    "tinygp_regression": _gaussian_process,
    "distrax_spline_flow": _spline_flow,
    "blackjax_hmc": _chains,
}
