"""Constraints inside a program as the least that is split: another plan, taken where its step is predicted to be shorter."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from meshbridge import pipeline, plan_variants
from meshbridge.decide.decide import propagated
from meshbridge.decide.relax_constraints import has_closed_constraints, relax_constraints
from meshbridge.ir.mlir import context, find, ir
from meshbridge.machines import machine
from meshbridge.ops.rule import Interface
from meshbridge.pipeline import PlanVariant
from meshbridge.plan_variants import WORTH_OPENING, VariantPlanner, admitted
from meshbridge.read import formats
from meshbridge.resharding import BYTES
from testdata.realistic.catalogue import build as build_realistic

P = PartitionSpec
WIDTH, HIDDEN, HEADS = 128, 512, 4


def block(x: Any, weights: Any, held: Any) -> Any:
    """Attention over heads and two products, each after a norm, tensor-parallel; the residual stream is whole along an axis."""
    scale, into, out_of, up, down = weights

    def normed(x: Any) -> Any:
        return scale * x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    x = held(x, "data", None, None)
    query, key, value = held(jnp.einsum("btd,dchk->cbthk", normed(x), into), None, "data", None, "model", None)
    shares = jax.nn.softmax(held(jnp.einsum("bqhk,bthk->bhqt", query, key), "data", "model", None, None), axis=-1)
    attended = held(jnp.einsum("bhqt,bthk->bqhk", shares, value), "data", None, "model", None)
    x = held(x + jnp.einsum("bqhk,hkd->bqd", attended, out_of), "data", None, None)
    hidden = held(jnp.tanh(normed(x) @ up), "data", None, "model")
    return held(x + hidden @ down, "data", None, None)


def training_step(mesh: jax.sharding.Mesh, tokens: int, *, scanned: bool) -> tuple[Any, Any, Any]:
    """The step for the mesh, the step for one device, and arguments."""

    def step(weights: Any, x: Any, held: Any) -> Any:
        def loss(weights: Any, x: Any) -> Any:
            def layer(x: Any, each: Any) -> Any:
                return jax.checkpoint(lambda x, each: block(x, each, held))(x, each), None

            if scanned:
                x, _ = jax.lax.scan(layer, x, weights)
            else:
                for number in range(len(weights[0])):
                    x, _ = layer(x, jax.tree.map(lambda stack, number=number: stack[number], weights))
            return (x.astype(jnp.float32) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(weights, x)
        return value, jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)

    def held(value: Any, *named: Any) -> Any:
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, P(*named)))

    heads = P(None, None, None, "model"), P(None, "model")
    specs = (P(), *heads, P(None, None, "model"), P(None, "model", None))
    shardings = tuple(NamedSharding(mesh, each) for each in specs)
    rows = NamedSharding(mesh, P("data"))
    results = NamedSharding(mesh, P()), shardings
    jitted = jax.jit(lambda weights, x: step(weights, x, held), in_shardings=(shardings, rows), out_shardings=results)
    keys = jax.random.split(jax.random.key(0), 6)
    attention = [(3, WIDTH, 3, HEADS, WIDTH // HEADS), (3, HEADS, WIDTH // HEADS, WIDTH)]
    shapes = [(3, WIDTH), *attention, (3, WIDTH, HIDDEN), (3, HIDDEN, WIDTH), (4, tokens, WIDTH)]
    *weights, x = (0.3 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    return jitted, lambda weights, x: step(weights, x, lambda value, *_: value), (tuple(weights), x)


def planned(jitted: Any, arguments: Any, machine: str, **way: Any) -> ir.Module | None:
    """One device's program in that way; None where that has no plan of its own."""
    module = formats.unpack(jax.export.export(jitted)(*arguments), context()).module
    options = pipeline.Options.of(machine=machine, emit="mesh")
    pipeline.run(pipeline.build(options).until("legal").passes, module)
    plan = VariantPlanner(module, options).plan(PlanVariant(**way))
    return None if plan is None else plan.module


@pytest.fixture
def free_starts(tmp_path: Path) -> str:
    """The file of a TPU whose collectives start in no time, so that norms of small shards are worth two of them."""
    text = (Path(machine.__file__).parent / "tpu" / "v5e.toml").read_text()
    path = tmp_path / "free.toml"
    path.write_text(re.sub("(?m)^(launch|latency) = .*", r"\1 = 1e-12", text))
    return str(path)


def normalised(module: ir.Module) -> int:
    """How many rows a device normalises, in the text of the program."""
    return sum(math.prod(ir.RankedTensorType(op.results[0].type).shape) for op in find(module.operation, ["stablehlo.rsqrt"]))


@pytest.mark.parametrize("scanned", [False, True])
@pytest.mark.parametrize("tokens", [256, 250])
def test_what_is_replicated_by_a_constraint_is_split(
    mesh: jax.sharding.Mesh, free_starts: str, tokens: int, scanned: bool
) -> None:
    """Norms are computed of shards of the residual stream; the numbers are those of one device."""
    jitted, step, arguments = training_step(mesh, tokens, scanned=scanned)
    closed, opened = (planned(jitted, arguments, free_starts, inside_open=each) for each in (False, True))
    assert closed is not None
    assert opened is not None
    assert normalised(opened) < 0.4 * normalised(closed)
    results = meshbridge.compile(opened)(*jax.tree.leaves(arguments))
    for found, right in zip(results, jax.tree.leaves(step(*arguments)), strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(right), rtol=1e-4, atol=1e-5)


def test_what_is_written_stays(mesh: jax.sharding.Mesh) -> None:
    """Each dimension begins with the axes that are written there; arguments, results and what is open anyway stay as they are."""
    jitted, _, arguments = training_step(mesh, 16, scanned=False)
    module = formats.unpack(jax.export.export(jitted)(*arguments), context()).module
    pipeline.run(pipeline.build(pipeline.Options.of(machine="bytes")).until("legal").passes, module)
    with module.context, ir.Location.unknown():
        functions = [op for op in find(module.operation, ["func.func"]) if op.attributes["sym_name"].value == "main"]
        (graph,) = propagated(functions, module, Interface(), BYTES)
    before = list(graph.tensors)
    assert has_closed_constraints(graph)
    assert relax_constraints(graph)
    changed = [(old, new) for old, new in zip(before, graph.tensors, strict=True) if old != new]
    assert changed
    assert all(old.annotated and not old.boundary and new.written == old.written for old, new in changed)
    assert not has_closed_constraints(graph)
    assert not relax_constraints(graph)


def test_there_is_no_such_plan_without_constraints(mesh: jax.sharding.Mesh) -> None:
    _, _, arguments = training_step(mesh, 16, scanned=False)
    jitted = jax.jit(lambda x, w: jnp.tanh(x @ w), in_shardings=NamedSharding(mesh, P("data")))
    assert planned(jitted, (arguments[1][0], arguments[0][3][0]), "bytes", inside_open=True) is None


@pytest.mark.slow
def test_the_predicted_step_chooses_it() -> None:
    """Norms of shards take less time, and what is kept of them less memory. `inside="closed"` holds constraints as written."""
    exported = build_realistic("gpt8_scan_dp_tp", "constrained", 8).export_for("tpu")
    opened, closed = (meshbridge.report(exported, machine="v5e:2x4", inside=said) for said in ("open", "closed"))
    assert opened.seconds is not None
    assert closed.seconds is not None
    assert opened.seconds < 0.9 * closed.seconds
    assert opened.peak_bytes < 0.9 * closed.peak_bytes
    assert opened.wire_bytes < 1.02 * closed.wire_bytes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"machine": "v5e:2x4"}, True),
        ({"machine": "v5p:2x2x2", "compiler_options": "best"}, True),
        ({"machine": "v5e:2x4", "inside": "closed"}, False),
        ({"machine": "h100:1x1x8"}, False),
        ({"machine": "neutral"}, False),
    ],
)
def test_machines_that_open(options: dict[str, Any], expected: bool) -> None:
    assert bool(plan_variants.open_variants([PlanVariant()], pipeline.Options.of(**options))) == expected


def test_a_doubtful_gain_is_left() -> None:
    """What is written holds where the step would be a little shorter without, and where nothing else fits, not."""
    ways = [PlanVariant(), PlanVariant(inside_open=True)]
    assert admitted(ways, [1.0, 1.001 / WORTH_OPENING]) == [0]
    assert admitted(ways, [1.0, 0.999 / WORTH_OPENING]) == [0, 1]
    assert admitted(ways[1:], [1.0]) == [0]
