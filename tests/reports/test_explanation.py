"""Why arguments and results are sharded so: that each figure is what partitioning the changed program gives, and who decided."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge.dialect import assembly
from meshbridge.dialect.patterns import keys_of, matches
from meshbridge.ir.mlir import MeshError, context
from meshbridge.reports.explanation import Explained, Explanation
from meshbridge.tools import cli
from tests.operations.differential import device_mesh
from tests.reports.transformer import exported


def _one(found: Explanation) -> Explained:
    (explained,) = found.explained
    return explained


def test_others_are_what_the_changed_program_gives() -> None:
    """The head and the one that is returned are changed together, as a user who writes the sharding does."""
    found = meshbridge.explain(exported(layers=1), of="params['head']", machine="h100:1x1x8")
    head = _one(found)
    assert (head.arguments, head.results) == (("params['head']",), ("result[1]['head']",))
    assert (head.shape, head.element_type, head.sharding) == ((64, 512), "f32", ((), ()))
    assert [(decider.by, len(decider.names)) for decider in head.deciders] == [("your sharding", 2)]
    assert {other.sharding for other in head.others} == {None, (("a",), ()), ((), ("a",)), (("b",), ()), ((), ("b",))}
    assert found.tried == 5
    for other in head.others:
        assert other.difference is not None
        if other.sharding is None:
            continue
        assert other.chosen == (other.sharding,)
    for sharding in (((), ("a",)), (("b",), ())):
        other = next(each for each in head.others if each.sharding == sharding)
        assert other.difference is not None
        spec = tuple(axes or None for axes in sharding)
        changed = meshbridge.report(exported(head=spec, layers=1), machine="h100:1x1x8")
        assert (other.wire_bytes, other.seconds, other.peak_bytes) == (changed.wire_bytes, changed.seconds, changed.peak_bytes)
        assert other.difference.changes == meshbridge.diff(found.report, changed).changes
    seconds = [other.seconds for other in head.others]
    assert seconds == sorted(seconds, key=lambda each: each or 0.0)
    plain = meshbridge.report(exported(layers=1), machine="h100:1x1x8")
    assert (found.report.wire_bytes, found.report.seconds) == (plain.wire_bytes, plain.seconds)
    text = found.table()
    assert "params['head'] and result[1]['head'], f32[64, 512]: P(None, None)\n  your sharding\n" in text
    assert "left open: P(" in text
    assert "about " in text.splitlines()[-1]
    assert "5 other shardings tried" in text.splitlines()[-1]


def test_alone() -> None:
    found = meshbridge.explain(exported(), of="params/head", alone=True, machine="bytes")
    head = _one(found)
    assert (head.arguments, head.results) == (("params['head']",), ())
    together = _one(meshbridge.explain(exported(), of="params/head", machine="bytes"))
    split = ((), ("b",))
    alone, both = (next(each for each in one.others if each.sharding == split) for one in (head, together))
    assert alone.difference is not None
    assert both.difference is not None
    assert [each.name for each in alone.difference.resharded] == ["params['head']"]
    assert [each.name for each in both.difference.resharded] == ["params['head']", "result[1]['head']"]


def test_all_of_a_program_within_a_budget() -> None:
    """What most bytes are about comes first; each array is explained, however few tries there are."""
    found = meshbridge.explain(exported(), machine="bytes", tries=3)
    assert found.tried == 3
    names = [name for each in found.explained for name in (*each.arguments, *each.results)]
    assert sorted(names) == sorted([each.name for each in (*found.report.arguments, *found.report.results)])
    most = max(found.explained, key=lambda each: each.exposed_bytes)
    assert most.others
    assert sum(each.untried for each in found.explained) > 0
    loss = next(each for each in found.explained if "result[0]" in each.results)
    assert (loss.shape, loss.others, loss.untried) == ((), (), 0)
    nothing = meshbridge.explain(exported(), machine="bytes", tries=0)
    assert nothing.tried == 0
    assert "more not tried" in nothing.table()


def test_tries_are_of_each_match() -> None:
    found = meshbridge.explain(exported(), machine="bytes", of=["params/head", "params/**/up"], tries=1, alone=True)
    assert len(found.explained) > 1
    assert [len(each.others) for each in found.explained] == [1] * len(found.explained)
    assert all(each.untried for each in found.explained)


def _constrained(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    mesh = device_mesh((2, 4))
    x = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec("a")))  # at x
    y = jnp.tanh(x @ w)
    return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, PartitionSpec(None, "b"))), y.sum(axis=0)  # at y


def _line(mark: str) -> int:
    return next(number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith(f"# at {mark}"))


def test_who_has_decided() -> None:
    held = NamedSharding(device_mesh((2, 4)), PartitionSpec(None, "b"))
    jitted = jax.jit(_constrained, in_shardings=(None, held))
    found = meshbridge.explain(jitted, jnp.zeros((512, 64)), jnp.zeros((64, 64)), tries=0, alone=True)
    said = {name: each.deciders[0].by for each in found.explained for name in (*each.arguments, *each.results)}
    assert said == {
        "x": f"chosen here, as your constraint at test_explanation.py:{_line('x')} has it",
        "w": "your sharding",
        "result[0]": f"chosen here, as your constraint at test_explanation.py:{_line('y')} has it",
        "result[1]": "chosen here: nothing is said of it",
    }


def test_open_dimensions() -> None:
    """What the user has said, where meshbridge has split more."""
    text = """
      sdy.mesh @mesh = <["a"=2, "b"=4]>
      func.func @main(%x: tensor<512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {"b", ?}]>},
                      %w: tensor<64x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{?}, {?}]>})
                      -> (tensor<512x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) {
        %0 = stablehlo.tanh %x : tensor<512x64xf32>
        %1 = stablehlo.dot %0, %w : (tensor<512x64xf32>, tensor<64x64xf32>) -> tensor<512x64xf32>
        return %1 : tensor<512x64xf32>
      }"""
    found = meshbridge.explain(assembly.read(text, "a.mlir", context()), tries=0, machine="bytes")
    x, w, result = found.explained
    assert x.sharding == (("a",), ("b",))
    assert x.deciders[0].by == 'chosen here: your sharding is P(None, "b"), of which dimensions are open'
    assert w.deciders[0].by == "chosen here: nothing is said of it"
    assert result.deciders[0].by == "your sharding"
    assert (x.name, w.name, result.name) == ("argument 0", "argument 1", "result 0")


def test_what_cannot_be() -> None:
    """A plan that exceeds the limit of memory is refused, and says why."""
    plan = meshbridge.report(exported(head=(None, "b"), layers=1), machine="v5e")
    found = meshbridge.explain(
        exported(head=(None, "b"), layers=1), of="params/head", machine="v5e", memory_limit=plan.peak_bytes
    )
    whole = next(other for other in _one(found).others if other.sharding == ((), ()))
    assert whole.difference is None
    assert (whole.wire_bytes, whole.seconds, whole.chosen) == (None, None, ())
    assert "error" in whole.refused
    assert _one(found).others[-1].difference is None
    assert "P(None, None): cannot be: " in found.table()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x + 1,
        lambda x: jnp.zeros((0, 8)),
        lambda x: {"a": x.astype(jnp.bfloat16), "b": [x.sum(), jnp.arange(3)]},
    ],
)
@pytest.mark.parametrize("shape", [(), (7, 5), (8, 8), (0, 8)])
def test_other_kinds_of_arrays(program: Callable[[jax.Array], Any], shape: tuple[int, ...]) -> None:
    """Scalars, empty arrays, sizes that no axis divides, results that do not depend on arguments."""
    whole = NamedSharding(device_mesh((2, 4)), PartitionSpec())
    found = meshbridge.explain(jax.jit(program, in_shardings=whole), jnp.zeros(shape))
    assert found.table()
    json.loads(found.to_json())


def test_keys_are_explained_as_they_are_shown() -> None:
    held = NamedSharding(device_mesh((2, 4)), PartitionSpec("b"))
    jitted = jax.jit(lambda key: jax.vmap(jax.random.normal)(key), in_shardings=held)
    keys = jax.random.split(jax.random.key(0), 8)
    found = meshbridge.explain(jitted, keys, of="key", machine="bytes")
    assert _one(found).others


def test_without_a_mesh() -> None:
    module = assembly.read("func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> { return %x : tensor<8xf32> }", "a", context())
    found = meshbridge.explain(module)
    assert [each.deciders[0].by for each in found.explained] == ["the program names no mesh"] * 2
    assert found.tried == 0


def test_what_came_partitioned() -> None:
    with pytest.raises(MeshError, match="the program is partitioned already"):
        meshbridge.explain(meshbridge.partition(exported(), emit="mesh"))
    found = meshbridge.explain(meshbridge.partition(exported()), of="params/head", tries=1)
    assert "all collectives are the program's own" in found.table()


@pytest.mark.parametrize("tries", [-1, 1.5, True, "2"])
def test_tries_that_are_none(tries: Any) -> None:
    with pytest.raises(MeshError, match=r"tries is .*, expected how many other shardings to try, 0 or more"):
        meshbridge.explain(exported(), tries=tries)


def test_unknown_arguments() -> None:
    with pytest.raises(MeshError) as near:
        meshbridge.explain(exported(), of="params['haed']")
    assert "no argument and no result matches 'params['haed']': there are params['head'], " in str(near.value)
    assert "did you mean params['head']" in str(near.value)
    with pytest.raises(MeshError, match=r"did you mean '\*\*/up/\*\*', which matches params\['layers'\]\[0\]\['up'\]"):
        meshbridge.explain(exported(), of=["params/head", "up"])
    with pytest.raises(MeshError, match=r"did you mean 'params/layers/\*/up', which matches params\['layers'\]\[0\]\['up'\]"):
        meshbridge.explain(exported(), of="params/layrs/*/up")
    with pytest.raises(MeshError, match=r"keys have slashes between them, as in params/\*\*/kernel"):
        meshbridge.explain(exported(), of="0123456789")


@pytest.mark.parametrize(
    ("path", "keys"),
    [
        ("x", ("x",)),
        ("state.params['layers'][0].weight", ("state", "params", "layers", "0", "weight")),
        ("params['mlp/~/linear_0']['w']", ("params", "mlp", "~", "linear_0", "w")),
        ("params['a[0].b']", ("params", "a[0].b")),
        ("result[1]['head']", ("result", "1", "head")),
    ],
)
def test_keys_of_paths(path: str, keys: tuple[str, ...]) -> None:
    assert keys_of(path) == keys
    assert matches(path, path)
    assert matches("**", path)
    assert matches("/".join((*keys[:-1], "*")), path)


@pytest.mark.parametrize(
    ("pattern", "path", "is_meant"),
    [
        ("params/**/up", "params['layers'][0]['up']", True),
        ("params/**/up", "params['up']", True),
        ("params/*/up", "params['layers'][0]['up']", False),
        ("params['layers'][*]['up']", "params['layers'][12]['up']", True),
        ("params['layers'][1*]['up']", "params['layers'][2]['up']", False),
        ("**/up", "result[1]['up']", True),
        ("up", "params['up']", False),
        ("params/dense_*/kernel", "params['dense_0']['kernel']", True),
        ("argument *", "argument 3", True),
        ("x", "xy", False),
        ("**/q/kernel", "state['attention']['q']['kernel'].value", True),
        ("**/q/kernel", "state[1]['opt_state'][0]['mu']['q']['kernel'].value", True),
        ("state['q']['kernel']", "state['q']['kernel'].value", True),
        ("**/kernel/value", "state['q']['kernel'].value", True),
        ("**/kernel", "state['q']['kernel']['value']", False),
    ],
)
def test_patterns(pattern: str, path: str, is_meant: bool) -> None:
    assert matches(pattern, path) is is_meant


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.jax_export"
    path.write_bytes(exported(layers=1).serialize())
    assert cli.main(["explain", str(path), "--machine", "h100:1x1x8", "params/head", "--json", "--tries", "2"]) == 0
    read = json.loads(capsys.readouterr().out)
    expected = meshbridge.explain(exported(layers=1), of="params/head", machine="h100:1x1x8", tries=2)
    assert read == json.loads(expected.to_json())
    (head,) = read["explained"]
    assert len(head["others"]) == read["tried"] == 2
    assert head["others"][0].keys() == {"sharding", "chosen", "refused", "wire_bytes", "seconds", "peak_bytes", "difference"}
    assert cli.main(["explain", str(path), "params/head", "--tries", "0"]) == 0
    assert capsys.readouterr().out.startswith("params['head'] and result[1]['head'], f32[64, 512]: P(None, None)")
    assert cli.main(["explain", str(path), "haed"]) == 1
    assert f"{path}: error: no argument and no result matches 'haed'" in capsys.readouterr().err
    assert cli.main(["explain", str(path), "--tries", "-1"]) == 2
    assert "expected how many, 0 or more, found '-1'" in capsys.readouterr().err
