"""A mixture of experts as GShard writes it: tokens in groups, top-2 gating with a capacity, experts split over all devices."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program
from testdata.ring import Term

DEVICES, GROUPS, TOKENS, WIDTH, HIDDEN, EXPERTS, CAPACITY = 8, 8, 64, 256, 512, 8, 16
AXES = (("x", DEVICES),)
BY_FIRST = P("x", None, None)
DISPATCHED = EXPERTS * CAPACITY * WIDTH * 4 * GROUPS // DEVICES
"""Bytes of one device's [experts, groups, capacity, width]."""


def moe_forward(*, annotated: bool) -> Program:
    """The layer's output. Annotated: the experts' inputs and outputs are pinned to the experts' devices."""
    plan = (Term("all-to-all", DEVICES, DISPATCHED, 2, "tokens to their experts, and back"),)
    function = partial(forward, annotated=annotated)
    return Program("moe_fwd" if annotated else "moe_fwd_noannot", AXES, function, _arguments(), BY_FIRST, plan)


def moe_gradient() -> Program:
    """A loss on the annotated layer's output, and the gradients of everything."""
    arguments = _arguments()
    plan = (
        Term("all-to-all", DEVICES, DISPATCHED, 4, "tokens to their experts and back, forward and backward"),
        Term("all-reduce", DEVICES, arguments[1].bytes, 1, "the router's gradient"),
    )
    out_specs = (P(), tuple(argument.spec for argument in arguments))
    return Program("moe_grad", AXES, _gradients, arguments, out_specs, plan)


def _arguments() -> tuple[Argument, ...]:
    return (
        Argument((GROUPS, TOKENS, WIDTH), BY_FIRST),
        Argument((WIDTH, EXPERTS), P(), WIDTH**-0.5),
        Argument((EXPERTS, WIDTH, HIDDEN), BY_FIRST, WIDTH**-0.5),
        Argument((EXPERTS, HIDDEN, WIDTH), BY_FIRST, HIDDEN**-0.5),
    )


def forward(x: jax.Array, router: jax.Array, into: jax.Array, out_of: jax.Array, *, annotated: bool) -> jax.Array:
    """[groups, tokens, width] to the same; a token that finds both its experts full comes out as zero."""

    def pinned(experts: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(experts, P("x", None, None, None)) if annotated else experts

    combine = combine_weights(jax.nn.softmax(x @ router), CAPACITY)
    experts = pinned(jnp.einsum("gsec,gsd->egcd", (combine > 0).astype(x.dtype), x))
    hidden = jax.nn.relu(jnp.einsum("egcd,edf->egcf", experts, into))
    experts = pinned(jnp.einsum("egcf,efd->egcd", hidden, out_of))
    return jnp.einsum("gsec,egcd->gsd", combine, experts)


def combine_weights(gates: jax.Array, capacity: int) -> jax.Array:
    """[groups, tokens, experts] to [groups, tokens, experts, capacity]: the weight of each token in each expert's slots, top-2,
    first come first served."""
    groups, _, experts = gates.shape
    combine = jnp.zeros((*gates.shape, capacity))
    taken = jnp.zeros((groups, 1, experts))
    left = gates
    for _ in range(2):
        chosen = jax.nn.one_hot(jnp.argmax(left, axis=-1), experts)
        slot = (jnp.cumsum(chosen, axis=1) - chosen + taken) * chosen
        taken = taken + jnp.sum(chosen, axis=1, keepdims=True)
        # A slot beyond the capacity gives a row of zeros.
        slots = jax.nn.one_hot(slot.astype(int), capacity) * chosen[..., None]
        combine = combine + (gates * chosen)[..., None] * slots
        left = left * (1 - chosen)
    return combine


def _gradients(*arguments: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    def loss(*arguments: jax.Array) -> jax.Array:
        return jnp.mean(forward(*arguments, annotated=True) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(*arguments)
