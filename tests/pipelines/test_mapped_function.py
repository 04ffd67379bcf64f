"""Mapped programs as functions: they run on the devices of their meshes, and give what the pipeline gives."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir import mlir
from meshbridge.ir.mlir import MeshError, context
from tests.pipelines.steps import STEPS, accumulating, gpt, in_stacks, mlp, mlp_loss, one_scan_loss


def trained(step: Any, arguments: Any, **options: Any) -> tuple[Any, Any]:
    """What a step gives as a pipeline of two stages, and as the mapped program that is written of it."""
    pipelined = meshbridge.pipelined(step, stages=2, **options)
    mapped = meshbridge.pipelined(mlir.parse(pipelined.mpmd(*arguments).serialize().decode(), "pipeline.mlir", context()))
    return jax.tree.leaves(pipelined(*arguments)), mapped(*jax.tree.leaves(arguments))


def test_it_gives_what_the_pipeline_gives() -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), devices=jax.devices()[:4])
    arguments = mlp()
    kernel = {"w": NamedSharding(mesh, P(None, "model")), "b": NamedSharding(mesh, P("model"))}
    rows = NamedSharding(mesh, P("data"))
    sharded = {"in_shardings": ({"layers": [kernel] * 4}, (rows, rows))}
    expected, found = trained(accumulating(mlp_loss, 2), arguments, **sharded)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.sharding.device_set == other.sharding.device_set


@pytest.mark.parametrize("name", ["clipping", "dropout", "pooling"])
def test_other_steps(name: str) -> None:
    step, arguments, _ = STEPS[name]
    expected, found = trained(step, arguments, schedule="zero-bubble")
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_stack_of_layers() -> None:
    params, tokens = gpt()
    arguments = in_stacks(params), tokens
    expected, found = trained(accumulating(one_scan_loss, 2), arguments)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_report_is_that_of_the_pipeline() -> None:
    options: dict[str, Any] = {"stages": 2, "schedule": "zero-bubble", "machine": "v5p:2x1x1"}
    pipelined = meshbridge.pipelined(accumulating(mlp_loss, 4), **options)
    one, other = pipelined.report(*mlp()), meshbridge.pipelined(pipelined.mpmd(*mlp()), machine="v5p:2x1x1").report()
    assert (one.schedule, one.seconds, one.crossings, one.runs) == (other.schedule, other.seconds, other.crossings, other.runs)
    assert [stage.live_microbatches for stage in one.stages] == [stage.live_microbatches for stage in other.stages]
    for stage, mapped in zip(one.stages, other.stages, strict=True):
        assert mapped.peak_bytes <= stage.peak_bytes, "what no later step reads is overwritten"


def test_it_is_verified_against_the_step() -> None:
    step, arguments, _ = STEPS["four stages"]
    mapped = meshbridge.pipelined(meshbridge.pipelined(step, stages=4).mpmd(*arguments))
    assert mapped.verify(export.export(jax.jit(step))(*arguments)).equal
    assert mapped.verify().equal
    other = jax.jit(lambda params, batch: jax.tree.map(lambda x: 2 * x, step(params, batch)))
    assert not mapped.verify(export.export(other)(*arguments)).equal


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stages": 2}, "stages has no effect on a program, which is mapped to meshes already"),
        ({"schedule": "gpipe"}, "schedule has no effect"),
        ({"donate_argnums": 0}, "donate_argnums has no effect"),
    ],
)
def test_options_of_a_step_are_refused(options: dict[str, Any], text: str) -> None:
    step, arguments, _ = STEPS["forward alone"]
    program = meshbridge.pipelined(step, stages=2).mpmd(*arguments)
    with pytest.raises(MeshError, match=text):
        meshbridge.pipelined(program, **options)


def test_other_programs_and_calls_are_refused() -> None:
    step, arguments, _ = STEPS["forward alone"]
    lowered = jax.jit(step).lower(*arguments).compiler_ir()
    with pytest.raises(MeshError, match="expected a function, or a program that is mapped"):
        meshbridge.pipelined(lowered)
    with pytest.raises(MeshError, match="expected stages"):
        meshbridge.pipelined(step)  # type: ignore[call-overload]
    mapped = meshbridge.pipelined(meshbridge.pipelined(step, stages=2).mpmd(*arguments))
    with pytest.raises(MeshError, match="takes 10 arguments"):
        mapped(1)
