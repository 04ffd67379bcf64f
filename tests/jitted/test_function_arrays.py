"""Arrays that are more than numbers in rows: typed keys, small types, layouts, refs, and memories. All as `jax.jit` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import compute_on
from jax.experimental.layout import Format, Layout, with_layout_constraint
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from tests.jitted.programs import W, X, check_same
from tests.versions import PLACES_ON_HOSTS

Jit = Callable[..., Any]
Program = Callable[[Jit, NamedSharding], Any]
"""What `jax.jit`, or ours in its place, is to compute of arrays in blocks."""


def _replicated(blocks: NamedSharding) -> NamedSharding:
    return NamedSharding(blocks.mesh, P())


def keys_in_a_scan(jit: Jit, blocks: NamedSharding) -> Any:
    def step(carry: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        key, x = carry
        key, used = jax.random.split(key)
        return (key, x + jax.random.normal(used, x.shape)), None

    scan = jit(lambda *start: jax.lax.scan(step, start, length=3)[0], in_shardings=(_replicated(blocks), blocks))
    return scan(jax.random.key(1), X)


def keys_in_shards(jit: Jit, blocks: NamedSharding) -> Any:
    rows = NamedSharding(blocks.mesh, P("data"))
    keys = jax.device_put(jax.random.split(jax.random.key(7), 16), rows)
    return jit(jax.vmap(lambda key: (jax.random.fold_in(key, 3), jax.random.uniform(key, (32,)))), in_shardings=rows)(keys)


def keys_in_a_branch(jit: Jit, blocks: NamedSharding) -> Any:
    def function(key: jax.Array, x: jax.Array) -> Any:
        return jax.lax.cond(x.sum() > 1e9, lambda key: key, lambda key: jax.random.fold_in(key, 1), key)

    return jit(function, in_shardings=(_replicated(blocks), blocks))(jax.random.key(1, impl="rbg"), X)


def layouts_of_arguments(jit: Jit, blocks: NamedSharding) -> Any:
    columns_first = Format(Layout((1, 0)), blocks)
    return jit(lambda x: x * 2, in_shardings=columns_first)(jax.device_put(X, columns_first))


def layouts_of_results(jit: Jit, blocks: NamedSharding) -> Any:
    found = jit(lambda x: x * 2, in_shardings=blocks, out_shardings=Format(Layout((1, 0)), blocks))(X)
    assert found.format.layout.major_to_minor == (1, 0)
    return found


def layouts_that_xla_chooses(jit: Jit, blocks: NamedSharding) -> Any:
    jitted = jit(lambda x: x @ W, in_shardings=Format(Layout.AUTO, blocks), out_shardings=Format(Layout.AUTO, blocks))
    compiled = jitted.lower(jax.ShapeDtypeStruct(X.shape, X.dtype)).compile()
    return compiled(jax.device_put(X, compiled.input_formats[0][0]))


def layouts_inside(jit: Jit, blocks: NamedSharding) -> Any:
    return jit(lambda x: with_layout_constraint(x * 2, Layout((1, 0))) @ W, in_shardings=blocks)(X)


def refs_inside(jit: Jit, blocks: NamedSharding) -> Any:
    def function(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(jnp.zeros_like(x))

        def add(number: jax.Array, _: Any) -> tuple[jax.Array, None]:
            ref[...] += x * number
            ref[3] = ref[2] * 2
            return number + 1, None

        jax.lax.scan(add, 1, length=3)
        return ref[...]

    return jit(function, in_shardings=blocks)(X)


def refs_as_arguments(jit: Jit, blocks: NamedSharding) -> Any:
    ref, x = jax.new_ref(jax.device_put(X, blocks)), jax.device_put(X, blocks)

    def add(ref: Any, x: jax.Array) -> jax.Array:
        ref[...] = ref[...] + x
        return ref[...].sum()

    jitted = jit(add)
    return jitted(ref, x), jitted(ref, x), ref[...]


def refs_of_a_closure(jit: Jit, blocks: NamedSharding) -> Any:
    ref = jax.new_ref(jax.device_put(X, blocks))

    def add(x: jax.Array) -> jax.Array:
        ref[0] = ref[1] + x[0]
        return ref[...].sum()

    return jit(add)(jax.device_put(X, blocks)), ref[...]


def gradients_through_refs(jit: Jit, blocks: NamedSharding) -> Any:
    def function(x: jax.Array) -> jax.Array:
        ref = jax.new_ref(jnp.zeros_like(x))
        ref[...] = jnp.sin(x)
        return ref[...].sum()

    return jit(jax.grad(function), in_shardings=blocks, out_shardings=blocks)(X)


def computed_on_hosts(jit: Jit, blocks: NamedSharding) -> Any:
    computing = getattr(compute_on, "compute_on2", compute_on.compute_on)  # under its later name before jax 0.11
    on_host = computing(jnp.sin, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)
    return jit(jax.value_and_grad(lambda x: (on_host(x * 2) + 1).sum()), in_shardings=blocks)(X)


def kept_on_hosts(jit: Jit, blocks: NamedSharding) -> Any:
    host = blocks.with_memory_kind("pinned_host")

    def function(x: jax.Array) -> Any:
        return jax.device_put(x, blocks) * 2, jax.device_put(jax.device_put(x, jax.memory.Space.Device) * 3, host)

    found = jit(function, in_shardings=host, out_shardings=(blocks, host))(jax.device_put(X, host))
    assert [each.sharding.memory_kind for each in found] == ["device", "pinned_host"]
    return found


def offloaded_activations(jit: Jit, blocks: NamedSharding) -> Any:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["h"], offload_src="device", offload_dst="pinned_host"
    )

    def layer(x: jax.Array) -> jax.Array:
        return jnp.sin(checkpoint_name(jnp.cos(x @ W), "h")) @ W.T

    offloading = jax.checkpoint(layer, policy=policy)
    return jit(jax.grad(lambda x: offloading(offloading(x)).sum()), in_shardings=blocks, out_shardings=blocks)(X)


ON_HOSTS = (computed_on_hosts, kept_on_hosts, offloaded_activations)
PROGRAMS = (
    keys_in_a_scan,
    keys_in_shards,
    keys_in_a_branch,
    layouts_of_arguments,
    layouts_of_results,
    layouts_that_xla_chooses,
    layouts_inside,
    refs_inside,
    refs_as_arguments,
    refs_of_a_closure,
    gradients_through_refs,
    *ON_HOSTS,
)


@pytest.fixture
def blocks(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P("data", "model"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_jax_has_them(program: Program, blocks: NamedSharding) -> None:
    if program in ON_HOSTS and not PLACES_ON_HOSTS:
        pytest.skip("this jaxlib has no memory of hosts on CPUs")
    with meshbridge.patch() as planned:
        found = program(jax.jit, blocks)
    assert planned
    check_same(found, program(jax.jit, blocks))
    check_same(program(meshbridge.jit, blocks), found)


SMALL = [
    "int4",
    "uint4",
    "float4_e2m1fn",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "int8",
    "bool",
    "float16",
    "complex64",
]


@pytest.mark.parametrize("name", SMALL)
def test_small_types(name: str, blocks: NamedSharding) -> None:
    kind = np.dtype(getattr(jnp, name))
    values = np.clip(np.round(np.abs(X) * 4), 0, 1).astype(kind)
    columns = NamedSharding(blocks.mesh, P("model", "data"))

    def function(x: jax.Array) -> Any:
        turned = jax.lax.with_sharding_constraint(x, columns)
        return turned, x.T, jnp.concatenate([x, x])[::2], x.astype(jnp.complex64).sum(0), jnp.ones_like(x)

    found = meshbridge.jit(function, in_shardings=blocks)(values)
    for each, wanted in zip(found, jax.jit(function)(values), strict=True):
        assert each.dtype == wanted.dtype
        np.testing.assert_array_equal(*(np.asarray(array).astype(np.complex64) for array in (each, wanted)))
