"""Every op family under random shardings: partitioned results equal unsharded ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.operations.differential import assert_close, check_samples, device_mesh, example, run_sharded

F32, I32, BIT, C64 = "float32", "int32", "bool", "complex64"
Shapes = list[tuple[tuple[int, ...], str]]
Case = tuple[Callable[..., Any], Shapes]


def _scan(xs: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    def step(carry: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = jnp.tanh(carry @ w + x)
        return carry, carry.sum(axis=-1)

    return lax.scan(step, jnp.ones_like(xs[0]), xs)


def _scan_gradient(xs: jax.Array, w: jax.Array) -> Any:
    return jax.grad(lambda xs, w: _scan(xs, w)[1].sum() + _scan(xs, w)[0].sum(), argnums=(0, 1))(xs, w)


CASES: dict[str, Case] = {
    "elementwise": (lambda x, y: jnp.where(x > y, jnp.sin(x) * y, x - jnp.exp(y)), [((8, 16), F32), ((8, 16), F32)]),
    "elementwise_integer": (lambda x, y: (x ^ y) + jnp.maximum(x, y) * 3, [((8, 16), I32), ((8, 16), I32)]),
    "elementwise_complex": (lambda x, y: jnp.conj(x) * y + x.real, [((8, 16), C64), ((8, 16), C64)]),
    "elementwise_chlo": (lambda x: jax.scipy.special.erf(x) + lax.lgamma(x + 9), [((8, 16), F32)]),
    "convert": (lambda x: x.astype(jnp.bfloat16).astype(jnp.float32) + x.astype(jnp.int32), [((8, 16), F32)]),
    "clamp": (lambda x: lax.clamp(-0.5, x, 0.5), [((8, 16), F32)]),
    "broadcast": (lambda x, y: x[:, None, :] + y[None], [((8, 16), F32), ((4, 16), F32)]),
    "broadcast_row": (lambda x, b: x + b, [((8, 16), F32), ((16,), F32)]),
    "iota": (lambda x: x * jnp.arange(16.0) + jnp.arange(8.0)[:, None], [((8, 16), F32)]),
    "constant": (lambda x: x * jnp.asarray([[float(i * j) for i in range(16)] for j in range(8)]), [((8, 16), F32)]),
    "transpose": (lambda x: jnp.transpose(x, (2, 0, 1)) + 1, [((4, 8, 16), F32)]),
    "reshape_merge": (lambda x: jnp.sin(x).reshape(32, 16) * 2, [((4, 8, 16), F32)]),
    "reshape_split": (lambda x: (x * 2).reshape(8, 4, 2, 8), [((32, 16), F32)]),
    "reshape_flat": (lambda x: jnp.cos(x.reshape(-1)), [((4, 8, 16), F32)]),
    "reshape_misfit": (lambda x: jnp.cos(x.reshape(16, 12)), [((8, 24), F32)]),
    "dot": (lambda x, y: x @ y, [((8, 16), F32), ((16, 32), F32)]),
    "dot_integer": (lambda x, y: x @ y, [((8, 16), I32), ((16, 32), I32)]),
    "dot_batch": (lambda x, y: jnp.einsum("bhqd,bhkd->bhqk", x, y), [((4, 4, 8, 8), F32), ((4, 4, 16, 8), F32)]),
    "dot_two_contractions": (lambda x, y: jnp.einsum("abij,abjk->ik", x, y), [((4, 2, 8, 8), F32), ((4, 2, 8, 8), F32)]),
    "dot_chain": (lambda x, w, v: jax.nn.relu(x @ w) @ v, [((8, 16), F32), ((16, 32), F32), ((32, 8), F32)]),
    "dot_sums": (lambda x, w, v: x @ w + x @ v, [((8, 16), F32), ((16, 32), F32), ((16, 32), F32)]),
    "sum": (lambda x: x.sum(axis=1), [((8, 16), F32)]),
    "sum_all": (lambda x: x.sum() * 2, [((8, 16), F32)]),
    "max": (lambda x: x.max(axis=0) - x.min(axis=0), [((8, 16), F32)]),
    "prod": (lambda x: jnp.prod(1 + 0.1 * x, axis=1), [((8, 16), F32)]),
    "any_all": (lambda x: (jnp.any(x, 0), jnp.all(x, 1)), [((8, 16), BIT)]),
    "reduce_init": (lambda x: lax.reduce(x, 3.0, lax.add, (0,)), [((8, 16), F32)]),
    "reduce_init_product": (lambda x: lax.reduce(x, 3.0, lax.mul, (1,)), [((8, 16), F32)]),
    "reduce_init_or": (lambda x: lax.reduce(x, 5, lax.bitwise_or, (1,)), [((8, 16), I32)]),
    "reduce_init_xor": (lambda x: lax.reduce(x, 5, lax.bitwise_xor, (1,)), [((8, 16), I32)]),
    "argmax": (lambda x: (jnp.argmax(x, axis=1), jnp.argmin(x, axis=0)), [((8, 16), F32)]),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, axis=-1), [((8, 16), F32)]),
    "softmax": (lambda x: jax.nn.softmax(x, axis=-1), [((4, 8, 16), F32)]),
    "variance": (lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5), [((8, 16), F32)]),
    "concatenate": (lambda x, y: jnp.concatenate([x, y, x], axis=1), [((8, 16), F32), ((8, 8), F32)]),
    "slice": (lambda x: x[2:6, :] + x[1:5, :], [((8, 16), F32)]),
    "slice_strided": (lambda x: x[:, ::2], [((8, 16), F32)]),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 0))), [((8, 16), F32)]),
    "pad_interior": (lambda x: lax.pad(x, 1.0, ((0, 0, 1), (-1, 3, 0))), [((8, 16), F32)]),
    "reverse": (lambda x: x[::-1], [((8, 16), F32)]),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice_in_dim(x, i, 4, axis=0), [((8, 16), F32), ((), I32)]),
    "dynamic_update_slice": (
        lambda x, y, i: lax.dynamic_update_slice_in_dim(x, y, i, axis=1),
        [((8, 16), F32), ((8, 4), F32), ((), I32)],
    ),
    "embedding": (lambda table, ids: table[ids], [((8, 16), F32), ((4, 8), I32)]),
    "embedding_gradient": (
        lambda table, ids, g: jax.grad(lambda t: (t[ids] * g).sum())(table),
        [((8, 16), F32), ((4, 8), I32), ((4, 8, 16), F32)],
    ),
    "embedding_clamped": (lambda table, ids: jnp.take(table, ids * 2, axis=0, mode="clip"), [((8, 16), F32), ((4, 8), I32)]),
    "embedding_filled": (
        lambda table, ids: jnp.take(table, ids * 2, axis=0, mode="fill", fill_value=7),
        [((8, 16), F32), ((4, 8), I32)],
    ),
    "embedding_bits": (lambda table, ids: table[ids], [((8, 16), BIT), ((4, 8), I32)]),
    "embedding_columns": (lambda table, ids: table[:, ids], [((8, 16), F32), ((4, 8), I32)]),
    "gather_pairs": (lambda x, i, j: x[i, j], [((8, 16), F32), ((4, 8), I32), ((4, 8), I32)]),
    "take_along_axis": (lambda x, i: jnp.take_along_axis(x, i, axis=1), [((8, 16), F32), ((8, 4), I32)]),
    "take_along_axis_gradient": (
        lambda x, i: jax.grad(lambda x: (jnp.take_along_axis(x, i, axis=1) ** 2).sum())(x),
        [((8, 16), F32), ((8, 4), I32)],
    ),
    "scatter_add": (lambda x, i, u: x.at[i].add(u), [((8, 16), F32), ((4,), I32), ((4, 16), F32)]),
    "scatter_set": (lambda x, u: x.at[jnp.array([1, 3, 4, 6])].set(u), [((8, 16), F32), ((4, 16), F32)]),
    "scatter_max": (lambda x, i, u: x.at[i].max(u), [((8, 16), F32), ((4,), I32), ((4, 16), F32)]),
    "scatter_multiply": (lambda x, i, u: x.at[i].multiply(u), [((8, 16), F32), ((4,), I32), ((4, 16), F32)]),
    "scatter_pairs": (lambda x, i, j, u: x.at[i, j].add(u), [((8, 16), F32), ((4,), I32), ((4,), I32), ((4,), F32)]),
    "cummax_reverse": (lambda x: lax.cummax(x, axis=1, reverse=True) + lax.cumprod(x, axis=0), [((8, 16), F32)]),
    "cumsum_gradient": (lambda x: jax.grad(lambda x: (jnp.cumsum(x, axis=0) ** 2).sum())(x), [((8, 16), F32)]),
    "cumsum_integer": (lambda x: lax.cumsum(x, axis=0, reverse=True), [((8, 16), I32)]),
    "cumsum": (lambda x: jnp.cumsum(x, axis=1), [((8, 16), F32)]),
    "sort": (lambda x: jnp.sort(x, axis=1), [((8, 16), F32)]),
    "argsort": (lambda x: jnp.argsort(x, axis=0), [((8, 16), F32)]),
    "top_k": (lambda x: lax.top_k(x, 3), [((8, 16), F32)]),
    "fft2": (lambda x: jnp.fft.fft2(x), [((8, 16), C64)]),
    "rfft2": (lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * 2), [((4, 8, 16), F32)]),
    "fft3": (lambda x: jnp.fft.ifftn(x), [((4, 8, 16), C64)]),
    "fft": (lambda x: jnp.fft.fft(x, axis=-1), [((8, 16), C64)]),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.mT + 9 * jnp.eye(8)), [((4, 8, 8), F32)]),
    "convolution": (
        partial(lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
        [((8, 8, 8, 4), F32), ((3, 3, 4, 8), F32)],
    ),
    "max_pool": (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"), [((8, 8, 8, 4), F32)]),
    "scan": (_scan, [((4, 8, 16), F32), ((16, 16), F32)]),
    "scan_gradient": (_scan_gradient, [((4, 8, 16), F32), ((16, 16), F32)]),
    "while": (
        lambda x: lax.while_loop(lambda s: s[0].sum() < 100, lambda s: (s[0] * 2 + 1, s[1] + 1), (jnp.abs(x), 0)),
        [((8, 16), F32)],
    ),
    "cond": (lambda x, i: lax.cond(i > 2, lambda x: x * 2, lambda x: jnp.flip(x, 1), x), [((8, 16), F32), ((), I32)]),
    "switch": (
        lambda x, y, i: lax.switch(i, [lambda: x + y, lambda: x * y, lambda: x @ y.T @ y]),
        [((8, 8), F32), ((8, 8), F32), ((), I32)],
    ),
    "call": (lambda x: jax.nn.silu(x) + jax.jit(jax.nn.silu)(x * 2) + jax.nn.gelu(x), [((8, 16), F32)]),
    "remat": (
        lambda x, w: jax.grad(lambda w: jax.checkpoint(lambda w: jnp.tanh(x @ w).sum())(w))(w),
        [((8, 16), F32), ((16, 8), F32)],
    ),
    "random_bits": (lambda x: x + jax.random.uniform(jax.random.key(1), (8, 16)), [((8, 16), F32)]),
    "attention": (
        lambda q, k, v: jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)), v),
        [((4, 8, 4, 8), F32)] * 3,
    ),
    "cross_entropy": (
        lambda x, w, y: jax.value_and_grad(lambda w: -jnp.take_along_axis(jax.nn.log_softmax(x @ w), y[:, None], 1).mean())(w),
        [((8, 16), F32), ((16, 8), F32), ((8,), I32)],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("mesh_shape", [(2, 4), (2, 2, 2)], ids=["2x4", "2x2x2"])
def test_equals_unsharded(name: str, mesh_shape: tuple[int, ...]) -> None:
    function, shapes = CASES[name]
    check_samples(function, shapes, mesh_shape=mesh_shape, samples=2)


def test_nothing_annotated() -> None:
    """A program without any sharding still runs on all devices, replicated."""
    mesh = device_mesh((2, 4))
    function, shapes = CASES["dot_chain"]
    arguments = [example(np.random.default_rng(0), shape, dtype) for shape, dtype in shapes]
    assert_close(*run_sharded(function, arguments, mesh, [None] * 3))
