"""The costs of a graph's nodes, by the shardings of their tensors; each is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

from meshbridge.decide.choice import NO_COMPUTE, Choice, EndPrices, Pricing
from meshbridge.decide.graph import Graph, NodeKind, Tensor
from meshbridge.decide.kind_choices import KindChoices, NodeTensors, has_layout
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.sharding import Axes, Sharding, Split, local_shape
from meshbridge.ops.option import sharding_of, with_partial, with_split


@dataclass(eq=False, slots=True)
class NodeCost:
    """The cost of one execution of a node under its cheapest option, in bytes: computing and reducing its results. Resharding
    operands to its `needs` is counted separately, since several nodes may share it."""

    own: float
    needs: tuple[Sharding, ...]
    arriving: tuple[float, ...]
    "Bytes of resharding each operand."
    resharded: tuple[int, ...]
    "The operands that are resharded."


class KindCosts:
    """The costs of nodes that differ only in their number of executions."""

    def __init__(self, kind: NodeKind, graph: Graph) -> None:
        self.kind = kind
        self.graph = graph
        self.costs: dict[NodeTensors, NodeCost] = {}
        self.floors: dict[NodeTensors, float] = {}
        pricing = graph.pricing
        self._choices = KindChoices(kind, pricing, partial(_arriving, pricing), partial(_leaving, pricing, kind.reduce_share))
        self._compute = NO_COMPUTE if kind.is_identity else self._choices.compute
        work = pricing.objective.work
        self._byte = work.byte if work is not None and kind.rule.is_contraction else 0.0
        "The cost of reading or writing a byte; 0 if only arithmetic has a price."
        self.least = self._compute.of(1 / graph.mesh.size)
        "The least work of a device, however the tensors are split."

    def cost(self, known: NodeTensors) -> NodeCost:
        """The cost of a node of these tensors."""
        cost = self.costs.get(known)
        if cost is None:
            cost = self.costs[known] = self._computed(known)
        return cost

    def computing(self, choice: Choice, known: NodeTensors) -> float:
        """The cost of a choice: computation, halo exchange, and the excess of memory traffic over arithmetic."""
        return self._compute.of(choice.share) + choice.exchanged + self._memory_excess(choice, known)

    def floor(self, known: NodeTensors) -> float:
        """A lower bound of the cost: no option uses axes that none of the tensors uses."""
        bound = self.floors.get(known)
        if bound is None:
            axes = 0
            for tensor in known:
                if tensor is not None:
                    axes |= tensor.axes
            fixed = self.kind.fixed_option is not None
            bound = self.floors[known] = self.least if fixed else self._compute.of(1 / self.graph.pricing.devices(axes))
        return bound

    def _computed(self, known: NodeTensors) -> NodeCost:
        kind = self.kind
        own = 0.0
        if kind.is_identity:
            source, target = [tensor for tensor in known if tensor is not None]
            needs: tuple[Sharding, ...] = (self.graph.identity_need(kind, source, target),)
            arriving: tuple[float, ...] = (self._resharding(source).price(needs[0]),)
        else:
            choice = self._choices.fitting(known)
            if choice is not None:
                own = self._compute.of(choice.share)
                return NodeCost(own + self._memory_excess(choice, known), choice.needs, (0.0,) * len(choice.needs), ())
            choice, own, arriving = self._choices.cheapest(known)
            own += self._memory_excess(choice, known)
            needs = choice.needs
            if kind.unreduced or has_layout(known):
                operands = zip(known, needs, strict=False)
                arriving = tuple(
                    [self._resharding(tensor).price(need) if tensor is not None else 0.0 for tensor, need in operands]
                )
            if self._byte:
                ends = zip(known, needs, arriving, strict=False)
                own += sum(
                    [self.slicing(tensor, need) for tensor, need, resharding in ends if tensor is not None and not resharding]
                )
        return NodeCost(own, needs, arriving, tuple([position for position, resharding in enumerate(arriving) if resharding]))

    def _memory_excess(self, choice: Choice, known: NodeTensors) -> float:
        """The time to move its shards through memory beyond the time of its arithmetic."""
        if not self._byte:
            return 0.0
        shardings = (*choice.needs, *choice.computed)
        size = sum(
            self._shard_bytes(tensor, sharding.split_axes)
            for tensor, sharding in zip(known, shardings, strict=True)
            if tensor is not None
        )
        return max(0.0, self._byte * size - self._compute.of(choice.share))

    def slicing(self, tensor: Tensor, need: Sharding) -> float:
        """The cost of slicing an operand to a product's need in a kernel of its own. Other ops fuse the slice."""
        if not self._byte or need.split_axes == tensor.split:
            return 0.0
        part = self._shard_bytes(tensor, need.split_axes)
        return 2 * self._byte * part if part < self._shard_bytes(tensor, tensor.split) else 0.0

    def _shard_bytes(self, tensor: Tensor, split: Split) -> float:
        return prod(local_shape(tensor.shape, self.graph.mesh, split)) * element_bytes(tensor.dtype)

    def _resharding(self, tensor: Tensor) -> EndPrices:
        """Bytes of resharding a tensor from its decided sharding."""
        return self.graph.pricing.arriving(tensor.type, tensor.sharding, tensor.gathered)


def _arriving(pricing: Pricing, tensor: Tensor, summed: Axes) -> EndPrices:
    source = tensor.sharding if tensor.layout is None else sharding_of(tensor.mesh, tensor.split)
    return pricing.arriving(tensor.type, with_partial(source, summed), tensor.gathered)


def _leaving(pricing: Pricing, share: float, tensor: Tensor, wanted: Sharding | None) -> EndPrices:
    full = tensor.sharding if tensor.layout is None else sharding_of(tensor.mesh, tensor.split)
    target = with_split(wanted, tensor.split) if wanted else full
    return pricing.leaving(tensor.type, target, share, tensor.reduced)


CostsByKind = dict[tuple[object, ...], KindCosts]
"""The costs of nodes, by what they depend on besides the prices and the shardings of tensors."""


def costs_of_nodes(graph: Graph, known: CostsByKind | None = None) -> list[KindCosts]:
    """The costs of each node, by number. `known` has, and gets, those of graphs with the same prices and unique tensors."""
    shared = {} if known is None else known
    by_kind: dict[NodeKind, KindCosts] = {}
    for kind in dict.fromkeys([node.kind for node in graph.nodes]):
        identity = (kind.is_identity, kind.region_axes, kind.is_entry)
        key = (kind.rule, kind.unreduced, kind.fixed_option, kind.reduce_share, kind.sharing, *identity)
        if key not in shared:
            shared[key] = KindCosts(kind, graph)
        by_kind[kind] = shared[key]
    return [by_kind[node.kind] for node in graph.nodes]
