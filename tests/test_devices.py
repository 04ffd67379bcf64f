"""What is written, and how long it takes, does not grow with devices: programs of even shardings on up to 65,536."""

from __future__ import annotations

import time
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from benchmarks.measure import placed, relative_error, unsharded
from meshbridge.ir import groups, mlir
from meshbridge.ir.groups import KNOWS_MESH_AXES
from meshbridge.ir.mlir import ir
from meshbridge.pipeline import Options
from meshbridge.read import formats
from meshbridge.reports import partition_and_report
from testdata.catalogue import build

MESHES = ((2, 4), (16, 16), (64, 64), (256, 256))
WIDTH = 65536


@cache
def step(shape: tuple[int, int]) -> export.Exported:
    """Forward and backward of two layers, of sizes that all of MESHES divide."""
    mesh = AbstractMesh(shape, ("data", "model"))

    def sharded(*spec: object) -> NamedSharding:
        return NamedSharding(mesh, P(*spec))

    def loss(weights: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for up, down in weights:
            x = x + jax.nn.softmax(jnp.tanh(x @ up) @ down, axis=-1)
        return jnp.mean(jnp.square(x))

    arguments = (
        [tuple(jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32) for _ in range(2))] * 2,
        jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32),
    )
    shardings = ([(sharded("data", "model"), sharded("model", "data"))] * 2, sharded("data", None))
    trained = jax.jit(jax.value_and_grad(loss), in_shardings=shardings, out_shardings=(sharded(), shardings[0]))
    return export.export(trained)(*arguments)


def lowered(shape: tuple[int, int], form: str, spelling: str = "auto") -> tuple[ir.Module, bytes, meshbridge.Report]:
    """The program lowered, in bytes as it is saved, and its report."""
    program = formats.unpack(step(shape), mlir.context())
    report, _ = partition_and_report(program.module, Options(emit=form, replica_groups=spelling))  # type: ignore[arg-type]
    if form == "local":
        return program.module, mlir.to_bytecode(program.module), report
    return program.module, formats.pack(program).mlir_module_serialized, report


@pytest.mark.parametrize("form", ["exported", "local"])
@pytest.mark.skipif(not KNOWS_MESH_AXES, reason="needs replica groups by mesh axes, which jaxlib has from 0.10 on")
def test_what_is_written_does_not_grow(form: str) -> None:
    """Where shards are small, other shardings are decided: as many ops, but not the same."""
    few, few_bytes, _ = lowered(MESHES[0], form)
    for shape in MESHES[1:]:
        many, many_bytes, report = lowered(shape, form)
        assert len(mlir.walk_all(many)) <= 1.1 * len(mlir.walk_all(few))
        assert len(str(many)) <= 2 * len(str(few))
        assert len(many_bytes) <= 1.1 * len(few_bytes)
        assert report.mesh.size == shape[0] * shape[1]
        assert report.wire_bytes > 0


def test_time_does_not_grow() -> None:
    def seconds(shape: tuple[int, int]) -> float:
        start = time.process_time()
        lowered(shape, "exported")
        return time.process_time() - start

    for shape in (MESHES[0], MESHES[-1]):
        lowered(shape, "exported")  # what is read and computed once
    assert seconds(MESHES[-1]) <= 2 * seconds(MESHES[0])


@pytest.mark.parametrize("spelling", ["dense", "mesh-axes"] if KNOWS_MESH_AXES else ["dense"])
def test_the_users_choice_of_spelling_stands(spelling: str) -> None:
    for shape in MESHES[:2]:
        module, _, _ = lowered(shape, "exported", spelling)
        assert {isinstance(each, ir.DenseElementsAttr) for each in written(module)} == {spelling == "dense"}


def written(module: ir.Module) -> list[ir.Attribute]:
    """The device groups of all collectives."""
    return [op.attributes["replica_groups"] for op in mlir.walk_all(module) if "replica_groups" in op.attributes]


@pytest.mark.parametrize("name", ["vocab_ce", "loop_stencil", "vit", "moe_fwd", "cp_attn_fwd", "misc_sort"])
@pytest.mark.skipif(not KNOWS_MESH_AXES, reason="needs replica groups by mesh axes, which jaxlib has from 0.10 on")
def test_groups_by_axes_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 8 devices, which otherwise are listed."""
    monkeypatch.setattr(groups, "DENSE_DEVICES", 0)
    program = build(name)
    partitioned = meshbridge.partition(program.export())
    module = formats.unpack(partitioned, mlir.context()).module
    assert not any(isinstance(each, ir.DenseElementsAttr) for each in written(module))
    arguments, results = program.jit_shardings(program.mesh())
    found = jax.jit(partitioned.call, in_shardings=arguments, out_shardings=results)(*placed(program))
    assert relative_error(found, unsharded(program)) < program.tolerance


@pytest.mark.skipif(not KNOWS_MESH_AXES, reason="needs replica groups by mesh axes, which jaxlib has from 0.10 on")
def test_groups_by_axes_within_a_program_on_other_meshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA keeps one of a module's meshes: groups say the same devices whatever meshes a caller has, or it refuses them."""
    monkeypatch.setattr(groups, "DENSE_DEVICES", 0)
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rows, columns = NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P("y", None))
    matmul = jax.jit(jnp.matmul, in_shardings=(rows, columns), out_shardings=NamedSharding(mesh, P("x", "y")))
    left, right = jnp.arange(64.0).reshape(8, 8), jnp.arange(64.0).reshape(8, 8) % 5
    exported = meshbridge.partition(export.export(matmul)(left, right))
    for sizes, names in (((4, 2), ("y", "x")), ((2, 4), ("y", "x")), ((8,), ("x",)), ((2, 4), ("x", "y"))):
        other = jax.make_mesh(sizes, names, axis_types=(jax.sharding.AxisType.Auto,) * len(sizes))
        sharding = NamedSharding(other, P(names))

        @jax.jit
        def outer(a: jax.Array, b: jax.Array, sharding: NamedSharding = sharding) -> jax.Array:
            return exported.call(jax.lax.with_sharding_constraint(a, sharding), b) + 1

        np.testing.assert_allclose(outer(jax.device_put(left, sharding), jax.device_put(right, sharding)), left @ right + 1)
