"""A dimension at the edge of a manual computation that does not divide evenly inside holds the elements that it holds outside."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge

BODIES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "one row": lambda x: jnp.sum(x, axis=0, keepdims=True),
    "more rows": lambda x: jnp.concatenate([x, 2 * x]),
    "as many rows": lambda x: jnp.cumsum(x, axis=0),
}


@pytest.mark.parametrize("after", [None, P(("i", "j")), P("j")], ids=str)
@pytest.mark.parametrize("before", [None, P(("i", "j"))], ids=str)
@pytest.mark.parametrize("rows", [4, 8, 12])
@pytest.mark.parametrize("body", BODIES)
def test_rows_that_do_not_divide_evenly_within(body: str, rows: int, before: P | None, after: P | None) -> None:
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("i", "j"))

    def f(x: jax.Array) -> jax.Array:
        if before is not None:
            x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, before))
        mapped = jax.shard_map(BODIES[body], mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False, axis_names={"i"})
        x = mapped(x)
        return x if after is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, after))

    x = jnp.arange(5 * rows, dtype=jnp.float32).reshape(rows, 5)
    parts = np.split(np.asarray(x), 4)
    expected = np.concatenate([np.asarray(BODIES[body](jnp.asarray(part))) for part in parts])
    np.testing.assert_array_equal(meshbridge.jit(f)(x), expected)
