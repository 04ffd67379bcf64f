"""Sizes for symbolic dimensions: `--dims b=4,s=6` makes a program of fixed shapes out of a `jax.export` artifact."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.ir.mlir import MeshError
from meshbridge.tools import cli, console
from meshbridge_converters import jax_export
from meshbridge_converters.jax_dims import refined

SIZES = {"b": 4, "s": 6}


@pytest.fixture(scope="module")
def symbolic(mesh: jax.sharding.Mesh) -> export.Exported:
    """Attention-like: a batch of 2*b split by data, sequences of an even length s, and s - 2 of it in a result."""

    def split(*spec: str | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*spec))

    def program(x: jax.Array, weights: dict[str, jax.Array]) -> dict[str, jax.Array]:
        hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ weights["in"]), split("data", None, "model"))
        out = hidden.reshape(-1, hidden.shape[2]) @ weights["out"]
        return {"out": out + jnp.arange(out.shape[0])[:, None], "rest": hidden.sum(2)[:, : x.shape[1] - 2]}

    scope = export.SymbolicScope(("mod(s, 2) == 0", "s >= 4", "b <= 100"))
    batch, length = export.symbolic_shape("b, s", scope=scope)
    weights = {"in": jax.ShapeDtypeStruct((16, 32), jnp.float32), "out": jax.ShapeDtypeStruct((32, 16), jnp.float32)}
    jitted = jax.jit(program, in_shardings=(split("data"), {"in": split(None, "model"), "out": None}))
    return export.export(jitted)(jax.ShapeDtypeStruct((2 * batch, length, 16), jnp.float32), weights)


@pytest.fixture(scope="module")
def artifact(symbolic: export.Exported, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dims") / "symbolic.jax_export"
    path.write_bytes(symbolic.serialize(vjp_order=1))
    return path


def arguments(program: export.Exported, mesh: jax.sharding.Mesh) -> list[jax.Array]:
    """Seeded flat arguments, placed as `program` wants them."""
    generator = np.random.default_rng(0)
    return [
        jax.device_put(
            generator.standard_normal(aval.shape).astype(aval.dtype) / 4, sharding or NamedSharding(mesh, PartitionSpec())
        )
        for aval, sharding in zip(program.in_avals, program.in_shardings_jax(mesh), strict=True)
    ]


def call(program: export.Exported, flat: list[jax.Array]) -> dict[str, jax.Array]:
    args, _ = jax.tree.unflatten(program.in_tree, flat)
    found: dict[str, jax.Array] = jax.jit(program.call)(*args)
    return found


def close(found: object, expected: object) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)


@pytest.mark.parametrize("sizes", [SIZES, {"s": 8, "b": 1}])
def test_partitioned_equals_the_artifact_called_with_such_shapes(
    sizes: dict[str, int], symbolic: export.Exported, mesh: jax.sharding.Mesh
) -> None:
    fixed = refined(symbolic, sizes)
    rows = 2 * sizes["b"]
    assert [aval.shape for aval in fixed.in_avals] == [(rows, sizes["s"], 16), (16, 32), (32, 16)]
    assert [aval.shape for aval in fixed.out_avals] == [(rows * sizes["s"], 16), (rows, sizes["s"] - 2)]
    for name in ("fun_name", "in_tree", "out_tree", "nr_devices", "platforms", "module_kept_var_idx", "ordered_effects"):
        assert getattr(fixed, name) == getattr(symbolic, name)
    assert fixed.in_shardings_jax(mesh) == symbolic.in_shardings_jax(mesh)
    assert not fixed.uses_global_constants
    assert "?" not in re.sub(r"loc\(.*", "", fixed.mlir_module())
    partitioned = meshbridge.partition(fixed)
    flat = arguments(partitioned, mesh)
    expected = call(symbolic, [jax.device_put(array, sharding) for array, sharding in _placed(symbolic, flat, mesh)])
    close(call(partitioned, flat), expected)


def _placed(
    program: export.Exported, flat: list[jax.Array], mesh: jax.sharding.Mesh
) -> list[tuple[jax.Array, jax.sharding.Sharding]]:
    shardings = program.in_shardings_jax(mesh)
    return [(array, given or NamedSharding(mesh, PartitionSpec())) for array, given in zip(flat, shardings, strict=True)]


def test_vjp_is_refined_too(symbolic: export.Exported, mesh: jax.sharding.Mesh) -> None:
    partitioned = meshbridge.partition(refined(symbolic, SIZES))

    def gradient(program: export.Exported, flat: list[jax.Array]) -> object:
        def loss(*args: object) -> jax.Array:
            return sum(((leaf**2).sum() for leaf in jax.tree.leaves(program.call(*args))), jnp.zeros(()))

        args, _ = jax.tree.unflatten(program.in_tree, flat)
        return jax.jit(jax.grad(loss, argnums=1))(*args)

    flat = arguments(partitioned, mesh)
    expected = gradient(symbolic, [jax.device_put(array, sharding) for array, sharding in _placed(symbolic, flat, mesh)])
    close(gradient(partitioned, flat), expected)


def test_manual_computations_are_refined(mesh: jax.sharding.Mesh) -> None:
    (size,) = export.symbolic_shape("b")
    rows = PartitionSpec("data", "model")
    mapped = jax.shard_map(
        lambda part: jax.lax.psum(part.sum(1), "model"), mesh=mesh, in_specs=rows, out_specs=PartitionSpec("data")
    )
    jitted = jax.jit(lambda x: 2 * mapped(x), in_shardings=(NamedSharding(mesh, rows),))
    original = export.export(jitted)(jax.ShapeDtypeStruct((2 * size, 8), jnp.float32))
    partitioned = meshbridge.partition(refined(original, {"b": 3}))
    x = jax.device_put(np.arange(48, dtype=np.float32).reshape(6, 8), NamedSharding(mesh, rows))
    close(jax.jit(partitioned.call)(x), 2 * np.asarray(x).sum(1))


def test_two_platforms_keep_their_index(mesh: jax.sharding.Mesh) -> None:
    (size,) = export.symbolic_shape("b")
    rows = NamedSharding(mesh, PartitionSpec("data"))
    jitted = jax.jit(lambda x: jax.lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos), in_shardings=(rows,))
    original = export.export(jitted, platforms=("cpu", "tpu"))(jax.ShapeDtypeStruct((2 * size,), jnp.float32))
    partitioned = meshbridge.partition(refined(original, {"b": 4}))
    assert partitioned.uses_global_constants
    x = jax.device_put(np.arange(8, dtype=np.float32), rows)
    close(jax.jit(partitioned.call)(x), np.sin(np.arange(8)))


def test_run_equals_the_unsharded_run(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", str(artifact), "--dims", "b=4,s=6", "--check"]) == 0
    assert "largest difference from the unsharded run" in capsys.readouterr().out


def test_partition_keeps_the_vjp_of_a_file(artifact: Path, tmp_path: Path, mesh: jax.sharding.Mesh) -> None:
    output = tmp_path / "fixed.jax_export"
    assert cli.main(["partition", str(artifact), "--dims", "b=4, s=6", "-o", str(output)]) == 0
    again = export.deserialize(bytearray(output.read_bytes()))
    assert again.in_avals[0].shape == (8, 6, 16)
    assert again.has_vjp()
    assert again.vjp().mlir_module().count("sdy.manual_computation") == 1


def test_convert_and_report_take_sizes(artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ("auto", "jax-export"):
        assert cli.main(["convert", str(artifact), "--from", kind, "--to", "mlir", "--dims", "b=4,s=6"]) == 0
        assert "tensor<8x6x16xf32>" in capsys.readouterr().out
    assert cli.main(["report", str(artifact), "--dims", "b=4,s=6"]) == 0
    assert "all_reduce" in capsys.readouterr().out


def test_load_takes_sizes(artifact: Path) -> None:
    program = meshbridge.load(str(artifact), dims=SIZES)
    assert program.envelope.in_avals[0].shape == (8, 6, 16)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"b": 4}, "expected a positive size for each of b, s, found b=4"),
        ({"b": 4, "s": 6, "t": 1}, "expected a positive size for each of b, s, found b=4, s=6, t=1"),
        ({"b": 0, "s": 6}, "expected a positive size for each of b, s, found b=0, s=6"),
        ({"b": 4, "s": 7}, "the artifact's constraints, but b=4, s=7 break the symbolic shape constraint"),
        ({"b": 101, "s": 6}, "b=101, s=6 break the symbolic shape constraint b <= 100"),
        ({"b": 4, "s": 1}, "the dimension s - 2 is a size, but for b=4, s=1 it is -1"),
        ({"b": 2**30, "s": 6}, "the dimension 2*b is a size, but for b=1073741824, s=6 it is beyond 2**31 - 1"),
    ],
)
def test_other_sizes_are_refused(sizes: dict[str, int], message: str, symbolic: export.Exported) -> None:
    with pytest.raises(MeshError, match=r"^x\.jax_export: error: .*" + re.escape(message)):
        refined(symbolic, sizes, "x.jax_export")


def test_fixed_shapes_take_no_sizes(exported: export.Exported) -> None:
    with pytest.raises(MeshError, match=r"^network: error: the artifact has fixed sizes, expected none for b, s$"):
        refined(exported, SIZES)


def test_symbols_without_sizes_are_refused(symbolic: export.Exported) -> None:
    with pytest.raises(MeshError, match=r"symbolic shape .*, expected fixed sizes\n  hint: give every symbol a size with --dims"):
        jax_export.partition(symbolic)


@pytest.mark.parametrize("text", ["b", "b=", "b=x", "b=1,b=2", "=1", ""])
def test_command_refuses_what_is_not_a_list_of_sizes(text: str, artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(artifact), f"--dims={text}"]) == console.USAGE
    assert f"expected a size for each of different names, as in b=8,s=16, found '{text}'" in capsys.readouterr().err


def test_other_formats_have_no_symbols(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text.mlir"
    path.write_text("func.func @main() {\n  return\n}\n")
    assert cli.main(["partition", str(path), "--dims", "b=1"]) == 1
    expected = f"{path}: error: expected a program with symbolic dimensions to give sizes, found MLIR text"
    assert capsys.readouterr().err.startswith(expected)
