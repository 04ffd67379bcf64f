"""What look-ups send: nothing where the index counts along, else what is looked up rather than what it is looked up in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding

import meshbridge
from tests.operations.differential import Spec, assert_close, device_mesh, example, run_sharded

F32, I32 = "float32", "int32"
ROWS, COLUMNS = 16, 32
ARRAY, LABELS, UPDATES = ((ROWS, COLUMNS), F32), ((ROWS,), I32), ((ROWS,), F32)
BY_ROW = [Spec("a", "b"), Spec("a")]


def _loss(x: jax.Array, labels: jax.Array) -> jax.Array:
    return -jax.nn.log_softmax(x)[np.arange(ROWS), labels].mean()


def _slices(x: jax.Array, starts: jax.Array) -> jax.Array:
    return jax.vmap(lambda row, start: lax.dynamic_slice(row, (start,), (3,)))(x, starts)


def _update_slices(x: jax.Array, starts: jax.Array, updates: jax.Array) -> jax.Array:
    return jax.vmap(lambda row, start, new: lax.dynamic_update_slice(row, new[None], (start,)))(x, starts, updates)


Case = tuple[Callable[..., Any], list[tuple[tuple[int, ...], str]], list[Spec], float]
CASES: dict[str, Case] = {
    "one of each row": (lambda x, i: x[jnp.arange(ROWS), i], [ARRAY, LABELS], BY_ROW, 2 * 3 / 4 * ROWS / 2 * 4),
    "set one of each row": (lambda x, i: x.at[jnp.arange(ROWS), i].set(0.0), [ARRAY, LABELS], BY_ROW, 0),
    "add to one of each row": (
        lambda x, i, u: x.at[jnp.arange(ROWS), i].add(u),
        [ARRAY, LABELS, UPDATES],
        [*BY_ROW, Spec("a")],
        0,
    ),
    "cross entropy gradient": (jax.grad(_loss), [ARRAY, LABELS], [Spec(("a", "b")), Spec(("a", "b"))], 0),
    "a slice of each row": (_slices, [ARRAY, LABELS], BY_ROW, 2 * 3 / 4 * ROWS / 2 * 3 * 4),
    "a slice into each row": (_update_slices, [ARRAY, LABELS, UPDATES], [*BY_ROW, Spec("a")], 0),
    "rows of a split table": (lambda x, i: x[i], [ARRAY, ((4,), I32)], [Spec(("a", "b")), Spec()], 2 * 7 / 8 * 4 * COLUMNS * 4),
    "diagonal blocks": (lambda x: x[jnp.arange(8), :, jnp.arange(8)], [((8, 16, 8), F32)], [Spec("b", None, "a")], 128),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_and_values(name: str) -> None:
    function, shapes, specs, most = CASES[name]
    mesh = device_mesh((2, 4))
    rng = np.random.default_rng(0)
    arguments = [example(rng, shape, dtype) for shape, dtype in shapes]
    shardings = tuple(NamedSharding(mesh, spec) for spec in specs)
    with jax.set_mesh(mesh):
        exported = jax.export.export(jax.jit(function, in_shardings=shardings))(*arguments)
    assert meshbridge.report(exported).wire_bytes <= most
    assert_close(*run_sharded(function, arguments, mesh, specs))
