"""optax's contrib optimisers: the state that each keeps of parameters which are sharded as FSDP."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax import contrib

from testdata.codebases.mesh import STEPS, fsdp, mesh_of, numbers, on


def _train(optimizer: Any, *, again: bool = False) -> Any:
    """Three steps of a regression under an optimiser, whose state is created under jit as the parameters are sharded. The
    optimiser is given the loss, or a function that computes gradients `again`."""
    mesh = mesh_of(data=8)
    shapes = {"first": (32, 64), "offset": (64,), "second": (64, 64), "third": (64, 8)}
    params = {name: numbers(*shape, seed=index) / 8 for index, (name, shape) in enumerate(shapes.items())}
    params = jax.tree.map(fsdp(mesh), params)
    state = jax.jit(optimizer.init)(params)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        hidden = jnp.tanh(x @ params["first"] + params["offset"])
        return jnp.mean((jnp.tanh(hidden @ params["second"]) @ params["third"] - y) ** 2)

    @jax.jit
    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss_of)(params, x, y)
        more = {"grad_fn": lambda params, _: jax.grad(loss_of)(params, x, y)} if again else {"value": value}
        if not isinstance(optimizer, optax.GradientTransformationExtraArgs):
            more = {}
        updates, state = optimizer.update(gradients, state, params, **more)
        return optax.apply_updates(params, updates), state, value

    losses = []
    for turn in range(STEPS):
        params, state, value = step(params, state, *on(mesh, (numbers(64, 32, seed=turn), numbers(64, 8, seed=turn)), "data"))
        losses.append(value)
    return losses, params


def muon() -> Any:
    """Newton-Schulz iterations of products of whole matrices."""
    return _train(contrib.muon(0.1))


def prodigy() -> Any:
    """Inner products over all parameters."""
    return _train(contrib.prodigy(1.0))


def mechanic() -> Any:
    """A learning rate tuned around another optimiser."""
    return _train(contrib.mechanize(optax.sgd(0.1)))


def sam() -> Any:
    """A gradient at a neighbouring point, within the update."""
    inner = optax.chain(contrib.normalize(), optax.sgd(0.05))
    return _train(contrib.sam(optax.sgd(0.1), inner, sync_period=2, opaque_mode=True), again=True)


def schedule_free() -> Any:
    """Averages of the parameters instead of a schedule."""
    return _train(contrib.schedule_free_sgd(0.1, warmup_steps=2))


def dog() -> Any:
    """Distances over gradients."""
    return _train(contrib.dog(1.0))


def momo() -> Any:
    """A step by the value of the loss."""
    return _train(contrib.momo(0.5))


def ademamix() -> Any:
    """Two momenta of each parameter."""
    return _train(contrib.ademamix(1e-2, eps=1e-3))


def reduce_on_plateau() -> Any:
    """A step that shrinks where the loss does not."""
    return _train(optax.chain(optax.sgd(0.1), contrib.reduce_on_plateau(patience=0, cooldown=0)))


def cocob() -> Any:
    """Coin betting."""
    return _train(contrib.cocob())
