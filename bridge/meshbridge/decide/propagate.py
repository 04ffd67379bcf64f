"""Propagating shardings over the graph until nothing changes: backward, then forward, again and again (the RFC).

Every visit picks the op's cheapest option (`choice`) and extends the open dimensions of its tensors to fit. Splits only
ever grow,
so the sweeps end. Ops that merely pass their dimensions through go first: where they can decide, a contraction should not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import or_

from meshbridge.decide.choice import extend, options, propagation_cost
from meshbridge.decide.graph import Graph, Node, Tensor, across_region
from meshbridge.ir.sharding import Axes, Split
from meshbridge.ops.option import Option, result_sharding, tensor_split

Known = tuple[Split, tuple[bool, ...], frozenset[int]]
"""A tensor's split, its open dimensions and its banned axes."""

TRAVERSALS = {
    "forward": (1,),
    "backward": (-1,),
    "forward-backward": (1, -1),
    "backward-forward": (-1, 1),
}
"""Upstream's four traversal orders; -1 walks from the results."""


@dataclass(frozen=True)
class Hidden:
    """What a tensor was before some of its dimensions were hidden."""

    tensor: Tensor
    later: tuple[bool, ...]
    split: Split
    open: tuple[bool, ...]
    banned: frozenset[int]

    def restore(self) -> None:
        """Gives the hidden dimensions back; the others keep what they have been given meanwhile."""
        tensor = self.tensor
        tensor.split = tuple(user if hide else now for hide, user, now in zip(self.later, self.split, tensor.split, strict=True))
        tensor.open, tensor.banned = self.open, self.banned


def _hide(tensor: Tensor, level: int) -> Hidden:
    """Removes what the user says with a priority beyond `level`, and keeps other splits from replacing it."""
    later = tuple(priority > level for priority in tensor.priorities)
    hidden = Hidden(tensor, later, tensor.split, tensor.open, tensor.banned)
    tensor.banned |= {axis for axes, hide in zip(tensor.split, later, strict=True) if hide for axis in axes}
    tensor.split = tuple(() if hide else axes for axes, hide in zip(tensor.split, later, strict=True))
    tensor.open = tuple(may and not hide for may, hide in zip(tensor.open, later, strict=True))
    return hidden


class Propagator:
    """Propagates shardings over one graph; choices are memoised by loop rule and what is known of the tensors."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._memo: dict[tuple[object, ...], tuple[Split, ...]] = {}
        self._known: list[Known | None] = [*map(_known, graph.tensors), None]
        "What is known of every tensor; the last entry is tensor -1's."
        self._partial = [graph.wanted_partial(node) for node in graph.nodes]

    def run(self, traversal: str) -> None:
        """Sweeps to the fixed point, first over pass-through ops alone, then over all.

        Where the user has given priorities, as Shardy does: once per priority, with all annotations up to it, the others hidden.
        """
        passing = [is_pass_through(node) for node in self.graph.nodes]
        tensors = self.graph.tensors
        levels = sorted({0, *[priority for tensor in tensors for priority in tensor.priorities]})
        for level in levels:
            hidden = [_hide(tensor, level) for tensor in tensors if max(tensor.priorities, default=0) > level]
            self._known = [*map(_known, tensors), None]
            for only_passing in (True, False):
                self._sweep(TRAVERSALS[traversal], [not only_passing or passes for passes in passing])
            if hidden:
                decided = [tuple(map(bool, tensor.split)) for tensor in tensors]
                for before in hidden:
                    before.restore()
                for tensor, closed in zip(tensors, decided, strict=True):
                    tensor.decided = tuple(map(or_, closed, tensor.decided)) if tensor.decided else closed

    def _sweep(self, directions: Sequence[int], enabled: list[bool]) -> None:
        dirty = {index for index, node in enumerate(self.graph.nodes) if enabled[index] and self._says_something(index, node)}
        while dirty:
            for direction in directions:
                dirty = self._walk(dirty, direction, enabled)

    def _walk(self, dirty: set[int], direction: int, enabled: list[bool]) -> set[int]:
        """Visits the `dirty` nodes in one direction, and what they change ahead of them; returns what they change behind."""
        ahead = [direction * index for index in dirty]
        heapify(ahead)
        behind: set[int] = set()
        while ahead:
            place = heappop(ahead)
            dirty.discard(direction * place)
            for tensor in self._visit(direction * place, self.graph.nodes[direction * place]):
                self._known[tensor] = _known(self.graph.tensors[tensor])
                for user in self.graph.users[tensor]:
                    if enabled[user] and user not in dirty:
                        if direction * user > place:
                            dirty.add(user)
                            heappush(ahead, direction * user)
                        else:
                            behind.add(user)
        return behind

    def _says_something(self, index: int, node: Node) -> bool:
        """Whether a visit may change anything: something is split, or the user has chosen."""
        if self._partial[index] or node.fixed_option is not None:
            return True
        known = [self._known[tensor] for tensor in (*node.operands, *node.results)]
        return any(entry is not None and any(entry[0]) for entry in known)

    def _visit(self, index: int, node: Node) -> list[int]:
        """Extends the node's tensors to its best option; returns the tensors that changed."""
        if node.region_axes or not (node.forward and node.backward):
            return self._pass_on(node)
        tensors, known = self.graph.tensors, self._known
        numbers = (*node.operands, *node.results)
        partial = self._partial[index]
        key = (node.rule, *[known[tensor] for tensor in numbers], node.fixed_option, partial, node.kept, node.reduce_share)
        splits = self._memo.get(key)
        if splits is None:
            splits = self._memo[key] = self._decide(node, numbers, partial)
        changed = []
        for tensor, split in zip(numbers, splits, strict=True):
            if tensor >= 0 and tensors[tensor].split != split:
                tensors[tensor].split = split
                changed.append(tensor)
        return changed

    def _pass_on(self, node: Node) -> list[int]:
        """An identity at the edge of a manual computation, or a barrier: each side is extended to what the other one is there."""
        source, target = node.operands[0], node.results[0]
        changed = []
        for here, there, allowed in ((target, source, node.forward), (source, target, node.backward)):
            own, other = self.graph.tensors[here], self.graph.tensors[there]
            wanted = across_region(other.split, own.split, node.region_axes) if node.region_axes else other.split
            split = extend(own.split, wanted, own.open, own.banned) if allowed else own.split
            if split != own.split:
                own.split = split
                changed.append(here)
        return changed

    def _decide(self, node: Node, numbers: tuple[int, ...], partial: Axes) -> tuple[Split, ...]:
        tensors, mesh, rule = self.graph.tensors, self.graph.mesh, node.rule
        splits: list[Split] = [tensors[tensor].split if tensor >= 0 else () for tensor in numbers]
        if node.fixed_option is not None:
            option: Option = node.fixed_option
        else:
            described = [
                (tensors[tensor].shape, tensors[tensor].dtype, tensors[tensor].split, tensors[tensor].open)
                if tensor >= 0
                else ((), "", (), ())
                for tensor in numbers
            ]
            count = len(node.operands)
            banned = [tensors[tensor].banned if tensor >= 0 else frozenset() for tensor in numbers]
            option = min(
                options(rule, splits, mesh, partial, max(node.kept, default=())),
                key=lambda tried: propagation_cost(
                    rule, tried, described[:count], described[count:], banned, mesh, node.reduce_share
                ),
            )
        if rule.blocked:
            option = tuple(() if loop in rule.blocked else axes for loop, axes in enumerate(option))
        wanted = [tensor_split(dims, option) for dims in rule.operands]
        wanted += [result_sharding(rule, option, index, mesh).split_axes for index in range(len(rule.results))]
        return tuple(
            extend(split, want, tensors[tensor].open, tensors[tensor].banned) if tensor >= 0 else split
            for tensor, split, want in zip(numbers, splits, wanted, strict=True)
        )


def _known(tensor: Tensor) -> Known:
    return tensor.split, tensor.open, tensor.banned


def is_pass_through(node: Node) -> bool:
    """Whether no loop of the node is a reduction and every tensor has them all: elementwise ops, transposes, identities."""
    rule = node.rule
    if any(loop.reduction for loop in rule.loops):
        return False
    walked = {sum(map(len, dims)) for dims in (*rule.operands, *rule.results) if dims}
    return len(walked) <= 1
