"""Gradients of weights that are replicated along a data axis are reduced once in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.pipelines.function import Pipelined
from tests.pipelines.steps import WIDTH, accumulating, mlp_loss, normal

Tree = Any
ROWS = 1024


def data_parallel(
    convert: Callable[[Any], Any] = lambda w: w, *, axis: str | None = None, schedule: str = "1f1b"
) -> tuple[Pipelined, Tree]:
    """Two stages of two layers without biases, on four devices each along which rows are split, and its arguments."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    rows, weights = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(axis))

    def loss(params: Tree, batch: Tree, stages: int) -> Any:
        batch = jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, rows), batch)
        layers = [{"w": convert(w), "b": jnp.zeros(())} for w in params]
        return mlp_loss({"layers": layers}, batch, stages)

    params = [normal(number, WIDTH, WIDTH) for number in range(4)]
    batch = (normal(10, ROWS, WIDTH), normal(11, ROWS, WIDTH))
    step = accumulating(loss, 2)
    options = {"in_shardings": (weights, rows), "out_shardings": (weights, None)}
    return meshbridge.pipelined(step, stages=2, schedule=schedule, donate_argnums=0, **options), (params, batch)


def wire_bytes(pipelined: Pipelined, arguments: Tree) -> dict[str, float]:
    """The wire bytes of one run of each fragment."""
    return {fragment.site: fragment.wire_bytes for fragment in pipelined.report(*arguments).fragments}


REDUCED = 2 * 2 * WIDTH * WIDTH * 4 * 3 / 4
"""The wire bytes of all-reduces of two gradients on four devices."""


def test_products_are_reduced_after_the_loop() -> None:
    found = wire_bytes(*data_parallel())
    assert (found["backward0"], found["post0"], found["post1"]) == (0, REDUCED, REDUCED)


def test_types_may_change_on_the_way() -> None:
    found = wire_bytes(*data_parallel(lambda w: w.astype(jnp.bfloat16)))
    assert (found["backward0"], found["post0"]) == (0, REDUCED)


def test_sharded_gradients_are_scattered_each_time() -> None:
    found = wire_bytes(*data_parallel(axis="data"))
    assert found["backward0"] > 0
    assert found["post0"] == 0


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_it_is_proved(schedule: str) -> None:
    pipelined, arguments = data_parallel(schedule=schedule)
    proof = pipelined.verify(*arguments)
    assert proof.equal, proof.table()


def test_numbers_and_shardings_of_results() -> None:
    pipelined, (params, batch) = data_parallel()
    expected, _ = jax.jit(pipelined.function.__wrapped__)(*jax.tree.map(jnp.array, (params, batch)))
    for _ in range(2):
        found, _ = pipelined(params, batch)
        for own, plain in zip(found, expected, strict=True):
            np.testing.assert_allclose(own, plain, rtol=2e-5, atol=1e-6)
            assert own.sharding.mesh.axis_types == (AxisType.Auto,)
