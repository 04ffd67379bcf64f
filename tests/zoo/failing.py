"""Reports of programs that end in an abort or an internal error."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P
from jax.sharding import reshard

from tests.zoo.fault import Sharded, counting, fault, integers, numbers


def _random_bits(key: Any) -> Any:
    return jax.random.bits(jax.random.wrap_key_data(key, impl="unsafe_rbg"), (8, 16))


@fault(
    "jax-ml/jax#39301",
    "two concatenations of parts of one array, one element per device: a malformed concatenate",
    {"d": 4},
    Sharded(counting(4), P("d")),
    results=P("d"),
)
def two_rolls_of_one_array(x: Any) -> Any:
    def without(low: int, high: int) -> Any:
        return lax.pad(x, np.float32(0), [(-low, -high, 0)])

    return lax.concatenate([without(3, 0), without(0, 1)], 0) * 10 + lax.concatenate([without(1, 0), without(0, 3)], 0)


@fault(
    "jax-ml/jax#39301",
    "the transpose of rolls along a dimension with one element per device",
    {"d": 4},
    Sharded(counting(4), P("d")),
    results=P("d"),
)
def transposed_rolls(x: Any) -> Any:
    def differences(x: Any) -> Any:
        return jnp.roll(x, 1) + 10 * jnp.roll(x, -1)

    (result,) = jax.linear_transpose(differences, x)(x)
    return result


@fault(
    "openxla/xla#45402",
    "a Fourier transform along a dimension with one element per device",
    {"x": 2},
    Sharded(numbers(1, 1, 2).astype(np.complex64), P(None, None, "x")),
    results=P(None, None, "x"),
    tolerance=1e-6,
)
def tiny_fourier(x: Any) -> Any:
    return jnp.fft.fft(x)


@fault(
    "jax-ml/jax#17587",
    "take_along_axis of three dimensions",
    {"x": 4},
    Sharded(numbers(2, 4, 10), P(None, "x", None)),
    Sharded(integers(2, 4, 1, below=10), P(None, "x", None)),
)
def take_along_the_last(x: Any, indices: Any) -> Any:
    return jnp.take_along_axis(x, indices, -1)


@fault(
    "openxla/xla#10543",
    "the gradient of a loss with constrained one-hot targets",
    {"dp": 8},
    Sharded(numbers(40, 32), P(None, "dp")),
    Sharded(integers(8, 16, below=40)),
    tolerance=2e-6,
)
def one_hot_gradient(weights: Any, tokens: Any) -> Any:
    def loss(weights: Any) -> Any:
        logits = jnp.einsum("bld,md->blm", jnp.ones((8, 16, 32)), weights)
        targets = lax.with_sharding_constraint(jax.nn.one_hot(tokens, 40), P("dp", None))
        return jnp.einsum("bld,bld->bl", targets, logits).mean()

    return jax.value_and_grad(loss)(weights)


@fault(
    "jax-ml/jax#16137",
    "keys of another generator inside shard_map",
    {"model": 2, "data": 4},
    Sharded(np.arange(16, dtype=np.uint32).reshape(4, 4)),
    results=P("model"),
    reference=lambda keys: jnp.concatenate([_random_bits(keys[0]), _random_bits(keys[2])]),
)
def random_bits_in_shard_map(keys: Any) -> Any:
    @partial(jax.shard_map, in_specs=P("model"), out_specs=P("model"), check_vma=False)
    def local(keys: Any) -> Any:
        return _random_bits(keys[0])

    return local(keys)


@fault(
    "jax-ml/jax#29162",
    "shard_map of a vmapped gradient on an Explicit mesh",
    {"i": 2},
    Sharded(np.array([1.0, 2.0, 3.0], np.float32)),
    Sharded(numbers(4, 3), P("i", None)),
    explicit=True,
    reference=lambda weights, x: x,
)
def explicit_gradients(weights: Any, x: Any) -> Any:
    @partial(jax.shard_map, in_specs=(P(), P("i", None)), out_specs=P("i", None), check_vma=False)
    def local(weights: Any, x: Any) -> Any:
        return jax.vmap(jax.grad(lambda w, row: jnp.sum(w * row)), in_axes=(None, 0))(weights, x)

    return local(weights, x)


@fault(
    "jax-ml/jax#31931",
    "a contraction to a scalar that stays unreduced until a reshard",
    {"X": 2, "Y": 2},
    Sharded(numbers(16), P("X")),
    Sharded(numbers(16, seed=1), P("X")),
    results=P(),
    tolerance=1e-6,
    explicit=True,
    reference=jnp.dot,
)
def unreduced_scalar(x: Any, y: Any) -> Any:
    return reshard(jnp.einsum("f,f->", x, y, out_sharding=P(unreduced={"X"})), P())


@fault(
    "openxla/xla#24186",
    "an update at a 64-bit index into a sharded dimension",
    {"x": 4},
    Sharded(numbers(4, 8).astype(np.float64), P("x", None)),
    Sharded(np.float64(3.5) * np.ones((1, 8))),
    Sharded(np.int64(2)),
    results=P("x", None),
    wide=True,
)
def update_at_a_wide_index(x: Any, row: Any, index: Any) -> Any:
    return lax.dynamic_update_slice(x, row, (index, jnp.int64(0)))


@fault(
    "jax-ml/jax#27223",
    "a constraint on an array of typed keys",
    {"batch": 2},
    Sharded(np.arange(16, dtype=np.uint32).reshape(8, 2), P("batch", None)),
    results=P("batch"),
)
def constrained_keys(keys: Any) -> Any:
    wrapped = lax.with_sharding_constraint(jax.random.wrap_key_data(keys), P("batch"))
    return jax.vmap(jax.random.bits)(wrapped)


@fault(
    "jax-ml/jax#38845",
    "a partial shard_map whose results name a manual axis",
    {"a": 2, "b": 2, "c": 2},
    Sharded(numbers(4, 4, 4), P("a", "b", "c")),
    tolerance=1e-6,
    reference=lambda x: jnp.sin(x).reshape(2, 2, 4, 4).sum(axis=0),
)
def partial_shard_map(x: Any) -> Any:
    @partial(jax.shard_map, in_specs=P("a", "b"), out_specs=P(None, "b"), check_vma=False, axis_names=frozenset({"a", "b"}))
    def total(x: Any) -> Any:
        return lax.psum(x, "a")

    return total(jnp.sin(x))


@fault(
    "jax-ml/jax#36691",
    "an exported shard_map on a mesh of 2x2, called after the round trip",
    {"x": 2, "y": 2},
    Sharded(numbers(4, 8), P("x", "y")),
    Sharded(numbers(8, 4, seed=1), P("y", None)),
    results=P("x", None),
    tolerance=1e-6,
)
def exported_shard_map(x: Any, weights: Any) -> Any:
    @partial(jax.shard_map, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))
    def product(x: Any, weights: Any) -> Any:
        return lax.psum(x @ weights, "y")

    return product(x, weights)


@fault(
    "jax-ml/jax#26946",
    "the gradient through a constraint on a dimension of 17 over 8 devices, which out_shardings refuses",
    {"data": 8},
    Sharded(numbers(17, 16)),
    Sharded(integers(8, below=17), P("data")),
    tolerance=1e-6,
)
def uneven_table_gradient(table: Any, tokens: Any) -> Any:
    def loss(table: Any) -> Any:
        return jnp.sum(jnp.square(lax.with_sharding_constraint(jnp.sin(table), P("data", None))[tokens]))

    return jax.value_and_grad(loss)(table)


@fault(
    "jax-ml/jax#32157",
    "gradients of a convolution for each example",
    {"x": 8},
    Sharded(numbers(1, 1, 3, 3)),
    Sharded(numbers(16, 1, 4, 4, seed=1), P("x")),
    tolerance=1e-6,
)
def convolution_gradients(weight: Any, x: Any) -> Any:
    def forward(weight: Any, x: Any) -> Any:
        return jnp.sum(lax.conv_general_dilated(x[None], weight, (1, 1), "VALID"))

    return jax.vmap(jax.grad(forward), in_axes=(None, 0))(weight, x)


@fault(
    "jax-ml/jax#31798",
    "both gradients of a padded one-dimensional convolution, batch sharded",
    {"S": 4},
    Sharded(numbers(3, 1, 16)),
    Sharded(numbers(8, 32, 1, seed=1), P("S", None, None)),
    tolerance=2e-6,
)
def causal_convolution_gradient(kernel: Any, x: Any) -> Any:
    def forward(kernel: Any, x: Any) -> Any:
        padded = jnp.pad(x, ((0, 0), (2, 0), (0, 0)))
        dims = lax.ConvDimensionNumbers((0, 2, 1), (2, 1, 0), (0, 2, 1))
        return jnp.sum(jnp.tanh(lax.conv_general_dilated(padded, kernel, (1,), "VALID", dimension_numbers=dims)))

    return jax.grad(forward, argnums=(0, 1))(kernel, x)


@fault(
    "jax-ml/jax#29883",
    "solutions with a batch of matrices",
    {"i": 4},
    Sharded(numbers(4, 5, 5) + 5 * np.eye(5, dtype=np.float32), P("i", None, None)),
    Sharded(numbers(4, 5, 2, seed=1), P("i", None, None)),
    tolerance=1e-5,
)
def batch_of_solutions(x: Any, y: Any) -> Any:
    return jnp.linalg.solve(x, y)


@fault(
    "jax-ml/jax#28070",
    "a cumulative sum along a replicated dimension on an Explicit mesh",
    {"x": 4},
    Sharded(numbers(8), P("x")),
    explicit=True,
)
def explicit_cumulative_sum(x: Any) -> Any:
    return jnp.cumsum(jnp.expand_dims(x, 1) * jnp.ones((1, 3)), axis=1)


@fault(
    "",
    "the gradient of a sort along a dimension of 10 over 8 devices",
    {"a": 2, "b": 4},
    Sharded(numbers(10, 12)),
    tolerance=1e-6,
)
def uneven_sort_gradient(x: Any) -> Any:
    def loss(x: Any) -> Any:
        return jnp.sum(jnp.sort(lax.with_sharding_constraint(x, P(("a", "b"))), axis=0) * x)

    return jax.value_and_grad(loss)(x)


@fault(
    "",
    "the median along a dimension of 10 over 8 devices, and its gradient",
    {"a": 2, "b": 4},
    Sharded(numbers(10, 12)),
    tolerance=1e-6,
)
def uneven_median_gradient(x: Any) -> Any:
    return jax.value_and_grad(lambda x: jnp.sum(jnp.median(lax.with_sharding_constraint(x, P(("a", "b"))), axis=0)))(x)
