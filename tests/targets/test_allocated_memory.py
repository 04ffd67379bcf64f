"""What compilers allocate for a plan, as `python -m benchmarks.search --compile` prints it."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from benchmarks.compiled import Allocated, allocated
from meshbridge.runtime.targets import EXPORT_PLATFORM
from tests.operations.differential import device_mesh
from tests.targets.installed import target

pytestmark = pytest.mark.targets

ROWS, WIDTH = 16384, 1024
SHARD = 2 * ROWS * WIDTH // 8
"""Bytes of a device's rows."""


def descended(text: str, folder: Path, *, copies: int) -> Path:
    """A step over rows that are split over 8 devices, and donated; it makes so many times as many of them on its way."""
    rows = NamedSharding(device_mesh((8,)), P("a"))

    def step(x: jax.Array) -> jax.Array:
        wide = jnp.sort(jnp.repeat(x, copies, axis=1), axis=1)
        return x - wide.reshape(ROWS, copies, WIDTH).sum(1)

    platform = EXPORT_PLATFORM[target(text).machine.platform]
    jitted = jax.jit(step, in_shardings=rows, out_shardings=rows, donate_argnums=0)
    exported = jax.export.export(jitted, platforms=(platform,))(jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.bfloat16))
    path = folder / "program.jax_export"
    meshbridge.save(exported, path)
    return path


@pytest.mark.parametrize("text", ["tpu:v5e:2x4", "gpu:h100:1x1x8"])
def test_what_is_donated_counts_once(text: str, tmp_path: Path) -> None:
    found = allocated(descended(text, tmp_path, copies=4), text, None, tmp_path / "log")
    assert not found.error
    assert found.arguments == SHARD
    assert SHARD <= found.results <= SHARD + 64
    assert found.aliased == SHARD
    assert found.total - found.temporaries <= SHARD + 64
    assert found.temporaries >= 4 * SHARD


def test_what_a_compiler_refuses_says_why(tmp_path: Path) -> None:
    found = allocated(descended("tpu:v5e:2x4", tmp_path, copies=8192), "tpu:v5e:2x4", None, tmp_path / "log")
    assert found == Allocated(error=found.error)
    assert "memory" in found.error.lower()
