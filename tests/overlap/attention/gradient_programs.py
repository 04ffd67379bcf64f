"""Training steps of attention, partitioned, and how far gradients are apart."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from meshbridge import pipeline
from meshbridge.collectives.optimize_collectives import OptimizeCollectives
from meshbridge.ir.mlir import ir
from meshbridge.machines.compile_target import CompileTarget
from tests.overlap.attention.attention_programs import Attention, counted, gathered, sharded

P = PartitionSpec


def training(attention: Attention, again: bool) -> Any:
    """A loss and the gradients of queries, keys and values; with weights computed again, or kept."""
    run = jax.checkpoint(attention) if again else attention
    return jax.value_and_grad(lambda *qkv: (run(*qkv).astype(jnp.float32) ** 2).sum(), (0, 1, 2))


def scattered(attention: Attention, mesh: jax.sharding.Mesh, axis: str, again: bool, arguments: list[Any]) -> ir.Module:
    """The partitioned step, gradients of keys and values reduce-scattered."""
    tokens = NamedSharding(mesh, P("data" if axis == "model" else None, axis))
    step = training(sharded(attention, mesh, axis), again)
    jitted = jax.jit(step, in_shardings=(tokens,) * 3, out_shardings=(None, (tokens,) * 3))
    module = gathered(jitted, *arguments)
    pipeline.run((OptimizeCollectives(0, target=CompileTarget.of("h100")),), module)
    assert counted(module, "mesh.reduce_scatter") == 2
    return module


def distance(found: Any, wanted: Any) -> float:
    """The root of the mean squared difference."""
    return float(np.sqrt(np.mean(np.square(np.asarray(found, np.float64) - np.asarray(wanted, np.float64)))))
