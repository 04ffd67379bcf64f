"""Models of Keras Hub, on JAX, in random configurations."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import optax

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp
import keras_hub

from testdata.models.model import Model, integers, numbers, training

LENGTH = 32
"""Tokens of an example; there are as many examples."""

TRANSFORMER: dict[str, Any] = {"vocabulary_size": 256, "num_layers": 2, "hidden_dim": 64, "intermediate_dim": 256}
GROUPED: dict[str, Any] = {"num_query_heads": 4, "num_key_value_heads": 2}


def _trained(model: Any, inputs: Any, loss: Callable[[Any], Any]) -> Model:
    """Trains a model that takes a dictionary or an array."""
    fixed = [variable.value for variable in model.non_trainable_variables]

    def of_batch(parameters: Any, batch: Any) -> Any:
        outputs, _ = model.stateless_call(parameters, fixed, batch, training=False)
        return loss(outputs)

    return training(of_batch, [variable.value for variable in model.trainable_variables], inputs)


def _tokens(**others: Any) -> dict[str, Any]:
    return {"token_ids": integers(256, LENGTH, LENGTH), "padding_mask": jnp.ones((LENGTH, LENGTH), jnp.int32), **others}


def _decoder(backbone: Any) -> Model:
    """Logits by the embedding, as causal language models of this library take them."""
    tokens = _tokens()

    def loss(hidden: Any) -> Any:
        logits = backbone.token_embedding(hidden, reverse=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens["token_ids"]).mean()

    return _trained(backbone, tokens, loss)


def _encoder() -> Model:
    backbone = keras_hub.models.BertBackbone(**TRANSFORMER, num_heads=4, max_sequence_length=LENGTH)
    tokens = _tokens(segment_ids=jnp.zeros((LENGTH, LENGTH), jnp.int32))
    return _trained(backbone, tokens, lambda outputs: jnp.square(outputs["pooled_output"] - 1).mean())


def _image() -> Model:
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(32, 32, 3), patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=256
    )
    return _trained(backbone, numbers(32, 32, 32, 3), lambda outputs: jnp.square(outputs - 1).mean())


MODELS = {
    "kerashub_gemma": lambda: _decoder(keras_hub.models.GemmaBackbone(**TRANSFORMER, **GROUPED, head_dim=16)),
    "kerashub_llama": lambda: _decoder(keras_hub.models.LlamaBackbone(**TRANSFORMER, **GROUPED)),
    "kerashub_bert": _encoder,
    "kerashub_vit": _image,
}
