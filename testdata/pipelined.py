"""A pipeline of stages that the user wrote by hand under `shard_map`: its collectives are given, and none may be added."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program
from testdata.ring import Term

STAGES, MICRO_BATCHES, ROWS, WIDTH = 8, 4, 16, 128


def pipeline() -> Program:
    """Each device holds one stage; micro-batches move on by one device a step."""
    weights = Argument((STAGES, WIDTH, WIDTH), P("stage", None, None), WIDTH**-0.5)
    inputs = Argument((MICRO_BATCHES, ROWS, WIDTH), P())
    steps = MICRO_BATCHES + STAGES - 1
    plan = (
        Term("collective-permute", STAGES, ROWS * WIDTH * 4, steps, "activations to the next stage"),
        Term("all-reduce", STAGES, inputs.bytes, 1, "the last stage's results to everyone"),
    )
    return Program("pipeline", (("stage", STAGES),), _pipeline, (weights, inputs), P(), plan)


def _pipeline(weights: jax.Array, inputs: jax.Array) -> jax.Array:
    return jax.shard_map(_on_one_device, in_specs=(P("stage"), P()), out_specs=P(), check_vma=False)(weights, inputs)


def _on_one_device(weights: jax.Array, inputs: jax.Array) -> jax.Array:
    stage, stages = jax.lax.axis_index("stage"), jax.lax.axis_size("stage")

    def step(time: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        arrived, results = state
        mine = jnp.where(stage == 0, inputs[jnp.minimum(time, MICRO_BATCHES - 1)], arrived)
        for weight in weights:
            mine = jnp.tanh(mine @ weight)
        place = time - (stages - 1)
        done = jnp.where((stage == stages - 1) & (place >= 0), mine, 0)
        results = results.at[jnp.maximum(place, 0)].add(done)
        return jax.lax.ppermute(mine, "stage", [(at, (at + 1) % stages) for at in range(stages)]), results

    # On one device all stages stand in `weights`, and a micro-batch is done in the step that it starts in.
    nothing = jnp.zeros((ROWS, WIDTH)), jnp.zeros_like(inputs)
    _, results = jax.lax.fori_loop(0, MICRO_BATCHES + stages - 1, step, nothing)
    return jax.lax.psum(results, "stage")
