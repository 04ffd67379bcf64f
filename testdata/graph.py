"""Loss and gradients of a graph network: nodes and edges split over all devices, messages summed at their target."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program, Tree
from testdata.ring import Term

DEVICES, NODES, EDGES, WIDTH, LAYERS = 8, 1024, 8192, 64, 2


def graph_network() -> Program:
    """Edges join any two nodes, so that every device may need every node."""
    weights = [Argument((WIDTH, WIDTH), P(), WIDTH**-0.5)] * LAYERS
    nodes = Argument((NODES, WIDTH), P("x", None))
    ends = Argument((EDGES,), P("x"), below=NODES)
    plan = (
        Term("all-gather", DEVICES, nodes.bytes, 2 * LAYERS, "what sources send; backward, gradients at the targets"),
        Term("reduce-scatter", DEVICES, nodes.bytes, 2 * LAYERS, "what targets receive; backward, gradients at the sources"),
        Term("all-reduce", DEVICES, sum(a.bytes for a in weights), 1, "gradients of the weights"),
    )
    return Program("graph", (("x", DEVICES),), _gradients, (weights, nodes, ends, ends), (P(), P()), plan)


def _gradients(weights: Tree, nodes: jax.Array, sources: jax.Array, targets: jax.Array) -> tuple[jax.Array, Tree]:
    return jax.value_and_grad(_loss)(weights, nodes, sources, targets)


def _loss(weights: Tree, nodes: jax.Array, sources: jax.Array, targets: jax.Array) -> jax.Array:
    for weight in weights:
        nodes = jax.nn.relu(nodes + jax.ops.segment_sum((nodes @ weight)[sources], targets, NODES) / 8)
    return jnp.mean(nodes**2)
