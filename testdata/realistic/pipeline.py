"""A training step of a llama in pipeline stages, as praxis and MaxText write them: all stages compute at once under `jax.vmap`,
and a buffer of their inputs, one for each, is rolled by one stage in each iteration of a scan; remat in each stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.realistic import layers as common
from testdata.realistic import llama
from testdata.realistic.layers import LENGTH, Pins, pinned, scale, weight
from testdata.scaled import Sizes, normalise

ALONG = P("data", None, None)
PINS = {
    "residual": ALONG,
    "heads": P("data", None, None, None),
    "hidden": ALONG,
    "buffer": P("stage", "data", None, None),
    "microbatches": P(None, "data", None, None),
    "logits": P(None, "data", None, "stage"),
}


@dataclass(frozen=True)
class Size:
    """A llama with `layers` in each of the `stages`. A step has so many `microbatches`, of `sequences` for each device along
    "data"."""

    model: Sizes = llama.SMALL
    stages: int = 4
    layers: int = 2
    microbatches: int = 8
    sequences: int = 1
    length: int = LENGTH


SIZE = Size()


def pipeline(devices: int, *, annotated: bool, size: Size = SIZE) -> Program:
    """value_and_grad and gradient descent on the mesh "stage" x "data". Raises ValueError if the stages do not divide the
    devices."""
    if devices % size.stages:
        raise ValueError(f"{devices} devices cannot be arranged in {size.stages} stages")
    replicas = devices // size.stages
    weights = _parameters(size)
    shape = (size.microbatches, size.sequences * replicas, size.length)
    batch = Argument(shape, P(None, "data", None), below=size.model.vocabulary)
    return common.training_step(
        "pipeline_llama",
        (("stage", size.stages), ("data", replicas)),
        partial(_loss, size=size, pins=PINS if annotated else {}),
        weights,
        batch,
        batch,
    )


def _parameters(size: Size) -> Tree:
    width, vocabulary = size.model.width, size.model.vocabulary
    layer = llama.layer_parameters(common.STYLES["dp"], size.model)
    stacked = (size.stages, size.layers)
    return {
        "embedding": weight(vocabulary, width, spec=P("data", None)),
        "stages": jax.tree.map(lambda a: replace(a, shape=(*stacked, *a.shape), spec=P("stage")), layer),
        "final_scale": scale(width),
        "output": weight(width, vocabulary, spec=P(None, "stage")),
    }


def _loss(parameters: Tree, tokens: jax.Array, targets: jax.Array, *, size: Size, pins: Pins) -> jax.Array:
    x = pinned(parameters["embedding"][tokens], "microbatches", pins)
    x = pinned(_through_stages(parameters["stages"], x, size, pins), "microbatches", pins)
    logits = normalise(x, parameters["final_scale"]) @ parameters["output"]
    return common.cross_entropy(pinned(logits, "logits", pins), targets)


def _through_stages(stages: Tree, x: jax.Array, size: Size, pins: Pins) -> jax.Array:
    """[microbatches, sequences, length, width] to the same. What leaves the last stage before the first microbatch has passed all
    stages is left out."""

    def stage(layers: Tree, x: jax.Array) -> jax.Array:
        block = partial(llama.block, size=size.model, pins=pins)
        return jax.lax.scan(lambda x, layer: (block(x, layer), None), x, layers)[0]

    all_stages = jax.vmap(jax.checkpoint(stage), spmd_axis_name="stage")

    def iteration(buffer: jax.Array, entering: jax.Array) -> tuple[jax.Array, jax.Array]:
        buffer = pinned(buffer.at[0].set(entering), "buffer", pins)
        left = pinned(all_stages(stages, buffer), "buffer", pins)
        return jnp.roll(left, 1, axis=0), left[-1]

    empty = jnp.zeros((size.stages, *x.shape[1:]), x.dtype)
    entering = jnp.pad(x, ((0, size.stages - 1), (0, 0), (0, 0), (0, 0)))
    return jax.lax.scan(iteration, pinned(empty, "buffer", pins), entering)[1][size.stages - 1 :]
