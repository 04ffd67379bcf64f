"""Refinement: changes dimension classes while the modelled communication falls.

Splitting the residual stream of a transformer along its width is one decision over a thousand ops; changing it at one op only
adds reshards. So a move changes a class of dimensions (`dimension_classes`). Repeated layers are folded into one first
(`fold_layers`): they then decide alike, at the cost of one layer's time.

A move gives a class other axes, taking them from the other dimensions of its tensors; it stays if the total cost falls. The cost
is the sum of every op's cheapest option (`node_costs`); a need of a value that several uses share counts once.

The moves of a class are first drafted with known costs, and lower bounds for the other nodes. Then nodes are priced one by one,
those with the most work first, always of the draft that could save most; most moves are given up early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush
from itertools import chain, permutations
from operator import itemgetter
from typing import NamedTuple

from meshbridge.decide.choice import ROUNDING, Pricing
from meshbridge.decide.dimension_classes import Dimension
from meshbridge.decide.graph import Graph, Tensor, across_region
from meshbridge.decide.kind_choices import NodeTensors
from meshbridge.decide.liveness import FREE, MemoryPrice, local_bytes
from meshbridge.decide.node_costs import CostsByKind, NodeCost, costs_of_nodes
from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split
from meshbridge.ir.subaxes import whole_and_parts, whole_split

MOST_PADDING = 1 / 8
"""A dimension is sharded if padding lengthens it by at most this part: 257 lines of a spectrum on 8 devices, not 3.

Measured: from 0 to 1 nothing changes on the programs of `benchmarks.constants`, whose sizes divide evenly. Whether uneven
dimensions of real programs prefer another bound is not measured."""

LEAST_GAIN = 1e-5
"""A change stays if it saves at least this part of the total: below, rounding decides, and collectives multiply without benefit.

Measured (`benchmarks.constants`): with 0, llama_scan_fsdp executes 230 collectives for 22,571 KB instead of 211 for 22,573, and
resnet_spatial 57 for 292.6 instead of 47 for 293.1. With 1e-3, gpt12 sends 29,575 KB instead of 29,419."""

Reader = tuple[int, int, bool]
"""A node that reads a tensor, the operand's index, and whether the node is in the loop that carries the tensor."""

Changes = dict[int, Tensor]
"""New tensors by number."""


Moved = dict[Axes, "Tensor | None"]
"""A tensor after a move of some of its dimensions, by the axes that they move to; None if they may not move there."""


class TiedTensors(NamedTuple):
    """Equal tensors with the same dimensions in a class."""

    dims: tuple[int, ...]
    tensor: Tensor
    moved: Moved
    members: list[int]
    price: MemoryPrice
    "The cost of the memory of all of them, for the bytes of one."


@dataclass
class RefinementMemo:
    """Costs and moves that refiners of graphs with the same unique tensors share."""

    costs: dict[Pricing, CostsByKind] = field(default_factory=dict)
    moved: dict[tuple[tuple[int, ...], Tensor], Moved] = field(default_factory=dict)
    "By the dimensions that move, and the tensor before."


@dataclass
class PartialMove:
    """A move that is priced only in part."""

    number: int
    "Its index among the moves of its class."
    tensors: Changes
    freed: float
    "The saving in the cost of memory."
    bound: float
    "The most that it could save."
    dearest: dict[int, float]
    "Per tensor, a lower bound of the resharding cost of all its uses: that of the unchanged ones, or of the most expensive use."
    costs: dict[int, NodeCost] = field(default_factory=dict)
    "The new costs of nodes, as far as they are known."
    unknown: list[tuple[int, NodeTensors, float]] = field(default_factory=list)
    "The other nodes, their tensors, and lower bounds of their costs; the node with the most work comes last."

    def __lt__(self, other: PartialMove) -> bool:
        """Whether it could save more."""
        return self.bound > other.bound


@dataclass(frozen=True)
class PricedMove:
    """A move with its saving, and the new tensors, costs of nodes and costs of uses."""

    number: int
    gain: float
    tensors: Changes
    costs: dict[int, NodeCost]
    shared: dict[int, float]


@dataclass(frozen=True)
class DimensionClass:
    """Dimensions that are sharded alike, the nodes that mention their tensors, and the tensors that these nodes read."""

    dimensions: tuple[Dimension, ...]
    members: dict[int, tuple[int, ...]]
    "The dimensions by tensor."
    near: tuple[int, ...]
    read: tuple[int, ...]


class Refiner:
    """Refines the splits of one folded graph in place."""

    def __init__(
        self,
        graph: Graph,
        budget: int,
        memory_prices: Sequence[MemoryPrice] = (),
        axes: Iterable[int] | None = None,
        memo: RefinementMemo | None = None,
    ) -> None:
        """Classes move along `axes`, by default along those that shard something. `memo` has, and gets, what refiners of
        the same unique tensors share."""
        self.graph = graph
        self.budget = budget
        "Moves that may still be tried."
        self._memory_prices = memory_prices
        "Per tensor, the cost of its memory; empty if memory has no price."
        self._local_bytes = cache(lambda tensor: local_bytes(tensor, graph.mesh))
        self._members = [(*node.operands, *node.results) for node in graph.nodes]
        self._known = [_known_of(members) for members in self._members]
        shared = RefinementMemo() if memo is None else memo
        self._kinds = costs_of_nodes(graph, shared.costs.setdefault(graph.pricing, {}))
        self._found = [kind.costs for kind in self._kinds]
        "Per node, its known costs."
        self._weights = [node.kind.weight for node in graph.nodes]
        self._least = [weight * kind.least for weight, kind in zip(self._weights, self._kinds, strict=True)]
        "Per node, the least cost of computing it."
        self._readers = self._readers_of_tensors()
        self._order = self._largest_first()
        self._costs = [kind.cost(known(graph.tensors)) for kind, known in zip(self._kinds, self._known, strict=True)]
        self._own = [weight * cost.own for weight, cost in zip(self._weights, self._costs, strict=True)]
        self._shared = [self._uses(tensor, {}) for tensor in range(len(graph.tensors))]
        self.total = sum(self._own) + sum(self._shared) + self.memory_cost
        self._moved = shared.moved
        self._choices_of_axes = _choices_of_axes(graph.mesh, _used_axes(graph) if axes is None else {*axes})
        self._stale = set(range(len(graph.tensors)))
        "Tensors whose surroundings have changed since their classes were last tried."

    @property
    def memory_cost(self) -> float:
        """The cost of the memory of all tensors."""
        return self._memory_cost(range(len(self.graph.tensors)))

    def run(self, dimension_classes: Iterable[tuple[Dimension, ...]]) -> int:
        """Tries the moves of all classes in turn, until none helps or the budget is spent; returns the rest of it."""
        classes = [*map(self._class, dimension_classes)]
        while self._stale and self.budget > 0:
            stale, self._stale = self._stale, set()
            for dimension_class in classes:
                if not stale.isdisjoint(dimension_class.members):
                    self._improve(dimension_class)
        return self.budget

    def _readers_of_tensors(self) -> list[list[Reader]]:
        """Per tensor, its readers."""
        readers: list[list[Reader]] = [[] for _ in self.graph.tensors]
        for index, node in enumerate(self.graph.nodes):
            for operand, tensor in enumerate(node.operands):
                if tensor >= 0:
                    readers[tensor].append((index, operand, operand in node.kind.loop_carried))
        return readers

    def _largest_first(self) -> list[int]:
        """The rank of each node by work, identities last, which have no choice: expensive moves are then rejected early."""
        sizes = [(not kind.kind.is_identity, -least) for least, kind in zip(self._least, self._kinds, strict=True)]
        ranks = [0] * len(sizes)
        for rank, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
            ranks[index] = rank
        return ranks

    # Moves

    def _class(self, dimensions: tuple[Dimension, ...]) -> DimensionClass:
        members: dict[int, tuple[int, ...]] = {}
        for tensor, dim in dimensions:
            members[tensor] = (*members.get(tensor, ()), dim)
        return DimensionClass(dimensions, members, *self._near(members))

    def _near(self, tensors: Collection[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The nodes that mention some of `tensors`, those with the most work first, and all tensors read there or given."""
        near = {user for tensor in tensors for user in self.graph.users[tensor]}
        read = {tensor for user in near for tensor in self.graph.nodes[user].operands if tensor >= 0}
        return tuple(sorted(near, key=self._order.__getitem__)), tuple(read.union(tensors))

    def _improve(self, moved_class: DimensionClass) -> None:
        """Gives the class the axes that save most, if any do."""
        least = LEAST_GAIN * self.total
        stake, staying = self._at_stake(moved_class.near, moved_class.read)
        at_least = sum(map(self._least.__getitem__, moved_class.near))
        if stake - at_least <= least and stake + self._memory_cost(moved_class.members) - at_least <= least:
            return
        tied = self._tied_tensors(moved_class.members)
        drafts: list[PartialMove] = []
        equal = ROUNDING * abs(self.total)
        for number, axes in enumerate(self._alternatives(moved_class.dimensions)):
            if self.budget <= 0:
                break
            self.budget -= 1
            changed, freed = self._changed(tied, axes)
            if changed:
                near, at_stake, stays = moved_class.near, stake, staying
                if len(changed) < len(moved_class.members):
                    near, read = self._near(changed)
                    at_stake, stays = self._at_stake(near, read)
                draft = self._draft(PartialMove(number, changed, freed, at_stake + freed + equal, {**stays}), near, least)
                if draft.bound >= least:
                    drafts.append(draft)
        trials: list[PricedMove] = []
        heapify(drafts)
        while drafts and drafts[0].bound >= least:
            draft = heappop(drafts)
            next_best = max(least, drafts[0].bound) if drafts else least
            self._price(draft, next_best)
            if draft.unknown or draft.bound < next_best:
                heappush(drafts, draft)
            else:
                trial = self._trial(draft)
                if trial.gain > least - equal * bool(trials):
                    trials.append(trial)
                    least = max(least, trial.gain)
        if trials:
            self._apply(min([trial for trial in trials if trial.gain >= least - equal], key=lambda trial: trial.number))

    def _apply(self, trial: PricedMove) -> None:
        """Applies a move."""
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
        """The cost of all nodes and uses that a move affects, and per tensor the part that stays: the needs of readers that are
        not near, which the first figure leaves out."""
        nearby, shared = {*near}, self._shared
        staying = {tensor: stays for tensor in read if shared[tensor] and (stays := self._uses(tensor, {}, nearby))}
        touched = sum(map(self._own.__getitem__, near)) + sum(map(shared.__getitem__, read))
        return touched - sum(staying.values()), staying

    def _alternatives(self, dimensions: tuple[Dimension, ...]) -> Iterator[Axes]:
        """Axes that a class may be split along: the choices of axes, alone or after those that the user wrote there."""
        tensors = self.graph.tensors
        tensor, dim = dimensions[0]
        own = tensors[tensor].split[dim]
        # Parts of axes are left out: with them a llama step of uneven sizes has 493 KB of text on 65,536 devices, without them
        # 414, and 197 on 8. Which of its plans is faster is not measured.
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

    def _tied_tensors(self, members: Mapping[int, tuple[int, ...]]) -> list[TiedTensors]:
        """The tensors of a class, in groups that a move changes equally."""
        groups: dict[tuple[tuple[int, ...], Tensor, float], list[int]] = {}
        prices, moved = self._memory_prices, self._moved
        for tensor, dims in members.items():
            stored = prices[tensor].stored if prices else 0.0
            groups.setdefault((dims, self.graph.tensors[tensor], stored), []).append(tensor)
        return [
            TiedTensors(dims, tensor, moved.setdefault((dims, tensor), {}), numbers, self._price_of(numbers, stored))
            for (dims, tensor, stored), numbers in groups.items()
        ]

    def _price_of(self, numbers: Sequence[int], stored: float) -> MemoryPrice:
        """The price of some tensors of one size, of which `stored` bytes are free."""
        prices = self._memory_prices
        return MemoryPrice(sum([prices[number].byte for number in numbers]), stored) if prices else FREE

    def _changed(self, tied: Iterable[TiedTensors], axes: Axes) -> tuple[Changes, float]:
        """New splits of the tensors, and the saving in the cost of memory; none if shards would be padded too much, or axes that
        may not move are in the way. A dimension on which the user wrote other axes keeps only these. One that is the major factor
        of others, where a reshape divides them, takes the axes that fit it: 16 rows on 8 devices are 2 groups on the outer 2."""
        size, bytes_of = self.graph.mesh.group_size(axes), self._local_bytes
        longest = max([before.shape[dims[0]] for dims, before, *_ in tied])
        changed: Changes = {}
        freed = 0.0
        for dims, before, moved, members, price in tied:
            fitting, devices = axes, size
            if before.shape[dims[0]] < longest:
                fitting, devices = self._fitting(before.shape[dims[0]], axes)
            try:
                after = moved[fitting]
            except KeyError:
                after = moved[fitting] = moved_tensor(before, dims, fitting, devices)
            if after is None:
                return {}, 0.0
            if after is not before:
                changed.update(dict.fromkeys(members, after))
                if price.byte:
                    freed += price.of(bytes_of(before)) - price.of(bytes_of(after))
        return changed, freed

    def _fitting(self, extent: int, axes: Axes) -> tuple[Axes, int]:
        """The outermost of `axes` that a dimension of that extent can take, and the number of their devices."""
        while is_padded_too_much(extent, size := self.graph.mesh.group_size(axes)):
            axes = axes[:-1]
        return axes, size

    # Cost

    def _draft(self, draft: PartialMove, near: Iterable[int], least: float) -> PartialMove:
        """Adds the known costs to a draft, until it saves less than `least`."""
        tensors = self.graph.tensors.copy()
        for index, tensor in draft.tensors.items():
            tensors[index] = tensor
        pick, kinds, found, weights, unknown = self._known, self._kinds, self._found, self._weights, draft.unknown
        for index in near:
            tensors_of_node = pick[index](tensors)
            cost = found[index].get(tensors_of_node)
            if cost is None:
                kind = kinds[index]
                floor = weights[index] * (kind.floors.get(tensors_of_node) or kind.floor(tensors_of_node))
                unknown.append((index, tensors_of_node, floor))
                draft.bound -= floor
            else:
                self._spend(draft, index, cost)
            if draft.bound < least:
                break
        unknown.reverse()
        return draft

    def _price(self, draft: PartialMove, least: float) -> None:
        """Prices nodes until the move could no longer save `least`."""
        while draft.unknown and draft.bound >= least:
            index, tensors_of_node, floor = draft.unknown.pop()
            draft.bound += floor
            self._spend(draft, index, self._kinds[index].cost(tensors_of_node))

    def _spend(self, draft: PartialMove, index: int, cost: NodeCost) -> None:
        """Subtracts the cost of a node from the bound of a draft."""
        draft.costs[index] = cost
        weight = self._weights[index]
        draft.bound -= weight * cost.own
        for operand in cost.resharded:
            tensor, bytes_sent = self._members[index][operand], weight * cost.arriving[operand]
            if bytes_sent > (dearest := draft.dearest.get(tensor, 0.0)):
                draft.dearest[tensor] = bytes_sent
                draft.bound -= bytes_sent - dearest

    def _trial(self, draft: PartialMove) -> PricedMove:
        """The result of a move that is priced completely."""
        costs = draft.costs
        affected = set(draft.tensors)
        for index, cost in costs.items():
            if cost.needs != self._costs[index].needs:
                affected.update(tensor for tensor in self.graph.nodes[index].operands if tensor >= 0)
        shared = {tensor: self._uses(tensor, costs) for tensor in affected}
        gain = sum(self._own[node] - self._weights[node] * cost.own for node, cost in costs.items())
        gain += sum(self._shared[tensor] - cost for tensor, cost in shared.items()) + draft.freed
        return PricedMove(draft.number, gain, draft.tensors, costs, shared)

    def _memory_cost(self, numbers: Iterable[int]) -> float:
        """The cost of the memory of some tensors."""
        prices, tensors, bytes_of = self._memory_prices, self.graph.tensors, self._local_bytes
        return sum([prices[number].of(bytes_of(tensors[number])) for number in numbers]) if prices else 0.0

    def _uses(self, tensor: int, changed: Mapping[int, NodeCost], without: Container[int] = ()) -> float:
        """Bytes of resharding a value to its users' needs, `without` some users: each distinct need once, as often as its most
        frequent user. A carried value inside the loop is not the value after it. `changed` has new costs of nodes."""
        needs: dict[tuple[Sharding, bool], float] = {}
        for user, operand, inside in self._readers[tensor]:
            if user in without:
                continue
            cost = changed.get(user) or self._costs[user]
            if bytes_sent := self._weights[user] * cost.arriving[operand]:
                need = cost.needs[operand], inside
                needs[need] = max(needs.get(need, 0.0), bytes_sent)
        return sum(needs.values())


def _known_of(members: Sequence[int]) -> Callable[[Sequence[Tensor]], NodeTensors]:
    """A function that picks a node's tensors from all tensors."""
    if len(members) > 1 and min(members) >= 0:
        return itemgetter(*members)
    return lambda tensors: tuple([tensors[tensor] if tensor >= 0 else None for tensor in members])


def _used_axes(graph: Graph) -> set[int]:
    """The axes that shard something: along others all devices compute the same, and nothing is sent."""
    mesh = graph.mesh
    return {axis for tensor in {*graph.tensors} for axes in tensor.split for axis in axes if mesh.shape[axis] > 1}


def _choices_of_axes(mesh: Mesh, used: set[int]) -> list[Axes]:
    """The axis lists that a class may be split along: none, one used axis or sub-axis, or two of these in either order."""
    units = [axes for axes in whole_and_parts(mesh) if used.issuperset(axes)]
    chosen = chain([()], *(permutations(units, count) for count in (1, 2)))
    distinct = dict.fromkeys(tuple(chain.from_iterable(pair)) for pair in chosen)
    return [axes for axes in distinct if len(set(axes)) == len(axes)]


def moved_tensor(tensor: Tensor, dims: tuple[int, ...], axes: Axes, size: int) -> Tensor | None:
    """The tensor with its dimensions `dims` of a class moved to `axes` of `size` devices; None if its shards would be padded too
    much, or axes that may not move are in the way."""
    if is_padded_too_much(tensor.shape[dims[0]], size) or not (tensor.banned | tensor.region_axes).isdisjoint(axes):
        return None
    split = _moved_split(tensor, dims, axes)
    if any(before != after and not may for before, after, may in zip(tensor.split, split, tensor.movable, strict=True)):
        return None
    if tensor.boundary and not tensor.propagated_axes.issuperset(sum(split, ())):
        return None
    return tensor.with_split(split)


def is_padded_too_much(extent: int, size: int) -> bool:
    """Whether shards of a dimension on `size` devices would be padded by more than MOST_PADDING."""
    return -extent % size > extent * MOST_PADDING


def _moved_split(tensor: Tensor, dims: tuple[int, ...], axes: Axes) -> Split:
    """The split of a tensor whose dimensions `dims` are in a class that moves to `axes`: the first of them takes these, all other
    dimensions lose them. If the user wrote other axes, only those stay."""
    split = tuple(
        axes
        if dim == dims[0]
        else tensor.written_along(dim)
        if dim in dims
        else tuple(axis for axis in present if axis not in axes)
        for dim, present in enumerate(tensor.split)
    )
    if tensor.region_axes:
        split = across_region(split, tensor.split, tensor.region_axes)
    if tensor.allows(split):
        return split
    return tuple(tensor.written_along(dim) if dim in dims else present for dim, present in enumerate(tensor.split))
