"""Functions that try a program out, and what their results print."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.machines.target import parse
from meshbridge.text import Tabular
from meshbridge.tools import cli
from meshbridge.tools.compare.figures import Figures

X = np.arange(128, dtype=np.float32).reshape(8, 16) / 128
W = np.arange(64, dtype=np.float32).reshape(16, 4) / 64


def product(x: Any, w: Any) -> dict[str, Any]:
    return {"sum": jnp.tanh(x @ w).sum(axis=0)}


@pytest.fixture(scope="module")
def jitted(mesh: jax.sharding.Mesh) -> Any:
    return jax.jit(product, in_shardings=(NamedSharding(mesh, P("data")), None))


@pytest.fixture(scope="module")
def saved(jitted: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "product.jax_export"
    meshbridge.save(jitted, path, X, W)
    return path


RESULTS: dict[str, Callable[[Any], Tabular]] = {
    "Report": lambda jitted: meshbridge.report(jitted, X, W),
    "Explanation": lambda jitted: meshbridge.explain(jitted, X, W, of="x", tries=1),
    "Difference": lambda jitted: meshbridge.diff(meshbridge.report(jitted, X, W), meshbridge.report(jitted, X, W, machine="v5e")),
    "SearchedPlan": lambda jitted: meshbridge.search(jitted, X, W, machine="v5e", seconds=1),
    "Verdict": lambda jitted: meshbridge.verify(jitted, X, W),
    "PassVerdicts": lambda jitted: meshbridge.verify_passes(jitted, X, W),
    "RunResult": lambda jitted: meshbridge.run(jitted, X, W, check=True),
    "Measured": lambda jitted: meshbridge.measure(jitted, X, W, mutations=[]),
    "ReshardReport": lambda jitted: meshbridge.reshard("8x8xf32", "2x4", "[[0], [1]]", "[[1], [0]]"),
    "TargetComparison": lambda jitted: meshbridge.TargetComparison(
        parse("tpu:v5e:2x4"), 8, {"meshbridge": Figures(wire_bytes=9)}
    ),
    "Formulas": lambda jitted: meshbridge.symbolic_report(meshbridge.partition(jitted, X, W)),
}


@pytest.fixture(scope="module", params=RESULTS)
def result(request: pytest.FixtureRequest, jitted: Any) -> Tabular:
    if request.param == "Formulas":
        pytest.importorskip("sympy")
    return RESULTS[request.param](jitted)


def test_a_result_is_an_object_that_prints_itself(result: Tabular) -> None:
    kind = type(result)
    assert kind is getattr(meshbridge, kind.__name__)
    assert kind.__module__ == "meshbridge"
    assert str(result) == result.table()
    assert repr(result) == f"<{kind.__name__}: {result.headline}>"
    assert len(repr(result)) < 160
    assert "\n" not in repr(result)
    assert json.loads(result.to_json())
    html = result._repr_html_()
    assert html == f"<pre>{escape(str(result))}</pre>" or kind.__name__ == "Report"


def test_every_result_class_is_covered() -> None:
    public = {
        name for name in meshbridge.__all__ if isinstance(kind := getattr(meshbridge, name), type) and issubclass(kind, Tabular)
    }
    elsewhere = {"Comparison", "SearchedPipeline"}  # which test_compare_runs and test_stage_search make
    assert public == {*RESULTS} | elsewhere


def test_public_classes_are_known_and_pickled_by_their_public_names() -> None:
    for name in meshbridge.__all__:
        kind = getattr(meshbridge, name)
        if isinstance(kind, type):
            assert (kind.__module__, kind.__qualname__) == ("meshbridge", name)
            assert pickle.loads(pickle.dumps(kind)) is kind
    error = pickle.loads(pickle.dumps(meshbridge.MeshError("error: no")))
    assert traceback.format_exception_only(error) == ["meshbridge.MeshError: error: no\n"]


def test_dir_has_the_public_names_alone() -> None:
    assert dir(meshbridge) == sorted(meshbridge.__all__)


def test_commands_print_what_the_functions_return(jitted: Any, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = meshbridge.load(saved)
    assert cli.main(["verify", str(saved)]) == 0
    assert capsys.readouterr().out == f"{meshbridge.verify(program)}\n"
    assert cli.main(["run", str(saved), "--check", "--seed", "3"]) == 0
    assert capsys.readouterr().out == f"{meshbridge.run(program, seed=3, check=True)}\n"
    assert cli.main(["verify", str(saved), "--after-each-pass"]) == 0
    assert capsys.readouterr().out == f"{meshbridge.verify_passes(program)}\n"
    arguments = ["--shape", "8x8xf32", "--mesh", "2x4", "--from", "[[0], [1]]", "--to", "[[1], []]"]
    assert cli.main(["reshard", *arguments]) == 0
    named = meshbridge.reshard("8x8xf32", {"data": 2, "model": 4}, P("data", "model"), P("model"))
    assert capsys.readouterr().out == f"{named}\n"


def test_run_takes_the_arguments_of_the_function(jitted: Any, saved: Path) -> None:
    expected = product(X, W)["sum"]
    for ran in (meshbridge.run(jitted, X, W), meshbridge.run(meshbridge.load(saved), X, W)):
        (found,) = ran.results
        assert (found.name, found.element_type, found.sharding) == ("result['sum']", "float32", P(None))
        np.testing.assert_allclose(found.value, expected, rtol=1e-5)
    shapes = jax.ShapeDtypeStruct(X.shape, X.dtype), jax.ShapeDtypeStruct(W.shape, W.dtype)
    drawn = meshbridge.run(jitted, *shapes, seed=1)
    np.testing.assert_array_equal(drawn.results[0].value, meshbridge.run(meshbridge.load(saved), seed=1).results[0].value)
    with pytest.raises(meshbridge.MeshError, match=r"result\['sum'\] differs by .* relative, expected at most -1"):
        meshbridge.run(jitted, X, W, check=True, tolerance=-1)


def test_verify_names_the_result_that_differs(jitted: Any, mesh: jax.sharding.Mesh) -> None:
    wrong = jax.jit(lambda x, w: {"sum": product(x, w)["sum"] * 2}, in_shardings=(NamedSharding(mesh, P("data")), None))
    other = meshbridge.partition(wrong, X, W)
    verdict = meshbridge.verify(jitted, X, W, partitioned=other)
    assert not verdict.equal
    assert repr(verdict) == "<Verdict: different: result 0>"
    assert str(verdict).startswith("different: result 0 in 4 of 4 elements, the first at [0]")
    with pytest.raises(meshbridge.MeshError, match="machine has no effect on a program that is partitioned already"):
        meshbridge.verify(jitted, X, W, partitioned=other, machine="v5e")


def test_compare_runs(mesh: jax.sharding.Mesh) -> None:
    """On given arguments, whose type an archive of numpy does not name."""
    x = jnp.asarray(X, jnp.bfloat16)
    doubled = jax.jit(lambda x: (x * 2).sum(axis=0), in_shardings=NamedSharding(mesh, P("data")))
    comparison = meshbridge.compare(doubled, x)
    assert {name: figures.error for name, figures in comparison.figures.items()} == dict.fromkeys(comparison.figures, "")
    sizes = {name: figures.wire_bytes for name, figures in comparison.figures.items()}
    assert repr(comparison).startswith("<Comparison: on 8 virtual CPU devices meshbridge sends ")
    assert str(comparison).splitlines()[0].split() == ["per", "device", *sizes]
    assert json.loads(comparison.to_json())["devices"] == 8
    with pytest.raises(meshbridge.MeshError, match="without has no effect without a target"):
        meshbridge.compare(doubled, x, without=["xla-gspmd"])


def test_reshard_refuses_what_is_no_sharding_of_the_array() -> None:
    with pytest.raises(meshbridge.MeshError, match="expected a sharding of 2 dimensions along data, found"):
        meshbridge.reshard("8x8xf32", {"data": 2}, P("model"), P())
    with pytest.raises(meshbridge.MeshError, match="alpha and beta have no effect"):
        meshbridge.reshard("8x8xf32", "2", "[[0], []]", "[[], []]", resharding="exact", alpha=1.0)
