"""Reports of wrong numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from jax.sharding import reshard

from tests.zoo.fault import Sharded, counting, fault, integers, numbers


@fault(
    "openxla/xla#49122",
    "a start past the end of a sharded dynamic_slice is clamped on each shard, not once",
    {"x": 2},
    Sharded(counting(2, 8), P(None, "x")),
    Sharded(np.int32(7)),
    results=P(None, "x"),
)
def slice_past_the_end(x: Any, start: Any) -> Any:
    return lax.dynamic_slice(x, (jnp.int32(0), start), (2, 6))


@fault(
    "openxla/xla#49118",
    "an update whose start has to be clamped is dropped",
    {"x": 2},
    Sharded(counting(2, 4), P(None, "x")),
    Sharded(np.full((2, 1), 99, np.float32)),
    Sharded(np.int32(4)),
    results=P(None, "x"),
)
def update_past_the_end(x: Any, update: Any, start: Any) -> Any:
    return lax.dynamic_update_slice(x, update, (jnp.int32(0), start))


@fault(
    "jax-ml/jax#21403",
    "a cumulative sum along a sharded dimension",
    {"dp": 2, "sp": 4},
    Sharded(np.ones((8, 1024), np.int32)),
    results=P(),
)
def cumulative_sum(mask: Any) -> Any:
    return jnp.cumsum(lax.with_sharding_constraint(mask, P("dp", "sp")), axis=-1)


@fault(
    "jax-ml/jax#18434",
    "an array shifted along its sharded dimension by static updates",
    {"x": 8},
    Sharded(numbers(16, 16), P("x", None)),
    Sharded(np.float32(1.5)),
    results=P("x", None),
)
def shift_by_one(x: Any, value: Any) -> Any:
    return x.at[:-1].set(x[1:]).at[-1].set(value)


@fault(
    "jax-ml/jax#23052",
    "a scatter of rows into an array sharded by rows; at[].set of static rows gathers the array",
    {"x": 4},
    Sharded(numbers(8, 16), P("x", None)),
    Sharded(numbers(3, 16, seed=1)),
    results=P("x", None),
)
def scatter_rows(x: Any, updates: Any) -> Any:
    return x.at[0:3].set(updates)


@fault(
    "jax-ml/jax#23052",
    "the same with the rows as an argument",
    {"x": 4},
    Sharded(numbers(8, 16), P("x", None)),
    Sharded(np.array([2, 5, 7], np.int32)),
    Sharded(numbers(3, 16, seed=1)),
    results=P("x", None),
)
def scatter_rows_by_index(x: Any, rows: Any, updates: Any) -> Any:
    return x.at[rows].set(updates)


@fault(
    "openxla/xla#42481",
    "the gradient of an embedding lookup: a scatter with add that is all-reduced in the wrong order",
    {"dp": 2, "tp": 4},
    Sharded(numbers(32, 16), P("tp", None)),
    Sharded(integers(8, 4, below=32), P("dp", None)),
    Sharded(numbers(16, 8, seed=1), P(None, "tp")),
    results=P("tp", None),
    tolerance=1e-6,
)
def embedding_gradient(table: Any, tokens: Any, weights: Any) -> Any:
    def loss(table: Any) -> Any:
        hidden = lax.with_sharding_constraint(table[tokens], P("dp", None, None))
        return jnp.sum(jnp.tanh(hidden @ weights))

    return jax.grad(loss)(table)


@fault(
    "jax-ml/jax#19271",
    "the largest k along a sharded dimension: the first of one differs from the first of four",
    {"data": 8},
    Sharded(numbers(2, 1024), P(None, "data")),
)
def top_one_and_top_four(x: Any) -> Any:
    return lax.top_k(x, 1), lax.top_k(x, 4)


@fault(
    "jax-ml/jax#24576",
    "a concatenation of arrays that are sharded along one axis and replicated along another adds the replicas up",
    {"data": 4, "model": 2},
    Sharded(np.ones(4, np.float32), P("data")),
    Sharded(np.ones(12, np.float32), P("data")),
)
def join_replicas(x: Any, y: Any) -> Any:
    return jnp.concatenate([x, y])


@fault(
    "jax-ml/jax#19106",
    "a concatenation of a replicated and a sharded array multiplies the values",
    {"data": 4, "model": 2},
    Sharded(np.ones(2, np.float32)),
    Sharded(np.ones(10, np.float32), P("model")),
)
def join_replicated_and_sharded(x: Any, y: Any) -> Any:
    return jnp.concatenate([x, y])


@fault(
    "jax-ml/jax#16909",
    "a transform of three dimensions, two of them sharded in turn",
    {"x": 2},
    Sharded(numbers(4, 4, 4).astype(np.complex64), P(None, "x", None)),
    results=P("x", None, None),
    tolerance=1e-6,
)
def fourier_of_a_cube(x: Any) -> Any:
    x = jnp.fft.fft(jnp.fft.fft(x, axis=0), axis=2)
    x = lax.with_sharding_constraint(x, P("x", None, None))
    return jnp.fft.fft(x, axis=1)


@fault(
    "jax-ml/jax#40232",
    "random numbers depend on how many shards the result has",
    {"x": 8},
    Sharded(np.array([0, 7], np.uint32)),
    results=P("x", None),
    tolerance=1e-6,
)
def random_normals(key: Any) -> Any:
    return jax.random.normal(jax.random.wrap_key_data(key), (496, 3))


@fault(
    "jax-ml/jax#21232",
    "random numbers of the original threefry differ between shardings",
    {"x": 4},
    Sharded(np.array([0, 7], np.uint32)),
    results=P("x"),
)
def original_random_bits(key: Any) -> Any:
    with jax.threefry_partitionable(False):
        return jax.random.bits(jax.random.wrap_key_data(key), (36,))


@fault(
    "jax-ml/jax#35896",
    "a sharded arange of 64-bit numbers",
    {"x": 4},
    Sharded(np.int64(3)),
    results=P("x"),
    wide=True,
)
def wide_arange(start: Any) -> Any:
    return jnp.arange(64) * 2.5 + start


@fault(
    "jax-ml/jax#20088",
    "a step that constrains its state, which the report donates, returns garbage",
    {"x": 2},
    Sharded(numbers(2, 4), P(None, "x")),
    Sharded(numbers(8, 2, seed=1), P("x", None)),
    results=P(None, "x"),
    tolerance=1e-6,
)
def constrained_step(weights: Any, batch: Any) -> Any:
    gradient = jax.grad(lambda weights: jnp.mean(jnp.square(batch @ weights)))(weights)
    return lax.with_sharding_constraint(weights - 0.1 * gradient, P(None, "x"))


@fault(
    "jax-ml/jax#27686",
    "repetition by counts of an array sharded along the repeated dimension",
    {"x": 8},
    Sharded(numbers(8, 3), P("x", None)),
    Sharded(np.array([1, 0, 2, 5, 3, 1, 2, 2], np.int32)),
)
def repeat_by_counts(x: Any, counts: Any) -> Any:
    return jnp.repeat(x, counts, axis=0, total_repeat_length=16)


@fault(
    "openxla/xla#40034",
    "partial sums resharded to sharded and replicated axes without an all-reduce",
    {"a": 2, "b": 2, "c": 2},
    Sharded(numbers(8, 16), P(None, ("a", "b"))),
    Sharded(numbers(16, 8, seed=1), P(("a", "b"), "c")),
    results=P("a", "c"),
    tolerance=1e-6,
)
def partial_sums_resharded(x: Any, weights: Any) -> Any:
    return lax.with_sharding_constraint(jnp.tanh(x @ weights), P("a", "c"))


@fault(
    "tenstorrent/tt-mlir#8623",
    "Shardy's rule of reduce adds the indices of an argmax up",
    {"model": 8},
    Sharded(numbers(4, 32)),
    Sharded(numbers(32, 64, seed=1), P(None, "model")),
)
def greedy_token(hidden: Any, weights: Any) -> Any:
    return jnp.argmax(hidden @ weights, axis=-1)


@fault(
    "openxla/xla#42481",
    "the same with a table that is replicated for the lookup and has its gradient reduced (`reduced` in its sharding)",
    {"dp": 2, "tp": 4},
    Sharded(numbers(32, 16), P("tp", None)),
    Sharded(integers(8, below=32), P("tp")),
    tolerance=1e-6,
    explicit=True,
    reference=lambda table, tokens: jax.grad(lambda table: jnp.sum(jnp.sin(table[tokens])))(table),
)
def reduced_table_gradient(table: Any, tokens: Any) -> Any:
    def loss(table: Any) -> Any:
        everywhere = reshard(table, P(None, None, reduced={"tp"}))
        return jnp.sum(jnp.sin(everywhere.at[tokens].get(out_sharding=P("tp", None))))

    return jax.grad(loss)(table)
