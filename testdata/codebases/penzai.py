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
    model = simple_mlp.MLP.from_config(jax.random.key(0), [32, 64, 64, 8])

    def loss_of(model: Any, state: Any, rng: Any, x: Any, y: Any) -> Any:
        loss = pz.nx.nmap(jnp.mean)((model(x) - y) ** 2).untag("batch", "features").mean().unwrap()
        return loss, state, {"loss": loss}

    trainer = basic_training.StatefulTrainer.build(jax.random.key(1), model, optax.sgd(0.5), loss_of)
    losses = []
    for turn in range(STEPS):
        x, y = (pz.nx.wrap(on(mesh, numbers(64, size, seed=turn), "data")).tag("batch", "features") for size in (32, 8))
        losses.append(trainer.step(x=x, y=y))
    return losses, _parameters(trainer.model)


def _parameters(model: Any) -> Any:
    return pz.freeze_params(pz.unbind_params(model)[1])


def transformer() -> Any:
    """A decoder as Llama has it, its named axes sharded by penzai's own tool along data x model."""
    mesh = mesh_of(data=2, model=4)
    config = llamalike_common.LlamalikeTransformerConfig(
        num_kv_heads=4, query_head_multiplier=1, embedding_dim=64, projection_dim=16, mlp_hidden_dim=128, num_decoder_blocks=2,
        vocab_size=128, mlp_variant="swiglu", rope_wavelength=10_000, tie_embedder_and_logits=False, parameter_dtype=jnp.float32,
        activation_dtype=jnp.float32,
    )  # fmt: skip
    model = llamalike_common.build_llamalike_transformer(config, init_base_rng=jax.random.key(0), name="decoder")
    axes = {"neurons": "model", "kv_heads": "model", "heads": "model"}
    unbound, parameters = pz.unbind_params(model, freeze=True)
    placed = sharding_util.name_to_name_device_put(parameters, mesh, axis_name_to_mesh_name=axes)
    model = pz.bind_variables(unbound, [each.unfreeze_as_copy() for each in placed])

    def loss_of(model: Any, state: Any, rng: Any, tokens: Any) -> Any:
        inputs, targets = tokens.untag("seq")[:-1].tag("seq"), tokens.untag("seq")[1:].tag("seq")
        logits = model(inputs, token_positions=pz.nx.arange("seq", inputs.named_shape["seq"]))
        chosen = pz.nx.nmap(jax.nn.log_softmax)(logits.untag("vocabulary")).tag("vocabulary")
        picked = pz.nx.nmap(lambda values, index: values[index])(chosen.untag("vocabulary"), targets)
        loss = -picked.untag("batch", "seq").mean().unwrap()
        return loss, state, {"loss": loss}

    trainer = basic_training.StatefulTrainer.build(jax.random.key(1), model, optax.sgd(0.5), loss_of)
    losses = []
    for turn in range(STEPS):
        tokens = pz.nx.wrap(on(mesh, integers(128, 8, 17, seed=turn), "data")).tag("batch", "seq")
        losses.append(trainer.step(tokens=tokens))
    return losses, _parameters(trainer.model)
