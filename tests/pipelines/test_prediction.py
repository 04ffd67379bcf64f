"""What a pipeline is predicted to cost."""

from __future__ import annotations

import json
from functools import cache

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from meshbridge.ir.mlir import context
from meshbridge.pipeline import Options
from meshbridge.pipelines.build import build
from meshbridge.pipelines.prediction import PipelineReport, report
from meshbridge.read import formats
from tests.pipelines.steps import accumulating, mlp_loss

SIZE = 8192


@cache
def reported(schedule: str, machine: str = "v5p:4x4x1") -> PipelineReport:
    """The report on four stages of a large layer each, on four devices."""
    mesh = jax.make_mesh((4,), ("fsdp",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    kernel, bias = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32), jax.ShapeDtypeStruct((SIZE,), jnp.float32)
    params = {"layers": [{"w": kernel, "b": bias} for _ in range(4)]}
    rows = NamedSharding(mesh, P("fsdp"))
    shardings = jax.tree.map(lambda leaf: rows if len(leaf.shape) > 1 else NamedSharding(mesh, P()), params)
    step = jax.jit(accumulating(mlp_loss, 4), in_shardings=(shardings, rows), out_shardings=(shardings, None), donate_argnums=0)
    program = formats.unpack(step, context(), (params, (kernel, kernel)))
    return report(build(program, Options.of(emit="local", machine=machine), 4, schedule))


def test_predicted_bubbles_are_near_the_formulas() -> None:
    found = {schedule: reported(schedule) for schedule in ("gpipe", "1f1b", "zero-bubble")}
    for each in (found["gpipe"], found["1f1b"]):
        assert each.bubble is not None
        assert each.bubble_by_formula is not None
        assert each.bubble_by_formula - 0.01 < each.bubble < each.bubble_by_formula + 0.12  # transfers take time as well
    assert found["zero-bubble"].seconds is not None
    assert found["1f1b"].seconds is not None
    assert found["zero-bubble"].seconds < found["1f1b"].seconds


def test_what_crosses() -> None:
    found = reported("1f1b")
    shard = SIZE / 4 * SIZE / 4 * 4  # a quarter of a microbatch's rows, in float32
    ends = [(each.source, each.reader) for each in found.crossings]
    assert ends == [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    assert {each.bytes for each in found.crossings} == {4 * shard}
    assert {each.transfers for each in found.crossings} == {4}


def test_memory_of_stages() -> None:
    early, late = (reported("1f1b").stages[stage].peak_bytes for stage in (0, 3))
    kernel = SIZE * SIZE / 4 * 4
    assert early > 2 * kernel  # a parameter and its gradient
    assert late > 2 * kernel
    all_live, one_live = (reported(schedule).stages[1] for schedule in ("gpipe", "1f1b"))
    assert (all_live.live_microbatches, one_live.live_microbatches) == (4, 3)
    assert all_live.peak_bytes > one_live.peak_bytes


def test_without_a_topology_nothing_is_timed() -> None:
    found = reported("1f1b", "neutral")
    assert (found.seconds, found.bubble) == (None, None)
    assert "predicted step" not in found.table()
    assert [each.bytes for each in found.crossings] == [each.bytes for each in reported("1f1b").crossings]


def test_the_table_and_json() -> None:
    found = reported("1f1b")
    first, second, *_ = found.table().splitlines()
    assert first == "schedule 1f1b: 4 microbatches, 4 devices for each of 4 stages, machine v5p:4x4x1"
    assert second.startswith("predicted step ")
    assert second.endswith("by formula 42.9%")
    assert repr(found).startswith("<PipelineReport: schedule 1f1b, 4 stages, step ")
    data = json.loads(found.to_json())
    assert data["stages"][0]["live_microbatches"] == 4
    assert {each["site"] for each in data["fragments"]} >= {"forward0", "backward0", "post3"}
