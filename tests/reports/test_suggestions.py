"""What the report suggests to change: that it is what partitioning the changed program gives, found within a budget."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.dialect import assembly
from meshbridge.ir.mlir import MeshError, context
from meshbridge.reports import suggestions
from meshbridge.reports.families import FamilyMember, families
from meshbridge.tools import cli
from tests.operations.differential import device_mesh

LAYERS, WIDTH, TOKENS = 2, 64, 512


def _loss(params: Any, x: jax.Array) -> jax.Array:
    for layer in params["layers"]:
        x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    return jnp.square(x @ params["head"]).mean()


def _step(params: Any, moments: Any, x: jax.Array) -> Any:
    grads = jax.grad(_loss)(params, x)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, moments), moments


def _exported(head: Any = (None, None)) -> export.Exported:
    """A training step whose layers are sharded well along `b`, and its head as given."""
    shapes = {"layers": [{"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}] * LAYERS, "head": (WIDTH, 32 * WIDTH)}
    specs = {"layers": [{"up": (None, "b"), "down": ("b", None)}] * LAYERS, "head": head}
    is_tuple = {"is_leaf": lambda leaf: type(leaf) is tuple}
    mesh = device_mesh((2, 4))
    params = jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), shapes, **is_tuple)
    held = jax.tree.map(lambda spec: NamedSharding(mesh, PartitionSpec(*spec)), specs, **is_tuple)
    rows = NamedSharding(mesh, PartitionSpec("a"))
    jitted = jax.jit(_step, in_shardings=(held, held, rows), out_shardings=(held, held))
    return export.export(jitted)(params, params, jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.float32))


def test_a_suggestion_is_what_the_changed_program_gives() -> None:
    """A replicated head is gathered or reduced whole; its gradient, moments and result go with it."""
    report = meshbridge.report(_exported(), machine="bytes", suggest=2)
    assert 0 < report.tried <= suggestions.TRIES * 3
    assert 0 < len(report.suggestions) <= 2
    best = next(each for each in report.suggestions if each.sharding is not None)
    assert best.arguments == ("params['head']", "moments['head']")
    assert best.results == ("result[0]['head']", "result[1]['head']")
    assert best.change.startswith("shard params['head'] and 3 more with it as P(")
    assert best.change.endswith(" instead of P(None, None)")
    spec = tuple(axes or None for axes in best.sharding)
    changed = meshbridge.report(_exported(spec), machine="bytes")
    assert changed.wire_bytes == best.wire_bytes < report.wire_bytes
    assert changed.peak_bytes == best.peak_bytes
    assert best.seconds is None
    saved = [report.wire_bytes - each.wire_bytes for each in report.suggestions]
    assert saved == sorted(saved, reverse=True)
    assert saved[-1] >= suggestions.LEAST * report.wire_bytes
    text = report.table()
    assert f"1. {report.suggestions[0].change}" in text
    assert f"of {report.tried} changes tried" in text
    # the report itself is that of the program as it is
    plain = meshbridge.report(_exported(), machine="bytes")
    assert (plain.wire_bytes, plain.collectives, plain.suggestions, plain.tried) == (report.wire_bytes, report.collectives, (), 0)


def test_on_a_machine_steps_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suggestions, "TRIES", 1)
    report = meshbridge.report(_exported(), machine="h100:1x1x8", suggest=1)
    assert report.tried == 2
    for each in report.suggestions:
        assert each.seconds is not None
        assert report.seconds is not None
        assert each.seconds <= (1 - suggestions.LEAST) * report.seconds
        assert "step" in report.table().splitlines()[-1]


@pytest.mark.parametrize("traced", [lambda layer: layer, jax.jit], ids=["in place", "as a function"])
def test_a_constraint_to_take_out(traced: Callable[..., Any]) -> None:
    """A constraint in the way is found by its line, wherever that was traced; all that stand there are taken out."""
    mesh = device_mesh((2, 4))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("b",), ()))

    @traced
    def layer(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jax.lax.with_sharding_constraint(jnp.tanh(x @ w), rows)  # as it should be
        return x, jax.lax.with_sharding_constraint(x, whole)  # in the way

    def f(x: jax.Array, w: jax.Array) -> list[jax.Array]:
        kept = []
        for _ in range(2):
            x, held = layer(x, w)
            kept.append(held)
        return kept

    jitted = jax.jit(f, in_shardings=(rows, whole))
    report = meshbridge.report(jitted, jnp.zeros((512, 64)), jnp.zeros((64, 64)), machine="bytes", suggest=4)
    best = next(each for each in report.suggestions if each.constraint is not None)
    assert best.constraint is not None
    source = Path(__file__).read_text().splitlines()
    assert source[best.constraint.line - 1].endswith("# in the way")
    assert best.change == f"take out the constraint at {best.constraint}"
    assert (best.arguments, best.results, best.sharding) == ((), (), None)
    assert report.wire_bytes > 0
    assert best.wire_bytes == 0


def test_an_open_sharding_is_what_meshbridge_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the same was also tried by name, that is said instead."""
    mesh = device_mesh((2, 4))
    rows, columns = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("b",), (None, "b")))
    jitted = jax.jit(lambda x: jnp.tanh(x), in_shardings=rows, out_shardings=columns)
    report = meshbridge.report(jitted, jnp.zeros((64, 64)), machine="bytes", suggest=4)
    changes = {each.change for each in report.suggestions}
    text = 'leave the sharding of x open, now P("b", None): meshbridge chooses P(None, "b")'
    assert text not in changes
    assert 'shard x as P(None, "b") instead of P("b", None)' in changes
    monkeypatch.setattr(suggestions, "TRIES", 1)
    report = meshbridge.report(jitted, jnp.zeros((64, 64)), machine="bytes", suggest=1)
    (found,) = report.suggestions
    assert found.change == text
    assert (found.arguments, found.sharding, found.wire_bytes) == (("x",), None, 0)


def test_a_sharding_that_stands_is_not_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the step is that is found where it is left open."""
    tried: list[bool] = []

    def same(change: Any, *_: Any) -> Any:
        tried.append(change.is_open)
        return suggestions._PlanFigures(None, 0.0, 0.0, (change.leaves[0].sharding,)) if change.is_open else None

    monkeypatch.setattr(suggestions, "_try", same)
    assert meshbridge.report(_exported(), machine="bytes", suggest=4).suggestions == ()
    assert any(tried)


def test_text_without_names_has_suggestions_too() -> None:
    text = """
      mesh.mesh @m(shape = 8)
      func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
        %s = mesh.sharding @m split_axes = [[0], []] : !mesh.sharding
        %t = mesh.sharding @m split_axes = [[], [0]] : !mesh.sharding
        %0 = mesh.shard %x to %s : tensor<64x64xf32>
        %1 = stablehlo.tanh %0 : tensor<64x64xf32>
        %2 = mesh.shard %1 to %t : tensor<64x64xf32>
        %3 = mesh.shard %2 to %t annotate_for_users : tensor<64x64xf32>
        return %3 : tensor<64x64xf32>
      }"""
    report = meshbridge.report(assembly.read(text, "program.mlir", context()), machine="bytes", suggest=1)
    (best,) = report.suggestions
    assert best.arguments + best.results in {("argument 0",), ("result 0",)}
    assert best.wire_bytes == 0 < report.wire_bytes


@pytest.mark.parametrize("shape", [(), (0, 8), (7, 5)])
def test_nothing_to_suggest(shape: tuple[int, ...]) -> None:
    """Scalars, empty arrays, and sizes that no axis divides."""
    whole = NamedSharding(device_mesh((2, 4)), PartitionSpec())
    jitted = jax.jit(lambda x: x + 1, in_shardings=whole, out_shardings=whole)
    report = meshbridge.report(jitted, jnp.zeros(shape), suggest=2)
    assert report.suggestions == ()
    if report.tried:
        assert "nothing that saves as much as 1%" in report.table()


def test_unsharded_programs_have_nothing_to_try() -> None:
    module = assembly.read("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }", "a", context())
    assert meshbridge.report(module, suggest=1).tried == 0


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_counts_that_are_none(count: Any) -> None:
    with pytest.raises(MeshError, match=r"suggest is .*, expected how many suggestions to make, 1 or more"):
        meshbridge.report(_exported(), suggest=count)


def test_a_program_that_came_partitioned_cannot_be_changed() -> None:
    module = meshbridge.partition(_exported(), emit="mesh")
    with pytest.raises(MeshError, match="suggest has no effect on a program that is partitioned already"):
        meshbridge.report(module, suggest=1)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.jax_export"
    path.write_bytes(_exported().serialize())
    assert cli.main(["report", str(path), "--machine", "bytes", "--suggest", "1", "--json"]) == 0
    read = json.loads(capsys.readouterr().out)
    (found,) = read["suggestions"]
    assert found.keys() == {
        *("change", "arguments", "results", "sharding", "constraint", "wire_bytes", "seconds", "peak_bytes"),
    }
    assert read["tried"] == 2 * suggestions.TRIES
    assert cli.main(["report", str(path), "--suggest", "0"]) == 2
    assert "expected a positive number, found '0'" in capsys.readouterr().err
    assert cli.main(["report", str(path), "--by", "line", "--json"]) == 2
    assert "--by" in capsys.readouterr().err


def _names(names: list[str], side: str = "arguments") -> list[FamilyMember]:
    return [FamilyMember(side, index, name, (4, 4), "f32", ((), ())) for index, name in enumerate(names)]


def test_families() -> None:
    """Weights of all layers with their moments; other weights of the same shape apart, and trees of positions by themselves."""
    leaves = _names(
        [
            *(
                "params['d_0']['q']",
                "params['d_1']['q']",
                "params['d_0']['k']",
                "state[0].mu['d_0']['q']",
                "state[0].mu['d_1']['k']",
            ),
            *("batch[0]", "batch[1]", "weights[0]", "x", "argument 9"),
        ]
    )
    leaves += _names(["result[0]['d_1']['q']", "result[1]"], "results")
    assert [family.name for family in families(leaves)] == [
        "params['d_*']['q'] (2 arrays) and 2 more with it",
        "params['d_0']['k'] and state[0].mu['d_1']['k']",
        "batch[*] (2 arrays) and result[1]",
        "weights[0]",
        "x",
        "argument 9",
    ]
    attributes = _names(["state.params['a']", "state.opt[0].nu['a']", "model.layers[0].w", "opt.mu.layers[1].w"])
    assert [len(family.leaves) for family in families(attributes)] == [2, 2]
    other = [
        FamilyMember("arguments", 0, "p['w']", (4, 4), "f32", ((), ())),
        FamilyMember("arguments", 1, "mu['w']", (4, 4), "bf16", ((), ())),
    ]
    assert len(families(other)) == 2
