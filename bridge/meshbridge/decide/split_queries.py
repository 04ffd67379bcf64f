"""Attention whose sequence is split, planned so that queries stay where they are and keys and values travel around the devices.

By prices of bytes it costs less to exchange the sequence for heads, and back, than to gather keys and values. Where these travel
instead (`ring-attention`), no scores are held, and under a causal mask half of the products are left. Which of the two plans is
the faster one, only the predicted step says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from meshbridge.decide.dimension_classes import NARROW, Dimension, classes_of
from meshbridge.decide.graph import Graph, Node, Tensor
from meshbridge.decide.refine import moved
from meshbridge.ir.sharding import Axes
from meshbridge.ops.traits import Trait, ops_with

_EXP = "stablehlo.exponential"
_MOST = 64
"""How many operations in a row are followed back from keys. Not measured: a bound on time."""

Makers = Mapping[int, Node]
"""Per tensor, the node that gives it."""


def keep_split_queries(graph: Graph) -> bool:
    """Splits the scores of such attention along queries, and has refinement leave them so; whether there are any.

    Scores are what a product gives whose exponentials are added up along keys. Queries are a dimension that only the other
    operand has, and that is split along axes along which keys are split, too, or what they are computed of.
    """
    made = _makers(graph)
    found = {
        queries: axes for product, keys in _scores(graph, made) for queries, axes in _split_queries(graph, made, product, keys)
    }
    if not found:
        return False
    classes = {dimension: each for each in classes_of(graph, (NARROW,)) for dimension in each}
    return any([_keep(graph, classes.get(queries, (queries,)), axes) for queries, axes in found.items()])  # noqa: C419


def has_scores(graph: Graph) -> bool:
    """Whether there is such attention if it is split so, or anything else that adds up exponentials of a product."""
    return any(True for _ in _scores(graph, _makers(graph)))


def _makers(graph: Graph) -> Makers:
    return {node.only_result: node for node in graph.nodes if not node.is_identity or node.name == "mesh.shard"}


def _scores(graph: Graph, made: Makers) -> Iterator[tuple[Node, int]]:
    """Products that give scores, and their dimensions that are keys."""
    for node in graph.nodes:
        if node.name == _EXP:
            for keys in _summed(graph, node.only_result):
                yield from _products(made, (node.operands[0], keys))


def _summed(graph: Graph, tensor: int) -> Iterator[int]:
    """The dimensions along which a tensor is added up, or what is converted of it."""
    for node in (graph.nodes[user] for user in graph.users[tensor]):
        if node.name == "stablehlo.convert" and node.operands == (tensor,):
            yield from _summed(graph, node.only_result)
        elif node.name == "stablehlo.reduce" and node.operands[0] == tensor:
            left = {loop for loops in node.rule.results[0] for loop in loops}
            yield from (dim for dim, loops in enumerate(node.rule.operands[0]) if left.isdisjoint(loops))


def _before(node: Node, dim: int) -> Iterator[Dimension]:
    """The dimensions of what a node reads that its result has as `dim`."""
    loops = node.rule.results[0][dim]
    for tensor, dims in zip(node.operands, node.rule.operands, strict=True):
        if tensor >= 0 and loops:
            yield from ((tensor, each) for each, known in enumerate(dims) if known == loops)


def _products(made: Makers, scores: Dimension) -> Iterator[tuple[Node, int]]:
    """The products of which scores are computed element by element, and which dimension of theirs that one is."""
    waiting, seen = [scores], set[Dimension]()
    while waiting:
        if (found := waiting.pop()) in seen or (node := made.get(found[0])) is None:
            continue
        seen.add(found)
        if node.rule.is_contraction:
            yield node, found[1]
        elif node.name in ops_with(Trait.ELEMENTWISE, Trait.SHAPING):
            waiting += _before(node, found[1])


def _split_queries(graph: Graph, made: Makers, product: Node, keys: int) -> Iterator[tuple[Dimension, Axes]]:
    """Dimensions of a product that are queries, and the axes along which they and the keys are split."""
    key, key_dim = next(_before(product, keys), (-1, 0))
    for dim in range(len(product.rule.results[0])):
        match [*_before(product, dim)]:
            case [(query, query_dim)] if query != key:
                axes = graph.tensors[query].split[query_dim]
                if axes and axes in _splits(graph, made, (key, key_dim)):
                    yield (product.only_result, dim), axes


def _splits(graph: Graph, made: Makers, dimension: Dimension) -> Iterator[Axes]:
    """How a dimension is split, and then those of which it is computed."""
    for _ in range(_MOST):
        tensor, dim = dimension
        if tensor < 0:
            return
        yield graph.tensors[tensor].split[dim]
        before = [*_before(made[tensor], dim)] if tensor in made else []
        if not before:
            return
        dimension = max(before, key=lambda each: bool(graph.tensors[each[0]].split[each[1]]))


def _keep(graph: Graph, dimensions: Iterable[Dimension], axes: Axes) -> bool:
    """Splits a class of dimensions along `axes` for good; whether it can be."""
    dims: dict[int, tuple[int, ...]] = {}
    for tensor, dim in dimensions:
        dims[tensor] = (*dims.get(tensor, ()), dim)
    size, split = graph.mesh.group_size(axes), dict[int, Tensor]()
    for tensor, each in dims.items():
        before = graph.tensors[tensor]
        after = before if before.split[each[0]] == axes else moved(before, each, axes, size)
        if after is None:
            return False
        split[tensor] = after
    for tensor, after in split.items():
        graph.tensors[tensor] = after
        graph.describe(tensor, decided=(True,) * len(after.shape))
    return True
