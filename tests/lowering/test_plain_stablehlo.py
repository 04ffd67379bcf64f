"""Plain StableHLO for compilers that are not XLA: only its ops, in the asked version, and the same results on 8 devices."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import meshbridge
from meshbridge import pipeline
from meshbridge.dialect.module_mesh import mesh_or_single
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir, stablehlo
from meshbridge.lowering.plain_expansions import EXPANSIONS
from meshbridge.lowering.plain_stablehlo import NEWEST, OLDEST, STRUCTURE, PlainStablehlo
from meshbridge.read import bytecode, formats
from meshbridge.runtime import pjrt, xla
from meshbridge.tools import cli
from testdata.catalogue import build
from tests.operations.differential import device_mesh

VERSION = "1.9.0"
PROGRAMS = [
    ("mlp_ws2d", VERSION),
    ("misc_fft2", OLDEST),
    ("moe_grad", NEWEST),
    ("sample_top_k", VERSION),
    pytest.param("vocab_ce", OLDEST, marks=pytest.mark.slow),  # a gather in batches, which the oldest version does not have
    pytest.param("gpt3", VERSION, marks=pytest.mark.slow),
]


def read_back(program: formats.Program) -> ir.Module:
    """What jaxlib's reader makes of the artifact of `program`."""
    data = program.serialize()
    assert program.version is not None
    assert bytecode.producer(data) == f"StableHLO_v{program.version}".encode()
    return stablehlo.deserialize_portable_artifact(mlir.context(), data)


def check_plain(module: ir.Module) -> None:
    """No op but StableHLO's and functions, and no attribute that any other dialect would have to explain."""
    for op in mlir.walk_all(module):
        assert op.name in STRUCTURE or op.name.startswith("stablehlo."), op
        assert not [name for name in op.attributes if "." in name], op
        for entry in mlir.all_entries(op):
            assert not entry, op
    assert not [name for name in module.operation.attributes if "." in name]
    for word in ("sdy", "mhlo", "chlo", "mesh", "jax"):
        assert f"{word}." not in str(module)


@pytest.mark.parametrize(("name", "version"), PROGRAMS)
def test_is_plain_and_computes_the_same(name: str, version: str) -> None:
    exported = build(name).export_for("cpu")
    local = meshbridge.partition(exported, emit="local")
    plain = meshbridge.partition(exported, emit="local", stablehlo_version=version)
    module = read_back(plain)
    check_plain(module)
    mesh, (inputs, outputs) = mesh_or_single(local), pjrt.boundary(local)
    expected = meshbridge.compile(exported)
    found = pjrt.Executable(mesh, tuple(inputs), tuple(outputs), xla.compile_module(module, jax.devices()[: mesh.size]))
    generator = np.random.default_rng(0)
    arguments = [_random(generator, port.shape, port.dtype) for port in inputs]
    for one, other in zip(found(*arguments), expected.run(arguments, [""] * len(arguments)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _random(generator: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    if np.issubdtype(dtype, np.integer):
        return generator.integers(0, 8, shape).astype(dtype)
    return (generator.standard_normal(shape) / 10).astype(dtype)


COLLECTIVES = {
    "booleans": """func.func @main(%a: tensor<2x8xi1>) -> tensor<16x8xi1> {
      %0 = "stablehlo.all_gather"(%a) <{all_gather_dim = 0 : i64, replica_groups = GROUPS}> : (tensor<2x8xi1>) -> tensor<16x8xi1>
      return %0 : tensor<16x8xi1>
    }""",
    "any": """func.func @main(%a: tensor<2x8xi1>) -> tensor<2x8xi1> {
      %0 = "stablehlo.all_reduce"(%a) <{replica_groups = GROUPS}> ({
      ^bb0(%l: tensor<i1>, %r: tensor<i1>):
        %s = stablehlo.or %l, %r : tensor<i1>
        stablehlo.return %s : tensor<i1>
      }) : (tensor<2x8xi1>) -> tensor<2x8xi1>
      return %0 : tensor<2x8xi1>
    }""",
    "all": """func.func @main(%a: tensor<2x8xi1>) -> tensor<2x1xi1> {
      %0 = "stablehlo.reduce_scatter"(%a) <{scatter_dimension = 1 : i64, replica_groups = GROUPS}> ({
      ^bb0(%l: tensor<i1>, %r: tensor<i1>):
        %s = stablehlo.and %l, %r : tensor<i1>
        stablehlo.return %s : tensor<i1>
      }) : (tensor<2x8xi1>) -> tensor<2x1xi1>
      return %0 : tensor<2x1xi1>
    }""",
    "complex exchange": """func.func @main(%a: tensor<2x16xcomplex<f32>>) -> tensor<16x2xcomplex<f32>> {
      %0 = "stablehlo.all_to_all"(%a) <{split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 8 : i64,
        replica_groups = GROUPS}> : (tensor<2x16xcomplex<f32>>) -> tensor<16x2xcomplex<f32>>
      return %0 : tensor<16x2xcomplex<f32>>
    }""",
    "complex sum": """func.func @main(%a: tensor<8x4xcomplex<f32>>) -> tensor<1x4xcomplex<f32>> {
      %0 = "stablehlo.reduce_scatter"(%a) <{scatter_dimension = 0 : i64, replica_groups = GROUPS}> ({
      ^bb0(%l: tensor<complex<f32>>, %r: tensor<complex<f32>>):
        %s = stablehlo.add %l, %r : tensor<complex<f32>>
        stablehlo.return %s : tensor<complex<f32>>
      }) : (tensor<8x4xcomplex<f32>>) -> tensor<1x4xcomplex<f32>>
      return %0 : tensor<1x4xcomplex<f32>>
    }""",
    "exchange outwards": """func.func @main(%a: tensor<3x2x16x5xf32>) -> tensor<3x16x2x5xf32> {
      %0 = "stablehlo.all_to_all"(%a) <{split_dimension = 2 : i64, concat_dimension = 1 : i64, split_count = 8 : i64,
        replica_groups = GROUPS}> : (tensor<3x2x16x5xf32>) -> tensor<3x16x2x5xf32>
      return %0 : tensor<3x16x2x5xf32>
    }""",
    "exchange inwards": """func.func @main(%a: tensor<8x3x2xf32>) -> tensor<1x3x16xf32> {
      %0 = "stablehlo.all_to_all"(%a) <{split_dimension = 0 : i64, concat_dimension = 2 : i64, split_count = 8 : i64,
        replica_groups = GROUPS}> : (tensor<8x3x2xf32>) -> tensor<1x3x16xf32>
      return %0 : tensor<1x3x16xf32>
    }""",
    "permuted booleans": """func.func @main(%a: tensor<4xi1>) -> tensor<4xi1> {
      %0 = "stablehlo.collective_permute"(%a) <{source_target_pairs = dense<[[0, 3], [3, 1], [5, 5]]> : tensor<3x2xi64>}>
        : (tensor<4xi1>) -> tensor<4xi1>
      return %0 : tensor<4xi1>
    }""",
    "several operands": """func.func @main(%a: tensor<4xf32>, %b: tensor<2x2xf32>) -> (tensor<4xf32>, tensor<2x2xf32>) {
      %0:2 = "stablehlo.all_reduce"(%a, %b) <{replica_groups = GROUPS}> ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %s = stablehlo.add %l, %r : tensor<f32>
        stablehlo.return %s : tensor<f32>
      }) : (tensor<4xf32>, tensor<2x2xf32>) -> (tensor<4xf32>, tensor<2x2xf32>)
      return %0#0, %0#1 : tensor<4xf32>, tensor<2x2xf32>
    }""",
    "several operands, a body of its own": """
    func.func @main(%a: tensor<4xf32>, %b: tensor<2xf32>) -> (tensor<4xf32>, tensor<2xf32>) {
      %0:2 = "stablehlo.all_reduce"(%a, %b) <{replica_groups = GROUPS}> ({
      ^bb0(%l: tensor<f32>, %r: tensor<f32>):
        %t = stablehlo.add %r, %l : tensor<f32>
        %s = stablehlo.optimization_barrier %t : tensor<f32>
        stablehlo.return %t : tensor<f32>
      }) : (tensor<4xf32>, tensor<2xf32>) -> (tensor<4xf32>, tensor<2xf32>)
      return %0#0, %0#1 : tensor<4xf32>, tensor<2xf32>
    }""",
}
"""Collectives that plain ones stand for; GROUPS is one of all 8 devices."""

GROUPS = "dense<[[6, 1, 2, 3, 4, 5, 0, 7]]> : tensor<1x8xi64>"


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_are_plain(name: str) -> None:
    results = []
    for version in (None, "0.9.0"):  # which has no collective of several operands
        module = mlir.parse(COLLECTIVES[name].replace("GROUPS", GROUPS), "test.mlir", mlir.context())
        if version is not None:
            PlainStablehlo(version).run(module)
            mlir.verify(module)
            _check_collectives(module)
        results.append(_run(module))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def _check_collectives(module: ir.Module) -> None:
    count = 0
    for op in mlir.walk_all(module):
        if op.name.startswith(("stablehlo.all_", "stablehlo.collective_", "stablehlo.reduce_scatter")):
            count += 1
            assert len(op.operands) == 1
            assert not any(word in str(op.operands[0].type) for word in ("i1>", "complex"))
            if op.name == "stablehlo.all_to_all":
                assert op.attributes["split_dimension"] == op.attributes["concat_dimension"]
    assert count


def _run(module: ir.Module) -> Iterator[np.ndarray[Any, Any]]:
    """The results on all 8 devices, of arguments that differ from device to device."""
    devices = jax.devices()[:8]
    inputs, outputs = pjrt.boundary(module)
    loaded = xla.compile_module(module, devices)
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    generator = np.random.default_rng(1)
    arguments = []
    for port in inputs:
        values = generator.standard_normal((8, *port.shape)) + 1j * generator.standard_normal((8, *port.shape))
        given = values if port.dtype.kind == "c" else values.real > 0.7 if port.dtype == bool else values.real
        shards = [jax.device_put(given[number].astype(port.dtype), device) for number, device in enumerate(devices)]
        spread = NamedSharding(mesh, PartitionSpec(*(("d",) if port.shape else ())))
        shape = (8 * port.shape[0], *port.shape[1:])
        arguments.append(jax.make_array_from_single_device_arrays(shape, spread, shards))
    for _, shards in zip(outputs, loaded.run(arguments), strict=True):
        yield np.stack([np.asarray(shard) for shard in shards])


@pytest.fixture(scope="module")
def tangents(mesh: Mesh) -> export.Exported:
    rows = NamedSharding(mesh, PartitionSpec("data"))
    return export.export(jax.jit(lambda x: jnp.tan(x) + lax.erf_inv(x), in_shardings=rows))(jnp.zeros((8, 16)))


def test_expands_what_the_version_lacks(tangents: export.Exported) -> None:
    names = {version: mlir.op_names(_plain(tangents, version)) for version in ("1.3.0", "1.4.0")}
    assert "stablehlo.tan" in names["1.4.0"]
    assert "stablehlo.sine" in names["1.3.0"]
    assert "stablehlo.tan" not in names["1.3.0"]


def _plain(program: Any, version: str, **more: Any) -> ir.Module:
    return meshbridge.partition(program, emit="local", stablehlo_version=version, **more).module


def test_refuses_what_the_version_cannot_say(mesh: Mesh) -> None:
    rows = NamedSharding(mesh, PartitionSpec("data"))
    product = jax.jit(lambda x, y: lax.dot(x, y, precision=lax.DotAlgorithmPreset.TF32_TF32_F32), in_shardings=(rows, None))
    exported = export.export(product, platforms=("cuda",))(jnp.zeros((8, 16)), jnp.zeros((16, 4)))
    with pytest.raises(
        MeshError, match=r"test_plain_stablehlo.py:\d+:\d+: error: 'stablehlo.dot_general' op is not in StableHLO 1.5.0"
    ):
        _plain(exported, "1.5.0")
    with pytest.raises(MeshError, match=r"hint: StableHLO 1.6.0 is the first that has it"):
        _plain(exported, "1.5.0")
    assert "algorithm" in str(_plain(exported, "1.6.0"))


@pytest.mark.parametrize("version", ["0.8.0", "99.0.0", "1.9", "new", "1.9.0.0", ""])
def test_names_the_versions_that_can_be_written(tangents: export.Exported, version: str) -> None:
    with pytest.raises(MeshError, match=f"expected {OLDEST} to {NEWEST}"):
        _plain(tangents, version)


def test_options_that_would_have_no_effect(tangents: export.Exported) -> None:
    with pytest.raises(MeshError, match="no effect on the form 'exported'"):
        meshbridge.partition(tangents, emit="exported", stablehlo_version=VERSION)  # type: ignore[call-overload]
    with pytest.raises(MeshError, match="no effect without stablehlo-version"):
        meshbridge.partition(tangents, emit="local", ops=["stablehlo.add"])
    with pytest.raises(MeshError, match="groups are lists"):
        _plain(tangents, VERSION, replica_groups="mesh-axes")


def test_allowed_ops(tangents: export.Exported) -> None:
    used = sorted(mlir.op_names(_plain(tangents, VERSION)) - STRUCTURE)
    assert mlir.op_names(_plain(tangents, VERSION, ops=used)) - STRUCTURE == set(used)
    few = [name for name in used if name not in ("stablehlo.log_plus_one", "stablehlo.tan")]
    lines = ("test_plain_stablehlo.py:\\d+:\\d+: error: '{0}' op is not among the allowed ops", ".*program: {1}, {0}$")
    refused = "\n".join(lines).format("stablehlo.tan", "stablehlo.log_plus_one")
    with pytest.raises(MeshError, match=refused):
        _plain(tangents, VERSION, ops=few)


BY_LACKING = {
    "pooling": (lambda x, g: jax.vjp(_pooled, x)[1](g)[0], [(2, 12, 12, 3), (2, 6, 6, 3)]),
    "Cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T + 8 * jnp.eye(6)), [(6, 6)]),
    "upper Cholesky": (lambda x: jnp.linalg.cholesky(x @ x.swapaxes(1, 2) + 8 * jnp.eye(6), upper=True), [(3, 6, 6)]),
    "barrier": (lambda x: lax.optimization_barrier(x) * 2, [(6, 6)]),
}
"""Functions that lower to ops which some compilers do not have, and the shapes of their arguments."""
for _left, _lower, _transposed, _unit in product((False, True), repeat=4):
    _names = ("left_side", "lower", "transpose_a", "unit_diagonal")
    _solve = partial(lax.linalg.triangular_solve, **dict(zip(_names, (_left, _lower, _transposed, _unit), strict=True)))
    BY_LACKING[f"system {_left:d}{_lower:d}{_transposed:d}{_unit:d}"] = (
        lambda a, b, solve=_solve: solve(a / 8 + jnp.eye(6), b),
        [(2, 6, 6), (2, 6, 4) if _left else (2, 4, 6)],
    )


def _pooled(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


@pytest.mark.parametrize("name", BY_LACKING)
def test_expands_what_a_list_of_ops_lacks(name: str) -> None:
    function, shapes = BY_LACKING[name]
    generator = np.random.default_rng(0)
    arguments = [generator.integers(-3, 4, shape).astype(np.float32) for shape in shapes]  # with equals in a window
    lowered = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))
    module = mlir.parse(lowered.as_text(), "test.mlir", mlir.context())
    pipeline.run(pipeline.LEGALIZE[:1], module)
    assert mlir.op_names(module) & EXPANSIONS.keys()
    PlainStablehlo("1.0.0", ",".join(SIMPLE)).run(module)
    mlir.verify(module)
    (found,) = pjrt.load(formats.Program(module, formats.TEXT), jax.devices())(*arguments)
    np.testing.assert_allclose(found, jax.jit(function)(*arguments), rtol=1e-4, atol=1e-4)


_SIMPLE = (
    "add and broadcast_in_dim compare concatenate constant convert divide dot_general dynamic_slice dynamic_update_slice iota"
    " multiply not or pad reduce reshape select slice sqrt subtract transpose while"
)
SIMPLE = [f"stablehlo.{name}" for name in _SIMPLE.split()]


def test_what_cannot_be_expanded_is_refused() -> None:
    function = """func.func @main(%a: tensor<4x4xcomplex<f32>>) -> tensor<4x4xcomplex<f32>> {
      %0 = stablehlo.cholesky %a, lower = true : tensor<4x4xcomplex<f32>>
      return %0 : tensor<4x4xcomplex<f32>>
    }"""
    with pytest.raises(MeshError, match=r"'stablehlo.cholesky' op is not among the allowed ops"):
        PlainStablehlo(VERSION, "stablehlo.add").run(mlir.parse(function, "test.mlir", mlir.context()))


def test_placements_and_attributes_go() -> None:
    text = """func.func @main(%a: tensor<4xf32> {mhlo.memory_kind = "device", jax.arg_info = "x", tf.aliasing_output = 0 : i32})
        -> (tensor<4xf32> {jax.result_info = "y"}) {
      %0 = stablehlo.custom_call @annotate_device_placement(%a) {has_side_effect = true,
        mhlo.frontend_attributes = {_xla_buffer_placement = "pinned_host"}} : (tensor<4xf32>) -> tensor<4xf32>
      %1 = stablehlo.custom_call @f(%0) {mhlo.backend_config = {n = 4 : i64}}
        : (tensor<4xf32>) -> tensor<4xf32>
      return %1 : tensor<4xf32>
    }"""
    module = mlir.parse(text, "test.mlir", mlir.context())
    PlainStablehlo(VERSION).run(module)
    check_plain(module)
    (call,) = mlir.find(module.operation, {mlir.CUSTOM_CALL})
    assert (str(call.attributes["backend_config"]), str(call.attributes["api_version"])) == ("{n = 4 : i64}", "4 : i32")
    assert call.operands[0] == mlir.main_function(module).regions[0].blocks[0].arguments[0]


def test_other_dialects_are_refused() -> None:
    text = """func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {
      %0 = "other.op"(%a) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    with pytest.raises(MeshError, match=r"<unknown>:2:\d+: error: 'other.op' op is not of StableHLO"):
        PlainStablehlo(VERSION).run(mlir.parse(text, "test.mlir", mlir.context()))


def test_report_says_how_arguments_are_sharded() -> None:
    mesh = device_mesh((2, 4))
    shardings = (NamedSharding(mesh, PartitionSpec(("a", "b"))), NamedSharding(mesh, PartitionSpec(None, "b")))
    product = jax.jit(lambda a, b: a @ b, in_shardings=shardings, out_shardings=shardings[0])
    report = meshbridge.report(product, jnp.zeros((16, 16)), jnp.zeros((16, 8), jnp.float32))
    assert [(each.shape, each.shard_shape, each.sharding) for each in (*report.arguments, *report.results)] == [
        ((16, 16), (2, 16), (("a", "b"), ())),
        ((16, 8), (16, 2), ((), ("b",))),
        ((16, 8), (2, 8), (("a", "b"), ())),
    ]
    assert report.arguments[0].element_type == "f32"


def test_the_command(tmp_path: Path, tangents: export.Exported, capsys: pytest.CaptureFixture[str]) -> None:
    source, allowed = tmp_path / "in", tmp_path / "ops"
    source.write_bytes(tangents.serialize())
    command = ["partition", str(source), "--emit", "local", "--stablehlo-version", VERSION, "-o"]
    for name, kind in {"out": "portable", "out.stablehlo": "portable", "out.mlir": "mlir", "out.mlirbc": "bytecode"}.items():
        assert cli.main([*command, str(tmp_path / name)]) == 0
        read = meshbridge.load(tmp_path / name)
        assert read.format.name == kind
        check_plain(read.module)
    assert bytecode.producer((tmp_path / "out").read_bytes()) == b"StableHLO_v1.9.0"
    allowed.write_text("stablehlo.add\n\nstablehlo.tan\n")
    assert cli.main([*command, str(tmp_path / "few"), "--ops", str(allowed)]) == 1
    assert "is not among the allowed ops" in capsys.readouterr().err
    allowed.write_text("stablehlo.add, stablehlo.tan\n")
    assert cli.main([*command, str(tmp_path / "few"), "--ops", str(allowed)]) == 1
    assert "expected the name of an op on each line" in capsys.readouterr().err
    assert not (tmp_path / "few").exists()


@pytest.mark.parametrize(
    "options",
    [
        "--stablehlo-version 1.9.0",
        "--emit mesh --stablehlo-version 1.9.0",
        "--emit local --ops ops",
        "--emit local --stablehlo-version 9.9.9",
        "--emit local --stablehlo-version 1.9.0 --replica-groups dense",
    ],
)
def test_command_lines_that_cannot_be_followed(options: str, tmp_path: Path) -> None:
    assert cli.main(["partition", str(tmp_path / "in"), *options.split()]) == 2
