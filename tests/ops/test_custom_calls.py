"""Programs for platforms that are not here: kernels and libraries that their functions call are sharded by what is known of them,
gathered and named where nothing is."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax._src.cudnn import fused_attention_stablehlo  # which asks for cuDNN before it traces
from jax.experimental import pallas
from jax.experimental.custom_partitioning import custom_partitioning
from jax.experimental.pallas import triton
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

import meshbridge
from meshbridge import partitioning, pipeline
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.read import formats
from meshbridge.read.formats import TEXT, Program
from meshbridge.runtime import pjrt
from meshbridge.verification.verdict import verify
from tests.operations.differential import device_mesh

PLATFORMS = ("cpu", "tpu", "cuda", "rocm")


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return device_mesh((2, 4))


def shaped(mesh: Mesh, shape: tuple[int, ...], dtype: Any, *spec: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, Spec(*spec)))


class Call(NamedTuple):
    """A custom call of one device's program."""

    target: str
    operands: list[str]
    config: str


def calls(function: Any, *arguments: Any, platform: str) -> list[Call]:
    """Those of a function that is partitioned for a platform."""
    module = meshbridge.partition(jax.jit(function), *arguments, emit="local", platform=platform)
    found = []
    for op in mlir.find(module.operation, {mlir.CUSTOM_CALL}):
        config = ir.StringAttr(op.attributes["backend_config"]).value if "cudnn" in mlir.call_target(op) else ""
        found.append(Call(mlir.call_target(op), [str(each.type) for each in op.operands], config))
    return found


@pytest.mark.parametrize("platform", PLATFORMS)
def test_functions_are_exported_for_any_platform(mesh: Mesh, platform: str) -> None:
    x = shaped(mesh, (8, 16), np.float32, "a", "b")
    function = jax.jit(lambda x: lax.platform_dependent(x, tpu=lambda x: x.sum(axis=0), default=lambda x: jnp.ones(16)))
    partitioned = meshbridge.partition(function, x, platform=platform)
    assert export.deserialize(partitioned.serialize()).platforms == (platform,)
    found = [each.kind for each in meshbridge.report(function, x, platform=platform).collectives]
    assert (found == ["all_reduce"]) is (platform == "tpu")


def test_one_artifact_for_several_platforms(mesh: Mesh) -> None:
    """What each calls a library for is a branch of its own, which stays one."""
    x = np.random.default_rng(0).standard_normal((8, 16, 16)).astype(np.float32)
    x = x @ x.swapaxes(1, 2) + 16 * np.eye(16, dtype=np.float32)
    factors = jax.jit(lambda x: jnp.linalg.cholesky(x) + 1, in_shardings=NamedSharding(mesh, Spec("a")))
    exported = export.export(factors, platforms=PLATFORMS)(x)
    assert meshbridge.report(exported).not_partitioned == ()
    assert meshbridge.report(exported).wire_bytes == 0
    partitioned = meshbridge.partition(exported)
    assert partitioned.platforms == PLATFORMS
    placed = jax.device_put(x, NamedSharding(mesh, Spec("a")))
    np.testing.assert_allclose(jax.jit(partitioned.call)(placed), np.linalg.cholesky(x) + 1, rtol=1e-5, atol=1e-5)
    for platform in PLATFORMS:
        assert meshbridge.partition(exported, platform=platform).platforms == (platform,)


def test_a_program_from_a_file_calls_lapack(mesh: Mesh, tmp_path: Path) -> None:
    """In a process in which JAX has traced nothing that does."""
    x = shaped(mesh, (8, 4, 4), np.float32, "a")
    exported = export.export(jax.jit(jnp.linalg.cholesky), platforms=("cpu", "tpu"))(x)
    (tmp_path / "in").write_bytes(exported.serialize())
    matrices = np.broadcast_to(4 * np.eye(4, dtype=np.float32), x.shape)
    np.savez(tmp_path / "x.npz", matrices)
    command = (sys.executable, "-m", "meshbridge", "run", "in", "--inputs", "x.npz", "--outputs", "y.npz")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["arr_0"], matrices / 2)


lowers_triton = pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="jax 0.12 lowers Triton's kernels beside a GPU alone")


def added(x: jax.Array, y: jax.Array) -> jax.Array:
    """A kernel of Triton's."""

    def kernel(x_ref: Any, y_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] + y_ref[...]

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pallas.pallas_call(kernel, out_shape=shape, compiler_params=triton.CompilerParams(num_warps=1))(x, y)


@lowers_triton
def test_kernels_are_gathered_and_named(mesh: Mesh) -> None:
    x = shaped(mesh, (8, 16), np.float32, "a", "b")
    report = meshbridge.report(jax.jit(lambda x: added(x, x) * 2), x, platform="cuda")
    assert [each.operation for each in report.not_partitioned] == ["stablehlo.custom_call @__gpu$xla.gpu.triton"]
    assert report.not_partitioned[0].location.file.endswith("test_custom_calls.py")
    assert {each.kind for each in report.collectives} == {"all_gather"}
    (call,) = calls(lambda x: added(x, x) * 2, x, platform="cuda")
    assert call.operands[0] == "tensor<8x16xf32>"


def test_kernels_have_no_rule() -> None:
    with pytest.raises(MeshError, match="code for operands of a given shape"):
        meshbridge.register_sharding_rule("__gpu$xla.gpu.triton", "i j -> i j")


@lowers_triton
def test_kernels_in_manual_computations_are_kept(mesh: Mesh) -> None:
    x = shaped(mesh, (8, 16), np.float32, "a", "b")
    mapped = jax.shard_map(added, mesh=mesh, in_specs=(Spec("a", "b"),) * 2, out_specs=Spec("a", "b"), check_vma=False)
    (call,) = calls(lambda x: mapped(x, x).sum(), x, platform="cuda")
    assert call.operands[0] == "tensor<4x4xf32>"


def test_kernels_of_tpus(mesh: Mesh) -> None:
    def doubled(x: jax.Array) -> jax.Array:
        def kernel(x_ref: Any, out_ref: Any) -> None:
            out_ref[...] = x_ref[...] * 2

        return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    x = shaped(mesh, (16, 512), np.float32, "a", "b")
    mapped = jax.shard_map(doubled, mesh=mesh, in_specs=Spec("a", "b"), out_specs=Spec("a", "b"), check_vma=False)
    (call,) = calls(mapped, x, platform="tpu")
    assert (call.target, call.operands[0]) == ("tpu_custom_call", "tensor<8x128xf32>")
    with pytest.raises(MeshError, match="Mosaic kernels cannot be automatically partitioned"):  # so says JAX
        meshbridge.partition(jax.jit(doubled), x, platform="tpu")


def test_custom_partitioning_is_a_part_of_the_function(mesh: Mesh) -> None:
    softmax = custom_partitioning(lambda x: jax.nn.softmax(x @ x.T))
    softmax.def_partition(partition=lambda *_: None, sharding_rule="i j -> i k")
    rows = NamedSharding(mesh, Spec("a", "b"))
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    function = jax.jit(lambda x: softmax(x) + 1, in_shardings=rows)
    partitioned = meshbridge.partition(function, x)
    np.testing.assert_allclose(jax.jit(partitioned.call)(jax.device_put(x, rows)), jax.nn.softmax(x @ x.T) + 1, rtol=1e-5)
    with pytest.raises(MeshError, match="partitioned by a Python function") as error:
        meshbridge.partition(function.lower(x))
    assert "partition the jitted function itself" in str(error.value)


# cuDNN's attention, without cuDNN.


def attention(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, implementation="cudnn", **options)


def gradients(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> Any:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(attention(q, k, v, **options).astype(jnp.float32) ** 2)

    return jax.grad(loss, (0, 1, 2))(q, k, v)


@pytest.fixture
def _cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)


def sizes_in_configuration(call: Call) -> list[int]:
    return [int(size) for size in json.loads(call.config)["cudnn_fmha_backend_config"]["intermediate_tensor_shape"]["dimensions"]]


Q, HEADS = (4, 32, 8, 16), ("a", None, "b")


@pytest.mark.usefixtures("_cudnn")
@pytest.mark.parametrize("function", [attention, gradients])
def test_attention_is_sharded_by_batch_and_heads(mesh: Mesh, function: Callable[..., Any]) -> None:
    q = shaped(mesh, Q, jnp.bfloat16, *HEADS)
    lengths = shaped(mesh, (4,), np.int32)
    options = [({}, []), ({"is_causal": True}, []), ({"query_seq_lengths": 0, "key_value_seq_lengths": 0}, [lengths])]
    for named, more in options:
        names = [name for name in named if name.endswith("lengths")]

        def called(q: Any, k: Any, v: Any, *more: Any, names: Sequence[str] = names, named: Any = named) -> Any:
            return function(q, k, v, **named | dict.fromkeys(names, *more))

        arguments = (q, q, q, *more)
        assert meshbridge.report(jax.jit(called), *arguments, platform="cuda").wire_bytes == 0
        found = calls(called, *arguments, platform="cuda")
        assert [call.operands[0] for call in found] == ["tensor<2x32x2x16xbf16>"] * len(found)
        assert [sizes_in_configuration(call) for call in found] == [[2, 2, 32, 32]] * len(found)
        assert len(found) == (2 if function is gradients else 1)


def is_verified(function: Any, *arguments: Any, wrong: Any = None) -> bool:
    """Whether what is made of a function is the function, or of a `wrong` one in its place."""
    source, partitioned = (
        formats.unpack(jax.jit(each), mlir.context(), arguments, platform="cuda").module for each in (function, wrong or function)
    )
    partitioning.partition_module(partitioned, pipeline.Options(emit="mesh"))
    return verify(source, partitioned).equal


@pytest.mark.usefixtures("_cudnn")
def test_calls_in_manual_computations_are_verified(mesh: Mesh) -> None:
    """They have a result without elements."""
    q = shaped(mesh, Q, jnp.bfloat16, *HEADS)
    mapped = jax.shard_map(attention, mesh=mesh, in_specs=(Spec(*HEADS),) * 3, out_specs=Spec(*HEADS), check_vma=False)
    assert is_verified(mapped, q, q, q)


@pytest.mark.usefixtures("_cudnn")
@pytest.mark.parametrize("function", [attention, gradients])
@pytest.mark.parametrize("key_heads", [8, 2])
def test_attention_is_exactly_what_one_device_computes(mesh: Mesh, function: Callable[..., Any], key_heads: int) -> None:
    q = shaped(mesh, Q, jnp.bfloat16, "a", None, "b")
    k = shaped(mesh, (*Q[:2], key_heads, Q[3]), jnp.bfloat16, None, None, "a")
    assert is_verified(function, q, k, k)
    assert not is_verified(function, q, k, k, wrong=lambda q, k, v: function(q, v, k))


@pytest.mark.usefixtures("_cudnn")
@pytest.mark.parametrize("sequences", [1, 4])
def test_biases_are_verified(mesh: Mesh, sequences: int) -> None:
    q, bias = shaped(mesh, Q, jnp.bfloat16, *HEADS), shaped(mesh, (sequences, 8, 32, 32), jnp.bfloat16, None, "b")

    def loss(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return jnp.sum(attention(q, k, v, bias=bias).astype(np.float32))

    assert is_verified(jax.grad(loss, (0, 3)), q, q, q, bias)


@pytest.mark.usefixtures("_cudnn")
def test_a_sequence_is_not_split(mesh: Mesh) -> None:
    """Heads take the axis that the sequence had."""
    q = shaped(mesh, Q, jnp.bfloat16, "a", "b")
    report = meshbridge.report(jax.jit(attention), q, q, q, platform="cuda")
    assert {each.kind for each in report.collectives} == {"all_to_all"}
    assert report.not_partitioned == ()


@pytest.mark.usefixtures("_cudnn")
def test_heads_that_share_keys_stay_together(mesh: Mesh) -> None:
    q, k = shaped(mesh, Q, jnp.bfloat16, None, None, "a"), shaped(mesh, (4, 32, 2, 16), jnp.bfloat16, None, None, "a")
    (call,) = calls(attention, q, k, k, platform="cuda")
    assert call.operands[:2] == ["tensor<4x32x4x16xbf16>", "tensor<4x32x1x16xbf16>"]
    assert sizes_in_configuration(call)[:2] == [4, 4]


@pytest.mark.usefixtures("_cudnn")
def test_a_bias_may_be_the_same_for_all_sequences(mesh: Mesh) -> None:
    """Its gradient is a sum over them then, which cuDNN takes: the backward call is gathered, and named."""
    q, bias = shaped(mesh, Q, jnp.bfloat16, *HEADS), shaped(mesh, (1, 8, 32, 32), jnp.bfloat16, None, "b")

    def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return attention(q, k, v, bias=bias)

    (call,) = calls(biased, q, q, q, bias, platform="cuda")
    assert call.operands[3] == "tensor<1x2x32x32xbf16>"
    back = jax.jit(jax.grad(lambda *given: jnp.sum(biased(*given).astype(jnp.float32)), (0, 3)))
    report = meshbridge.report(back, q, q, q, bias, platform="cuda")
    assert [each.operation for each in report.not_partitioned] == ["stablehlo.custom_call @__cudnn$fmhaScaleBiasSoftmaxBackward"]


CONFIGURATIONS = (
    None,
    '"of another library"',
    '"[]"',
    '"{}"',
    '"{\\22cudnn_fmha_backend_config\\22: {\\22bmm1_dot_dimension_numbers\\22: 3}}"',
    "{scale = 1.0 : f32}",
)


@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_attention_that_is_configured_otherwise_is_gathered(config: str | None) -> None:
    said = f"api_version = {4 if config and 'scale' in config else 2} : i32"
    said += "" if config is None else f", backend_config = {config}"
    text = f"""
        sdy.mesh @mesh = <["a"=2, "b"=4]>
        func.func @main(%q: tensor<8x32x4x16xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{}}, {{"b"}}, {{}}]>}})
            -> tensor<8x4x32x16xf32> {{
          %0:2 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %q, %q) {{{said}}}
            : (tensor<8x32x4x16xf32>, tensor<8x32x4x16xf32>, tensor<8x32x4x16xf32>) -> (tensor<8x4x32x16xf32>, tensor<0xui8>)
          return %0#0 : tensor<8x4x32x16xf32>
        }}"""
    module = ir.Module.parse(text, mlir.context())
    report = meshbridge.report(module)
    assert [each.operation for each in report.not_partitioned] == ["stablehlo.custom_call @__cudnn$fmhaSoftmax"]
    partitioned = meshbridge.partition(module)
    assert verify(module, partitioned).equal


@pytest.mark.usefixtures("_cudnn")
@pytest.mark.parametrize("function", [attention, gradients])
def test_attention_computes_what_one_device_does(mesh: Mesh, function: Callable[..., Any]) -> None:
    """With the same attention in StableHLO in place of cuDNN's, on the shapes that its calls have."""
    q = shaped(mesh, Q, jnp.bfloat16, *HEADS)
    k = shaped(mesh, (4, 32, 2, 16), jnp.bfloat16, None, None, "a")
    module = meshbridge.partition(jax.jit(function), q, k, k, emit="local", platform="cuda")
    for call in mlir.find(module.operation, {mlir.CUSTOM_CALL}):
        _compute(module, call)
    generator = np.random.default_rng(0)
    arguments = [generator.standard_normal(each.shape).astype(each.dtype) for each in (q, k, k)]
    found = pjrt.load(Program(module, TEXT), jax.devices())(*arguments)

    def reference(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v)

    def loss(q: Any, k: Any, v: Any) -> Any:
        return jnp.sum(reference(q, k, v).astype(jnp.float32) ** 2)

    expected = reference(*arguments) if function is attention else jax.grad(loss, (0, 1, 2))(*arguments)
    for one, other in zip(found, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.float32(one), np.float32(other), rtol=0.1, atol=0.1)


def _compute(module: ir.Module, call: ir.Operation) -> None:
    """Puts the attention that `call` has in its place, in StableHLO: results have heads before positions."""

    def by_heads(x: Any) -> Any:
        return jnp.swapaxes(x, 1, 2)

    def forward(q: Any, k: Any, v: Any) -> Any:
        statistics = [jnp.zeros((len(q), q.shape[2], q.shape[1]), np.float32)] if len(call.results) == 3 else []
        return by_heads(jax.nn.dot_product_attention(q, k, v)), *statistics, jnp.zeros((0,), np.uint8)

    def backward(q: Any, k: Any, v: Any, _: Any, gradient: Any, __: Any) -> Any:
        back = jax.vjp(jax.nn.dot_product_attention, q, k, v)[1]
        return *map(by_heads, back(gradient)), jnp.zeros((0,), np.uint8)

    function = backward if mlir.call_target(call).endswith("Backward") else forward
    types = [ir.RankedTensorType(operand.type) for operand in call.operands]
    names = {"bf16": jnp.bfloat16, "f32": np.float32}
    shapes = [jax.ShapeDtypeStruct(tuple(kind.shape), names[str(kind.element_type)]) for kind in types]
    lowered = jax.jit(function, keep_unused=True).lower(*shapes)
    with module.context, call.location:
        inlined = mlir.parse(lowered.as_text(), "reference.mlir", module.context)
        pipeline.run(pipeline.LEGALIZE[:1], inlined)
        body = mlir.main_function(inlined).regions[0].blocks[0]
        values = dict(zip(body.arguments, call.operands, strict=True))
        for view in body.operations:
            if view.operation.name == "func.return":
                for result, value in zip(call.results, view.operation.operands, strict=True):
                    result.replace_all_uses_with(values[value])
                continue
            copy = view.operation.clone(ip=ir.InsertionPoint(call)).operation
            for op in (copy, *mlir.inside(copy)):
                for number, operand in enumerate(op.operands):
                    op.operands[number] = values.get(operand, operand)
            values.update(zip(view.operation.results, copy.results, strict=True))
        call.erase()


@pytest.mark.usefixtures("_cudnn")
@pytest.mark.parametrize(("function", "products"), [(attention, 2), (gradients, 2 + 5)])
def test_attention_counts_as_its_products(mesh: Mesh, function: Callable[..., Any], products: int) -> None:
    """Which are those of the shard: scores of 2 sequences and 2 heads, 32 x 32, of 16 numbers each."""
    q = shaped(mesh, Q, jnp.bfloat16, *HEADS)
    report = meshbridge.report(jax.jit(function), q, q, q, platform="cuda", machine="h100:1x1x8")
    assert report.work.contractions == products * 2 * (2 * 2 * 32 * 32 * 16)
    assert report.model_products == {"bf16": 8 * report.work.contractions}


def test_kernels_count_as_they_say() -> None:
    """A kernel of Pallas reads a number before the tensor that it multiplies; one without an estimate counts as nothing."""

    def kernel(estimate: pallas.CostEstimate | None, *refs: Any) -> Any:
        anywhere = pallas.BlockSpec(memory_space=pallas.ANY)
        out = jax.ShapeDtypeStruct((8, 128), jnp.bfloat16)
        specs = {"in_specs": [anywhere] * len(refs), "out_specs": anywhere}
        return pallas.pallas_call(lambda *_: None, out_shape=out, cost_estimate=estimate, **specs)(*refs)

    def called(rows: jax.Array, x: jax.Array) -> jax.Array:
        said = pallas.CostEstimate(flops=1 << 40, transcendentals=0, bytes_accessed=0)
        return kernel(None, kernel(said, rows, x))

    mesh = AbstractMesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    within = jax.shard_map(called, mesh=mesh, in_specs=(Spec(), Spec("a", "b")), out_specs=Spec("a", "b"), check_vma=False)
    arguments = (jax.ShapeDtypeStruct((8, 128), jnp.int32), jax.ShapeDtypeStruct((16, 512), jnp.bfloat16))
    report = meshbridge.report(jax.jit(within), *arguments, platform="tpu", machine="v5p:2x2x2")
    assert report.work.contractions == 1 << 40
    assert report.seconds is not None
    assert report.compute_seconds == pytest.approx((1 << 40) / 459e12 / 0.75, rel=0.01)
