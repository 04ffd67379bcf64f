"""The search over pipelines: it equals brute force, and takes nothing that does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir.mlir import MeshError, context
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import build
from meshbridge.pipelines.candidates import StageRequest
from meshbridge.pipelines.prediction import report
from meshbridge.pipelines.searched import SearchedPipeline
from meshbridge.pipelines.stage_search import search_stages
from meshbridge.read import formats
from meshbridge.read.formats import Program
from tests.pipelines.steps import accumulating, gpt, in_stacks, mlp_loss, one_scan_loss

SIZE, BATCH, MACHINE = 16384, 65536, "v5p:2x2x1"
COUNTS = (2, 8)


def shapes(layers: int = 2) -> Any:
    """Parameters and a batch of large layers."""
    array = jax.ShapeDtypeStruct
    params = [{"w": array((SIZE, SIZE), jnp.bfloat16), "b": array((SIZE,), jnp.bfloat16)} for _ in range(layers)]
    return {"layers": params}, (array((BATCH, SIZE), jnp.bfloat16),) * 2


def step(microbatches: int, sizes: tuple[int, int] = (2, 1), marked: int = 2, layers: int = 2) -> Any:
    """A step on a mesh of two axes."""
    count = sizes[0] * sizes[1]
    mesh = jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:count])
    rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, "model"))
    params = jax.tree.map(lambda leaf: columns if len(leaf.shape) > 1 else NamedSharding(mesh, P()), shapes(layers)[0])
    own = accumulating(mlp_loss, marked, microbatches=microbatches)
    return jax.jit(own, in_shardings=(params, rows), out_shardings=(params, None), donate_argnums=0)


def program(microbatches: int, sizes: tuple[int, int] = (2, 1), marked: int = 2, layers: int = 2) -> Program:
    """The step, traced."""
    return formats.unpack(step(microbatches, sizes, marked, layers), context(), shapes(layers))


def searched(marked: int = 2, **options: Any) -> SearchedPipeline:
    """The result of a search."""
    request = StageRequest(Options.of(emit="mesh", machine=MACHINE), **options)
    return search_stages(lambda count: program(count, marked=marked), COUNTS, request)


@cache
def brute_force() -> dict[tuple[Any, ...], tuple[float, float]]:
    """The predicted step and the memory of every candidate of two stages under one schedule, each built alone."""
    found = {}
    for sizes, count in product(((1, 2), (2, 1)), COUNTS):
        each = report(build(program(count, sizes), Options.of(emit="mesh", machine=MACHINE), 2, "1f1b"))
        assert each.seconds is not None
        found[2, sizes, count, "1f1b"] = each.seconds, max(stage.peak_bytes for stage in each.stages)
    return found


def key(tried: Any) -> tuple[Any, ...]:
    """What a candidate is in `brute_force`."""
    of = tried.candidate
    return of.stages, tuple(size for _, size in of.mesh), of.microbatches, of.schedule


def test_the_search_equals_brute_force() -> None:
    found = searched(stages=(2,), schedules=("1f1b",))
    expected = brute_force()
    best, second = sorted(expected, key=lambda each: expected[each][0])[:2]
    assert found.runner_up is not None
    assert [key(found.best), key(found.runner_up)] == [best, second]
    assert found.best.seconds == pytest.approx(expected[best][0])
    assert len(found.tried) + found.skipped == len(expected)
    for each in found.tried:
        assert each.seconds == pytest.approx(expected[key(each)][0])
        assert each.peak_bytes == pytest.approx(expected[key(each)][1])


def test_bounds_hold_and_spare_work() -> None:
    """With one microbatch two stages never work at a time: the bound alone shows that it is slower."""
    request = StageRequest(Options.of(emit="mesh", machine=MACHINE), schedules=("1f1b",))
    found = search_stages(lambda count: program(count, layers=4), (1, 8), request)
    assert all(0 < each.bound_seconds <= each.seconds for each in found.tried)
    assert {each.candidate.microbatches for each in found.tried} == {8}
    assert (found.skipped, found.gap) == (2, 0.0)
    assert found.runner_up is not None
    assert found.least_skipped_seconds >= found.runner_up.seconds
    assert ["expected boundaries of 4 stages" in each.why for each in found.refused] == [True]


def test_what_does_not_fit_is_not_taken() -> None:
    expected = brute_force()
    fastest = min(expected, key=lambda each: expected[each][0])
    limit = expected[fastest][1] - 1
    fitting = {each: figures for each, figures in expected.items() if figures[1] <= limit}
    assert fitting
    request: dict[str, Any] = {"stages": (2,), "schedules": ("1f1b",)}
    found = search_limited(limit, **request)
    assert key(found.best) == min(fitting, key=lambda each: fitting[each][0])
    assert "does not fit" in found.table()
    with pytest.raises(MeshError, match=r"no pipeline fits in memory: .* which needs least, needs"):
        search_limited(1e6, **request)


def search_limited(limit: float, **options: Any) -> SearchedPipeline:
    """A search on a machine with so much memory: a limit that is written changes plans, too."""
    target = Options.of(emit="mesh", machine=MACHINE).target
    assert target.machine is not None
    small = replace(target, machine=replace(target.machine, memory_bytes=limit))
    return search_stages(program, COUNTS, StageRequest(replace(Options.of(emit="mesh"), target=small), **options))


def test_without_boundaries() -> None:
    found = searched(marked=1, stages=(2,), schedules=("interleaved", "gpipe"))
    assert {(each.candidate.schedule, each.candidate.chunks) for each in found.tried} == {("gpipe", 2)}
    refused = [(each.what, f"too much of the work for {each.what.split()[0]} equal stages" in each.why) for each in found.refused]
    assert refused == [("4 chunks", True), ("8 chunks", True)]


def test_scanned_layers() -> None:
    """Stages have any number of layers; an interleaved schedule has chunks of other layers, if there are as many."""
    params, tokens = gpt(3)
    plain = jax.jit(accumulating(one_scan_loss, 1))
    found = meshbridge.search_pipeline(plain, in_stacks(params), tokens, machine="v5p:2x1x1", schedules=["gpipe", "interleaved"])
    assert [(each.candidate.stages, each.candidate.schedule) for each in found.tried] == [(2, "gpipe")]
    params, tokens = gpt(4)
    found = meshbridge.search_pipeline(plain, in_stacks(params), tokens, machine="v5p:2x1x1", schedules=["interleaved"])
    assert [(each.candidate.stages, each.candidate.chunks) for each in found.tried] == [(2, 4)]
    with pytest.raises(MeshError, match="runs 4 layers, expected at least one for each of 8 stages"):
        meshbridge.search_pipeline(plain, in_stacks(params), tokens, machine="v5p:2x2x2", stages=[8])


def test_the_result() -> None:
    found = searched(stages=(2,), schedules=("gpipe", "1f1b"))
    data = json.loads(found.to_json())
    assert data["best"]["candidate"]["stages"] == 2
    assert data["bound_seconds"] == found.bound_seconds
    assert found.headline in found.table()
    assert f"the runner-up takes {found.runner_up.seconds / found.best.seconds - 1:.1%} longer" in found.table()
    assert found.why.split()[0] in ("its", "that", "what")
    names: dict[str, Any] = {"jax": jax, "meshbridge": meshbridge, "step": step(found.best.candidate.microbatches)}
    exec(found.code.replace(f', machine="{MACHINE}"', ""), names)
    assert dict(names["mesh"].shape) == dict(found.best.candidate.mesh)
    built = names["pipelined"].lower(*shapes())
    assert built.plan.schedule == found.best.candidate.ordered()


def test_microbatches_of_a_static_argument_and_of_symbols() -> None:
    def small(params: Any, batch: Any, count: int) -> Any:
        return accumulating(mlp_loss, 4, microbatches=count)(params, batch)

    array = jax.ShapeDtypeStruct
    params = {"layers": [{"w": array((8, 8), jnp.float32), "b": array((8,), jnp.float32)} for _ in range(4)]}
    batch = (array((8, 8), jnp.float32),) * 2
    options: dict[str, Any] = {"stages": [2], "schedules": ["1f1b"], "machine": "v5p:2x1x1"}
    jitted = jax.jit(small, static_argnames="count")
    found = meshbridge.search_pipeline(jitted, params, batch, microbatches={"count": (2, 4)}, **options)
    assert found.sizes == {"count": found.best.candidate.microbatches}
    assert {each.candidate.microbatches for each in found.tried} == {2, 4}

    def symbolic(params: Any, batch: Any) -> Any:
        add = lambda total, x: (jax.tree.map(jnp.add, total, jax.grad(mlp_loss)(params, x, 4)), None)  # noqa: E731
        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), batch)[0]

    dims = jax.export.symbolic_shape("m, b")
    exported = jax.export.export(jax.jit(symbolic))(params, (array((*dims, 8), jnp.float32),) * 2)
    found = meshbridge.search_pipeline(exported, microbatches="m*b=4", **options)
    assert sorted(each.candidate.microbatches for each in found.tried) == [1, 2, 4]
    assert found.sizes["m"] * found.sizes["b"] == 4
    own = meshbridge.search_pipeline(jitted, params, batch, kwargs={"count": 4}, **options)
    assert (own.best.candidate.microbatches, own.runner_up, own.why) == (4, None, "")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"machine": "v5p"}, "name a topology, as in v5p:4x4x4"),
        ({"machine": MACHINE, "stages": [3]}, "3 stages do not divide the 4 devices of 'v5p:2x2x1'"),
        ({"machine": MACHINE, "schedules": ["fast"]}, "schedule is 'fast', expected one of gpipe"),
        ({"machine": MACHINE, "microbatches": "m*b"}, "expected a jax.export.Exported to give sizes"),
        ({"machine": MACHINE, "microbatches": {"a": [1], "b": [2]}}, "names 2 arguments of the step, expected one"),
        ({"machine": MACHINE, "stages": [4]}, r"steps.py:\d+:\d+: error: expected boundaries of 4 stages"),
    ],
)
def test_refuses(options: dict[str, Any], text: str) -> None:
    with pytest.raises(MeshError, match=text):
        meshbridge.search_pipeline(step(4), *shapes(), **options)


def test_a_step_without_a_mesh_has_one_device_for_each_stage() -> None:
    plain = jax.jit(accumulating(mlp_loss, 2))
    with pytest.raises(MeshError, match="names no mesh, so that each stage has one device, not 2"):
        meshbridge.search_pipeline(plain, *shapes(), machine=MACHINE, stages=[2])
