"""Keras on JAX."""

from __future__ import annotations

import os
from typing import Any

import optax

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

from testdata.models.model import Model, integers, numbers, training


def _model(model: Any, batch: Any) -> Model:
    """Trains a Keras model to classify."""
    model.build(batch[0].shape)
    fixed = [variable.value for variable in model.non_trainable_variables]

    def loss(parameters: Any, batch: Any) -> Any:
        logits, _ = model.stateless_call(parameters, fixed, batch[0], training=False)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    return training(loss, [variable.value for variable in model.trainable_variables], batch)


def _convolution() -> Model:
    layers = keras.layers
    stack = [
        layers.Conv2D(32, 3, activation="relu"),
        layers.BatchNormalization(),
        layers.MaxPooling2D(),
        layers.SeparableConv2D(64, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(128),
    ]
    return _model(keras.Sequential(stack), (numbers(32, 32, 32, 3), integers(128, 32)))


def _recurrent() -> Model:
    layers = keras.layers
    stack = [layers.Embedding(256, 64), layers.Bidirectional(layers.LSTM(64)), layers.Dense(128)]
    return _model(keras.Sequential(stack), (integers(256, 32, 32), integers(128, 32)))


def _attention() -> Model:
    layers = keras.layers
    inputs = keras.Input((32, 64))
    x = layers.LayerNormalization()(inputs + layers.MultiHeadAttention(4, 16)(inputs, inputs))
    x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(256, activation="gelu")(x)))
    model = keras.Model(inputs, layers.Dense(128)(layers.GlobalAveragePooling1D()(x)))
    return _model(model, (numbers(32, 32, 64), integers(128, 32)))


MODELS = {"keras_convolution": _convolution, "keras_recurrent": _recurrent, "keras_attention": _attention}
