"""What communication is modelled to cost is what it costs: otherwise the cheaper way is not the one taken."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import meshbridge
from meshbridge import resharding
from meshbridge.ir.sharding import Mesh, Sharding

P = PartitionSpec
MESH = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Auto,) * 3)


def sent(function: Callable[..., object], spec: PartitionSpec, *shape: int) -> float:
    jitted = jax.jit(function, in_shardings=NamedSharding(MESH, spec))
    return meshbridge.report(export.export(jitted)(jax.ShapeDtypeStruct(shape, jnp.float32))).wire_bytes


def test_half_of_the_devices_keep_what_they_have() -> None:
    """Where coordinates along both axes agree, the shards do: a permute moves the others' alone."""
    mesh = Mesh("m", (2, 2, 2))
    source, target = Sharding("m", ((), (0,))), Sharding("m", ((), (2,)))
    assert resharding.cost((16, 24), "f32", mesh, source, target) == 16 * 12 * 4 / 2


def test_one_permute_serves_all_readers() -> None:
    def square_and_slope(x: jax.Array) -> jax.Array:
        y = lax.with_sharding_constraint(jnp.tanh(x), NamedSharding(MESH, P(None, "c")))
        return lax.with_sharding_constraint(y * (1 - jnp.tanh(x)), NamedSharding(MESH, P(None, "c")))

    assert sent(square_and_slope, P(None, "a"), 16, 24) == 16 * 12 * 4 / 2


@pytest.mark.parametrize("dim", [0, 1])
def test_a_scan_of_what_all_have_sends_nothing(dim: int) -> None:
    """Every device could scan its rows and exchange what they amount to; scanning all of them is cheaper."""

    def scanned(x: jax.Array) -> jax.Array:
        spec = P(("a", "b", "c"), None) if dim == 0 else P(None, ("a", "b", "c"))
        return lax.with_sharding_constraint(jnp.cumsum(x, dim), NamedSharding(MESH, spec))

    assert sent(scanned, P(), 16, 24) == 0
