"""Attention whose queries are split along their sequence, and is to stay so: keys and values can travel around the devices.

By prices of bytes it costs less to exchange the sequence for heads, and back, than to gather keys and values. Where these travel
instead (`ring-attention`), no scores are held, and under a causal mask half of the products are left. Which of the two plans is
the faster one, only the predicted step says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from meshbridge.decide.graph import Graph, Node
from meshbridge.ops.elementwise import ELEMENTWISE

_EXP = "stablehlo.exponential"


def keep_split_queries(graph: Graph) -> bool:
    """Has refinement leave the scores of such attention as the annotations split them; whether there are any.

    Scores are what a product gives whose exponentials are added up along keys. Queries are another dimension that one operand of
    the product has, and the other has not.
    """
    made = {node.only_result: node for node in graph.nodes if not node.is_identity}
    kept: set[int] = set()
    for node in graph.nodes:
        if node.name == _EXP and (keys := {*_summed(graph, node.only_result)}):
            products = _products(made, node.operands[0])
            kept |= {product.only_result for product in products if _splits_queries(graph, product, keys)}
    for tensor in kept:
        graph.describe(tensor, decided=(True,) * len(graph.tensors[tensor].shape))
    return bool(kept)


def _summed(graph: Graph, tensor: int) -> Iterator[int]:
    """The dimensions along which a tensor is added up, or what is converted of it."""
    for node in (graph.nodes[user] for user in graph.users[tensor]):
        if node.name == "stablehlo.convert" and node.operands == (tensor,):
            yield from _summed(graph, node.only_result)
        elif node.name == "stablehlo.reduce" and node.operands[0] == tensor:
            left = {*chain.from_iterable(node.rule.results[0])}
            yield from (dim for dim, loops in enumerate(node.rule.operands[0]) if left.isdisjoint(loops))


def _products(made: Mapping[int, Node], tensor: int) -> Iterator[Node]:
    """The products of which a tensor is computed element by element."""
    waiting, seen = [tensor], {-1}
    while waiting:
        if (found := waiting.pop()) in seen or (node := made.get(found)) is None:
            continue
        seen.add(found)
        if node.rule.is_contraction:
            yield node
        elif node.name in ELEMENTWISE:
            waiting += node.operands


def _splits_queries(graph: Graph, product: Node, keys: set[int]) -> bool:
    """Whether what a product gives is split along queries, and along keys is not."""
    split = graph.tensors[product.only_result].split
    left, right = ({*chain.from_iterable(dims)} for dims in product.rule.operands[:2])
    queries = (
        dim for dim, loops in enumerate(product.rule.results[0]) if dim not in keys and not (left & right).issuperset(loops)
    )
    return not any(split[dim] for dim in keys) and any(split[dim] for dim in queries)
