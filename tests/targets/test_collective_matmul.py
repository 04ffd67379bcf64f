"""XLA:TPU hides what products wait for behind their parts, where these and the collectives beside them are divided."""

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

TOKENS, WIDTH, HIDDEN = 16384, 4096, 11264


def layer() -> jax.export.Exported:
    """An MLP whose weights are sharded along "model", as its tokens are before and after it."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "model"))
    rows, first, second = (NamedSharding(mesh, spec) for spec in (P(("data", "model")), P(None, "model"), P("model")))
    middle = NamedSharding(mesh, P("data", "model"))

    def run(x: Any, into: Any, out_of: Any) -> Any:
        return jax.lax.with_sharding_constraint(jnp.tanh(x) @ into, middle) @ out_of

    shapes = [(TOKENS, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)]
    arguments = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    jitted = jax.jit(run, in_shardings=(rows, first, second), out_shardings=rows)
    return jax.export.export(jitted, platforms=("tpu",))(*arguments)


def test_less_is_exposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    divided, before = figures_with_and_without("collective_matmul", layer(), "tpu:v5e:2x4", tmp_path)
    assert divided.wire_bytes == before.wire_bytes
    assert divided.exposed_bytes <= 0.5 * before.exposed_bytes
    assert divided.modelled is not None
    assert before.modelled is not None
    # Of computation alone: blocks and partial products are added up.
    assert divided.modelled.total <= 1.4 * before.modelled.total
