"""A jax.export artifact in, a jax.export artifact out."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ParseError
from meshbridge.read import formats
from meshbridge_converters import jax_export

COLLECTIVE = re.compile(r"[]})] (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")


@pytest.fixture(scope="module")
def partitioned(exported: export.Exported) -> export.Exported:
    return meshbridge.partition(exported)


def arguments(program: export.Exported, mesh: jax.sharding.Mesh) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Seeded arguments of the network of conftest, placed as `program` wants them."""
    generator = np.random.default_rng(0)
    placed = [
        jax.device_put(generator.standard_normal(aval.shape).astype(aval.dtype), sharding or NamedSharding(mesh, PartitionSpec()))
        for aval, sharding in zip(program.in_avals, program.in_shardings_jax(mesh), strict=True)
    ]
    args, _ = jax.tree.unflatten(program.in_tree, placed)
    return args


def close(found: Any, expected: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)


def test_keeps_the_calling_convention(exported: export.Exported, partitioned: export.Exported) -> None:
    for name in ("fun_name", "in_tree", "out_tree", "in_avals", "out_avals", "nr_devices", "platforms", "module_kept_var_idx"):
        assert getattr(partitioned, name) == getattr(exported, name)
    assert partitioned.calling_convention_version == exported.calling_convention_version


def test_fills_in_open_shardings_and_keeps_given_ones(partitioned: export.Exported, mesh: jax.sharding.Mesh) -> None:
    given_rows, given_columns, filled = partitioned.in_shardings_jax(mesh)
    assert given_rows.is_equivalent_to(NamedSharding(mesh, PartitionSpec("data")), 2)
    assert given_columns.is_equivalent_to(NamedSharding(mesh, PartitionSpec(None, "model")), 2)
    assert filled is not None
    assert all(sharding is not None for sharding in partitioned.out_shardings_jax(mesh))


def test_equals_the_original_under_jit(exported: export.Exported, partitioned: export.Exported, mesh: jax.sharding.Mesh) -> None:
    found = jax.jit(partitioned.call)(*arguments(partitioned, mesh))
    close(found, jax.jit(exported.call)(*arguments(exported, mesh)))
    assert found["out"].sharding.is_equivalent_to(partitioned.out_shardings_jax(mesh)[0], 2)


def test_xla_runs_exactly_our_collectives(partitioned: export.Exported, mesh: jax.sharding.Mesh) -> None:
    compiled = jax.jit(partitioned.call).lower(*arguments(partitioned, mesh)).compile()
    written = re.findall(
        r"stablehlo\.(all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute)", partitioned.mlir_module()
    )
    run = [kind.replace("-", "_") for kind in COLLECTIVE.findall(compiled.as_text())]
    assert sorted(run) == sorted(written)
    assert "all_reduce" in run  # for the sum over everything


def test_works_inside_a_larger_function(exported: export.Exported, partitioned: export.Exported, mesh: jax.sharding.Mesh) -> None:
    def larger(program: export.Exported, x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
        doubled = {name: 2 * weight for name, weight in weights.items()}
        return jnp.sin(program.call(x + 1, doubled)["out"]).sum()

    x, weights = arguments(partitioned, mesh)
    found = jax.jit(lambda x, w: larger(partitioned, x, w))(x, weights)
    close(found, jax.jit(lambda x, w: larger(exported, x, w))(x, weights))


def test_survives_serialization(partitioned: export.Exported, mesh: jax.sharding.Mesh) -> None:
    again = export.deserialize(partitioned.serialize())
    assert again.in_shardings_jax(mesh) == partitioned.in_shardings_jax(mesh)
    args = arguments(partitioned, mesh)
    close(jax.jit(again.call)(*args), jax.jit(partitioned.call)(*args))


def test_partitions_the_vjp_too(exported: export.Exported, partitioned: export.Exported, mesh: jax.sharding.Mesh) -> None:
    def loss(program: export.Exported) -> Any:
        return lambda x, weights: sum((leaf**2).sum() for leaf in jax.tree.leaves(program.call(x, weights)))

    args = arguments(partitioned, mesh)
    found = jax.jit(jax.grad(loss(partitioned), argnums=1))(*args)
    close(found, jax.jit(jax.grad(loss(exported), argnums=1))(*args))
    assert partitioned.vjp().mlir_module().count("sdy.manual_computation") == 1


def test_file_keeps_its_vjp(exported: export.Exported, mesh: jax.sharding.Mesh) -> None:
    program = formats.read(bytes(exported.serialize(vjp_order=1)), "network", mlir.context())
    data = program.format.write(program)
    again = export.deserialize(bytearray(data))
    assert again.has_vjp()
    assert not again.vjp().has_vjp()


@pytest.mark.parametrize("machine", ["bytes", "h100"])
def test_what_is_derived_has_the_same_options(mesh: jax.sharding.Mesh, machine: str) -> None:
    """The gradient of a partitioned artifact, and an executable within a larger function: each is as if it had been partitioned
    by itself with these options."""
    rows, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(lambda x, y: (x * y).sum(0), in_shardings=(rows, rows), out_shardings=whole)
    vector = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    original = export.export(jitted)(vector, vector)
    again = export.deserialize(original.serialize(vjp_order=1))
    partitioned = meshbridge.partition(again, machine=machine, collectives="off")
    alone = meshbridge.partition(again.vjp(), machine=machine, collectives="off")
    assert partitioned.vjp().mlir_module() == alone.mlir_module()
    seen = []
    real = meshbridge.partitioning.partition_module
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            meshbridge.partitioning,
            "partition_module",
            lambda module, how, **more: (seen.append(how), real(module, how, **more))[1],
        )
        executable = meshbridge.compile(original, machine=machine, collectives="off")
        ones = jnp.ones((8, 16), jnp.float32)
        close(jax.jit(lambda x: executable(x, x) + 1)(ones), 9 * np.ones(16))
    assert [(how.emit, how.target.name, how.collectives) for how in seen] == [
        ("local", machine, "off"),
        ("exported", machine, "off"),
    ]


def test_unused_arguments_stay_outside(mesh: jax.sharding.Mesh) -> None:
    rows = NamedSharding(mesh, PartitionSpec("data"))
    jitted = jax.jit(lambda x, unused, y: x + y, in_shardings=(rows, None, None))
    vector = jax.ShapeDtypeStruct((8,), jnp.float32)
    original = export.export(jitted)(vector, vector, vector)
    partitioned = meshbridge.partition(original)
    assert partitioned.module_kept_var_idx == original.module_kept_var_idx == (0, 2)
    first, dropped, last = partitioned.in_shardings_jax(mesh)
    assert dropped is None
    assert first.spec == PartitionSpec("data")
    assert last is not None
    x = jax.device_put(np.arange(8, dtype=np.float32), rows)
    close(jax.jit(partitioned.call)(x, x, x), 2 * np.arange(8))


def test_two_platforms(mesh: jax.sharding.Mesh) -> None:
    rows = NamedSharding(mesh, PartitionSpec("data"))
    jitted = jax.jit(lambda x: jax.lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), in_shardings=(rows,))
    original = export.export(jitted, platforms=("cpu", "tpu"))(jax.ShapeDtypeStruct((8,), jnp.float32))
    partitioned = meshbridge.partition(original)
    assert partitioned.platforms == ("cpu", "tpu")
    x = jax.device_put(np.arange(8, dtype=np.float32), rows)
    close(jax.jit(partitioned.call)(x), np.sin(np.arange(8)))


def test_one_device_program_stays_as_it_is() -> None:
    original = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((8,), jnp.float32))
    partitioned = meshbridge.partition(original)
    assert partitioned.nr_devices == 1
    close(jax.jit(partitioned.call)(np.arange(8, dtype=np.float32)), np.sin(np.arange(8)))


def test_symbolic_shapes_are_refused() -> None:
    (size,) = export.symbolic_shape("b")
    original = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((size,), jnp.float32))
    with pytest.raises(MeshError, match=r"sin: error: the artifact has the symbolic shape \(b,\), expected fixed sizes"):
        meshbridge.partition(original)


def test_recognised_by_content(exported: export.Exported) -> None:
    data = bytes(exported.serialize())
    assert formats.recognise(data, "x").name == "jax-export"
    assert formats.recognise(bytes(exported.mlir_module_serialized), "x").name == "portable"
    assert formats.recognise(exported.mlir_module().encode(), "x").name == "mlir"
    assert not jax_export.detect(b"\x08\0\0\0" * 40)


def test_every_cut_is_noticed(exported: export.Exported) -> None:
    """Bytes that end early would otherwise read as shorter names and smaller arrays."""
    data = bytes(exported.serialize())
    for length in (*range(0, len(data), 97), *range(len(data) - 24, len(data))):
        with pytest.raises(ParseError, match=r"^cut: error: "):
            formats.read(data[:length], "cut", mlir.context())


def test_filled_shardings_of_a_gspmd_export_lie_on_its_mesh(mesh: jax.sharding.Mesh) -> None:
    """GSPMD's tilings name no axes; what is filled in must not speak of another mesh than what was given."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", False)
    try:
        rows, columns = NamedSharding(mesh, PartitionSpec("data", None)), NamedSharding(mesh, PartitionSpec(None, "model"))
        jitted = jax.jit(lambda x, w, v: jnp.tanh(x @ w) @ v, in_shardings=(rows, columns, None))
        shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 16), (16, 32), (32, 8))]
        original = export.export(jitted)(*shapes)
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
    partitioned = meshbridge.partition(original)
    filled = partitioned.in_shardings_jax(mesh)[2]
    assert filled.spec == PartitionSpec("model", None)
