"""Partitioned programs in the StableHLO interpreter: every device's program is evaluated op by op, as the specification reads.

Nothing of XLA takes part: the unsharded program is evaluated by the interpreter too.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from meshbridge import pipeline
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.read import formats
from meshbridge.runtime import pjrt
from tests.operations.cases import Case, Operand, compare, examples, export
from tests.operations.differential import SEED, Spec, device_mesh
from tests.operations.interpreter import evaluate, evaluate_partitions, evaluate_side_by_side

STEPS = (
    *pipeline.build(pipeline.Options(emit="mesh")).replacing("decided", ShardingRefinement()).passes,
    LowerCollectives(form="exported"),
)
"""Up to the program of one device, in the form that stands inside of what callers get: devices are partitions."""

F32, I32, BIT = "float32", "int32", "bool"
Shapes = list[tuple[tuple[int, ...], str]]


def _layer(x: jax.Array, w: jax.Array) -> Any:
    def loss(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.mean(jax.nn.softmax(jnp.tanh(x @ w), axis=-1) ** 2)

    return jax.value_and_grad(loss, (0, 1))(x, w)


def _window_of_two(x: jax.Array, y: jax.Array) -> Any:
    def join(left: Any, right: Any) -> Any:
        return left[0] + right[0], lax.max(left[1], right[1])

    padding, dilation = ((0, 1), (1, 2)), (2, 1)
    return lax.reduce_window((x, y), (np.float32(1), np.int32(0)), join, (2, 3), (1, 1), padding, window_dilation=dilation)


PROGRAMS: dict[str, tuple[Callable[..., Any], Shapes]] = {
    "elementwise": (lambda x, y: jnp.where(x > y, jnp.sin(x) * y, x - jnp.exp(y)), [((6, 8), F32)] * 2),
    "integers": (lambda x, y: (x ^ y) + lax.population_count(x) * 3, [((6, 8), I32)] * 2),
    "dot": (lambda x, y: x @ y, [((6, 8), F32), ((8, 4), F32)]),
    "batched dot": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), [((4, 3, 8), F32), ((4, 8, 5), F32)]),
    "sum and max": (lambda x: (x.sum(0) * 2, x.max(1), x.sum()), [((6, 10), F32)]),
    "reduce from 3": (lambda x: lax.reduce(x, np.float32(3), lax.add, (0,)), [((10, 4), F32)]),
    "any and all": (lambda x: (x.any(0), x.all(1)), [((6, 8), BIT)]),
    "argmax": (lambda x: (jnp.argmax(x, 0), jnp.argmin(x, 1)), [((6, 8), F32)]),
    "cumsum": (lambda x: lax.cumsum(x, 0) + lax.cummax(x, 1, reverse=True), [((10, 6), F32)]),
    "softmax": (lambda x: jax.nn.softmax(x, axis=0), [((10, 4), F32)]),
    "reshape": (lambda x: jnp.cos(x.reshape(4, 12)).reshape(-1), [((6, 8), F32)]),
    "movement": (lambda x: jnp.concatenate([x[::-1, 1:], x[:, ::2]], 1).T, [((8, 6), F32)]),
    "pad": (lambda x: lax.pad(x, np.float32(1), ((1, 2, 0), (-1, 0, 1))), [((6, 8), F32)]),
    "iota": (lambda x: x * jnp.arange(8.0) + jnp.arange(6.0)[:, None], [((6, 8), F32)]),
    "lookup": (lambda x, i: x[i], [((8, 6), F32), ((5,), I32)]),
    "scatter": (lambda x, i, u: x.at[i].add(u), [((8, 6), F32), ((5,), I32), ((5, 6), F32)]),
    "sort": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1)), [((6, 8), F32)]),
    "slice at run time": (lambda x, i: lax.dynamic_slice_in_dim(x, i, 3, 0), [((8, 6), F32), ((), I32)]),
    "update at run time": (
        lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 0),
        [((8, 6), F32), ((2, 6), F32), ((), I32)],
    ),
    "pooling": (lambda x: lax.reduce_window(x, np.float32(-9), lax.max, (2, 3), (2, 1), "SAME"), [((8, 6), F32)]),
    "window of two from 1": (_window_of_two, [((8, 6), F32), ((8, 6), I32)]),
    "convolution": (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), [((2, 3, 6, 6), F32), ((4, 3, 3, 3), F32)]),
    "branches": (lambda x, i: lax.switch(i, [lambda: x + 1, lambda: x.T @ x, lambda: x * 2]), [((4, 4), F32), ((), I32)]),
    "layer": (_layer, [((6, 8), F32), ((8, 4), F32)]),
}


def _specs(chooser: random.Random, rank: int, axes: Sequence[str]) -> Spec:
    entries: list[list[str]] = [[] for _ in range(rank)]
    for axis in chooser.sample(list(axes), len(axes)):
        home = chooser.randrange(-1, rank)
        if home >= 0:
            entries[home].append(axis)
    return Spec(*[tuple(entry) or None for entry in entries])


def _drawn(name: str, mesh_shape: tuple[int, ...]) -> tuple[Case, ir.Module]:
    """A program with drawn shardings, partitioned."""
    function, shapes = PROGRAMS[name]
    mesh = device_mesh(mesh_shape)
    chooser = random.Random(f"{SEED}{name}{mesh_shape}")
    operands = tuple(Operand(shape, dtype, _specs(chooser, len(shape), mesh.axis_names)) for shape, dtype in shapes)
    ranks = [result.ndim for result in jax.tree.leaves(jax.eval_shape(function, *examples([Case("", function, operands)])))]
    case = Case(name, function, operands, tuple(_specs(chooser, rank, mesh.axis_names) for rank in ranks))
    module = formats.unpack(export([case], mesh), mlir.context()).module
    pipeline.run(STEPS, module)
    return case, module


def _unsharded(case: Case) -> list[np.ndarray]:
    lowered = jax.jit(case.unsharded).lower(*examples([case]))
    return evaluate(_plain(lowered.as_text()), examples([case]))


@pytest.mark.parametrize("mesh_shape", [(2,), (1, 2), (3,), (2, 2), (2, 2, 2)], ids=["2", "1x2", "3", "2x2", "2x2x2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_unsharded(name: str, mesh_shape: tuple[int, ...]) -> None:
    case, module = _drawn(name, mesh_shape)
    compare(case, interpreted(module, examples([case]), evaluate_side_by_side), _unsharded(case))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="each partition needs a core")
@pytest.mark.parametrize("name", PROGRAMS)
def test_collectives_of_the_interpreter(name: str) -> None:
    """Two partitions that run at the same time: more would need more cores."""
    case, module = _drawn(name, (2,))
    compare(case, interpreted(module, examples([case]), evaluate_partitions), _unsharded(case))


def _plain(text: str) -> str:
    """Without the ops of CHLO, which the interpreter does not know."""
    module = mlir.parse(text, "unsharded.mlir", mlir.context())
    _legalize(module)
    return str(module)


def _legalize(module: ir.Module) -> None:
    mlir.run_stock_passes(module, "builtin.module(func.func(chlo-legalize-to-stablehlo))")


Shards = Sequence[Sequence[np.ndarray]]


def interpreted(
    module: ir.Module, arguments: Sequence[np.ndarray], run: Callable[[ir.Module, Shards], list[list[np.ndarray]]]
) -> list[np.ndarray]:
    """Runs a local program on global arrays, one partition per device."""
    _legalize(module)
    main = mlir.main_function(module)
    mesh = mesh_or_single(module)
    inputs, outputs = pjrt.boundary(module)
    pjrt._strip(module, main)
    pieces = [_split(argument, port, mesh) for argument, port in zip(arguments, inputs, strict=True)]
    partitions = run(module, [[piece[device] for piece in pieces] for device in range(mesh.size)])
    return [_join([one[index] for one in partitions], port, mesh) for index, port in enumerate(outputs)]


def _windows(port: pjrt.ShardedPort, mesh: Mesh) -> list[tuple[slice, ...]]:
    """Per device in row-major order, which part of the padded tensor it holds."""
    windows = []
    for coordinates in itertools.product(*map(range, mesh.shape)):
        window = []
        for size, axes in zip(port.shard_shape, port.split, strict=True):
            number = 0
            for axis in axes:
                number = number * mesh.shape[axis] + coordinates[axis]
            window.append(slice(number * size, (number + 1) * size))
        windows.append(tuple(window))
    return windows


def _split(array: np.ndarray, port: pjrt.ShardedPort, mesh: Mesh) -> list[np.ndarray]:
    if not array.ndim:
        return [array] * mesh.size
    more = [(0, padded - size) for padded, size in zip(port.padded_shape(mesh), port.shape, strict=True)]
    padded = np.pad(array, more)
    return [padded[window] for window in _windows(port, mesh)]


def _join(shards: Sequence[np.ndarray], port: pjrt.ShardedPort, mesh: Mesh) -> np.ndarray:
    whole = np.zeros(port.padded_shape(mesh), shards[0].dtype)
    for shard, window in zip(shards, _windows(port, mesh), strict=True):
        whole[window] = shard
    return whole[tuple(slice(size) for size in port.shape)]
