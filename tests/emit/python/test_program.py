"""Whole programs, written as Python and run, equal one device; what is written reads well."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from benchmarks.measure import placed, relative_error, unsharded
from meshbridge.ir.mlir import MeshError
from meshbridge.tools import cli
from testdata.catalogue import BUILDERS, build
from testdata.program import Program
from tests.emit.python.running import run
from tests.operations.differential import device_mesh

QUICK = ("mlp_ws1d", "mlp_ws2d", "moe_fwd", "cp_attn_fwd", "misc_fft2", "misc_sort", "misc_cumsum", "loop_kmeans", "decode_seq")

LIBRARIES = ("gaussian_process",)
"""Programs that call a compiled library, for which JAX has no function by that name."""

LONG = ("gpt12", "gpt48")
"""Programs that have more of what another has."""

ROOT = Path(__file__).parents[3]


def results_of(program: Program, text: str) -> Any:
    wanted = unsharded(program)
    found = run(text, jax.tree.leaves(placed(program)))
    return jax.tree.unflatten(jax.tree.structure(wanted), found), wanted


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BUILDERS if name not in LONG]
)
def test_program_equals_one_device(name: str) -> None:
    program = build(name)
    if name in LIBRARIES:
        with pytest.raises(MeshError, match=r"'stablehlo.custom_call' op @lapack_"):
            meshbridge.partition(program.export(), emit="shard_map")
        return
    found, wanted = results_of(program, meshbridge.partition(program.export(), emit="shard_map"))
    assert relative_error(found, wanted) < program.tolerance


def ruff(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Ruff with its own rules, not ours, but with lines of 100 characters."""
    command = [sys.executable, "-m", "ruff", *arguments, "--config", "line-length=100"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["gpt3", "llama_scan_fsdp", "moe_fwd", "loop_kmeans", "decode_seq"])
def test_text_is_laid_out_and_has_no_loose_ends(name: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(meshbridge.partition(build(name).export(), emit="shard_map"))
    formatted, checked = (
        ruff("format", "--isolated", "--diff", str(path)),
        ruff("check", "--isolated", "--select", "F821,F811,E9,I", str(path)),
    )
    assert formatted.returncode == 0, formatted.stdout[:2000]
    assert checked.returncode == 0, checked.stdout[:2000]


MESH = (2, 4)


def exported(
    function: Any, *arguments: tuple[tuple[int, ...], str, P], out: Any = None, donate: tuple[int, ...] = ()
) -> export.Exported:
    """A function of arrays of these shapes, types and shardings on a mesh of 2x4 with the axes "a" and "b"."""
    mesh = device_mesh(MESH)
    avals = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype, _ in arguments]
    shardings = tuple(NamedSharding(mesh, spec) for _, _, spec in arguments)
    outs = {} if out is None else {"out_shardings": jax.tree.map(lambda spec: NamedSharding(mesh, spec), out)}
    with jax.set_mesh(mesh):
        return export.export(jax.jit(function, in_shardings=shardings, donate_argnums=donate, **outs))(*avals)


def values_of(artifact: export.Exported, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(aval.shape)).astype(aval.dtype) for aval in artifact.in_avals]


X = ((8, 16), "float32", P("a", "b"))
W = ((16, 32), "float32", P("b", None))


def test_every_collective_says_what_it_sends_and_why_and_every_line_where_it_stands() -> None:
    text = meshbridge.partition(exported(lambda x, w: jnp.tanh(x @ w), X, W), emit="shard_map")
    body = text.partition("def main_on_shards")[2]
    sent = [line for line in body.splitlines() if re.search(r"# [\d.]+ K?B over b: .*contracts a split dimension", line)]
    assert len(sent) == 1
    assert re.search(r"# test_program\.py:\d+ ", body)
    assert re.search(r"lax\.psum(_scatter)?\(dot_1, \"b\"", body)
    assert body.startswith("(x, w):")


def test_numbers_stand_in_expressions_and_keep_the_type() -> None:
    program = exported(lambda x: (x * 0.5 + 1).astype(jnp.float32) / 3, ((8, 16), "bfloat16", P("a", None)))
    text = meshbridge.partition(program, emit="shard_map")
    assert "(x * 0.5 + 1.0).astype(jnp.float32) / 3.0" in text
    (value,) = values_of(program)
    (found,) = run(text, [value])
    np.testing.assert_array_equal(found, np.asarray(jax.jit(lambda x: (x * 0.5 + 1).astype(jnp.float32) / 3)(value)))


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "bfloat16", "float16", "int4", "int8", "uint8", "uint32", "complex64", "bool"]
)
def test_types_are_kept(dtype: str) -> None:
    def function(x: Any) -> Any:
        turned = jnp.where(x == x[0], x, jnp.zeros((), x.dtype)).T
        if dtype == "complex64":
            return turned, turned.sum(0), turned[::-1]
        return turned, lax.reduce_max(turned, axes=(0,)), jnp.sort(x, axis=0)[::-1]

    program = exported(function, ((8, 16), dtype, P("a", "b")))
    values = [np.asarray(each > 0 if dtype == "bool" else each) for each in values_of(program)]
    found = run(meshbridge.partition(program, emit="shard_map"), values)
    for mine, theirs in zip(found, jax.jit(function)(*values), strict=True):
        assert mine.dtype == theirs.dtype
        wide = np.complex64 if dtype == "complex64" else np.float32
        np.testing.assert_allclose(mine.astype(wide), np.asarray(theirs).astype(wide), rtol=1e-5, atol=1e-5)


def test_nan_wins_a_maximum_over_devices() -> None:
    program = exported(lambda x: (x.max(0), x.min(0)), ((8, 16), "float32", P(("a", "b"), None)), out=(P(), P()))
    text = meshbridge.partition(program, emit="shard_map")
    assert "def pmax(" in text or "reduce_max" in text
    (value,) = values_of(program)
    value[3, 5] = np.nan
    for mine, theirs in zip(run(text, [value]), (value.max(0), value.min(0)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_floats_compare_in_their_total_order() -> None:
    table = np.array([-np.inf, -1, -0.0, 0.0, 1, 2, np.inf, np.nan], np.float32)
    program = exported(lambda x, t: jnp.searchsorted(t, x), ((8, 4), "float32", P("a", "b")), ((8,), "float32", P()))
    text = meshbridge.partition(program, emit="shard_map")
    assert "def ordered(" in text
    value = np.resize(np.array([np.nan, -0.0, 0.0, 0.5, np.inf, -np.inf, 7, -1], np.float32), (8, 4))
    (found,) = run(text, [value, table])
    np.testing.assert_array_equal(found, jax.jit(lambda x, t: jnp.searchsorted(t, x))(value, table))


def test_arguments_that_nothing_reads_are_taken_and_donated_ones_given_away() -> None:
    program = exported(lambda x, unused, y: (x + y, y * 2), X, W, X, donate=(2,))
    text = meshbridge.partition(program, emit="shard_map")
    assert "@partial(jax.jit, donate_argnums=(2,))" in text
    assert "def main(x, unread_1, y):" in text
    values = values_of(program)
    given = jnp.asarray(values[2])
    found = run(text, [values[0], values[1], jax.device_put(given, NamedSharding(device_mesh(MESH), P("a", "b")))])
    np.testing.assert_allclose(found[0], values[0] + values[2], rtol=1e-6)
    np.testing.assert_allclose(found[1], values[2] * 2)


def test_trees_of_arguments_and_keys_are_leaves() -> None:
    def function(state: dict[str, Any], key: Any) -> Any:
        return {name: value + jax.random.normal(key, value.shape) for name, value in state.items()}

    mesh = device_mesh(MESH)
    state = {"class": jnp.ones((8, 16)), "1st": jnp.ones((16,))}
    shardings = {"class": NamedSharding(mesh, P("a", "b")), "1st": NamedSharding(mesh, P("b"))}
    jitted = jax.jit(function, in_shardings=(shardings, None))
    text = meshbridge.partition(jitted, state, jax.random.key(0), emit="shard_map")
    key = jax.random.key(3)
    found = run(text, [*jax.tree.leaves(state), jax.random.key_data(key)])
    for mine, theirs in zip(found, jax.tree.leaves(jax.jit(function)(state, key)), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_uneven_shards_are_padded_outside_and_cut_inside() -> None:
    source = """
    sdy.mesh @mesh = <["a"=2, "b"=4]>
    func.func @main(%x: tensor<7x5xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>})
        -> (tensor<5x7xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {"a"}]>}, tensor<f32>) {
      %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<7x5xf32>) -> tensor<5x7xf32>
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<5x7xf32>, tensor<f32>) -> tensor<f32>
      return %0, %1 : tensor<5x7xf32>, tensor<f32>
    }"""
    value = np.arange(35, dtype=np.float32).reshape(7, 5)
    found = run(meshbridge.partition(parsed(source), emit="shard_map"), [value])
    np.testing.assert_array_equal(found[0], value.T)
    assert float(found[1]) == value.sum()


def parsed(source: str) -> meshbridge.Program:
    from meshbridge.ir.mlir import context
    from meshbridge.read import formats

    return formats.read(source.encode(), "source.mlir", context())


@pytest.mark.parametrize("spec", ['{"b":(1)2}', '{"b":(2)2}', '{"a", "b":(1)2}'])
def test_sub_axes_are_axes_of_their_own(spec: str) -> None:
    source = f"""
    sdy.mesh @mesh = <["a"=2, "b"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>
    func.func @main(%x: tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{spec}, {{}}]>}})
        -> (tensor<8x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{"b"}}]>}}) {{
      %0 = stablehlo.dot %x, %x : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
      return %0 : tensor<8x8xf32>
    }}"""
    text = meshbridge.partition(parsed(source), emit="shard_map")
    assert '("a", "b_0", "b_1")' in text
    value = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    (found,) = run(text, [value])
    np.testing.assert_allclose(found, value @ value, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_branches_and_loops_are_functions() -> None:
    def function(x: Any, i: Any, n: Any) -> Any:
        x = lax.switch(i, [lambda x: x + 1, lambda x: x @ x.T @ x, lambda x: -x], x)
        x = lax.cond(n > 2, lambda x: x * 2, lambda x: x[::-1], x)
        return lax.fori_loop(0, n, lambda step, x: x / (1 + step + jnp.abs(x).max()), x)

    program = exported(function, ((8, 8), "float32", P("a", "b")), ((), "int32", P()), ((), "int32", P()))
    text = meshbridge.partition(program, emit="shard_map")
    assert {"lax.switch(", "lax.cond(", "lax.while_loop("} <= set(re.findall(r"lax\.\w+\(", text))
    value = values_of(program)[0]
    for index in (-1, 0, 1, 2, 9):
        for count in (0, 2, 4):
            numbers = (value, np.int32(index), np.int32(count))
            (found,) = run(text, numbers)
            np.testing.assert_allclose(found, jax.jit(function)(*numbers), rtol=1e-4, atol=1e-5)


def test_an_index_below_all_branches_takes_the_last_one() -> None:
    """As StableHLO says; `lax.switch` by itself would take the first."""
    branches = [
        f"{{ %r{k} = stablehlo.constant dense<{k}.0> : tensor<8xf32>\nstablehlo.return %r{k} : tensor<8xf32> }}" for k in range(3)
    ]
    source = f"""
    sdy.mesh @mesh = <["a"=2]>
    func.func @main(%i: tensor<i32>) -> (tensor<8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}]>}}) {{
      %0 = "stablehlo.case"(%i) ({", ".join(branches)}) : (tensor<i32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }}"""
    text = meshbridge.partition(parsed(source), emit="shard_map")
    for index, taken in ((-3, 2), (0, 0), (1, 1), (2, 2), (7, 2)):
        (found,) = run(text, [np.int32(index)])
        np.testing.assert_array_equal(found, np.full(8, taken, np.float32))


def test_nothing_at_all_and_empty_arrays() -> None:
    text = meshbridge.partition(exported(lambda x: (x[:0], x.sum() * 0), X), emit="shard_map")
    found = run(text, [np.ones((8, 16), np.float32)])
    assert found[0].shape == (0, 16)
    assert float(found[1]) == 0


def test_elements_of_64_bits_need_them() -> None:
    with jax.enable_x64(True):
        text = meshbridge.partition(exported(lambda x: x * 2, ((8, 16), "float64", P("a", None))), emit="shard_map")
    with pytest.raises(ValueError, match="main takes or gives elements of 64 bits: set JAX_ENABLE_X64=1"):
        run(text, [np.ones((8, 16))])


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda x: x + np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32),
            r"'stablehlo.constant' op is a constant of \d+ numbers, expected at most 4096 .*\n  hint: pass it to the function",
        ),
        (
            lambda x: jnp.linalg.svd(x)[1],
            r"test_program.py:\d+:\d+: error: 'stablehlo.custom_call' op @lapack_\w+ has no equivalent among the functions",
        ),
    ],
    ids=["numbers", "library"],
)
def test_what_cannot_be_written_is_one_diagnostic(function: Any, said: str) -> None:
    with pytest.raises(MeshError) as caught:
        meshbridge.partition(exported(function, ((128, 64), "float32", P("a", None))), emit="shard_map")
    assert re.search(said, str(caught.value)), caught.value


def test_one_platform_of_several_is_chosen() -> None:
    mesh = AbstractMesh(MESH, ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    jitted = jax.jit(lambda x: x.sum(0), in_shardings=NamedSharding(mesh, P("a", "b")))
    artifact = export.export(jitted, platforms=("cpu", "cuda"))(jax.ShapeDtypeStruct((8, 16), "float32"))
    with pytest.raises(
        MeshError, match="the program is for the platforms cpu, cuda, expected one in Python\n  hint: choose one by"
    ):
        meshbridge.partition(artifact, emit="shard_map")
    (found,) = run(meshbridge.partition(artifact, emit="shard_map", platform="cpu"), [np.ones((8, 16), np.float32)])
    np.testing.assert_array_equal(found, np.full(16, 8.0))


def test_command_writes_the_file_beside_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, path = ROOT / "testdata" / "walkthrough" / "two_layers.mlir", tmp_path / "step.py"
    assert cli.main(["partition", str(source), "--emit", "shard_map", "--report", "-o", str(path)]) == 0
    assert "all_reduce" in capsys.readouterr().out
    x, v, w = (np.ones(shape, np.float32) for shape in ((8, 16), (16, 32), (32, 16)))
    found = run(path.read_text(), [x, v, w])
    np.testing.assert_array_equal(found[0], np.maximum(x @ v, 0) @ w)
    assert float(found[1]) == (w * w).sum()


def test_command_refuses_what_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    source = str(ROOT / "testdata" / "walkthrough" / "two_layers.mlir")
    assert cli.main(["partition", source, "--emit", "shard_map", "--replica-groups", "dense"]) == 2
    assert "--replica-groups" in capsys.readouterr().err
