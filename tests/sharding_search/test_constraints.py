"""Constraints that a search names: written into the model, they make propagation lead to the plan that was found."""

from __future__ import annotations

import importlib.util
import json
import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.cost.step import predict
from meshbridge.decide.sharding_refinement import ShardingRefinement
from meshbridge.ir.mlir import MeshError, context, ir
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pipeline import Options, build, run
from meshbridge.read import formats
from meshbridge.sharding_search.mesh_search import MeshSearch

ATTENTION = """
    import jax, jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    def block(x, layer):
        q = x @ layer["q"]
        k = x @ layer["k"]
        {scores}
        return x + jax.nn.softmax(scores) @ x

    def step(params, x):
        def loss(params):
            h = x
            for layer in params:
                h = block(h, layer)
            return jnp.mean(h ** 2)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))
"""
NAMED = "scores = q @ k.T"
NESTED = "scores = 0.5 * (q @ k.T)"
FIXED = {"x": P("data"), "params/**": P("data")}


def written(path: Path, source: str) -> Callable[..., Any]:
    """The function `step` of a file with this source."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    step: Callable[..., Any] = module.step
    return step


def shapes(scale: int = 1) -> Any:
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    width = 1024 // scale
    return [{"q": f32(width, width), "k": f32(width, width)} for _ in range(2)], f32(4096 // scale, width)


def find(step: Callable[..., Any], **more: Any) -> meshbridge.SearchedPlan:
    more = {"mesh": {"data": 8}, "machine": "v5p", "seconds": 10.0, "constraints": 5, "fixed": FIXED} | more
    return meshbridge.search(jax.jit(step), *shapes(), **more)


def sharded(step: Callable[..., Any], plan: meshbridge.SearchedPlan) -> Any:
    """The program with the boundary of a plan, as a user jits it."""
    mesh = jax.make_mesh(tuple(plan.mesh.values()), tuple(plan.mesh), axis_types=(AxisType.Auto,) * len(plan.mesh))
    held = lambda specs: jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)  # noqa: E731
    with jax.set_mesh(mesh):
        return jax.export.export(jax.jit(step, in_shardings=held(plan.in_shardings), out_shardings=held(plan.out_shardings)))(
            *shapes()
        )


def propagated_seconds(exported: Any, machine: str) -> float:
    """The predicted step of a program that is decided by propagation alone."""
    module = formats.unpack(exported, context(), (), None, None).module
    options = Options.of(emit="mesh", machine=machine)
    stages = build(options).replacing("decided", ShardingRefinement(moves=0, target=CompileTarget.of(machine), annotate=False))
    with module.context, ir.Location.unknown():
        run(stages.passes, module, verified="none")
        assert options.target.devices is not None
        return predict(module, options.target.devices).seconds


def constrained_source(source: str, plan: meshbridge.SearchedPlan) -> str:
    """The model as a user writes it who follows what the plan says."""
    lines = source.splitlines()
    for each in sorted(plan.constraints, key=lambda each: -each.location.line):
        number = each.location.line - 1
        assignment = re.match(r"(\w+) = ", each.text)
        if assignment:
            indent = re.match(r"\s*", lines[number])
            assert indent is not None
            lines.insert(number + 1, indent[0] + each.text)
        else:
            inner = re.fullmatch(r"jax\.lax\.with_sharding_constraint\((.*), P\(.*?\)\)", each.text)
            assert inner is not None
            assert lines[number].count(inner[1]) == 1
            lines[number] = lines[number].replace(inner[1], each.text)
    return "\n".join(lines)


class Model(NamedTuple):
    """A model that says nothing of its values, and what is found for it."""

    source: str
    step: Callable[..., Any]
    plan: meshbridge.SearchedPlan


@pytest.fixture(scope="module", params=[NAMED, NESTED], ids=["named", "nested"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    source = textwrap.dedent(ATTENTION).format(scores=request.param)
    step = written(tmp_path_factory.mktemp("models") / "model.py", source)
    return Model(source, step, find(step))


def test_propagation_with_the_constraints_leads_to_the_step_that_they_promise(model: Model, tmp_path: Path) -> None:
    source, plain, plan = model
    assert plan.constraints
    assert plan.constrained_seconds is not None
    assert plan.propagated_seconds is not None
    assert propagated_seconds(sharded(plain, plan), plan.machine) == pytest.approx(plan.propagated_seconds, rel=1e-3)
    better = written(tmp_path / "better.py", constrained_source(source, plan))
    exported = sharded(better, plan)
    assert propagated_seconds(exported, plan.machine) == pytest.approx(plan.constrained_seconds, rel=0.01)
    assert plan.constrained_seconds < 0.95 * plan.propagated_seconds
    assert meshbridge.report(exported, machine=plan.machine).seconds <= 1.01 * plan.seconds


def test_a_constraint_names_the_line_the_op_and_what_to_write(model: Model) -> None:
    plan = model.plan
    (found,) = plan.constraints
    assert (Path(found.location.file).name, found.location.line, found.location.function) == ("model.py", 8, "block")
    assert found.op in ("dot_general", "mul")
    assert (found.shape, found.element_type) == ((4096, 4096), "f32")
    assert found.path.startswith("jit(step)")
    assert found.spec == P("data")
    value = "scores" if NAMED in model.source or found.op == "mul" else "q @ k.T"
    assert found.text.endswith(f'jax.lax.with_sharding_constraint({value}, P("data", None))')
    assert found.text.startswith("scores = ") is (value == "scores")
    assert found.saves > 0
    assert found.text in plan.table()
    assert json.loads(plan.to_json())["constraints"][0]["text"] == found.text


def test_the_constrained_model_gives_the_numbers_of_one_device(model: Model, tmp_path: Path) -> None:
    source, plain, plan = model
    better = written(tmp_path / "better.py", constrained_source(source, plan))
    rng = np.random.default_rng(0)
    given = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape) * 0.1, jnp.float32), shapes(16))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    placed = jax.tree.map(lambda spec, leaf: jax.device_put(leaf, NamedSharding(mesh, spec)), plan.in_shardings, given)
    with jax.set_mesh(mesh):
        found = meshbridge.jit(better)(*placed)
    for each, expected in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(plain)(*given)), strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-5)


def test_where_propagation_leads_to_the_plan_no_constraints_are_named(tmp_path: Path) -> None:
    def matmul(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)  # noqa: E731
    more: Any = {"mesh": {"data": 8}, "machine": "v5p", "seconds": 5.0, "fixed": {"x": P("data")}}
    plan = meshbridge.search(jax.jit(matmul), f32(4096, 1024), f32(1024, 1024), constraints=5, **more)
    assert plan.constraints == ()
    assert plan.constrained_seconds == plan.propagated_seconds
    assert "no constraints" in plan.table()
    unasked = replace(plan, propagated_seconds=None, constrained_seconds=None)
    assert "constraints" not in unasked.table()


def test_the_plan_stays_where_propagation_alone_fails(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is known of which this is so: the pass is made to refuse."""
    run_with = ShardingRefinement.run_with

    def refusing(self: ShardingRefinement, module: ir.Module, known: Any) -> Any:
        if self.moves == 0:
            raise MeshError("model.py:8: error: 'stablehlo.custom_call' cannot be split")
        return run_with(self, module, known)

    monkeypatch.setattr(ShardingRefinement, "run_with", refusing)
    plan = find(model.step)
    assert plan.in_shardings == model.plan.in_shardings
    assert (plan.constraints, plan.propagated_seconds) == ((), None)
    said = "propagation alone does not partition the program: model.py:8: error: 'stablehlo.custom_call' cannot be split"
    assert said in plan.table()
    assert json.loads(plan.to_json())["unconstrained"] == plan.unconstrained


def test_a_source_that_cannot_be_read_is_named_by_the_op(tmp_path: Path) -> None:
    path = tmp_path / "gone.py"
    step = written(path, textwrap.dedent(ATTENTION).format(scores=NAMED))
    path.unlink()
    (found,) = find(step).constraints
    assert found.text == 'jax.lax.with_sharding_constraint(dot_general, P("data", None))'
    assert found.location.line == 8


def test_there_may_be_time_for_what_is_written_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plan with all of its shardings written may then be the best, of which no trial was made."""
    monkeypatch.setattr(MeshSearch, "run", MeshSearch._try_annotated)
    plan = find(written(tmp_path / "short.py", textwrap.dedent(ATTENTION).format(scores=NAMED)), constraints=0)
    assert plan.tried == 1
    assert 0 <= plan.bound_seconds <= plan.seconds
