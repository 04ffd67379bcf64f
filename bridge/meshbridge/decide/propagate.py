"""Propagates shardings over the graph until nothing changes: backward, then forward, repeatedly (the RFC).

Every visit picks the op's cheapest option (`choice`) and extends the open dimensions of its tensors to fit. Splits only grow, so
the sweeps terminate. Ops that only pass their dimensions through go first: a contraction should not decide where they can.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import or_
from typing import Any

from meshbridge.decide.choice import EndPrices, Pair, Pricing, TensorType, extend
from meshbridge.decide.graph import Graph, Node, NodeKind, Tensor, across_region
from meshbridge.decide.kind_choices import KindChoices
from meshbridge.decide.required_subaxes import SubaxisSizes, required_subaxes
from meshbridge.ir.sharding import Axes, Sharding, Split
from meshbridge.ir.subaxes import subdivide
from meshbridge.ops.option import sharding_of

TRAVERSALS = {
    "forward": (1,),
    "backward": (-1,),
    "forward-backward": (1, -1),
    "backward-forward": (-1, 1),
}
"""Upstream's four traversal orders; -1 walks from the results."""

Changes = tuple[tuple[int, Tensor], ...]
"""The changes of a visit: indices among operands and results, each with the new tensor."""


class Propagator:
    """Propagates shardings over one graph; visits are memoised by the node's kind and tensors."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._memo: dict[tuple[object, ...], tuple[tuple[Tensor | None, ...], Changes]] = {}
        self._choices: dict[NodeKind, KindChoices] = {}
        self._hidden: dict[int, Tensor] = {}
        "Per tensor with an annotation of a later priority, the tensor before it was hidden."

    @property
    def count(self) -> int:
        """The number of distinct visits so far."""
        return len(self._memo)

    def run(self, traversal: str) -> None:
        """Sweeps to the fixed point, first over pass-through ops alone, then over all.

        With priorities, like Shardy: once per priority, with all annotations up to it; the later ones are hidden.
        """
        graph = self.graph
        passing = bytearray([node.kind.passes_through for node in graph.nodes])
        for level in sorted({0, *[priority for tensor in {*graph.tensors} for priority in tensor.priorities]}):
            hidden = {tensor for tensor in {*graph.tensors} if max(tensor.priorities, default=0) > level}
            self._hidden = {index: tensor for index, tensor in enumerate(graph.tensors) if tensor in hidden}
            for index, tensor in self._hidden.items():
                graph.describe(index, **_hidden(tensor, level))
            for enabled in (passing, bytearray([True]) * len(passing)):
                self._sweep(TRAVERSALS[traversal], enabled)
            if self._hidden:
                self._reveal(level)

    def _reveal(self, level: int) -> None:
        """Restores hidden dimensions; all other splits so far are decided."""
        graph = self.graph
        for index, propagated in enumerate(graph.tensors):
            closed = tuple(map(bool, propagated.split))
            decided = tuple(map(or_, closed, propagated.decided)) if propagated.decided else closed
            if (hidden_tensor := self._hidden.get(index)) is None:
                graph.describe(index, decided=decided)
            else:
                is_hidden = tuple(priority > level for priority in hidden_tensor.priorities)
                split = tuple(
                    user if hide else current
                    for hide, user, current in zip(is_hidden, hidden_tensor.split, propagated.split, strict=True)
                )
                graph.describe(index, decided=decided, split=split, open=hidden_tensor.open, banned=hidden_tensor.banned)

    def _sweep(self, directions: Sequence[int], enabled: bytearray) -> None:
        """Visits the `enabled` nodes in these directions until nothing changes; `pending` flags the nodes to visit."""
        pending = bytearray(len(enabled))
        for index in self._initial_nodes():
            pending[index] = enabled[index]
        while any(pending):
            for direction in directions:
                self._walk(pending, direction, enabled)

    def _initial_nodes(self) -> Iterable[int]:
        """The nodes whose visit may change something: a tensor is split, or the user gave an option."""
        graph = self.graph
        is_sharded = {
            tensor: (any(tensor.split), bool(tensor.layout and tensor.layout.partial_axes)) for tensor in {*graph.tensors}
        }
        for index, tensor in enumerate(graph.tensors):
            is_split, is_partial = is_sharded[tensor]
            if is_split:
                yield from graph.users[index]
            elif is_partial:
                nodes = ((user, graph.nodes[user]) for user in graph.users[index])
                yield from [user for user, node in nodes if index in node.results and not node.kind.unreduced]
        yield from [index for index, node in enumerate(graph.nodes) if node.kind.fixed_option is not None]

    def _walk(self, pending: bytearray, direction: int, enabled: bytearray) -> None:
        """Visits the pending nodes in one direction, including those that become pending ahead; others stay pending."""
        nodes, users = self.graph.nodes, self.graph.users
        position = pending.find(1) if direction > 0 else pending.rfind(1)
        while position >= 0:
            pending[position] = 0
            node = nodes[position]
            if changes := self._visit(node):
                tensors, numbers = self.graph.tensors, node.operands + node.results
                for end, tensor in changes:
                    tensors[number := numbers[end]] = tensor
                    for user in users[number]:
                        pending[user] = enabled[user]
                pending[position] = len({*numbers}) < len(numbers)
            position = pending.find(1, position + 1) if direction > 0 else pending.rfind(1, 0, position)

    def _visit(self, node: Node) -> Changes:
        """Extends the node's tensors to its best option and returns the changes. A tensor in several positions takes one of the
        extensions; such a node must be visited again."""
        tensors = self.graph.tensors
        known = tuple([tensors[tensor] if tensor >= 0 else None for tensor in node.operands + node.results])
        key = (node.kind, known)
        visit = self._memo.get(key)
        if visit is None:
            if node.kind.requires_subaxes and (cuts := required_subaxes(node.rule, known, self.graph.mesh)):
                self._cut(cuts)
                return self._visit(node)
            after = known
            while (further := (self._memo.get((node.kind, after)) or (self._after(node, after),))[0]) != after:
                after = further
            changes = [(end, tensor) for end, tensor in enumerate(after) if tensor is not known[end] and tensor is not None]
            self._memo[node.kind, after] = after, ()
            self._memo[key] = visit = after, tuple(changes)
        return visit[1]

    def _cut(self, cuts: SubaxisSizes) -> None:
        """Splits axes into sub-axes: earlier splits become splits along all parts, and from now on a part can be used alone."""
        renumbered = self.graph.renumber(subdivide(self.graph.mesh, cuts))
        self._hidden = {index: renumbered(tensor) for index, tensor in self._hidden.items()}
        self._memo.clear()
        self._choices.clear()

    def _after(self, node: Node, known: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """The tensors of a node after a visit."""
        kind = node.kind
        if kind.region_axes or not (kind.forward and kind.backward):
            return _across_identity(kind, *[tensor for tensor in known if tensor is not None])
        if kind.fixed_option is not None:
            choice = self.graph.pricing.op(kind.rule, kind.unreduced).choice(kind.fixed_option)
        else:
            choices = self._choices_of(kind)
            if choices.fitting(known) is not None:
                return known
            choice = choices.cheapest(known)[0]
        if kind.rule.blocked:
            option = tuple(() if loop in kind.rule.blocked else axes for loop, axes in enumerate(choice.option))
            choice = self.graph.pricing.op(kind.rule, kind.unreduced).choice(option)
        wanted = [sharding.split_axes for sharding in (*choice.needs, *choice.computed)]
        return tuple(
            tensor.with_split(extend(tensor.split, want, tensor.open, tensor.banned)) if tensor is not None else None
            for tensor, want in zip(known, wanted, strict=True)
        )

    def _choices_of(self, kind: NodeKind) -> KindChoices:
        """The choices of such nodes during propagation: extending a tensor is free."""
        choices = self._choices.get(kind)
        if choices is None:
            pricing, passed, share = self.graph.pricing, max(kind.unreduced, default=()), kind.reduce_share
            choices = self._choices[kind] = KindChoices(
                kind,
                pricing,
                lambda tensor, _: _arriving(pricing, tensor.type, tensor.split, tensor.open, tensor.banned),
                lambda tensor, _: _leaving(pricing, tensor.type, tensor.split, tensor.open, tensor.banned, passed, share),
            )
        return choices


@lru_cache(maxsize=1 << 14)
def _arriving(
    pricing: Pricing, kind: TensorType, source: Split, may_extend: tuple[bool, ...], banned: frozenset[int]
) -> EndPrices:
    """Bytes of resharding an operand, after extending it to the op's need."""

    def pair(need: Sharding) -> Pair:
        split = extend(source, need.split_axes, may_extend, banned)
        return sharding_of(need.mesh, split, need.partial_axes), need, 1.0

    return pricing.prices(kind, pair)


@lru_cache(maxsize=1 << 14)
def _leaving(
    pricing: Pricing,
    kind: TensorType,
    target: Split,
    may_extend: tuple[bool, ...],
    banned: frozenset[int],
    passed: Axes,
    share: float,
) -> EndPrices:
    """Bytes of resharding the computed value to a result, after extending that; partial sums that are passed on stay partial."""

    def pair(computed: Sharding) -> Pair:
        split = extend(target, computed.split_axes, may_extend, banned)
        return computed, sharding_of(computed.mesh, split, passed), share if computed.partial_axes else 1.0

    return pricing.prices(kind, pair)


def _across_identity(kind: NodeKind, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """At the boundary of a manual computation, or a barrier: extends each side to the split of the other."""

    def extended(own: Tensor, opposite: Tensor) -> Tensor:
        wanted = across_region(opposite.split, own.split, kind.region_axes) if kind.region_axes else opposite.split
        return own.with_split(extend(own.split, wanted, own.open, own.banned))

    if kind.forward:
        target = extended(target, source)
    if kind.backward:
        source = extended(source, target)
    return source, target


def _hidden(tensor: Tensor, level: int) -> dict[str, Any]:
    """The fields of a tensor without annotations of a priority beyond `level`. Their axes are excluded, so that no other split
    replaces them."""
    is_hidden = [priority > level for priority in tensor.priorities]
    axes = {axis for axes, hide in zip(tensor.split, is_hidden, strict=True) if hide for axis in axes}
    return {
        "split": tuple(() if hide else axes for axes, hide in zip(tensor.split, is_hidden, strict=True)),
        "open": tuple(may and not hide for may, hide in zip(tensor.open, is_hidden, strict=True)),
        "banned": tensor.banned | axes,
    }
