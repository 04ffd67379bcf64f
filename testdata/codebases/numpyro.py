"""numpyro: chains and variational inference whose data are sharded, by the library's own `MCMC` and `SVI`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from testdata.codebases.mesh import mesh_of, numbers, on


def _regression(x: Any, y: Any) -> None:
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, spread), obs=y)


def _data() -> tuple[Any, Any]:
    x = numbers(256, 4)
    return x, x @ numbers(4, seed=1) + 0.1 * numbers(256, seed=2)


def nuts() -> Any:
    """Four chains of NUTS, vectorised, on data along 8 devices."""
    mcmc = MCMC(NUTS(_regression), num_warmup=8, num_samples=8, num_chains=4, chain_method="vectorized", progress_bar=False)
    mcmc.run(jax.random.key(0), *on(mesh_of(data=8), _data(), "data"), extra_fields=("potential_energy",))
    return mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields()


def svi() -> Any:
    """Steps of variational inference by `SVI.update`, jitted as users do."""
    data = on(mesh_of(data=8), _data(), "data")
    svi = SVI(_regression, AutoNormal(_regression), numpyro.optim.SGD(1e-4), Trace_ELBO(num_particles=2))
    state = svi.init(jax.random.key(0), *data)
    losses = []
    for _ in range(3):
        state, loss = jax.jit(svi.update)(state, *data)
        losses.append(loss)
    return losses, svi.get_params(state)
