"""torchax: a PyTorch model, traced to JAX, and its own `make_train_step`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import torch
import torchax
from torchax import interop
from torchax.train import make_train_step

from testdata.codebases.mesh import STEPS, fsdp, mesh_of, numbers, on


class _Network(torch.nn.Module):
    """Attention as PyTorch has it, between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 8)
        self.block = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.second(self.block(torch.nn.functional.gelu(self.first(x))))


def encoder() -> Any:
    """Parameters sharded as FSDP, batches along the same axis."""
    torchax.enable_globally()
    try:
        return _trained()
    finally:
        torchax.disable_globally()


def _trained() -> Any:
    mesh = mesh_of(data=8)
    torch.manual_seed(0)
    with torchax.disable_temporarily():
        model = _Network()
    env = torchax.default_env()
    weights = {name: jax.tree.map(fsdp(mesh), jnp.asarray(each.detach().numpy())) for name, each in model.named_parameters()}
    weights, buffers = (
        env.j2t_iso(weights),
        env.j2t_iso({name: jnp.asarray(each.numpy()) for name, each in model.named_buffers()}),
    )

    def apply(weights: Any, buffers: Any, x: Any) -> Any:
        return torch.func.functional_call(model, {**weights, **buffers}, x)

    optimizer = optax.sgd(0.1)
    step = interop.jax_jit(
        make_train_step(apply, torch.nn.functional.mse_loss, optimizer), kwargs_for_jax_jit={"donate_argnums": 0}
    )
    state = interop.call_jax(optimizer.init, weights)
    losses = []
    for turn in range(STEPS):
        x, y = env.j2t_iso(on(mesh, (numbers(16, 8, 32, seed=turn), numbers(16, 8, 8, seed=turn)), "data"))
        loss, weights, state = step(weights, buffers, state, x, y)
        losses.append(loss)
    return env.t2j_iso((losses, weights))
