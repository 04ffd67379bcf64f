"""Reports of programs that send what they need not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.zoo.fault import Sharded, fault, integers, numbers


@fault(
    "jax-ml/jax#15680",
    "a Fourier transform of each row gathers the rows",
    {"x": 4},
    Sharded(numbers(40, 100), P("x", None)),
    results=P("x", None),
    tolerance=1e-6,
)
def fourier_of_rows(x: Any) -> Any:
    return jnp.fft.fft(x, n=128, axis=1)


@fault(
    "openxla/xla#24",
    "a Fourier transform of two dimensions, each sharded",
    {"x": 2, "y": 4},
    Sharded(numbers(16, 32).astype(np.complex64), P("x", "y")),
    results=P("x", "y"),
    tolerance=1e-6,
)
def fourier_of_both(x: Any) -> Any:
    return jnp.fft.fft2(x)


@fault(
    "jax-ml/jax#20683",
    "Cholesky factors of a batch gather the batch",
    {"i": 4},
    Sharded(np.stack([np.eye(6, dtype=np.float32) * (k + 1) for k in range(16)]) + np.float32(0.1), P("i", None, None)),
    tolerance=1e-6,
)
def batch_of_factors(x: Any) -> Any:
    return jax.vmap(jnp.linalg.cholesky)(x)


@fault(
    "jax-ml/jax#26379",
    "eigenvalues of a batch gather the batch",
    {"batch": 8},
    Sharded(numbers(8, 4, 4), P("batch", None, None)),
    tolerance=1e-4,
)
def batch_of_eigenvalues(x: Any) -> Any:
    return jnp.linalg.eigvals(x)


@fault(
    "jax-ml/jax#21562",
    "a reshard from P('y', None, 'x') to P(None, ('x', 'y'), None): involuntary full rematerialization",
    {"x": 4, "y": 2},
    Sharded(numbers(16, 16, 16), P("y", None, "x")),
    Sharded(numbers(16, 16, 16, seed=1), P("y", None, "x")),
    Sharded(numbers(16, 16, 16, seed=2), P(None, ("x", "y"), None)),
    results=P(None, ("x", "y"), None),
)
def reshard_of_three_dimensions(a: Any, b: Any, c: Any) -> Any:
    return c + lax.with_sharding_constraint(a + b, P(None, ("x", "y"), None))


@fault(
    "openxla/xla#47945",
    "a grouped convolution gathers its batch",
    {"data": 8},
    Sharded(numbers(16, 8, 8, 8), P("data", None, None, None)),
    Sharded(numbers(3, 3, 4, 8, seed=1)),
    results=P("data", None, None, None),
    tolerance=1e-6,
)
def grouped_convolution(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2)


@fault(
    "jax-ml/jax#20381",
    "shuffling each example of a sharded batch gathers the batch",
    {"dp": 8},
    Sharded(np.array([0, 3], np.uint32)),
    Sharded(numbers(24, 64, 4), P("dp", None, None)),
    results=P("dp", None, None),
)
def shuffle_each(key: Any, x: Any) -> Any:
    keys = jax.random.split(jax.random.wrap_key_data(key), x.shape[0])
    return jax.vmap(jax.random.permutation)(keys, x)


@fault(
    "jax-ml/jax#15773",
    "a roll by one sends the whole array",
    {"x": 4},
    Sharded(numbers(64), P("x")),
    results=P("x"),
)
def roll_by_one(x: Any) -> Any:
    return jnp.roll(x, 1)


@fault(
    "openxla/xla#4062",
    "a product of two matrices sharded along both dimensions, transposed",
    {"x": 4, "y": 2},
    Sharded(numbers(64, 128), P("x", None)),
    Sharded(numbers(128, 32, seed=1), P(None, "x")),
    results=P("y", "x"),
    tolerance=1e-6,
)
def transposed_product(a: Any, b: Any) -> Any:
    return (a @ b).T


@fault(
    "openxla/xla#13306",
    "splitting the batch into microbatches moves the batch",
    {"data": 4, "model": 2},
    Sharded(numbers(16, 32), P("data", None)),
    Sharded(numbers(32, 32, seed=1), P(None, "model")),
    results=P(),
    tolerance=1e-5,  # terms of both signs: the total is small, and its last digits depend on the host's vectors
)
def gradient_accumulation(batch: Any, weights: Any) -> Any:
    def step(total: Any, x: Any) -> Any:
        return total + jnp.sum(jnp.tanh(x @ weights)), None

    total, _ = lax.scan(step, jnp.float32(0), batch.reshape(2, 8, 32))
    return total


@fault(
    "openxla/xla#44796",
    "one row of a sharded array, wanted everywhere, gathers the array",
    {"x": 8},
    Sharded(numbers(64, 32), P("x", None)),
    Sharded(np.int32(41)),
    results=P(),
)
def row_for_everybody(x: Any, index: Any) -> Any:
    return lax.dynamic_slice(x, (index, jnp.int32(0)), (1, 32))


@fault(
    "jax-ml/jax#23675",
    "the positions of the nonzero elements of a sharded array",
    {"x": 8},
    Sharded(numbers(16, 32) * (integers(16, 32, below=4) == 0), P("x", None)),
)
def nonzero_positions(x: Any) -> Any:
    return jnp.nonzero(x, size=200)


@fault(
    "jax-ml/jax#16258",
    "a histogram flattens its argument and gathers it",
    {"x": 2, "y": 4},
    Sharded(numbers(32, 32), P("x", "y")),
    tolerance=1e-6,
)
def histogram(x: Any) -> Any:
    return jnp.histogram(x, bins=10)


@fault(
    "jax-ml/jax#35650",
    "an argsort along the sharded dimension and the lookup by it",
    {"x": 8},
    Sharded(numbers(256), P("x")),
    results=P("x"),
)
def sorted_by_argsort(x: Any) -> Any:
    return x[jnp.argsort(x)]


@fault(
    "openxla/xla#13304",
    "a lookup in a table sharded by rows",
    {"x": 2, "y": 4},
    Sharded(numbers(64, 16), P("y", None)),
    Sharded(integers(16, 8, below=64), P("x", None)),
    results=P("x", None, None),
)
def row_lookup(table: Any, tokens: Any) -> Any:
    return table[tokens]


@fault(
    "jax-ml/jax#25844",
    "the Jacobian of an elementwise function of a sharded array is replicated",
    {"x": 8},
    Sharded(numbers(64, 4), P("x", None)),
    tolerance=1e-6,
)
def jacobian_of_each(x: Any) -> Any:
    return jax.vmap(jax.jacrev(lambda row: jnp.sin(row) * row.sum()))(x)
