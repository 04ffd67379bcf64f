"""Refinement: changes of dimension classes while the modelled communication falls.

Whether the residual stream of a transformer is split along its width is one decision over a thousand ops; changing it at one op
only adds reshards. So a move changes a class of dimensions (`dimension_classes`). Layers that repeat are folded into one first
(`fold_layers`), so that they decide alike and cost one layer's time.

A move gives a class other axes, taking them from the other dimensions of the tensors concerned; it stays if the total cost falls.
Cost: for every op its cheapest option (`node_costs`), every distinct need of a value counted once however many uses share it.

The moves of a class are drafted with what is known: costs of nodes met before, and what others compute at least. Then nodes are
priced one by one, those that compute most first, always of the draft that could save most; so most moves are given up early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import chain, permutations
from operator import itemgetter
from typing import NamedTuple

from meshbridge.decide.choice import ROUNDING
from meshbridge.decide.dimension_classes import ClassSize, Dimension, classes_of
from meshbridge.decide.graph import Graph, Tensor, across_region
from meshbridge.decide.held import local_bytes
from meshbridge.decide.kind_choices import Known
from meshbridge.decide.node_costs import NodeCost, costs_of_nodes
from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split
from meshbridge.ir.subaxes import whole_and_parts, whole_split

MOST_PADDING = 1 / 8
"""A dimension is sharded where its shards together are at most this part longer: 257 lines of a spectrum on 8 devices, not 3.

Measured: from 0 to 1 nothing changes on the programs of `benchmarks.constants`, whose sizes divide evenly. That uneven dimensions
of real programs prefer this bound to another one is not measured."""

LEAST_GAIN = 1e-5
"""A change stays if it saves at least this part of the total: below it, rounding decides, and collectives multiply for nothing.

Measured (`benchmarks.constants`): with 0, llama_scan_fsdp executes 230 collectives for 22,571 KB instead of 211 for 22,573, and
resnet_spatial 57 for 292.6 instead of 47 for 293.1. With 1e-3, gpt12 sends 29,575 KB instead of 29,419."""

Reader = tuple[int, int, bool]
"""A node that reads a tensor, the operand that it is there, and whether it does so in the loop that carries it."""

Changes = dict[int, Tensor]
"""Tensors by number, as they are to be."""


class TiedTensors(NamedTuple):
    """Tensors of a class of which the same dimensions are of it, and the same is known."""

    dims: tuple[int, ...]
    tensor: Tensor
    members: list[int]
    price: float
    "What it costs to hold a byte of each of them."


@dataclass
class PartialMove:
    """A move of which not all is priced."""

    number: int
    "Its place among the moves of its class."
    tensors: Changes
    freed: float
    "How much less it costs to hold them."
    left: float
    "What it could save at most."
    dearest: dict[int, float]
    "Per tensor, its uses that stay, or its dearest one if that is more: all of them cost so much at least."
    costs: dict[int, NodeCost] = field(default_factory=dict)
    "The costs of nodes as they become, as far as they are known."
    unknown: list[tuple[int, Known, float]] = field(default_factory=list)
    "The other nodes, their tensors, and what they cost at least; the one that computes most comes last."

    def __lt__(self, other: PartialMove) -> bool:
        """Whether it could save more."""
        return self.left > other.left


@dataclass(frozen=True)
class PricedMove:
    """What a move changes: how much the total falls, and tensors, costs of nodes and of uses as they become."""

    number: int
    gain: float
    tensors: Changes
    costs: dict[int, NodeCost]
    shared: dict[int, float]


@dataclass(frozen=True)
class DimensionClass:
    """Dimensions that are sharded alike, the nodes that mention their tensors, and the tensors that those read."""

    dimensions: tuple[Dimension, ...]
    members: dict[int, tuple[int, ...]]
    "The dimensions by tensor."
    near: tuple[int, ...]
    read: tuple[int, ...]


class Refiner:
    """Refines the splits of one folded graph in place."""

    def __init__(self, graph: Graph, budget: int, memory_prices: Sequence[float] = (), axes: Iterable[int] | None = None) -> None:
        """Classes move along `axes`: by default along those that shard something."""
        self.graph = graph
        self.budget = budget
        "Moves that may still be tried."
        self._memory_prices = memory_prices
        "Per tensor, what it costs to hold a byte of it; none where memory has no price."
        self._local_bytes = cache(lambda tensor: local_bytes(tensor, graph.mesh))
        self._members = [(*node.operands, *node.results) for node in graph.nodes]
        self._known = [_known_of(members) for members in self._members]
        self._kinds = costs_of_nodes(graph)
        self._weights = [node.kind.weight for node in graph.nodes]
        self._readers = self._readers_of_tensors()
        self._order = self._largest_first()
        self._costs = [kind.cost(known(graph.tensors)) for kind, known in zip(self._kinds, self._known, strict=True)]
        self._own = [weight * cost.own for weight, cost in zip(self._weights, self._costs, strict=True)]
        self._shared = [self._uses(tensor, {}) for tensor in range(len(graph.tensors))]
        self.total = sum(self._own) + sum(self._shared) + self.held
        self._moved: dict[tuple[Tensor, tuple[int, ...], Axes], Tensor | None] = {}
        "Tensors as moves make them, by which of their dimensions go to which axes; None where they may not."
        self._choices_of_axes = _choices_of_axes(graph.mesh, _used_axes(graph) if axes is None else {*axes})
        self._stale = set(range(len(graph.tensors)))
        "Tensors near which something has changed since their classes were last tried."

    @property
    def held(self) -> float:
        """What it costs to hold all tensors as they are."""
        return self._held(range(len(self.graph.tensors)))

    def run(self, *sizes: ClassSize) -> int:
        """Tries the moves of all classes, size after size, until none helps or the budget is spent; returns the rest of it."""
        classes = [*map(self._class, classes_of(self.graph, sizes))]
        while self._stale and self.budget > 0:
            stale, self._stale = self._stale, set()
            for found in classes:
                if not stale.isdisjoint(found.members):
                    self._improve(found)
        return self.budget

    def _readers_of_tensors(self) -> list[list[Reader]]:
        """Per tensor, who reads it."""
        readers: list[list[Reader]] = [[] for _ in self.graph.tensors]
        for index, node in enumerate(self.graph.nodes):
            for operand, tensor in enumerate(node.operands):
                if tensor >= 0:
                    readers[tensor].append((index, operand, operand in node.kind.inside))
        return readers

    def _largest_first(self) -> list[int]:
        """Each node's place among all by what it computes, behind identities, which have nothing to choose from: a move that
        costs too much shows it there first."""
        sizes = [
            (not kind.kind.is_identity, -weight * kind.least) for weight, kind in zip(self._weights, self._kinds, strict=True)
        ]
        places = [0] * len(sizes)
        for place, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
            places[index] = place
        return places

    # Moves

    def _class(self, dimensions: tuple[Dimension, ...]) -> DimensionClass:
        members: dict[int, tuple[int, ...]] = {}
        for tensor, dim in dimensions:
            members[tensor] = (*members.get(tensor, ()), dim)
        return DimensionClass(dimensions, members, *self._near(members))

    def _near(self, tensors: Collection[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The nodes that mention some of `tensors`, the largest first, and all tensors that those read or that are given."""
        near = {user for tensor in tensors for user in self.graph.users[tensor]}
        read = {tensor for user in near for tensor in self.graph.nodes[user].operands if tensor >= 0}
        return tuple(sorted(near, key=self._order.__getitem__)), tuple(read.union(tensors))

    def _improve(self, found: DimensionClass) -> None:
        """Gives the class the axes that save most, if any do."""
        least = LEAST_GAIN * self.total
        stake, staying = self._at_stake(found.near, found.read)
        at_least = sum([self._weights[node] * self._kinds[node].least for node in found.near])
        if stake - at_least <= least and stake + self._held(found.members) - at_least <= least:
            return
        alike = self._alike(found.members)
        drafts: list[PartialMove] = []
        equal = ROUNDING * abs(self.total)
        for number, axes in enumerate(self._alternatives(found.dimensions)):
            if self.budget <= 0:
                break
            self.budget -= 1
            changed, freed = self._changed(alike, axes)
            if changed:
                near, at_stake, stays = found.near, stake, staying
                if len(changed) < len(found.members):
                    near, read = self._near(changed)
                    at_stake, stays = self._at_stake(near, read)
                draft = self._draft(PartialMove(number, changed, freed, at_stake + freed + equal, {**stays}), near, least)
                if draft.left >= least:
                    drafts.append(draft)
        trials: list[PricedMove] = []
        heapify(drafts)
        while drafts and drafts[0].left >= least:
            draft = heappop(drafts)
            next_best = max(least, drafts[0].left) if drafts else least
            self._price(draft, next_best)
            if draft.unknown or draft.left < next_best:
                heappush(drafts, draft)
            else:
                trial = self._trial(draft)
                if trial.gain > least - equal * bool(trials):
                    trials.append(trial)
                    least = max(least, trial.gain)
        if trials:
            self._take(min([trial for trial in trials if trial.gain >= least - equal], key=lambda trial: trial.number))

    def _take(self, trial: PricedMove) -> None:
        """Makes a move."""
        graph = self.graph
        for index, tensor in trial.tensors.items():
            graph.tensors[index] = tensor
        for node, cost in trial.costs.items():
            self._costs[node] = cost
            self._own[node] = self._weights[node] * cost.own
        for index, shared in trial.shared.items():
            self._shared[index] = shared
        self.total -= trial.gain
        near = {user for tensor in trial.tensors for user in graph.users[tensor]}
        self._stale.update(tensor for user in near for tensor in self._members[user])

    def _at_stake(self, near: Collection[int], read: Iterable[int]) -> tuple[float, dict[int, float]]:
        """The cost of everything that a move touches, without what stays of it; and that, by tensor: what those readers need that
        are not near."""
        nearby, shared = {*near}, self._shared
        staying = {tensor: stays for tensor in read if shared[tensor] and (stays := self._uses(tensor, {}, nearby))}
        touched = sum(map(self._own.__getitem__, near)) + sum(map(shared.__getitem__, read))
        return touched - sum(staying.values()), staying

    def _alternatives(self, dimensions: tuple[Dimension, ...]) -> Iterator[Axes]:
        """Axes that a class may be split along: the choices of axes, alone or after those that the user wrote on a dimension of
        the class."""
        tensors = self.graph.tensors
        first, dim = dimensions[0]
        own = tensors[first].split[dim]
        # Parts of axes are left out: with them a llama step of uneven sizes has 493 KB of text on 65,536 devices, without 414,
        # and 197 on 8. Which of its plans is the faster one is not measured.
        is_whole = whole_split(self.graph.mesh, (own,)) == (own,)
        has_all = all(tensors[tensor].split[dim] == own for tensor, dim in dimensions)
        tried = {own} if has_all or not is_whole else set()
        after = [tensors[tensor].free_along(dim) for tensor, dim in dimensions if tensors[tensor].written]
        for written in dict.fromkeys([(), *after]):
            for chosen in self._choices_of_axes:
                axes = (*written, *chosen)
                if axes not in tried and (not written or len(set(axes)) == len(axes)):
                    tried.add(axes)
                    yield axes

    def _alike(self, members: Mapping[int, tuple[int, ...]]) -> list[TiedTensors]:
        """The tensors of a class, those together that a move changes alike."""
        groups: dict[tuple[tuple[int, ...], Tensor], list[int]] = {}
        for tensor, dims in members.items():
            groups.setdefault((dims, self.graph.tensors[tensor]), []).append(tensor)
        prices = self._memory_prices
        return [
            TiedTensors(*key, each, sum([prices[tensor] for tensor in each]) if prices else 0.0) for key, each in groups.items()
        ]

    def _changed(self, alike: Iterable[TiedTensors], axes: Axes) -> tuple[Changes, float]:
        """New splits of the tensors concerned, and how much less it costs to hold them; none where shards would be padded by more
        than a little, or axes that may not move are in the way. A dimension on which the user wrote other axes keeps these
        alone."""
        size, bytes_of = self.graph.mesh.group_size(axes), self._local_bytes
        changed: Changes = {}
        freed = 0.0
        for dims, before, members, price in alike:
            key = (before, dims, axes)
            try:
                after = self._moved[key]
            except KeyError:
                after = self._moved[key] = moved(before, dims, axes, size)
            if after is None:
                return {}, 0.0
            if after is not before:
                changed.update(dict.fromkeys(members, after))
                if price:
                    freed += price * (bytes_of(before) - bytes_of(after))
        return changed, freed

    # Cost

    def _draft(self, draft: PartialMove, near: Iterable[int], least: float) -> PartialMove:
        """Adds what is known of a move before anything is priced, or that it saves less than the `least`."""
        tensors = self.graph.tensors.copy()
        for index, tensor in draft.tensors.items():
            tensors[index] = tensor
        pick, kinds, weights, unknown = self._known, self._kinds, self._weights, draft.unknown
        for index in near:
            known, kind = pick[index](tensors), kinds[index]
            cost = kind.known.get(known)
            if cost is None:
                floor = weights[index] * (kind.floors.get(known) or kind.floor(known))
                unknown.append((index, known, floor))
                draft.left -= floor
            else:
                self._spend(draft, index, cost)
            if draft.left < least:
                break
        unknown.reverse()
        return draft

    def _price(self, draft: PartialMove, least: float) -> None:
        """Prices nodes until the move could no longer save the `least`."""
        while draft.unknown and draft.left >= least:
            index, known, floor = draft.unknown.pop()
            draft.left += floor
            self._spend(draft, index, self._kinds[index].cost(known))

    def _spend(self, draft: PartialMove, index: int, cost: NodeCost) -> None:
        """Takes what a node costs off what is left to save."""
        draft.costs[index] = cost
        weight = self._weights[index]
        draft.left -= weight * cost.own
        for operand in cost.moved:
            tensor, moved = self._members[index][operand], weight * cost.arriving[operand]
            if moved > (most := draft.dearest.get(tensor, 0.0)):
                draft.dearest[tensor] = moved
                draft.left -= moved - most

    def _trial(self, draft: PartialMove) -> PricedMove:
        """What follows from a move of which all is priced."""
        costs = draft.costs
        moved = set(draft.tensors)
        for index, cost in costs.items():
            if cost.needs != self._costs[index].needs:
                moved.update(tensor for tensor in self.graph.nodes[index].operands if tensor >= 0)
        shared = {tensor: self._uses(tensor, costs) for tensor in moved}
        gain = sum(self._own[node] - self._weights[node] * cost.own for node, cost in costs.items())
        gain += sum(self._shared[tensor] - cost for tensor, cost in shared.items()) + draft.freed
        return PricedMove(draft.number, gain, draft.tensors, costs, shared)

    def _held(self, tensors: Iterable[int]) -> float:
        """What it costs to hold tensors as they are."""
        prices, known, bytes_of = self._memory_prices, self.graph.tensors, self._local_bytes
        return sum([prices[tensor] * bytes_of(known[tensor]) for tensor in tensors]) if prices else 0.0

    def _uses(self, tensor: int, changed: Mapping[int, NodeCost], without: Container[int] = ()) -> float:
        """Bytes of resharding a value to all that its users need, `without` some of them: each distinct need once, as often as
        its most frequent user. What a loop carries is another value in the loop than behind it. Of `changed` nodes the costs are
        these."""
        needs: dict[tuple[Sharding, bool], float] = {}
        for user, operand, inside in self._readers[tensor]:
            if user in without:
                continue
            cost = changed.get(user) or self._costs[user]
            if moved := self._weights[user] * cost.arriving[operand]:
                need = cost.needs[operand], inside
                needs[need] = max(needs.get(need, 0.0), moved)
        return sum(needs.values())


def _known_of(members: Sequence[int]) -> Callable[[Sequence[Tensor]], Known]:
    """What picks those out of all tensors that a node mentions."""
    if len(members) > 1 and min(members) >= 0:
        return itemgetter(*members)
    return lambda tensors: tuple([tensors[tensor] if tensor >= 0 else None for tensor in members])


def _used_axes(graph: Graph) -> set[int]:
    """The axes that shard something: along others all devices compute the same and none sends."""
    mesh = graph.mesh
    return {axis for tensor in {*graph.tensors} for axes in tensor.split for axis in axes if mesh.shape[axis] > 1}


def _choices_of_axes(mesh: Mesh, used: set[int]) -> list[Axes]:
    """What a class may be split along: none of the axes that are used, one, or two in either order. Parts of an axis go together
    or alone."""
    units = [axes for axes in whole_and_parts(mesh) if used.issuperset(axes)]
    chosen = chain([()], *(permutations(units, count) for count in (1, 2)))
    joined = dict.fromkeys(tuple(chain.from_iterable(each)) for each in chosen)
    return [axes for axes in joined if len(set(axes)) == len(axes)]


def moved(tensor: Tensor, dims: tuple[int, ...], axes: Axes, size: int) -> Tensor | None:
    """The tensor with `dims` of it, which are of a class, moved to `axes`, `size` devices; None where its shards would be padded
    by more than a little, or axes that may not move are in the way."""
    extent = tensor.shape[dims[0]]
    if -extent % size > extent * MOST_PADDING or not (tensor.banned | tensor.region_axes).isdisjoint(axes):
        return None
    split = _moved_split(tensor, dims, axes)
    if any(before != after and not may for before, after, may in zip(tensor.split, split, tensor.movable, strict=True)):
        return None
    if tensor.boundary and not tensor.found.issuperset(sum(split, ())):
        return None
    return tensor.with_split(split)


def _moved_split(tensor: Tensor, dims: tuple[int, ...], axes: Axes) -> Split:
    """The split of a tensor whose dimensions `dims` are of a class that moves to `axes`: the first of them takes these, all other
    dimensions lose them. Where the user wrote other axes, those stay alone."""
    split = tuple(
        axes if dim == dims[0] else tensor.written_along(dim) if dim in dims else tuple(axis for axis in now if axis not in axes)
        for dim, now in enumerate(tensor.split)
    )
    if tensor.region_axes:
        split = across_region(split, tensor.split, tensor.region_axes)
    if tensor.is_kept_by(split):
        return split
    return tuple(tensor.written_along(dim) if dim in dims else now for dim, now in enumerate(tensor.split))
