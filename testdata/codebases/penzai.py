"""penzai: its trainer of named arrays, of a network and of a transformer that it builds itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from penzai import pz
from penzai.models import simple_mlp
from penzai.models.transformer.variants import llamalike_common
from penzai.toolshed import basic_training, sharding_util

from testdata.codebases.mesh import STEPS, integers, mesh_of, numbers, on


def trainer() -> Any:
    """A multi-layer perceptron on data along 8 devices."""
    mesh = mesh_of(data=8)
    model = simple_mlp.MLP.from_config("mlp", jax.random.key(0), [32, 64, 64, 8])

    def loss_of(model: Any, state: Any, rng: Any, x: Any, y: Any) -> Any:
        loss = jnp.mean((model(x).unwrap("features").T - y.T) ** 2)
        return loss, state, {"loss": loss}

    trainer = basic_training.StatefulTrainer.build(jax.random.key(1), model, optax.sgd(0.1), loss_of)
    losses = []
    for turn in range(STEPS):
        x, y = on(mesh, (numbers(64, 32, seed=turn), numbers(64, 8, seed=turn)), "data")
        losses.append(trainer.step(x=pz.nx.wrap(x).tag("batch", "features").untag("batch").tag("batch"), y=y))
    return losses
