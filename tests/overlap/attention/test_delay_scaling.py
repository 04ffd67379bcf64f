"""What scales a sum over devices after it: numbers of one device, reductions that do not wait, and what stays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge import machines, pipeline
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.cost.communication import communication
from meshbridge.ir.builder import element_of
from meshbridge.ir.mlir import MeshError, ir, main_function, walk
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.attention.delay_scaling import DelayScaling
from meshbridge.verification.verdict import verify

P = PartitionSpec
Attention = Callable[..., jax.Array]
REDUCTIONS = ("mesh.all_reduce", "mesh.reduce_scatter")


def hand_written(weigh: Callable[[jax.Array], jax.Array]) -> Attention:
    """Attention of one query to a cache of fewer heads, [batch, heads, size] and [batch, length, heads, size]."""

    def attention(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        grouped = query.reshape(len(query), key.shape[2], -1, query.shape[-1])
        scores = jnp.einsum("bkgd,bskd->bkgs", grouped, key).astype(jnp.float32) * query.shape[-1] ** -0.5
        scores = jnp.where(jnp.arange(key.shape[1]) <= 41, scores, -1e9)
        return jnp.einsum("bkgs,bskd->bkgd", weigh(scores).astype(value.dtype), value).reshape(query.shape)

    return attention


def guarded(scores: jax.Array) -> jax.Array:
    exponentials = jnp.exp(scores - jax.lax.stop_gradient(scores.max(-1, keepdims=True)))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


def guarded_after_division(scores: jax.Array) -> jax.Array:
    """Zero where no key counts, which is where the weights are NaN."""
    kept = scores > -1
    return jnp.where(kept, jax.nn.softmax(jnp.where(kept, scores, -jnp.inf)), 0)


def counted(scores: jax.Array) -> jax.Array:
    return jax.nn.softmax(scores, where=scores > -1)


def by_reciprocal(scores: jax.Array) -> jax.Array:
    exponentials = jnp.exp(scores - scores.max(-1, keepdims=True))
    return exponentials * (1 / exponentials.sum(-1, keepdims=True))


def library(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
    lengths = jnp.full(len(query), 41, jnp.int32)
    return jax.nn.dot_product_attention(query[:, None], key, value, key_value_seq_lengths=lengths)[:, 0]


VARIANTS: dict[str, Attention] = {
    "softmax": hand_written(jax.nn.softmax),
    "guarded": hand_written(guarded),
    "by_reciprocal": hand_written(by_reciprocal),
    "library": library,
}


def projected(attention: Attention) -> Callable[..., jax.Array]:
    """Behind it a product that contracts heads."""

    def function(query: jax.Array, key: jax.Array, value: jax.Array, weight: jax.Array) -> jax.Array:
        mixed = attention(query, key, value)
        return mixed.reshape(len(mixed), -1) @ weight

    return function


def sharded(attention: Attention, mesh: jax.sharding.Mesh, *, project: bool) -> Any:
    """Keys and values stay where their tokens are. The product contracts heads that are sharded along the same axis."""
    batch, cache, rows = (NamedSharding(mesh, P(*axes)) for axes in (("data",), ("data", "model"), ("model",)))

    def pinned(*arguments: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(attention(*arguments), batch)

    function, others = (projected(pinned), (rows,)) if project else (pinned, ())
    return jax.jit(function, in_shardings=(batch, cache, cache, *others), out_shardings=batch)


def drawn(dtype: Any, heads: int = 8, *, project: bool = False) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = ((4, heads, 16), *[(4, 64, heads // 2, 16)] * 2, (heads * 16, 32))
    found = [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]
    return found if project else found[:3]


def partitioned(jitted: Any, *arguments: Any) -> ir.Module:
    """Before anything is hidden."""
    module: ir.Module = meshbridge.partition(jitted, *arguments, emit="mesh", machine="h100", collectives="off")
    pipeline.run((OptimizeCollectives(combine=0, target=CompileTarget.of("h100")),), module)
    return module


def reductions(module: ir.Module) -> list[ir.Operation]:
    return [op for op in walk(main_function(module)) if op.name in REDUCTIONS]


def in_a_row(module: ir.Module) -> int:
    """How many reductions wait for one another at most."""
    depth: dict[ir.Value, int] = {}
    for view in main_function(module).regions[0].blocks[0].operations:
        op = view.operation
        found = max((depth.get(operand, 0) for operand in op.operands), default=0) + (op.name in REDUCTIONS)
        depth.update(dict.fromkeys(op.results, found))
    return max(depth.values())


def check(function: Callable[..., Any], jitted: Any, arguments: list[jax.Array]) -> ir.Module:
    """One reduction less waits for another, no more are there, and the result is that of one device."""
    module = partitioned(jitted, *arguments)
    before, number = in_a_row(module), len(reductions(module))
    pipeline.run((DelayScaling(),), module)
    assert (in_a_row(module), len(reductions(module))) == (before - 1, number)
    found = np.asarray(jax.tree.leaves(meshbridge.compile(module)(*arguments))[0])
    right = np.asarray(jax.tree.leaves(jax.jit(function)(*arguments))[0])
    assert found.dtype == right.dtype
    found, right = found.astype(np.float32), right.astype(np.float32)
    coarse = 1e-5 if arguments[0].dtype == jnp.float32 else 4 * float(jnp.finfo(arguments[0].dtype).eps)
    np.testing.assert_allclose(found, right, rtol=0, atol=coarse * np.abs(right).max())
    return module


@pytest.mark.parametrize("project", [False, True], ids=["reduced", "scattered"])
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_attention_over_a_sharded_cache(name: str, dtype: Any, project: bool, mesh: jax.sharding.Mesh) -> None:
    """Both are reduced in float32, in one way."""
    attention, arguments = VARIANTS[name], drawn(dtype, project=project)
    module = check(projected(attention) if project else attention, sharded(attention, mesh, project=project), arguments)
    sums = [op for op in reductions(module) if "max" not in str(op.attributes["reduction"])][:2]
    assert [op.name for op in sums] == [REDUCTIONS[project]] * 2
    assert [str(element_of(op.results[0])) for op in sums] == ["f32", "f32"]


@pytest.mark.parametrize("project", [False, True], ids=["reduced", "scattered"])
def test_exact_and_no_more_bytes_where_nothing_is_rounded(project: bool, mesh: jax.sharding.Mesh) -> None:
    jitted, arguments = sharded(VARIANTS["softmax"], mesh, project=project), drawn(jnp.float32, project=project)
    module = partitioned(jitted, *arguments)
    sent = communication(module).wire_bytes
    pipeline.run((DelayScaling(),), module)
    assert communication(module).wire_bytes <= sent
    assert verify(meshbridge.partition(jitted, *arguments, emit="annotated"), module).equal


def test_a_sum_that_something_else_reads(mesh: jax.sharding.Mesh) -> None:
    """It is reduced, and sliced for what is scattered."""

    def function(query: jax.Array, key: jax.Array, value: jax.Array, weight: jax.Array) -> tuple[jax.Array, jax.Array]:
        exponentials = jnp.exp(jnp.einsum("bhd,bshd->bhs", query[:, :4], key) / 4)
        total = exponentials.sum(-1)
        mixed = jnp.einsum("bhs,bshd->bhd", exponentials / total[..., None], value)
        mixed = jax.lax.with_sharding_constraint(mixed, NamedSharding(mesh, P("data")))
        return mixed.reshape(len(mixed), -1) @ weight[:64], jnp.log(total)

    batch, cache, rows = (NamedSharding(mesh, P(*axes)) for axes in (("data",), ("data", "model"), ("model",)))
    jitted = jax.jit(function, in_shardings=(batch, cache, cache, rows), out_shardings=batch)
    module = check(function, jitted, drawn(jnp.float32, project=True))
    assert [op.name for op in reductions(module)] == ["mesh.all_reduce", "mesh.reduce_scatter", "mesh.all_reduce"]


def normalised(x: jax.Array, weight: jax.Array) -> jax.Array:
    return (x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)) @ weight


def by_features(function: Callable[..., Any], mesh: jax.sharding.Mesh) -> Any:
    shardings = NamedSharding(mesh, P("data", "model")), NamedSharding(mesh, P("model"))
    return jax.jit(function, in_shardings=shardings, out_shardings=NamedSharding(mesh, P("data")))


def features(dtype: Any = jnp.float32) -> list[jax.Array]:
    keys = jax.random.split(jax.random.key(1))
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, ((8, 64), (64, 16)), strict=True)]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_a_normalisation_before_a_product(dtype: Any, mesh: jax.sharding.Mesh) -> None:
    check(normalised, by_features(normalised, mesh), features(dtype))


def test_several_products(mesh: jax.sharding.Mesh) -> None:
    def function(x: jax.Array, weight: jax.Array) -> jax.Array:
        x = x / jnp.abs(x).sum(-1, keepdims=True)
        return jnp.tanh(x @ weight) * jnp.tanh(x @ jnp.sin(weight))

    check(function, by_features(function, mesh), features())


def what_is_scaled_is_read(x: jax.Array, weight: jax.Array) -> jax.Array:
    x = x / x.sum(-1, keepdims=True)
    return x @ weight + jnp.tanh(x) @ weight


def another_factor_waits(x: jax.Array, weight: jax.Array) -> jax.Array:
    total = x.sum(-1, keepdims=True)
    return (x / total) @ (weight * jnp.cos(total[0]))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [(what_is_scaled_is_read, jnp.float32), (another_factor_waits, jnp.float32), (normalised, jnp.float16)],
    ids=["read", "waits", "f16"],
)
def test_what_stays(function: Callable[..., Any], dtype: Any, mesh: jax.sharding.Mesh) -> None:
    module = partitioned(by_features(function, mesh), *features(dtype))
    before = str(module)
    assert not DelayScaling().run(module)
    assert str(module) == before


@pytest.mark.parametrize(("machine", "widened"), [("h100", True), ("v5e", True), ("tiny", False)])
def test_launches_are_worth_bytes(machine: str, widened: bool, mesh: jax.sharding.Mesh, tmp_path: Path) -> None:
    """A device whose collectives start at once sends no byte more; the earlier reduction runs beside the product."""
    if machine == "tiny":
        text = (Path(machines.__file__).parent / "gpu" / "h100.toml").read_text()
        machine = str(tmp_path / "tiny.toml")
        Path(machine).write_text(text.replace("launch = 25e-6", "launch = 1e-12"))
    module = partitioned(sharded(VARIANTS["softmax"], mesh, project=False), *drawn(jnp.bfloat16))
    assert DelayScaling(CompileTarget.of(machine)).run(module)
    assert [str(element_of(op.results[0])) for op in reductions(module)] == ["f32", "f32", "f32" if widened else "bf16"]


def test_an_unknown_machine_is_an_error(mesh: jax.sharding.Mesh) -> None:
    module = partitioned(sharded(VARIANTS["softmax"], mesh, project=False), *drawn(jnp.bfloat16))
    with pytest.raises(MeshError, match="abacus"):
        DelayScaling(CompileTarget.of("abacus")).run(module)


@pytest.mark.parametrize(("machine", "expected"), [("h100", True), ("v5e:2x4", True), ("neutral", False), ("bytes", False)])
def test_machines_whose_compilers_combine(machine: str, expected: bool) -> None:
    passes = pipeline.build(pipeline.Options.of(machine=machine)).passes
    assert any(isinstance(each, DelayScaling) for each in passes) == expected


def masked_mean(x: jax.Array, weight: jax.Array) -> jax.Array:
    kept = x > 0
    return jnp.where(kept, x / jnp.where(kept, x, 0).sum(-1, keepdims=True), 0) @ weight


def of_either_sign(x: jax.Array, weight: jax.Array) -> jax.Array:
    """A divisor that may be zero beside terms that are not."""
    return (x / x.sum(-1, keepdims=True)) @ weight


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["f32", "bf16"])
@pytest.mark.parametrize("weigh", [guarded_after_division, counted])
def test_rows_without_keys_are_zero(weigh: Callable[[jax.Array], jax.Array], dtype: Any, mesh: jax.sharding.Mesh) -> None:
    """Behind the sum their zeros would be divided by zero, or by NaN."""
    attention, (query, key, value) = hand_written(weigh), drawn(dtype)
    arguments = [query.at[1].set(0), key, value]
    empty = [query, key.at[2].set(-1e4 * jnp.sign(query[2, :1, :])), value]
    for each in (arguments, empty):
        check_alike(attention, sharded(attention, mesh, project=False), each)


@pytest.mark.parametrize("function", [masked_mean, of_either_sign])
def test_divisors_of_zero(function: Callable[..., Any], mesh: jax.sharding.Mesh) -> None:
    x, weight = features()
    x = x.at[0].set(-1).at[1].set(jnp.where(jnp.arange(x.shape[1]) % 2, 1, -1)).at[2].set(0)
    check_alike(function, by_features(function, mesh), [x, weight])


def check_alike(function: Callable[..., Any], jitted: Any, arguments: list[jax.Array]) -> None:
    """For a machine that divides after sums: NaN and infinities stand where they do on one device."""
    module = partitioned(jitted, *arguments)
    DelayScaling().run(module)
    (found,), right = meshbridge.compile(module)(*arguments), jax.jit(function)(*arguments)
    tolerance = 1e-5 if right.dtype == jnp.float32 else 0.02
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(right, np.float32), rtol=tolerance, atol=tolerance)
