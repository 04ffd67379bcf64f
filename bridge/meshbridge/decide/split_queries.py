"""Plans attention with a split sequence so that queries stay in place and keys and values travel around the devices.

By the prices of bytes, exchanging the sequence for heads and back is cheaper than gathering keys and values. If these travel
instead (`ring-attention`), no scores are stored, and a causal mask leaves half of the products. Only the predicted step says
which of the two plans is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from meshbridge.decide.dimension_classes import NARROW, Dimension, classes_of
from meshbridge.decide.graph import Graph, Node, Tensor
from meshbridge.decide.refine import moved_tensor
from meshbridge.ir.sharding import Axes
from meshbridge.ir.uses import LOOK_THROUGH
from meshbridge.ops.traits import Trait, ops_with

_EXP = "stablehlo.exponential"
Producers = Mapping[int, Node]
"""Per tensor, the node that produces it."""


def keep_split_queries(graph: Graph) -> bool:
    """Splits the scores of such attention along queries and fixes this split for refinement; returns whether there are any.

    Scores are products whose exponentials are summed along keys. Queries are a dimension that only the other operand has, and
    that is split along the axes of the keys, or of the tensors from which the keys are computed.
    """
    producers = _producers(graph)
    axes_of = {
        queries: axes
        for product, keys in _scores(graph, producers)
        for queries, axes in _split_queries(graph, producers, product, keys)
    }
    if not axes_of:
        return False
    classes = {dimension: dimensions for dimensions in classes_of(graph, (NARROW,)) for dimension in dimensions}
    return any([_keep(graph, classes.get(queries, (queries,)), axes) for queries, axes in axes_of.items()])  # noqa: C419


def has_scores(graph: Graph) -> bool:
    """Whether there is such attention, or anything else that sums exponentials of a product."""
    return any(True for _ in _scores(graph, _producers(graph)))


def _producers(graph: Graph) -> Producers:
    return {node.only_result: node for node in graph.nodes if not node.is_identity or node.name == "mesh.shard"}


def _scores(graph: Graph, producers: Producers) -> Iterator[tuple[Node, int]]:
    """Products that are scores, and the dimension of their keys."""
    for node in graph.nodes:
        if node.name == _EXP:
            for keys in _summed(graph, node.only_result):
                yield from _products(producers, (node.operands[0], keys))


def _summed(graph: Graph, tensor: int) -> Iterator[int]:
    """The dimensions along which a tensor, or its conversion, is summed."""
    for node in (graph.nodes[user] for user in graph.users[tensor]):
        if node.name == "stablehlo.convert" and node.operands == (tensor,):
            yield from _summed(graph, node.only_result)
        elif node.name == "stablehlo.reduce" and node.operands[0] == tensor:
            remaining = {loop for loops in node.rule.results[0] for loop in loops}
            yield from (dim for dim, loops in enumerate(node.rule.operands[0]) if remaining.isdisjoint(loops))


def _before(node: Node, dim: int) -> Iterator[Dimension]:
    """The operand dimensions of a node that its result has as `dim`."""
    loops = node.rule.results[0][dim]
    for tensor, dims in zip(node.operands, node.rule.operands, strict=True):
        if tensor >= 0 and loops:
            yield from ((tensor, operand_dim) for operand_dim, operand_loops in enumerate(dims) if operand_loops == loops)


def _products(producers: Producers, scores: Dimension) -> Iterator[tuple[Node, int]]:
    """The products from which scores are computed elementwise, and the corresponding dimension of each."""
    waiting, visited = [scores], set[Dimension]()
    while waiting:
        if (dimension := waiting.pop()) in visited or (node := producers.get(dimension[0])) is None:
            continue
        visited.add(dimension)
        if node.rule.is_contraction:
            yield node, dimension[1]
        elif node.name in ops_with(Trait.ELEMENTWISE, Trait.SHAPING):
            waiting += _before(node, dimension[1])


def _split_queries(graph: Graph, producers: Producers, product: Node, keys: int) -> Iterator[tuple[Dimension, Axes]]:
    """Dimensions of a product that are split queries, and the axes that also split the keys."""
    key, key_dim = next(_before(product, keys), (-1, 0))
    for dim in range(len(product.rule.results[0])):
        match [*_before(product, dim)]:
            case [(query, query_dim)] if query != key:
                axes = graph.tensors[query].split[query_dim]
                if axes and axes in _splits(graph, producers, (key, key_dim)):
                    yield (product.only_result, dim), axes


def _splits(graph: Graph, producers: Producers, dimension: Dimension) -> Iterator[Axes]:
    """The split of a dimension, and then of the dimensions from which it is computed."""
    for _ in range(LOOK_THROUGH):
        tensor, dim = dimension
        if tensor < 0:
            return
        yield graph.tensors[tensor].split[dim]
        before = [*_before(producers[tensor], dim)] if tensor in producers else []
        if not before:
            return
        dimension = max(before, key=lambda source: bool(graph.tensors[source[0]].split[source[1]]))


def _keep(graph: Graph, dimensions: Iterable[Dimension], axes: Axes) -> bool:
    """Fixes the split of a class of dimensions along `axes`; returns whether it is possible."""
    dims_of: dict[int, tuple[int, ...]] = {}
    for tensor, dim in dimensions:
        dims_of[tensor] = (*dims_of.get(tensor, ()), dim)
    size, split = graph.mesh.group_size(axes), dict[int, Tensor]()
    for tensor, dims in dims_of.items():
        before = graph.tensors[tensor]
        after = before if before.split[dims[0]] == axes else moved_tensor(before, dims, axes, size)
        if after is None:
            return False
        split[tensor] = after
    for tensor, after in split.items():
        graph.tensors[tensor] = after
        graph.describe(tensor, decided=(True,) * len(after.shape))
    return True
