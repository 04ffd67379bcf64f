"""Propagating shardings over the graph until nothing changes: backward, then forward, again and again (the RFC).

Every visit picks the op's cheapest option (`choice`) and extends the open dimensions of its tensors to fit. Splits only
ever grow, so the sweeps end. Ops that merely pass their dimensions through go first: where they can decide, a contraction should
not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import or_
from typing import Any

from meshbridge.decide.choice import EndPrices, Pair, Pricing, TensorType, extend
from meshbridge.decide.cut_axes import Cuts, wanted_cuts
from meshbridge.decide.graph import Graph, Kind, Node, Tensor, across_region
from meshbridge.decide.kind_choices import KindChoices
from meshbridge.ir.sharding import Axes, Sharding, Split
from meshbridge.ir.subaxes import cut
from meshbridge.ops.option import sharding_of

TRAVERSALS = {
    "forward": (1,),
    "backward": (-1,),
    "forward-backward": (1, -1),
    "backward-forward": (-1, 1),
}
"""Upstream's four traversal orders; -1 walks from the results."""

Changes = tuple[tuple[int, Tensor], ...]
"""What a visit changes: places among operands and results, each with what is known of the tensor there after it."""


class Propagator:
    """Propagates shardings over one graph; what a visit does is memoised by the node's kind and what is known of its tensors."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._memo: dict[tuple[object, ...], tuple[tuple[Tensor | None, ...], Changes]] = {}
        self._choices: dict[Kind, KindChoices] = {}
        self._hidden: dict[int, Tensor] = {}
        "What is hidden of the user's annotations so far, by tensor."

    @property
    def count(self) -> int:
        """How many visits differed from all before."""
        return len(self._memo)

    def run(self, traversal: str) -> None:
        """Sweeps to the fixed point, first over pass-through ops alone, then over all.

        Where the user has given priorities, as Shardy does: once per priority, with all annotations up to it, the others hidden.
        """
        graph = self.graph
        passing = bytearray([node.kind.passes_through for node in graph.nodes])
        for level in sorted({0, *[priority for tensor in {*graph.tensors} for priority in tensor.priorities]}):
            later = {tensor for tensor in {*graph.tensors} if max(tensor.priorities, default=0) > level}
            self._hidden = {index: tensor for index, tensor in enumerate(graph.tensors) if tensor in later}
            for index, tensor in self._hidden.items():
                graph.describe(index, **_hidden(tensor, level))
            for enabled in (passing, bytearray([True]) * len(passing)):
                self._sweep(TRAVERSALS[traversal], enabled)
            if self._hidden:
                self._reveal(level)

    def _reveal(self, level: int) -> None:
        """Gives hidden dimensions back; the others keep what they have been given meanwhile, which is decided."""
        graph = self.graph
        for index, now in enumerate(graph.tensors):
            closed = tuple(map(bool, now.split))
            decided = tuple(map(or_, closed, now.decided)) if now.decided else closed
            if (before := self._hidden.get(index)) is None:
                graph.describe(index, decided=decided)
            else:
                later = tuple(priority > level for priority in before.priorities)
                split = tuple(user if hide else new for hide, user, new in zip(later, before.split, now.split, strict=True))
                graph.describe(index, decided=decided, split=split, open=before.open, banned=before.banned)

    def _sweep(self, directions: Sequence[int], enabled: bytearray) -> None:
        """Visits the `enabled` nodes in these directions until nothing changes; one byte a node says what is left to visit."""
        left = bytearray(len(enabled))
        for index in self._telling():
            left[index] = enabled[index]
        while any(left):
            for direction in directions:
                self._walk(left, direction, enabled)

    def _telling(self) -> Iterable[int]:
        """The nodes whose visit may change anything: something is split, or the user has chosen."""
        graph = self.graph
        known = {tensor: (any(tensor.split), bool(tensor.layout and tensor.layout.partial_axes)) for tensor in {*graph.tensors}}
        for index, tensor in enumerate(graph.tensors):
            is_split, is_partial = known[tensor]
            if is_split:
                yield from graph.users[index]
            elif is_partial:
                nodes = ((user, graph.nodes[user]) for user in graph.users[index])
                yield from [user for user, node in nodes if index in node.results and not node.kind.kept]
        yield from [index for index, node in enumerate(graph.nodes) if node.kind.fixed_option is not None]

    def _walk(self, left: bytearray, direction: int, enabled: bytearray) -> None:
        """Visits what is `left` in one direction, with what that changes ahead; what it changes behind stays left."""
        nodes, users = self.graph.nodes, self.graph.users
        place = left.find(1) if direction > 0 else left.rfind(1)
        while place >= 0:
            left[place] = 0
            node = nodes[place]
            if changes := self._visit(node):
                tensors, numbers = self.graph.tensors, node.operands + node.results
                for end, tensor in changes:
                    tensors[number := numbers[end]] = tensor
                    for user in users[number]:
                        left[user] = enabled[user]
                left[place] = len({*numbers}) < len(numbers)
            place = left.find(1, place + 1) if direction > 0 else left.rfind(1, 0, place)

    def _visit(self, node: Node) -> Changes:
        """Extends the node's tensors to its best option: says what changes. A tensor that stands in several places becomes
        what one of them makes of it, so that such a node is to be visited again."""
        tensors = self.graph.tensors
        known = tuple([tensors[tensor] if tensor >= 0 else None for tensor in node.operands + node.results])
        key = (node.kind, known)
        found = self._memo.get(key)
        if found is None:
            if node.kind.cuts and (cuts := wanted_cuts(node.rule, known, self.graph.mesh)):
                self._cut(cuts)
                return self._visit(node)
            after = known
            while (further := (self._memo.get((node.kind, after)) or (self._after(node, after),))[0]) != after:
                after = further
            changes = [(end, new) for end, new in enumerate(after) if new is not known[end] and new is not None]
            self._memo[node.kind, after] = after, ()
            self._memo[key] = found = after, tuple(changes)
        return found[1]

    def _cut(self, cuts: Cuts) -> None:
        """Cuts axes: what has been propagated along them holds along their parts, and from here on a part can go alone."""
        renumbered = self.graph.renumber(cut(self.graph.mesh, cuts))
        self._hidden = {index: renumbered(tensor) for index, tensor in self._hidden.items()}
        self._memo.clear()
        self._choices.clear()

    def _after(self, node: Node, known: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        """What is known of the tensors of a node once it has been visited."""
        kind = node.kind
        if kind.region_axes or not (kind.forward and kind.backward):
            return _passed_on(kind, *[tensor for tensor in known if tensor is not None])
        if kind.fixed_option is not None:
            choice = self.graph.pricing.op(kind.rule, kind.kept).choice(kind.fixed_option)
        else:
            choices = self._choices_of(kind)
            if choices.fitting(known) is not None:
                return known
            choice = choices.cheapest(known)[0]
        if kind.rule.blocked:
            option = tuple(() if loop in kind.rule.blocked else axes for loop, axes in enumerate(choice.option))
            choice = self.graph.pricing.op(kind.rule, kind.kept).choice(option)
        wanted = [sharding.split_axes for sharding in (*choice.needs, *choice.computed)]
        return tuple(
            tensor.with_split(extend(tensor.split, want, tensor.open, tensor.banned)) if tensor is not None else None
            for tensor, want in zip(known, wanted, strict=True)
        )

    def _choices_of(self, kind: Kind) -> KindChoices:
        """What such nodes choose from while shardings are still being propagated: what may still be extended to fit is free."""
        found = self._choices.get(kind)
        if found is None:
            pricing, passed, share = self.graph.pricing, max(kind.kept, default=()), kind.reduce_share
            found = self._choices[kind] = KindChoices(
                kind,
                pricing,
                lambda tensor, _: _arriving(pricing, tensor.type, tensor.split, tensor.open, tensor.banned),
                lambda tensor, _: _leaving(pricing, tensor.type, tensor.split, tensor.open, tensor.banned, passed, share),
            )
        return found


@lru_cache(maxsize=1 << 14)
def _arriving(
    pricing: Pricing, kind: TensorType, source: Split, may_extend: tuple[bool, ...], banned: frozenset[int]
) -> EndPrices:
    """Bytes of resharding an operand that has been extended to what is needed of it."""

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
    """Bytes of resharding what is computed to a result that has been extended; terms that are passed on stay apart."""

    def pair(computed: Sharding) -> Pair:
        split = extend(target, computed.split_axes, may_extend, banned)
        return computed, sharding_of(computed.mesh, split, passed), share if computed.partial_axes else 1.0

    return pricing.prices(kind, pair)


def _passed_on(kind: Kind, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """At the edge of a manual computation, or a barrier: each side is extended to what the other one is there."""

    def extended(own: Tensor, other: Tensor) -> Tensor:
        wanted = across_region(other.split, own.split, kind.region_axes) if kind.region_axes else other.split
        return own.with_split(extend(own.split, wanted, own.open, own.banned))

    if kind.forward:
        target = extended(target, source)
    if kind.backward:
        source = extended(source, target)
    return source, target


def _hidden(tensor: Tensor, level: int) -> dict[str, Any]:
    """What changes of a tensor where nothing is known that the user says with a priority beyond `level`: other splits must not
    replace it."""
    later = [priority > level for priority in tensor.priorities]
    axes = {axis for axes, hide in zip(tensor.split, later, strict=True) if hide for axis in axes}
    return {
        "split": tuple(() if hide else axes for axes, hide in zip(tensor.split, later, strict=True)),
        "open": tuple(may and not hide for may, hide in zip(tensor.open, later, strict=True)),
        "banned": tensor.banned | axes,
    }
