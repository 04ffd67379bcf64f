"""Spreading shardings over the graph until nothing changes: backward, then forward, again and again (seed 000).

Every visit picks the op's cheapest option (`choice`) and extends the open dimensions of its tensors to fit. Splits only
ever grow,
so the sweeps end. Ops that merely pass their dimensions through go first: where they can decide, a contraction should not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import or_

from meshbridge.decide.choice import extend, options, spreading_cost
from meshbridge.decide.graph import Graph, Node, Slot, across_border
from meshbridge.ir.sharding import Axes, Split
from meshbridge.ops.option import Option, result_sharding, tensor_split

Known = tuple[Split, tuple[bool, ...], frozenset[int]]
"""A slot's split, its open dimensions and its banned axes."""

TRAVERSALS = {
    "forward": (1,),
    "backward": (-1,),
    "forward-backward": (1, -1),
    "backward-forward": (-1, 1),
}
"""Upstream's four traversal orders; -1 walks from the results."""


@dataclass(frozen=True)
class Hidden:
    """What a slot was before some of its dimensions were hidden."""

    slot: Slot
    later: tuple[bool, ...]
    split: Split
    open: tuple[bool, ...]
    banned: frozenset[int]

    def restore(self) -> None:
        """Gives the hidden dimensions back; the others keep what they have been given meanwhile."""
        slot = self.slot
        slot.split = tuple(user if hide else now for hide, user, now in zip(self.later, self.split, slot.split, strict=True))
        slot.open, slot.banned = self.open, self.banned


def _hide(slot: Slot, level: int) -> Hidden:
    """Takes back what the user says with a priority beyond `level`, and keeps other splits from taking its place."""
    later = tuple(priority > level for priority in slot.priorities)
    hidden = Hidden(slot, later, slot.split, slot.open, slot.banned)
    slot.banned |= {axis for axes, hide in zip(slot.split, later, strict=True) if hide for axis in axes}
    slot.split = tuple(() if hide else axes for axes, hide in zip(slot.split, later, strict=True))
    slot.open = tuple(may and not hide for may, hide in zip(slot.open, later, strict=True))
    return hidden


class Spreader:
    """Spreads shardings over one graph; choices are memoised by loop nest and what is known of the tensors."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._memo: dict[tuple[object, ...], tuple[Split, ...]] = {}
        self._known: list[Known | None] = [*map(_known, graph.slots), None]
        "What is known of every slot; the last entry is slot -1's."
        self._partial = [graph.wanted_partial(node) for node in graph.nodes]

    def run(self, traversal: str) -> None:
        """Sweeps to the fixed point, first over pass-through ops alone, then over all.

        Where the user has given priorities, as Shardy does: once per priority, with all annotations up to it, the others hidden.
        """
        passing = [is_pass_through(node) for node in self.graph.nodes]
        slots = self.graph.slots
        levels = sorted({0, *[priority for slot in slots for priority in slot.priorities]})
        for level in levels:
            hidden = [_hide(slot, level) for slot in slots if max(slot.priorities, default=0) > level]
            self._known = [*map(_known, slots), None]
            for only_passing in (True, False):
                self._sweep(TRAVERSALS[traversal], [not only_passing or passes for passes in passing])
            if hidden:
                decided = [tuple(map(bool, slot.split)) for slot in slots]
                for before in hidden:
                    before.restore()
                for slot, closed in zip(slots, decided, strict=True):
                    slot.settled = tuple(map(or_, closed, slot.settled)) if slot.settled else closed

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
            for slot in self._visit(direction * place, self.graph.nodes[direction * place]):
                self._known[slot] = _known(self.graph.slots[slot])
                for user in self.graph.users[slot]:
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
        known = [self._known[slot] for slot in (*node.operands, *node.results)]
        return any(entry is not None and any(entry[0]) for entry in known)

    def _visit(self, index: int, node: Node) -> list[int]:
        """Extends the node's tensors to its best option; returns the slots that changed."""
        if node.border or not (node.forward and node.backward):
            return self._pass_on(node)
        slots, known = self.graph.slots, self._known
        tensors = (*node.operands, *node.results)
        partial = self._partial[index]
        key = (node.nest, *[known[slot] for slot in tensors], node.fixed_option, partial, node.kept, node.finish_share)
        splits = self._memo.get(key)
        if splits is None:
            splits = self._memo[key] = self._decide(node, tensors, partial)
        changed = []
        for slot, split in zip(tensors, splits, strict=True):
            if slot >= 0 and slots[slot].split != split:
                slots[slot].split = split
                changed.append(slot)
        return changed

    def _pass_on(self, node: Node) -> list[int]:
        """An identity at a border or a barrier: each side is extended to what the other one is there."""
        source, target = node.operands[0], node.results[0]
        changed = []
        for here, there, allowed in ((target, source, node.forward), (source, target, node.backward)):
            own, other = self.graph.slots[here], self.graph.slots[there]
            wanted = across_border(other.split, own.split, node.border) if node.border else other.split
            split = extend(own.split, wanted, own.open, own.banned) if allowed else own.split
            if split != own.split:
                own.split = split
                changed.append(here)
        return changed

    def _decide(self, node: Node, tensors: tuple[int, ...], partial: Axes) -> tuple[Split, ...]:
        slots, mesh, nest = self.graph.slots, self.graph.mesh, node.nest
        splits: list[Split] = [slots[slot].split if slot >= 0 else () for slot in tensors]
        if node.fixed_option is not None:
            option: Option = node.fixed_option
        else:
            described = [
                (slots[slot].shape, slots[slot].dtype, slots[slot].split, slots[slot].open) if slot >= 0 else ((), "", (), ())
                for slot in tensors
            ]
            count = len(node.operands)
            banned = [slots[slot].banned if slot >= 0 else frozenset() for slot in tensors]
            option = min(
                options(nest, splits, mesh, partial, max(node.kept, default=())),
                key=lambda tried: spreading_cost(
                    nest, tried, described[:count], described[count:], banned, mesh, node.finish_share
                ),
            )
        if nest.blocked:
            option = tuple(() if loop in nest.blocked else axes for loop, axes in enumerate(option))
        wanted = [tensor_split(dims, option) for dims in nest.operands]
        wanted += [result_sharding(nest, option, index, mesh).split_axes for index in range(len(nest.results))]
        return tuple(
            extend(split, want, slots[slot].open, slots[slot].banned) if slot >= 0 else split
            for slot, split, want in zip(tensors, splits, wanted, strict=True)
        )


def _known(slot: Slot) -> Known:
    return slot.split, slot.open, slot.banned


def is_pass_through(node: Node) -> bool:
    """Whether no loop of the node is a reduction and every tensor walks them all: elementwise ops, transposes, identities."""
    nest = node.nest
    if any(loop.reduction for loop in nest.loops):
        return False
    walked = {sum(map(len, dims)) for dims in (*nest.operands, *nest.results) if dims}
    return len(walked) <= 1
