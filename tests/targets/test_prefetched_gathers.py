"""XLA:GPU compiles loops that gather ahead, and models them to take less time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshbridge.ir.mlir import context
from meshbridge.machines import machine
from meshbridge.read import formats
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEERS
from meshbridge.tools.compare.figures import Figures
from tests.targets.installed import target

pytestmark = pytest.mark.targets

LAYERS, WIDTH, TOKENS = 16, 2048, 8192


def forward() -> jax.export.Exported:
    """Layers under scan, of parameters that are sharded over 8 devices."""
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    sharded, batch = (NamedSharding(mesh, spec) for spec in (P(None, "data"), P("data")))

    def layer(x: Any, weights: Any) -> Any:
        first, second = weights
        return x + jnp.tanh(x @ first) @ second, None

    def run(weights: Any, x: Any) -> Any:
        return jax.lax.scan(layer, x, weights)[0]

    shapes = [(LAYERS, WIDTH, 4 * WIDTH), (LAYERS, 4 * WIDTH, WIDTH), (TOKENS, WIDTH)]
    first, second, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    jitted = jax.jit(run, in_shardings=((sharded, sharded), batch), out_shardings=batch)
    return jax.export.export(jitted, platforms=("cuda",))((first, second), x)


def test_less_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, exported = target("gpu:h100:1x1x8"), forward()
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    text = (Path(machine.__file__).parent / "gpu" / "h100.toml").read_text()
    assert "prefetches = true" in text
    kept = tmp_path / "kept.toml"
    kept.write_text(text.replace("prefetches = true", ""))

    def figures(name: str) -> Figures:
        program = formats.unpack(exported, context())
        (compared,) = command.compare_for(program, [chosen], machine=name, without=PEERS)
        found = compared.figures[OURS]
        assert not found.error
        return found

    ahead, before = figures("h100"), figures(str(kept))
    assert ahead.wire_bytes
    assert ahead.wire_bytes == before.wire_bytes
    assert ahead.modelled is not None
    assert before.modelled is not None
    assert ahead.modelled.total < before.modelled.total
