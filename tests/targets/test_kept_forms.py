"""Collectives that XLA:TPU makes all-reduces of as JAX writes them stay what they are in the forms that we write for TPUs."""

from __future__ import annotations

from collections import Counter

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshbridge.ir.mlir import context
from meshbridge.read import formats
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEERS
from tests.targets.installed import target

pytestmark = pytest.mark.targets

GRADIENTS = {
    "rows": ((1024, 512), P("x")),
    "parts of tiles": ((1056, 512), P("x")),
    "heads": ((3, 16, 128, 64), P(None, "x")),
    "columns": ((1024, 1024), P(None, "x")),
}
"""Their shapes, and how they are scattered over 8 chips: along the first dimension, in whole tiles or not, along one before the
last two, in single tiles."""


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("text", ["tpu:v5e:2x4", "tpu:v5p:2x2x2"])
def test_reduce_scatters_stay(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a 2x2x2 slice of v5p over all chips: in two."""
    shape, spec = GRADIENTS[name]
    chosen = target(text)
    mesh = Mesh(np.array(jax.devices()[:8]), ("x",))

    def gradient(each: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(each.sum(0), NamedSharding(mesh, spec))

    batch = jax.ShapeDtypeStruct((64, *shape), jax.numpy.bfloat16)
    program = jax.jit(gradient, in_shardings=NamedSharding(mesh, P("x")), out_shardings=NamedSharding(mesh, spec))
    exported = jax.export.export(program, platforms=("tpu",))(batch)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    (compared,) = command.compare_for(formats.unpack(exported, context()), [chosen], machine=chosen.device, without=PEERS)
    found = compared.figures[OURS]
    assert not found.error
    assert Counter(found.count_by_kind) == {"reduce-scatter": 2 if "v5p" in text else 1}
