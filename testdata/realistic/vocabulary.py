"""Embedding and cross-entropy with both tables split along a vocabulary of 128,256 tokens, forward and backward."""

from __future__ import annotations

from functools import partial

import jax
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic.layers import LENGTH, Pins, pinned, weight

WIDTH, VOCABULARY, SEQUENCES = 4096, 128256, 2
PINS = {"residual": P("data", None, None), "logits": P("data", None, "model")}


def vocabulary_loss(devices: int, *, annotated: bool) -> Program:
    """value_and_grad and gradient descent, data parallel x vocabulary parallel."""
    axes = common.grid(devices, 4)
    weights = {
        "embedding": weight(VOCABULARY, WIDTH, spec=P("model", None)),
        "output": weight(WIDTH, VOCABULARY, spec=P(None, "model")),
    }
    batch = Argument((SEQUENCES * dict(axes)["data"], LENGTH), P("data", None), below=VOCABULARY)
    return common.training_step("vocab_loss", axes, partial(_loss, pins=PINS if annotated else {}), weights, batch, batch)


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, pins: Pins) -> jax.Array:
    x = pinned(parameters["embedding"][tokens], "residual", pins)
    return common.cross_entropy(pinned(x @ parameters["output"], "logits", pins), targets)
