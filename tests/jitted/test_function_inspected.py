"""`jax.debug.inspect_array_sharding`: the function is told what partitioning decides, as XLA's partitioner tells it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.jitted import plan_cache
from tests.jitted.programs import X, check_same, on_one_device


@pytest.fixture
def blocks(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P("data", "model"))


def _inspecting(mesh: Mesh, told: Callable[[str], Callable[[Any], None]]) -> Callable[[jax.Array], Any]:
    """A function that inspects values of every kind."""

    def inspect(value: jax.Array, name: str) -> jax.Array:
        jax.debug.inspect_array_sharding(value, callback=told(name))
        return value

    def function(x: jax.Array) -> Any:
        turned = inspect(jnp.sin(inspect(x, "argument")).T, "transposed")
        summed = inspect(jax.lax.with_sharding_constraint(x.sum(0), NamedSharding(mesh, P())), "replicated")
        carried, _ = jax.lax.scan(lambda carry, _: (inspect(carry, "carried") * 2, None), x, length=3)
        spec = P("data", "model")
        shards = jax.shard_map(lambda shard: inspect(shard, "manual"), mesh=mesh, in_specs=spec, out_specs=spec)(x)
        rows = jax.shard_map(
            lambda shard: inspect(shard, "partly manual"), mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
        )(x)
        return turned, summed, carried, shards, rows

    return function


def test_as_xla_tells_it(mesh: Mesh, blocks: NamedSharding) -> None:
    def found(jit: Callable[..., Any]) -> tuple[dict[str, Any], Any]:
        told: dict[str, Any] = {}
        jitted = jit(_inspecting(mesh, lambda name: lambda sharding: told.setdefault(name, sharding)), in_shardings=blocks)
        return told, jitted(X)

    ours, values = found(meshbridge.jit)
    theirs, expected = found(jax.jit)
    assert ours == theirs
    assert len(ours) == 6
    check_same(values, expected)


def test_once_for_each_compilation(blocks: NamedSharding) -> None:
    told: list[Any] = []

    def function(x: jax.Array) -> jax.Array:
        jax.debug.inspect_array_sharding(x * 2, callback=told.append)
        return x * 2

    jitted = meshbridge.jit(function, in_shardings=blocks)
    for _ in range(2):
        check_same(jitted(X), on_one_device(lambda x: x * 2, X))
    jitted.lower(X).compile()
    assert told == [blocks]
    assert "inspect_sharding" not in jitted.partitioned_text(X)


def test_of_kept_plans(blocks: NamedSharding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of the disk says it, too."""
    monkeypatch.setenv(plan_cache.VARIABLE, str(tmp_path))
    told: list[Any] = []
    for _ in range(2):

        def function(x: jax.Array) -> jax.Array:
            jax.debug.inspect_array_sharding(x.T, callback=told.append)
            return x * 2

        meshbridge.jit(function, in_shardings=blocks)(X)
    assert len(list(tmp_path.iterdir())) == 1
    assert [sharding.spec for sharding in told] == [P("model", "data")] * 2


def test_on_one_device() -> None:
    told: list[Any] = []

    def function(x: jax.Array) -> jax.Array:
        jax.debug.inspect_array_sharding(x, callback=told.append)
        return x * 2

    check_same(meshbridge.jit(function)(X), X * 2)
    assert told[0].is_fully_replicated
