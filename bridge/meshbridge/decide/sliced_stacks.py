"""Stacks that a loop only slices keep the axes that the user sharded them along: an iteration gathers the row that it reads.

    %w = mesh.shard %weights to [[], [0]]                          parameters of 32 layers, rows of which are sharded
    while(%i, %stack = %w)
      %row = dynamic_slice %stack, %i, sizes = [1, 4096, 4096]     no other reader in the loop, and the loop yields %stack
      %now = all_gather %row                                       instead of an all_gather of %w before the loop

A gather before the loop sends the rows once instead of once per loop that reads them, but the loop then carries every layer's
parameters unsharded. Whoever shards parameters wants them to be kept sharded. What an iteration reads whole is no stack of rows:
it is gathered before the loop if that sends less.
"""

from __future__ import annotations

from collections.abc import Mapping

from meshbridge.decide.dimension_classes import MOVING
from meshbridge.decide.graph import Graph, Node

_SLICE = "stablehlo.dynamic_slice"
_WHILE = "stablehlo.while"


def keep_sliced_stacks(graph: Graph) -> None:
    """Notes of every such stack, in place, along which axes propagation has sharded its rows."""
    makers = {result: node for node in graph.nodes for result in node.results if node.name != "stablehlo.return"}
    for index in graph.carried:
        if not _is_placed(graph, makers, index):
            continue
        sliced = _sliced_dims(graph, index, set())
        kept = {axis for dim, axes in enumerate(graph.tensors[index].split) if sliced and dim not in sliced for axis in axes}
        if kept:
            graph.describe(index, kept=frozenset(kept))


def _is_placed(graph: Graph, makers: Mapping[int, Node], tensor: int) -> bool:
    """Whether a tensor holds what the user has annotated, perhaps converted or in another order."""
    while not graph.tensors[tensor].user:
        node = makers.get(tensor)
        if node is None or not (node.is_identity or node.name in MOVING) or node.operands[0] < 0:
            return False
        tensor = node.operands[0]
    return True


def _sliced_dims(graph: Graph, tensor: int, met: set[int]) -> set[int]:
    """The dimensions along which loops slice a tensor that they carry; none where they define or read it otherwise."""
    found = set[int]()
    if tensor in met:
        return found
    met.add(tensor)
    for node in [graph.nodes[user] for user in graph.users[tensor]]:
        if tensor in node.results and node.name != _WHILE and node.operands != node.results:
            return set()  # another value after each iteration
        if tensor not in node.operands or graph.carried[tensor] not in node.scope or node.operands == node.results:
            continue
        if node.name == _SLICE:
            shape, row = graph.tensors[tensor].shape, graph.tensors[node.results[0]].shape
            dims = {dim for dim, (size, part) in enumerate(zip(shape, row, strict=True)) if size != part}
        elif node.name == _WHILE and node.is_identity and node.results[0] in graph.carried:
            dims = _sliced_dims(graph, node.results[0], met)
        else:
            return set()
        if not dims:
            return set()
        found |= dims
    return found
