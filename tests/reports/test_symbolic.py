"""Communication volume as formulas: what they say at other sizes, and on other meshes, is what the program sends there."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import meshbridge
from meshbridge.ir.mlir import MeshError
from meshbridge.read import files
from meshbridge.tools import cli

Split = Callable[..., NamedSharding]
Made = tuple[Callable[..., Any], Any, Any, Any]
"""A function, the shardings of its arguments and results, and its arguments' shapes."""


def shape(*sizes: Any, kind: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, kind)


def megatron(split: Split, b: Any, s: Any) -> Made:
    def mlp(x: jax.Array, up: jax.Array, down: jax.Array) -> jax.Array:
        return jnp.tanh(x @ up) @ down

    bfloat16 = jnp.bfloat16
    shapes = shape(b, s, 256, kind=bfloat16), shape(256, 1024, kind=bfloat16), shape(1024, 256, kind=bfloat16)
    return mlp, (split("data"), split(None, "model"), split("model")), None, shapes


def step(split: Split, b: Any, s: Any) -> Made:
    def train(weights: list[jax.Array], x: jax.Array) -> list[jax.Array]:
        def loss(weights: list[jax.Array]) -> jax.Array:
            return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1]) ** 2)

        return [weight - 0.1 * change for weight, change in zip(weights, jax.grad(loss)(weights), strict=True)]

    return (
        train,
        ([split(None, "model"), split("model")], split("data")),
        None,
        ([shape(256, 512), shape(512, 256)], shape(32 * b, 256)),
    )


def sequence(split: Split, b: Any, s: Any) -> Made:
    """Sequences of a length that is split, and attention that needs all of it: the square of `s`."""

    def attention(x: jax.Array, w: jax.Array) -> jax.Array:
        q = jnp.einsum("bsd,dhk->bshk", x, w)
        return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(jnp.einsum("bqhk,bshk->bhqs", q, q)), q)

    return attention, (split("data", "model"), split()), None, (shape(b, s, 64), shape(64, 8, 16))


def looped(split: Split, b: Any, s: Any) -> Made:
    """A loop of `s` iterations."""

    def scanned(x: jax.Array, w: jax.Array) -> Any:
        def body(h: jax.Array, each: jax.Array) -> tuple[jax.Array, jax.Array]:
            h = jnp.tanh(h @ w + each)
            return h, h

        return jax.lax.scan(body, jnp.zeros_like(x[:, 0]), x.swapaxes(0, 1))

    return scanned, (split("data"), split(None, "model")), None, (shape(b, s, 64), shape(64, 64))


def joined(split: Split, b: Any, s: Any) -> Made:
    """A sum that is no product of a part in `b` and one in `s`."""
    held = split(None, "model")
    return lambda x, y: jnp.concatenate([x, y], 0), (held, held), split(), (shape(b, 64), shape(s, 64))


def transposed(split: Split, b: Any, s: Any) -> Made:
    """Both axes along one dimension."""
    both = split(("data", "model"))
    return lambda x: x.T + 1, (both,), both, (shape(8 * b, 8 * s),)


def windows(split: Split, b: Any, s: Any) -> Made:
    def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME")

    return convolved, (split("data", None, "model"), split()), None, (shape(b, 8, 8 * s, 32), shape(8, 8, 3, 3))


PROGRAMS = (megatron, step, sequence, looped, joined, transposed, windows)
BASE = {"b": 4, "s": 4}
SIZES = ({"b": 4, "s": 4}, {"b": 8, "s": 4}, {"b": 4, "s": 8}, {"b": 12, "s": 6})
MESHES = ((2, 4), (4, 2), (2, 2))


def artifact(program: Callable[[Split, Any, Any], Made], sizes: tuple[int, int]) -> export.Exported:
    devices = np.array(jax.devices()[: sizes[0] * sizes[1]]).reshape(sizes)
    mesh = jax.sharding.Mesh(devices, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    b, s = export.symbolic_shape("b, s")
    function, arguments, results, shapes = program(lambda *spec: NamedSharding(mesh, PartitionSpec(*spec)), 4 * b, 4 * s)
    jitted = jax.jit(function, in_shardings=arguments, **({} if results is None else {"out_shardings": results}))
    return export.export(jitted)(*shapes)


def dims_of(exported: export.Exported, sizes: dict[str, int]) -> dict[str, int]:
    """Of those sizes, the ones of symbols that the artifact has."""
    text = str(exported.in_avals)
    return {name: size for name, size in sizes.items() if f"*{name}" in text}


def sent(exported: export.Exported, dims: dict[str, int]) -> float:
    """Wire bytes of the program, partitioned at these sizes."""
    program = files.parse_program(bytes(exported.serialize()), "artifact", dims)
    return meshbridge.report(program).wire_bytes


@pytest.mark.parametrize("program", PROGRAMS)
def test_formulas_are_what_concrete_programs_send(program: Callable[[Split, Any, Any], Made]) -> None:
    exported = artifact(program, MESHES[0])
    found = meshbridge.symbolic_report(exported, dims=dims_of(exported, BASE))
    assert not found.fixed
    assert {"data", "model", *found.dims} == set(found.base)
    assert found.wire_bytes.free_symbols
    assert found.at() == found.at(**BASE, data=2, model=4) if len(found.dims) == 2 else found.at() > 0
    for sizes in SIZES:
        dims = dims_of(exported, sizes)
        assert found.at(**dims) == sent(exported, dims), dims
    for mesh in MESHES[1:]:
        other = artifact(program, mesh)
        dims = dims_of(other, BASE)
        assert found.at(**dims, data=mesh[0], model=mesh[1]) == sent(other, dims), mesh
    parts = sum(found.by_kind().values())
    assert (parts - found.wire_bytes).simplify() == 0


def test_the_formula_of_a_sum_over_model() -> None:
    found = meshbridge.symbolic_report(artifact(megatron, (2, 4)), dims=BASE)
    (row,) = found.collectives
    assert (row.kind, row.axes) == ("all_reduce", ("model",))
    # (4 b / data) * 4 s * 256 elements of 2 bytes, all-reduced in a ring.
    assert str(row.wire_bytes) == "16384*b*s*(model - 1)/(data*model)"
    assert row.location.file == __file__


def test_a_quadratic_formula() -> None:
    """A product of two dimensions of one size is summed: its bytes are the square of that."""

    def gram(split: Split, b: Any, s: Any) -> Made:
        return lambda x: x @ x.T, (split(None, "data"),), split(), (shape(b, 64),)

    exported = artifact(gram, (2, 4))
    found = meshbridge.symbolic_report(exported, dims={"b": 4})
    assert "b**2" in str(found.wire_bytes)
    for b in (4, 6, 14):
        assert found.at(b=b) == sent(exported, {"b": b})


def test_without_symbolic_dimensions_axes_are_the_symbols() -> None:
    path = Path(__file__).parents[2] / "testdata" / "walkthrough" / "two_layers.mlir"
    found = meshbridge.symbolic_report(meshbridge.load(str(path)))
    assert (found.dims, dict(found.base)) == ((), {"data": 2, "model": 2})
    assert found.at() == meshbridge.report(meshbridge.load(str(path))).wire_bytes
    for model, larger in pairwise((2, 4, 8)):
        assert found.at(model=model) != found.at(model=larger)
    text = path.read_text()
    for data, model in ((4, 2), (2, 4), (4, 4)):
        sized = text.replace('"data"=2, "model"=2', f'"data"={data}, "model"={model}')
        wanted = meshbridge.report(files.parse_program(sized.encode(), "sized.mlir")).wire_bytes
        assert found.at(data=data, model=model) == wanted


def test_axes_of_manual_computations_are_numbers() -> None:
    def manual(split: Split, b: Any, s: Any) -> Made:
        specs = PartitionSpec("data", "model"), PartitionSpec("data")
        held = split("data", "model")
        mapped = jax.shard_map(lambda x: jax.lax.psum(x, "model"), mesh=held.mesh, in_specs=specs[0], out_specs=specs[1])
        return lambda x: 2 * mapped(x), (held,), None, (shape(b, 64),)

    found = meshbridge.symbolic_report(artifact(manual, (2, 4)), dims={"b": 4})
    assert found.fixed == {
        name: (size, "the program has manual computations along it") for name, size in (("data", 2), ("model", 4))
    }
    assert (str(found.wire_bytes), dict(found.base)) == ("192*b", {"b": 4})
    assert "model is taken as 4: the program has manual computations along it" in found.table()


def test_an_axis_of_which_parts_split_is_a_number() -> None:
    """64 columns along the 4 devices of "model" are 2 rows of 32: half of the axis splits the rows."""

    def folded(split: Split, b: Any, s: Any) -> Made:
        def rows(x: jax.Array) -> jax.Array:
            return jnp.tanh(x.reshape(x.shape[0], 2, 32)).sum(2) @ jnp.ones((2, 64))

        return rows, (split("data", "model"),), None, (shape(b, 64),)

    exported = artifact(folded, (2, 4))
    found = meshbridge.symbolic_report(exported, dims={"b": 4})
    assert found.fixed == {"model": (4, "parts of it split tensors")}
    for b in (4, 8, 20):
        assert found.at(b=b) == sent(exported, {"b": b}) > 0


def test_bytes_that_are_no_polynomial_have_no_formula() -> None:
    """Joined along the dimension that is split, each part moves to where its rows end up: a number of rows that is a maximum."""

    def shifted(split: Split, b: Any, s: Any) -> Made:
        rows = split("data")
        return lambda x, y: jnp.concatenate([x, y], 0), (rows, rows), split(), (shape(b, 64), shape(s, 64))

    exported = artifact(shifted, (2, 4))
    try:
        found = meshbridge.symbolic_report(exported, dims={"b": 4, "s": 8})
    except MeshError as error:
        assert "are no polynomial of" in str(error)  # noqa: PT017  a formula that holds would do, too
    else:
        for dims in ({"b": 4, "s": 8}, {"b": 6, "s": 8}, {"b": 20, "s": 4}, {"b": 10, "s": 30}):
            assert found.at(**dims) == sent(exported, dims)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "megatron.jax_export"
    path.write_bytes(artifact(megatron, (2, 4)).serialize())
    asked = ["report", str(path), "--symbolic"]
    assert cli.main([*asked, "--dims", "b=4,s=4"]) == 0
    printed = capsys.readouterr().out
    assert "total: 16384*b*s*(model - 1)/(data*model) bytes on the wire per device and step" in printed
    assert "of the plan for b=4, s=4, data=2, model=4; they hold where axes divide what they split" in printed
    assert cli.main([*asked, "--dims", "b=4,s=4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["wire_bytes"] == found["by_kind"]["all_reduce"] == "16384*b*s*(model - 1)/(data*model)"
    assert found["base"] == {"b": 4, "s": 4, "data": 2, "model": 4}
    assert [each["kind"] for each in found["collectives"]] == ["all_reduce"]
    assert cli.main(asked) == 1
    assert "give every symbol a size with --dims" in capsys.readouterr().err
    assert cli.main([*asked, "--dims", "b=4,s=4", "--html", str(tmp_path / "page.html")]) != 0
    assert "--html has no effect with --symbolic" in capsys.readouterr().err


def test_without_sympy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sympy", None)
    with pytest.raises(
        MeshError, match=r"formulas need sympy, which is not installed\n  hint: pip install meshbridge\[symbolic\]"
    ):
        meshbridge.symbolic_report(artifact(megatron, (2, 4)), dims=BASE)


def test_bad_input(tmp_path: Path) -> None:
    exported = artifact(megatron, (2, 4))
    with pytest.raises(MeshError, match="expected a machine without a topology"):
        meshbridge.symbolic_report(exported, dims=BASE, machine="v5e:2x4")
    with pytest.raises(MeshError, match="expected a positive size for each of b, s"):
        meshbridge.symbolic_report(exported, dims={"b": 4})
    with pytest.raises(MeshError, match="symbolic shape"):
        meshbridge.symbolic_report(exported)
    with pytest.raises(MeshError, match=r"expected a jax.export.Exported to give sizes"):
        meshbridge.symbolic_report(meshbridge.load(_text(tmp_path, "")), dims={"b": 4})
    with pytest.raises(MeshError, match="the program has no mesh"):
        meshbridge.symbolic_report(meshbridge.load(_text(tmp_path, "")))
    found = meshbridge.symbolic_report(exported, dims=BASE)
    with pytest.raises(MeshError, match="found the symbol 'rows', expected b, s, data, model"):
        found.at(rows=3)


def _text(folder: Path, mesh: str) -> str:
    path = folder / "plain.mlir"
    path.write_text(f"{mesh}func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {{ return %a : tensor<8xf32> }}")
    return str(path)
