"""Axes that a search may not use for anything: one for data alone, and parts of an axis that split one dimension alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import MeshError
from meshbridge.tools import cli, search_command

Tree = Any


UNLIMITED = 3600.0
"""Seconds in which a search ends by itself."""


def f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(state: Tree, batch: Tree) -> Tree:
    """A training step with momenta, whose batch is weighted by example, with a loss for each."""

    def losses(params: Tree) -> Any:
        hidden = jax.nn.gelu(batch["x"] @ params["up"] + params["bias"])
        return batch["weight"] * jnp.mean((hidden @ params["down"] - batch["x"]) ** 2, axis=1)

    gradients = jax.grad(lambda params: jnp.mean(losses(params)))(state["params"])
    momenta = jax.tree.map(lambda m, g: 0.9 * m + g, state["momenta"], gradients)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, state["params"], momenta)
    return {"params": params, "momenta": momenta}, losses(state["params"])


def shapes() -> tuple[Tree, Tree]:
    weights = {"up": f32(1024, 4096), "bias": f32(4096), "down": f32(4096, 1024)}
    return {"params": weights, "momenta": weights}, {"x": f32(2048, 1024), "weight": f32(2048)}


def find(**more: Any) -> meshbridge.SearchedPlan:
    more = {"mesh": {"data": 4, "model": 2}, "machine": "v5p", "seconds": 5.0} | more
    return meshbridge.search(jax.jit(step), *shapes(), **more)


def axes_of(tree: Tree) -> set[str]:
    specs = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, P))
    entries = [entry for spec in specs for entry in spec if entry is not None]
    return {name for entry in entries for name in ((entry,) if isinstance(entry, str) else entry)}


@pytest.mark.slow
def test_parameters_are_not_split_along_the_axis_for_data() -> None:
    fixed = {"batch['x']": P("data")}
    free = find(fixed=fixed, memory_limit="60MB")
    assert "data" in axes_of(free.in_shardings[0])  # without the axis for data they are: that saves memory
    plan = find(fixed=fixed, data_axis="data")
    assert "data" not in axes_of(plan.in_shardings[0])
    assert "data" not in axes_of(plan.out_shardings[0])
    assert plan.in_shardings[1]["x"] == P("data")
    assert plan.in_shardings[1]["weight"] == P("data")  # the batch as well, though nobody has said so


def test_what_the_user_splits_along_the_axis_for_data_stays_so() -> None:
    plan = find(fixed={"batch/x": P("data"), "state/**/down": P("data")}, data_axis="data")
    state = plan.in_shardings[0]
    assert {each["down"] for each in state.values()} == {P("data")}
    assert "data" not in axes_of([each["up"] for each in state.values()])


@pytest.mark.parametrize(
    ("axis", "fixed", "said"),
    [
        ("batch", {}, "data-axis is 'batch', expected an axis of the mesh: data, model"),
        ("data", {}, "data-axis is 'data', along which nothing is sharded: fix the batch"),
        ("data", {"batch/x": P(None, "model")}, "data-axis is 'data', along which nothing is sharded"),
    ],
)
def test_an_axis_for_data_is_one_along_which_there_is_some(axis: str, fixed: Any, said: str) -> None:
    with pytest.raises(MeshError, match=said):
        find(data_axis=axis, fixed=fixed)


def experts(params: Tree, x: Any) -> Any:
    """Four experts, fewer than there are devices, of which each takes all tokens by its weight."""
    gates = jax.nn.softmax(x @ params["router"])
    hidden = jax.nn.gelu(jnp.einsum("td,edh->eth", x, params["up"]))
    return jnp.einsum("te,eth,ehd->td", gates, hidden, params["down"])


def of_experts(make: Any, scale: int = 1) -> tuple[Tree, Any]:
    width, hidden = 512 // scale, 2048 // scale
    weights = {"router": make(width, 4), "up": make(4, width, hidden), "down": make(4, hidden, width)}
    return weights, make(256 // scale, width)


EXPERTS = {"params/up": P("data_1"), "params/down": P("data_1"), "x": P("data")}


def find_experts(**more: Any) -> meshbridge.SearchedPlan:
    more = {"mesh": {"data": 8}, "machine": "v5p", "seconds": 5.0} | more
    return meshbridge.search(jax.jit(experts), *of_experts(f32), **more)


def test_a_part_of_an_axis_splits_the_experts_and_all_of_it_the_batch() -> None:
    plan = find_experts(sub_axes={"data": (2, 4)}, fixed=EXPERTS)
    assert plan.mesh == {"data_0": 2, "data_1": 4}
    assert plan.in_shardings[0]["up"] == plan.in_shardings[0]["down"] == P("data_1")
    assert plan.in_shardings[1] == P(("data_0", "data_1"))
    rng = np.random.default_rng(0)
    given = of_experts(lambda *shape: jnp.asarray(rng.standard_normal(shape) * 0.1, jnp.float32))
    mesh = jax.make_mesh((2, 4), ("data_0", "data_1"))
    placed = jax.tree.map(lambda spec, leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), plan.in_shardings, given)
    found = jax.jit(meshbridge.partition(plan.annotated, machine=plan.machine).call)(*placed)
    np.testing.assert_allclose(found, jax.jit(experts)(*given), rtol=1e-4, atol=1e-5)


def test_no_axis_splits_experts_that_it_does_not_divide_but_a_part_of_it_does() -> None:
    weights = {"params/up": P("data"), "params/down": P("data")}
    with pytest.raises(MeshError, match=r"dimension 0 of params\['\w+'\] has size 4, which 8 devices do not divide"):
        find_experts(fixed=weights)
    parts = {name: P("data_1") for name in weights}
    assert find_experts(fixed=parts, sub_axes={"data": (2, 4)}).in_shardings[0]["up"] == P("data_1")


def test_whole_axes_are_taken_where_their_parts_gain_nothing() -> None:
    limit = "8MB"  # of 33 MB of weights
    whole, either = (find_experts(memory_limit=limit, sub_axes=cut) for cut in (None, {"data": (2, 4)}))
    assert either.peak_bytes <= 8e6
    assert either.seconds <= 1.001 * whole.seconds


def test_what_is_fixed_along_an_axis_is_fixed_along_all_its_parts() -> None:
    fixed = {"x": P("data"), "params/router": P(None, "data_1")}
    plan = find_experts(sub_axes={"data": (2, 4)}, fixed=fixed, data_axis="data")
    assert plan.in_shardings[1] == P(("data_0", "data_1"))
    assert axes_of({name: plan.in_shardings[0][name] for name in ("up", "down")}) == set()


def test_a_part_that_the_experts_could_use_is_tried() -> None:
    """Without being asked for, and taken since it is faster: the weights of four experts are read by four devices each."""
    whole = find_experts(sub_axes={})
    plan = find_experts(seconds=UNLIMITED)
    assert whole.mesh == {"data": 8}
    assert plan.mesh == {"data_0": 2, "data_1": 4}
    assert plan.in_shardings[0]["up"][0] == "data_1"
    assert plan.seconds < 0.99 * whole.seconds
    said = (
        r"axis 'data' is in parts, data=2x4, which lets 4 devices share the 4 products of test_request_axes.py:\d+, which 8 do "
        r"not divide; along whole axes a step takes .* us, and `--whole-axes` keeps to these"
    )
    assert re.fullmatch(said, plan.divided)
    assert plan.divided in plan.table()
    assert json.loads(plan.to_json())["divided"] == plan.divided
    assert plan.hint == whole.divided == ""


def test_a_part_for_which_there_is_no_time_is_named() -> None:
    plan = find_experts(seconds=0.001)
    said = r"`--sub-axes data=2x4` lets 4 devices share the 4 products of test_request_axes.py:\d+, which 8 do not divide"
    assert re.fullmatch(said, plan.hint)
    assert f"hint: {plan.hint}" in plan.table()
    assert json.loads(plan.to_json())["hint"] == plan.hint


@pytest.mark.parametrize(
    "more",
    [{"mesh": {"data": 2, "model": 4}}, {"mesh": {"data": 3}}, {"mesh": "8"}, {"sub_axes": {"data": (2, 4)}}],
    ids=["an axis divides them", "no part does", "tried", "asked for"],
)
def test_no_part_is_named_that_would_not_help(more: Any) -> None:
    plan = find_experts(seconds=0.001, **more)
    assert plan.hint == plan.divided == ""


@pytest.mark.parametrize(
    ("mesh", "sizes", "said"),
    [
        ({"data": 8}, {"model": (2, 4)}, "sub-axes of 'model', expected an axis of the mesh: data"),
        ({"data": 8}, {"data": (2, 2)}, "sub-axes of 'data' are 2x2, expected two sizes or more, of 2 or more, that make 8"),
        ({"data": 8}, {"data": (8,)}, "sub-axes of 'data' are 8, expected two sizes"),
        ({"data": 8}, {"data": (1, 8)}, "sub-axes of 'data' are 1x8, expected two sizes"),
        ({"data": 4, "data_1": 2}, {"data": (2, 2)}, "are called data_0, data_1, and the mesh has an axis 'data_1'"),
        (None, {"data": (2, 4)}, "sub-axes have no effect on the mesh that a program is sharded on: name the mesh"),
    ],
)
def test_parts_that_do_not_fit_are_refused(mesh: Any, sizes: Any, said: str) -> None:
    with pytest.raises(MeshError, match=re.escape(said)):
        find_experts(mesh=mesh, sub_axes=sizes)


def test_the_command_takes_parts_of_axes_an_axis_for_data_and_constraints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "experts.jax_export"
    path.write_bytes(jax.export.export(jax.jit(experts))(*of_experts(f32)).serialize())
    command = ["search", str(path), "--mesh", "data=8", "--machine", "v5p", "--seconds", "2", "--json"]
    fixed = ["--fix", "params/up=P('data_1')", "--fix", "x=P('data')"]
    assert cli.main([*command, *fixed, "--sub-axes", "data=2x4", "--data-axis", "data", "--constraints", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mesh"] == {"data_0": 2, "data_1": 4}
    shardings = {leaf["name"]: leaf["sharding"] for leaf in found["in_shardings"]}
    assert shardings["x"] == [["data_0", "data_1"], []]
    assert shardings["params['router']"] == [[], []]
    assert found["constrained_seconds"] <= found["propagated_seconds"]
    assert cli.main([*command, "--sub-axes", "2x4"]) == 2
    assert "expected an axis and the sizes of its parts, as in data=2x4, found '2x4'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("outputs", "status", "said"),
    [
        (["-o", "missing/out.mlir"], 1, "missing/out.mlir: error: No such file or directory"),
        (["--annotated", "."], 1, ".: error: Is a directory"),
        (["-o", "out.mlir", "--annotated", "out.mlir"], 2, "-o and --annotated name the same file, 'out.mlir'"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_search(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    outputs: list[str],
    status: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experts.jax_export").write_bytes(jax.export.export(jax.jit(experts))(*of_experts(f32)).serialize())
    monkeypatch.setattr(search_command, "best_of", lambda *_: pytest.fail("searched"))
    assert cli.main(["search", "experts.jax_export", "--mesh", "8", "--machine", "v5p", *outputs]) == status
    assert said in capsys.readouterr().err
