"""The search over pipelines takes one SPMD program where that is predicted faster."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import meshbridge
from meshbridge.ir.mlir import MeshError
from meshbridge.pipelines.searched import SearchedPipeline
from tests.pipelines.steps import accumulating, mlp_loss, one_scan_loss

WIDTH, LAYERS, ROWS, LENGTH = 1024, 4, 16, 512


def shapes(vocabulary: int) -> tuple[Any, Any]:
    """Parameters of a transformer in stacks, and tokens."""
    kernels = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    array = jax.ShapeDtypeStruct
    layers = {name: array((LAYERS, *shape), jnp.bfloat16) for name, shape in kernels.items()}
    return {"embed": array((vocabulary, WIDTH), jnp.bfloat16), "layers": layers}, array((ROWS, LENGTH), jnp.int32)


def searched(vocabulary: int) -> SearchedPipeline:
    """The faster one of two pipelines."""
    step = jax.jit(accumulating(one_scan_loss, 1), donate_argnums=0)
    options: dict[str, Any] = {"machine": "v5p:2x1x1", "stages": [2], "schedules": ["1f1b", "stacked"]}
    return meshbridge.search_pipeline(step, *shapes(vocabulary), **options)


@pytest.mark.parametrize(("vocabulary", "best"), [(256, "1f1b"), pytest.param(65536, "stacked", marks=pytest.mark.slow)])
def test_it_depends_on_the_head(vocabulary: int, best: str) -> None:
    """Stages share a large head; without one, a stage that has no microbatch had better be idle than compute nothing of use."""
    found = searched(vocabulary)
    assert {each.candidate.schedule for each in found.tried} == {"1f1b", "stacked"}
    assert found.best.candidate.schedule == best
    assert all(each.bound_seconds <= each.seconds for each in found.tried)
    own = next(each for each in found.tried if each.candidate.schedule == "stacked")
    assert own.bound_seconds > 0
    assert own.crossing_bytes > 0
    assert own.seconds == pytest.approx(own.busy_seconds + own.idle_seconds + own.outside_seconds)
    assert f'schedule="{best}"' in found.code
    assert found.why


def test_what_is_not_under_one_scan_is_refused_once() -> None:
    array = jax.ShapeDtypeStruct
    params = {"layers": [{"w": array((8, 8), jnp.float32), "b": array((8,), jnp.float32)} for _ in range(2)]}
    batch = (array((8, 8), jnp.float32),) * 2
    options: dict[str, Any] = {"machine": "v5p:2x1x1", "stages": [2]}
    found = meshbridge.search_pipeline(jax.jit(accumulating(mlp_loss, 2)), params, batch, **options)
    assert {each.candidate.schedule for each in found.tried} <= {"gpipe", "1f1b", "zero-bubble"}
    assert [each.what for each in found.refused] == ["stacked, 2 stages"]
    with pytest.raises(MeshError, match="in no scan over layers"):
        meshbridge.search_pipeline(jax.jit(accumulating(mlp_loss, 2)), params, batch, schedules=["stacked"], **options)
