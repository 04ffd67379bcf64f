"""Calls of what `meshbridge.jit` gives, beside `jax.jit` on one device."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import MeshError
from meshbridge.jitted.function import Jitted
from tests.jitted.programs import RANDOM, W, X, check, check_same, on_one_device, plans


def network(x: jax.Array, w: jax.Array) -> dict[str, jax.Array]:
    return {"y": jnp.tanh(x @ w).sum(axis=1), "w": w * 0.5}


@pytest.fixture
def shardings(mesh: Mesh) -> tuple[NamedSharding, NamedSharding]:
    return NamedSharding(mesh, P("data", None)), NamedSharding(mesh, P(None, "model"))


def count(jitted: Jitted[..., Any]) -> int:
    """For how many kinds of arguments a function has been compiled."""
    return int(jitted._cache_size())  # type: ignore[attr-defined]


def test_it_computes_what_the_function_computes(shardings: Any) -> None:
    jitted = meshbridge.jit(network, in_shardings=shardings)
    check(jitted, network, X, W)
    check(jitted, network, X[:8], W)
    assert count(jitted) == 2


def test_every_collective_is_explicit(shardings: Any) -> None:
    jitted = meshbridge.jit(network, in_shardings=shardings)
    assert "sdy.manual_computation" in jitted.partitioned_text(X, W)
    assert [each.kind for each in jitted.report(X, W).collectives] == ["all_reduce"]
    assert jitted.report(X, W).wire_bytes == meshbridge.report(jax.jit(network, in_shardings=shardings), X, W).wire_bytes


def test_decorators(shardings: Any) -> None:
    @meshbridge.jit(in_shardings=shardings)
    def with_options(x: jax.Array, w: jax.Array) -> dict[str, jax.Array]:
        "What it does."
        return network(x, w)

    @meshbridge.jit
    def without(x: jax.Array) -> jax.Array:
        return x + 1

    check(with_options, network, X, W)
    check(without, lambda x: x + 1, X)
    assert (with_options.__name__, with_options.__doc__) == ("with_options", "What it does.")


def test_what_jax_has_jitted_keeps_its_options(shardings: Any) -> None:
    jitted = jax.jit(lambda x, n: x * n, in_shardings=shardings[0], static_argnums=1)
    partitioned = meshbridge.jit(jitted)
    check_same(partitioned(X, 3), on_one_device(lambda x: x * 3, X))
    assert partitioned(X, 3).sharding.spec == P("data")
    inner = meshbridge.jit(jnp.log1p, in_shardings=shardings[0])  # which jax.jit has made, too
    check(inner, jnp.log1p, X)
    assert inner(X).sharding.spec == P("data")


def test_other_functions_of_meshbridge_take_it(shardings: Any) -> None:
    jitted = meshbridge.jit(network, in_shardings=shardings)
    check_same(meshbridge.partition(jitted, X, W).call(*map(jax.device_put, (X, W), shardings)), on_one_device(network, X, W))
    assert meshbridge.report(jitted, X, W).wire_bytes > 0


STATIC: dict[str, tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]] = {
    "by number": ({"static_argnums": (1,)}, (X, 3), {"mode": "plus"}),
    "by a negative number": ({"static_argnums": -1}, (X, 3), {}),
    "by name": ({"static_argnames": ("n", "mode")}, (X,), {"n": 3, "mode": "times"}),
    "by name, given by position": ({"static_argnames": "n"}, (X, 3), {}),
}


def times(x: jax.Array, n: int, *, mode: str = "times") -> jax.Array:
    return x * n if mode == "times" else x + n


@pytest.mark.parametrize("case", STATIC)
def test_static_arguments(shardings: Any, case: str) -> None:
    options, arguments, named = STATIC[case]
    options = options | ({"static_argnames": "mode"} if case == "by number" else {})
    jitted = meshbridge.jit(lambda x, n, *, mode="times": times(x, n, mode=mode), in_shardings=None, **options)
    given = {name: value for name, value in named.items() if name == "mode"}
    check_same(jitted(*arguments, **named), on_one_device(lambda x: times(x, 3, **given), X))
    jitted(*arguments, **named)
    assert count(jitted) == 1


def test_each_static_value_has_its_program() -> None:
    jitted = meshbridge.jit(lambda x, n: times(x, n), static_argnums=1)
    for n in (2, 3, 2.0):
        check_same(jitted(X, n), on_one_device(lambda x, n=n: times(x, n), X))  # type: ignore[misc]
    assert count(jitted) == 3  # 2 and 2.0 are equal, and not the same
    with pytest.raises(ValueError, match=r"Non-hashable static arguments are not supported\..*\[1\]"):
        jitted(X, [1])


def test_donated_arguments_are_gone(shardings: Any) -> None:
    rows, columns = shardings

    def step(state: jax.Array, *, x: jax.Array) -> jax.Array:
        return state + x.sum()

    for options in ({"donate_argnums": 0}, {"donate_argnames": "state"}):
        state = jax.device_put(W, columns)
        result = meshbridge.jit(step, **options)(state, x=jax.device_put(X, rows))
        assert state.is_deleted()
        check_same(result, on_one_device(step, W, x=X))


def test_results_are_sharded_as_asked(shardings: Any, mesh: Mesh) -> None:
    out = NamedSharding(mesh, P(("model", "data"), None))
    jitted = meshbridge.jit(lambda x: x * 2, in_shardings=shardings[:1], out_shardings=out)
    assert jitted(X).sharding == out
    check(jitted, lambda x: x * 2, X)


def test_committed_arguments_say_how_they_are_sharded(mesh: Mesh) -> None:
    jitted = meshbridge.jit(lambda x, w: x @ w)
    for rows, columns in ((P("data"), P(None, "model")), (P(None, "model"), P("model")), (P(), P())):
        given = jax.device_put(X, NamedSharding(mesh, rows)), jax.device_put(W, NamedSharding(mesh, columns))
        check(jitted, lambda x, w: x @ w, *given)
        assert jitted.lower(*given).compile().input_shardings[0] == tuple(each.sharding for each in given)
    assert count(jitted) == 3
    with pytest.raises(ValueError, match="incompatible devices"):
        jitted(jax.device_put(X, NamedSharding(mesh, P())), jax.device_put(W, jax.devices()[1]))


KINDS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "python numbers": lambda: (X, 2.0, 3),
    "numpy scalars": lambda: (X, np.float32(2), np.int32(3)),
    "bfloat16": lambda: (X.astype(jnp.bfloat16), 2.0, True),
    "integers": lambda: (np.arange(16, dtype=np.int8).reshape(8, 2), 2, 3),
    "complex": lambda: (X.astype(np.complex64), 2j, 3.0),
    "64 bits": lambda: (X.astype(np.float64), 2.0, 3),
    "uneven": lambda: (X[:13, :7], 2.0, 3),
    "empty": lambda: (X[:0], 2.0, 3),
}


@pytest.mark.parametrize("case", KINDS)
def test_kinds_of_arguments(mesh: Mesh, case: str) -> None:
    def function(x: jax.Array, scale: Any, shift: Any) -> jax.Array:
        x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("data", "model")))
        return jnp.flip(x, 0) * scale + shift + x.sum(axis=0)

    def plain(x: jax.Array, scale: Any, shift: Any) -> jax.Array:
        return jnp.flip(x, 0) * scale + shift + x.sum(axis=0)

    check(meshbridge.jit(function), plain, *KINDS[case]())


def test_settings_of_jax_count(shardings: Any) -> None:
    jitted = meshbridge.jit(lambda x: x @ x.T, in_shardings=shardings[:1])
    wide = RANDOM.random((16, 32))
    narrow = jnp.asarray(wide)  # JAX mixes up arrays of numpy of which it takes 64 bits at one time and 32 at another
    assert jitted(narrow).dtype == np.float32
    with jax.enable_x64(True):
        assert jitted(jnp.asarray(wide)).dtype == np.float64
        np.testing.assert_allclose(jitted(jnp.asarray(wide)), wide @ wide.T, rtol=1e-14)
    with jax.default_matmul_precision("highest"):
        jitted(narrow)
    assert jitted(narrow).dtype == np.float32
    assert count(jitted) == 3


def test_without_jit_it_is_the_function(shardings: Any) -> None:
    seen: list[bool] = []

    def function(x: jax.Array) -> jax.Array:
        seen.append(isinstance(x, jax.core.Tracer))
        return x * 2

    with jax.disable_jit():
        check_same(meshbridge.jit(function, in_shardings=shardings[0])(jnp.asarray(X)), on_one_device(lambda x: x * 2, X))
    assert seen == [False]


def test_a_nan_is_found(shardings: Any) -> None:
    with jax.debug_nans(True), pytest.raises(FloatingPointError, match=r"\(nan\) encountered in log"):
        meshbridge.jit(jnp.log, in_shardings=shardings[0])(X)


def test_explicit_meshes() -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("data", None)).sum(axis=0)

    with jax.set_mesh(mesh):
        given = jax.device_put(X, P("data", "model")), jax.device_put(W, P("model", None))
        found, expected = meshbridge.jit(function)(*given), jax.jit(function)(*given)
        assert (found.sharding, jax.typeof(found)) == (expected.sharding, jax.typeof(expected))
        check_same(found, on_one_device(lambda x, w: (x @ w).sum(axis=0), X, W))


def test_the_mesh_that_is_set() -> None:
    doubled = meshbridge.jit(lambda x: x * 2, in_shardings=P("d"))
    for devices in (jax.devices()[:4], jax.devices()[4:]):
        with jax.set_mesh(jax.make_mesh((4,), ("d",), devices=devices, axis_types=(AxisType.Auto,))):
            found = doubled(X)
            assert found.sharding.device_set == set(devices)
            check_same(found, on_one_device(lambda x: x * 2, X))


def test_abstract_meshes(mesh: Mesh) -> None:
    across = NamedSharding(mesh.abstract_mesh, P("model", "data"))  # type: ignore[arg-type]
    jitted = meshbridge.jit(lambda x: jax.lax.with_sharding_constraint(x * 2, across))
    found = jitted(jax.device_put(X, NamedSharding(mesh, P("data"))))
    assert found.sharding.spec == P("model", "data")
    check_same(found, on_one_device(lambda x: x * 2, X))


def test_manual_computations(mesh: Mesh, shardings: Any) -> None:
    def summed(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.psum(x @ w, "model")

    full = jax.shard_map(summed, mesh=mesh, in_specs=(P("data", "model"), P("model", None)), out_specs=P("data", None))
    check(meshbridge.jit(lambda x, w: full(x, w) * 2), lambda x, w: (x @ w) * 2, X, W)
    specs = {"in_specs": (P(None, "model"), P("model", None)), "out_specs": P(None, None)}
    part = jax.shard_map(summed, mesh=mesh, axis_names={"model"}, **specs)  # type: ignore[arg-type]
    check(meshbridge.jit(lambda x, w: part(x, w) * 2, in_shardings=(shardings[0], None)), lambda x, w: (x @ w) * 2, X, W)


def test_typed_keys(mesh: Mesh) -> None:
    def normal(keys: jax.Array, x: jax.Array) -> Any:
        return jax.random.split(keys[0], 3), jax.vmap(lambda key: jax.random.normal(key, (5,)))(keys), x * 2

    rows = NamedSharding(mesh, P("data"))
    check(meshbridge.jit(normal, in_shardings=(rows, rows)), normal, jax.random.split(jax.random.key(0), 16), X)


def test_functions_without_arguments_or_results(mesh: Mesh) -> None:
    rows = NamedSharding(mesh, P("data"))
    made = meshbridge.jit(lambda: jax.lax.with_sharding_constraint(jnp.arange(16.0), rows))()
    check_same(made, on_one_device(lambda: jnp.arange(16.0)))
    assert made.sharding == rows
    assert meshbridge.jit(lambda x: None)(X) is None
    assert meshbridge.jit(lambda x: (), in_shardings=rows)(X) == ()
    for keep in (True, False):
        check(meshbridge.jit(lambda x, w: x * 2, in_shardings=(rows, None), keep_unused=keep), lambda x, w: x * 2, X, W)


def test_closed_over_arrays(mesh: Mesh) -> None:
    weights, shift = jax.device_put(W, NamedSharding(mesh, P("model"))), np.arange(32, dtype=np.float32)
    jitted = meshbridge.jit(lambda x: (x + shift) @ weights)
    check_same(jitted(jax.device_put(X, NamedSharding(mesh, P("data")))), on_one_device(lambda x: (x + shift) @ W, X))


def test_methods() -> None:
    class Scaled:
        def __init__(self, by: int) -> None:
            self.by = by

        @partial(meshbridge.jit, static_argnums=0)
        def __call__(self, x: jax.Array) -> jax.Array:
            return x * self.by

    check_same(Scaled(2)(X), on_one_device(lambda x: x * 2, X))
    check_same(Scaled(3)(X), on_one_device(lambda x: x * 3, X))


def test_arrays_in_other_layouts(mesh: Mesh) -> None:
    """The same array with its elements in another order in memory, which XLA compiles another program for."""
    rows = NamedSharding(mesh, P("data"))
    jitted = meshbridge.jit(lambda x: x * 2)
    for order in ((0, 1), (1, 0), (0, 1)):
        check(jitted, lambda x: x * 2, jax.device_put(X, Format(Layout(major_to_minor=order), rows)))
    assert count(jitted) == 2


def test_references_are_changed(mesh: Mesh) -> None:
    def add(total: Any, x: jax.Array) -> jax.Array:
        total[...] += x
        return total[...].sum()  # type: ignore[no-any-return]

    total, jitted = jax.new_ref(jax.device_put(X, NamedSharding(mesh, P("data")))), meshbridge.jit(add)
    check_same(jitted(total, X), on_one_device(lambda x: (2 * x).sum(), X))
    jitted(total, X)
    np.testing.assert_allclose(total[...], 3 * X, rtol=1e-6)


def test_what_is_no_array_is_refused_as_by_jax() -> None:
    with pytest.raises(TypeError, match="as an abstract array"):
        meshbridge.jit(lambda x: x)("text")


def test_custom_partitioning_is_inlined(shardings: Any) -> None:
    @custom_partitioning
    def doubled(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * 2

    doubled.def_partition(infer_sharding_from_operands=None, partition=None, sharding_rule="i j -> i j")
    check(meshbridge.jit(lambda x: doubled(x), in_shardings=shardings[0]), lambda x: jnp.tanh(x) * 2, X)


def test_options_that_cannot_have_their_value(shardings: Any) -> None:
    for option, value in (("machine", "none"), ("collectives", "maybe"), ("resharding", 3), ("compiler_options", "worst")):
        with pytest.raises(MeshError, match="expected one of"):
            meshbridge.jit(network, **{option: value})
    with pytest.raises(jax.errors.JaxRuntimeError, match="'xla_none'"):
        meshbridge.jit(network, in_shardings=shardings, compiler_options={"xla_none": 1})(X, W)


def test_a_machine_and_a_limit_of_memory(shardings: Any) -> None:
    jitted = meshbridge.jit(network, in_shardings=shardings, machine="h100:1x1x8", memory_limit="80GB")
    check(jitted, network, X, W)
    assert jitted.report(X, W).machine == "h100:1x1x8"


def test_programs_that_cannot_be_partitioned_name_the_line(shardings: Any) -> None:
    send = jax.ffi.ffi_call("some_call", jax.ShapeDtypeStruct(X.shape, X.dtype), has_side_effect=True)
    with pytest.raises(MeshError, match=r"test_function.py:\d+:\d+: error: .* @some_call has a side effect"):
        meshbridge.jit(lambda x: send(x) + 1, in_shardings=shardings[0]).lower(X).compile()


def test_compiled_programs_say_what_they_need(shardings: Any) -> None:
    jitted = meshbridge.jit(network, in_shardings=shardings)
    executable = meshbridge.compile(jax.jit(network, in_shardings=shardings), X, W)
    compiled = jitted.lower(X, jax.ShapeDtypeStruct(W.shape, W.dtype)).compile()
    for found in (compiled, executable):
        shards = 4 * (8 * 32 + 32 * 16)
        assert found.memory_analysis().argument_size_in_bytes == shards
        assert found.cost_analysis()["flops"] > 2 * 8 * 32 * 16
        assert "all-reduce" in found.as_text()
    check_same(compiled(X, W), on_one_device(network, X, W))


def test_a_partitioned_program_needs_shardy(shardings: Any) -> None:
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        with pytest.raises(MeshError, match="JAX is told not to use"):
            meshbridge.jit(network, in_shardings=shardings)(X, W)
    finally:
        jax.config.update("jax_use_shardy_partitioner", True)


def test_caches_can_be_cleared(shardings: Any) -> None:
    factor = [2.0]
    jitted = meshbridge.jit(lambda x: x * factor[0], in_shardings=shardings[0])
    check_same(jitted(X), on_one_device(lambda x: x * 2.0, X))
    factor[0] = 3.0
    check_same(jitted(X), on_one_device(lambda x: x * 2.0, X))
    jitted.clear_cache()
    check_same(jitted(X), on_one_device(lambda x: x * 3.0, X))
    assert jitted.eval_shape(X).shape == X.shape


def test_whoever_asks_first_the_plan_is_made_once(shardings: Any) -> None:
    jitted = meshbridge.jit(lambda x, w: network(x, w), in_shardings=shardings)
    with plans() as names:
        for _ in range(2):
            jitted.lower(X, W).compile()
            check(jitted, network, X, W)
        check_same(meshbridge.jit(jitted)(X, W), on_one_device(network, X, W))
    assert len(names) == 1


def test_it_is_a_function_of_jax_jit(shardings: Any) -> None:
    """Libraries ask for more than JAX promises."""
    plain, jitted = jax.jit(network), meshbridge.jit(network, in_shardings=shardings)
    assert isinstance(jitted, type(plain))
    assert jitted.__wrapped__ is network
    assert (jitted.__name__, jitted.__signature__) == (plain.__name__, plain.__signature__)  # type: ignore[attr-defined]
    check(copy.deepcopy(meshbridge.jit(network)), network, X, W)
    before = jitted._cache_size()  # type: ignore[attr-defined]
    check(jitted, network, X[:4], W)
    assert jitted._cache_size() == before + 1  # type: ignore[attr-defined]


def test_options_of_a_function_within_another_are_refused_as_by_jax(shardings: Any) -> None:
    inner = jax.jit(lambda x: x * 2, compiler_options={"xla_cpu_enable_fast_math": True})
    with pytest.raises(ValueError, match="can only be passed to top-level"):
        meshbridge.jit(lambda x: inner(x), in_shardings=shardings[0])(X)


def test_an_explicit_mesh_that_is_not_set() -> None:
    """Results are sharded as their types say."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    given = {"in_shardings": (NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model")))}
    found, expected = (jit(lambda x, w: x @ w, **given)(X, W) for jit in (meshbridge.jit, jax.jit))
    assert (found.sharding, jax.typeof(found)) == (expected.sharding, jax.typeof(expected))
    check_same(found + expected, on_one_device(lambda x, w: 2 * (x @ w), X, W))


def test_effects_on_one_device() -> None:
    def function(x: jax.Array) -> Any:
        return io_callback(lambda x: np.asarray(x) * 2, x, x, ordered=True) + 1

    check_same(meshbridge.jit(function)(X), on_one_device(lambda x: 2 * x + 1, X))


def test_a_lowered_function_says_what_jax_has_lowered(shardings: Any) -> None:
    plain, jitted = jax.jit(network, in_shardings=shardings), meshbridge.jit(network, in_shardings=shardings)
    assert jitted.lower(X, W).as_text() == plain.lower(X, W).as_text()


def test_devices_may_be_named_when_it_is_compiled(mesh: Mesh) -> None:
    across = NamedSharding(mesh.abstract_mesh, P("data"))  # type: ignore[arg-type]
    lowered = meshbridge.jit(lambda x: x * 2, in_shardings=across).trace(X).lower(lowering_platforms=("cpu",))
    compiled = lowered.compile(device_assignment=tuple(mesh.devices.flat))
    check_same(compiled(jax.device_put(X, NamedSharding(mesh, P("data")))), on_one_device(lambda x: x * 2, X))


def test_a_layout_that_is_asked_for_keeps_the_sharding(mesh: Mesh) -> None:
    asked = Format(Layout(major_to_minor=(0, 1)), NamedSharding(mesh, P("data")))
    jitted = meshbridge.jit(lambda x: jax.lax.with_sharding_constraint(x.T * 2, asked))
    found = jitted(jax.device_put(X, NamedSharding(mesh, P("data"))))
    check_same(found, on_one_device(lambda x: x.T * 2, X))
    assert (found.format.layout.major_to_minor, found.sharding.spec) == ((0, 1), P("data"))


def test_a_program_of_symbolic_sizes_is_called(mesh: Mesh) -> None:
    rows = NamedSharding(mesh, P("data"))
    (size,) = jax.export.symbolic_shape("8*n")
    exported = jax.export.export(jax.jit(lambda x: jnp.flip(x, 0) * 2, in_shardings=rows))(
        jax.ShapeDtypeStruct((size, 32), np.float32)
    )
    jitted = meshbridge.jit(lambda x: exported.call(x) + 1)
    check_same(jitted(jax.device_put(X, rows)), on_one_device(lambda x: jnp.flip(x, 0) * 2 + 1, X))


def test_views_that_do_not_cut_each_other_are_refused_with_both_lines() -> None:
    devices = np.array(jax.devices()[:6])
    wide, tall = (
        NamedSharding(Mesh(devices.reshape(shape), names), P(*names))
        for shape, names in (((2, 3), ("a", "b")), ((3, 2), ("c", "d")))
    )

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        doubled = jnp.sin(x) * 2
        return jnp.cos(y) + doubled

    x = np.ones((6, 6), np.float32)
    lines = r"test_function.py:\d+:\d+: error: .* @\w+ \(.*\) is a second mesh beside @\w+ \(.*\), of .*test_function.py:\d+:\d+;"
    with pytest.raises(MeshError, match=rf"(?s){lines}.*hint: .*jax.device_put between"):
        meshbridge.jit(function)(jax.device_put(x, wide), jax.device_put(x, tall))
