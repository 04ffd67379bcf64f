"""XLA:GPU and XLA:TPU compile loops that gather ahead: modelled to take less time, and with less that is exposed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from tests.targets.without_key import figures_with_and_without

pytestmark = pytest.mark.targets

LAYERS, WIDTH, TOKENS = 16, 2048, 8192


def forward(platform: str, width: int = WIDTH, tokens: int = TOKENS) -> jax.export.Exported:
    """Layers under scan, of parameters that are sharded over 8 devices."""
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    sharded, batch = (NamedSharding(mesh, spec) for spec in (P(None, "data"), P("data")))

    def layer(x: Any, weights: Any) -> Any:
        first, second = weights
        return x + jnp.tanh(x @ first) @ second, None

    def run(weights: Any, x: Any) -> Any:
        return jax.lax.scan(layer, x, weights)[0]

    shapes = [(LAYERS, width, 4 * width), (LAYERS, 4 * width, width), (tokens, width)]
    first, second, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    jitted = jax.jit(run, in_shardings=((sharded, sharded), batch), out_shardings=batch)
    return jax.export.export(jitted, platforms=(platform,))((first, second), x)


def test_less_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported = forward("cuda", 2 * WIDTH, 4 * TOKENS)  # on 8 devices, which the variable asks for
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    ahead, before = figures_with_and_without("collective_pipelining", exported, "gpu:h100:1x1x8", tmp_path)
    assert ahead.wire_bytes
    assert ahead.wire_bytes == before.wire_bytes
    assert ahead.modelled is not None
    assert before.modelled is not None
    assert ahead.modelled.total < before.modelled.total
