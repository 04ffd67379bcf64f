"""What the nodes of a graph cost, by what is known of their tensors: everything is computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod

from meshbridge.decide.choice import NO_COMPUTE, Choice, EndPrices, Pricing
from meshbridge.decide.graph import Graph, Kind, Tensor
from meshbridge.decide.kind_choices import KindChoices, Known, has_layout
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.sharding import Axes, Sharding, Split, local_shape
from meshbridge.ops.option import sharding_of, with_partial, with_split


@dataclass(eq=False, slots=True)
class NodeCost:
    """What a node costs each time under its cheapest option, in bytes: computing and reducing its results. Bringing its operands
    to what it `needs` is counted apart, since several nodes may share it."""

    own: float
    needs: tuple[Sharding, ...]
    arriving: tuple[float, ...]
    "Bytes of resharding each operand to that."
    moved: tuple[int, ...]
    "The operands that are resharded."


class KindCosts:
    """The costs of nodes that differ in nothing but how often they run."""

    def __init__(self, kind: Kind, graph: Graph) -> None:
        self.kind = kind
        self.graph = graph
        self.known: dict[Known, NodeCost] = {}
        self.floors: dict[Known, float] = {}
        pricing = graph.pricing
        self._choices = KindChoices(kind, pricing, partial(_arriving, pricing), partial(_leaving, pricing, kind.reduce_share))
        self._compute = NO_COMPUTE if kind.is_identity else self._choices.compute
        work = pricing.objective.work
        self._byte = work.byte if work is not None and kind.rule.is_contraction else 0.0
        "What it costs to read or write a byte; nothing where only arithmetic is priced."
        self.least = self._compute.of(1 / graph.mesh.size)
        "What is computed at least, however the tensors are split."

    def cost(self, known: Known) -> NodeCost:
        """What a node of these tensors costs."""
        found = self.known.get(known)
        if found is None:
            found = self.known[known] = self._computed(known)
        return found

    def computing(self, choice: Choice, known: Known) -> float:
        """What a node of these tensors computes, and neighbours send it meanwhile, under a choice."""
        return self._compute.of(choice.share) + choice.exchanged + self._waiting(choice, known)

    def floor(self, known: Known) -> float:
        """What it computes at least: no option splits it along axes that split none of its tensors."""
        found = self.floors.get(known)
        if found is None:
            axes = 0
            for tensor in known:
                if tensor is not None:
                    axes |= tensor.axes
            fixed = self.kind.fixed_option is not None
            found = self.floors[known] = self.least if fixed else self._compute.of(1 / self.graph.pricing.devices(axes))
        return found

    def _computed(self, known: Known) -> NodeCost:
        kind = self.kind
        own = 0.0
        if kind.is_identity:
            source, target = [tensor for tensor in known if tensor is not None]
            needs: tuple[Sharding, ...] = (self.graph.identity_need(kind, source, target),)
            arriving: tuple[float, ...] = (self._held(source).price(needs[0]),)
        else:
            choice = self._choices.fitting(known)
            if choice is not None:
                own = self._compute.of(choice.share)
                return NodeCost(own + self._waiting(choice, known), choice.needs, (0.0,) * len(choice.needs), ())
            choice, own, arriving = self._choices.cheapest(known)
            own += self._waiting(choice, known)
            needs = choice.needs
            if kind.kept or has_layout(known):
                held = zip(known, needs, strict=False)
                arriving = tuple([self._held(tensor).price(need) if tensor is not None else 0.0 for tensor, need in held])
            if self._byte:
                ends = zip(known, needs, arriving, strict=False)
                own += sum([self.cutting(tensor, need) for tensor, need, sent in ends if tensor is not None and not sent])
        return NodeCost(own, needs, arriving, tuple([place for place, moved in enumerate(arriving) if moved]))

    def _waiting(self, choice: Choice, known: Known) -> float:
        """What it costs that its shards are longer under way than what it computes of them."""
        if not self._byte:
            return 0.0
        shardings = (*choice.needs, *choice.computed)
        moved = sum(
            self._shard_bytes(tensor, sharding.split_axes)
            for tensor, sharding in zip(known, shardings, strict=True)
            if tensor is not None
        )
        return max(0.0, self._byte * moved - self._compute.of(choice.share))

    def cutting(self, tensor: Tensor, need: Sharding) -> float:
        """What it costs that an operand which nobody sends is cut to what a product needs: a kernel of its own reads that part
        and writes it. Other ops do so on the way."""
        if not self._byte or need.split_axes == tensor.split:
            return 0.0
        part = self._shard_bytes(tensor, need.split_axes)
        return 2 * self._byte * part if part < self._shard_bytes(tensor, tensor.split) else 0.0

    def _shard_bytes(self, tensor: Tensor, split: Split) -> float:
        return prod(local_shape(tensor.shape, self.graph.mesh, split)) * element_bytes(tensor.dtype)

    def _held(self, tensor: Tensor) -> EndPrices:
        """Bytes of resharding a tensor as it is decided."""
        return self.graph.pricing.arriving(tensor.type, tensor.sharding, tensor.gathered)


def _arriving(pricing: Pricing, tensor: Tensor, summed: Axes) -> EndPrices:
    held = tensor.sharding if tensor.layout is None else sharding_of(tensor.mesh, tensor.split)
    return pricing.arriving(tensor.type, with_partial(held, summed), tensor.gathered)


def _leaving(pricing: Pricing, share: float, tensor: Tensor, wanted: Sharding | None) -> EndPrices:
    plain = tensor.sharding if tensor.layout is None else sharding_of(tensor.mesh, tensor.split)
    target = with_split(wanted, tensor.split) if wanted else plain
    return pricing.leaving(tensor.type, target, share, tensor.reduced)


def costs_of_nodes(graph: Graph) -> list[KindCosts]:
    """Those of every node, by its number."""
    alike: dict[tuple[object, ...], KindCosts] = {}
    by_kind: dict[Kind, KindCosts] = {}
    for kind in dict.fromkeys([node.kind for node in graph.nodes]):
        handed_on = (kind.is_identity, kind.region_axes, kind.is_entry)
        key = (kind.rule, kind.kept, kind.fixed_option, kind.reduce_share, kind.sharing, *handed_on)
        if key not in alike:
            alike[key] = KindCosts(kind, graph)
        by_kind[kind] = alike[key]
    return [by_kind[node.kind] for node in graph.nodes]
