"""What `meshbridge.compare` and `meshbridge.compile_for` return for an accelerator that is not there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import meshbridge
from tests.targets.installed import target

pytestmark = pytest.mark.targets

TARGET = "tpu:v5e:2x4"


def test_functions_compile_for_a_target(mesh: jax.sharding.Mesh) -> None:
    target(TARGET)
    jitted = jax.jit(lambda x: x.sum(axis=0), in_shardings=NamedSharding(mesh, PartitionSpec("data")))
    x = jax.ShapeDtypeStruct((64, 128), jnp.float32)
    comparison = meshbridge.compare(jitted, x, target=TARGET, without=["xla-gspmd"])
    assert {name: figures.error for name, figures in comparison.figures.items()} == {"meshbridge": "", "xla-shardy": ""}
    assert repr(comparison).startswith(f"<TargetComparison: for {TARGET} meshbridge sends ")
    assert meshbridge.compile_for(jitted, x, target=TARGET)
