"""Mixtures of experts in `jax.shard_map`, as MaxText writes them: experts along one axis, their weights stored along another."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.analysis import hlo, hlo_communication

FSDP, EXPERT = "data", "model"
LAYERS, EXPERTS, CHOSEN, WIDTH, HIDDEN, BATCH, LENGTH = 2, 8, 2, 32, 64, 8, 8
PER_DEVICE = EXPERTS // 4
TOKENS = P((FSDP, EXPERT))
STORED = {
    "gate": P(None, FSDP, None),
    "into": P(None, EXPERT, FSDP, None),
    "beside": P(None, EXPERT, FSDP, None),
    "out_of": P(None, EXPERT, None, FSDP),
}
SHAPES = {
    "gate": (LAYERS, WIDTH, EXPERTS),
    "into": (LAYERS, EXPERTS, WIDTH, HIDDEN),
    "beside": (LAYERS, EXPERTS, WIDTH, HIDDEN),
    "out_of": (LAYERS, EXPERTS, HIDDEN, WIDTH),
}
Weights = dict[str, Any]


def _experts(x: Any, logits: Any, into: Any, beside: Any, out_of: Any) -> Any:
    """Each device gathers the tokens along EXPERT, and computes those that its experts are for."""
    tokens = x.reshape(-1, WIDTH)
    shares, chosen = lax.top_k(jax.nn.softmax(logits.reshape(-1, EXPERTS)), CHOSEN)
    order = jnp.argsort(chosen.reshape(-1))
    sent = lax.all_gather(tokens[order // CHOSEN], EXPERT, axis=0, tiled=True)
    expert = lax.all_gather(chosen.reshape(-1)[order], EXPERT, axis=0, tiled=True) - lax.axis_index(EXPERT) * PER_DEVICE
    here = (expert >= 0) & (expert < PER_DEVICE)
    by_expert = jnp.argsort(jnp.where(here, expert, PER_DEVICE))
    sizes = jnp.bincount(jnp.where(here, expert, PER_DEVICE), length=PER_DEVICE + 1)[:PER_DEVICE]
    rows = sent[by_expert]
    hidden = jax.nn.silu(lax.ragged_dot(rows, into, sizes)) * lax.ragged_dot(rows, beside, sizes)
    computed = jnp.where((jnp.arange(len(rows)) < sizes.sum())[:, None], lax.ragged_dot(hidden, out_of, sizes), 0)
    back = lax.psum_scatter(jnp.zeros_like(rows).at[by_expert].set(computed), EXPERT, scatter_dimension=0, tiled=True)
    results = jnp.zeros_like(back).at[order].set(back).reshape(-1, CHOSEN, WIDTH)
    return (results * shares[..., None]).sum(1).reshape(x.shape)


def _loss(mesh: jax.sharding.Mesh, weights: Weights, x: Any, *, scanned: bool) -> Any:
    region = jax.shard_map(
        _experts, mesh=mesh, in_specs=(TOKENS, TOKENS, P(EXPERT), P(EXPERT), P(EXPERT)), out_specs=TOKENS, check_vma=False
    )

    def layer(h: Any, of: Weights) -> tuple[Any, None]:
        return h + region(h, h @ of["gate"], of["into"], of["beside"], of["out_of"]), None

    if scanned:
        h, _ = lax.scan(jax.checkpoint(layer), x, weights)
    else:
        h = x
        for number in range(LAYERS):
            h, _ = layer(h, jax.tree.map(lambda stack, number=number: stack[number], weights))
    return (h**2).mean()


@pytest.mark.parametrize("scanned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_of_experts_are_scattered(mesh: jax.sharding.Mesh, scanned: bool) -> None:
    def step(weights: Weights, x: Any) -> Weights:
        gradients = jax.grad(lambda weights: _loss(mesh, weights, x, scanned=scanned))(weights)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)

    stored = {name: NamedSharding(mesh, spec) for name, spec in STORED.items()}
    shardings = {"in_shardings": (stored, NamedSharding(mesh, TOKENS)), "out_shardings": stored}
    rng = np.random.default_rng(0)
    weights = {name: 0.3 * rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    x = rng.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32)

    jitted = jax.jit(step, **shardings)
    report = meshbridge.report(jitted.lower(weights, x), machine="bytes")
    expert_bytes = 4 * WIDTH * HIDDEN * PER_DEVICE
    reduced = {kind: report.bytes_by_kind().get(kind, 0) for kind in ("all_reduce", "reduce_scatter")}
    assert reduced["all_reduce"] < expert_bytes
    assert reduced["reduce_scatter"] >= LAYERS * 3 * expert_bytes / 2

    compiled = jitted.lower(weights, x).compile()
    sent = hlo_communication.communication(hlo.read(compiled.as_text()))
    assert report.wire_bytes < 0.9 * sent.wire_bytes
    assert report.wire_bytes <= sent.scattered_bytes
    found, expected = meshbridge.jit(step, **shardings)(weights, x), compiled(weights, x)
    for name in STORED:
        largest = float(np.abs(expected[name]).max())
        np.testing.assert_allclose(np.asarray(found[name]), np.asarray(expected[name]), rtol=1e-5, atol=2e-6 * largest)
