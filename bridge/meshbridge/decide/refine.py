"""Refinement: changes of dimension classes while the modelled communication falls.

Whether the residual stream of a transformer is split along its width is one decision over a thousand ops; changing it at one op
only adds reshards. So a move changes a class of dimensions (`dimension_classes`). Layers that repeat are folded into one first
(`fold_layers`), so that they decide alike and cost one layer's time.

A move gives a class other axes, taking them from the other dimensions of the tensors concerned; it stays if the total cost falls.
Cost: for every op its cheapest option (`choice`), every distinct need of a value counted once however many uses share it. A move
is given up as soon as the ops seen so far leave nothing to gain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, permutations
from math import prod

from meshbridge.decide.choice import ROUNDING, cheapest, choices_of
from meshbridge.decide.dimension_classes import HELD, NARROW, WIDE, ClassSize, Dimension, classes_of
from meshbridge.decide.fold_layers import fold_layers
from meshbridge.decide.graph import Graph, Kind, Tensor, across_region, wanted_layout, wanted_partial
from meshbridge.ir.sharding import Axes, Sharding, Split
from meshbridge.ir.subaxes import whole_and_parts
from meshbridge.ops.option import sharding_of, with_partial, with_split

MOST_PADDING = 1 / 8
"""A dimension is sharded where its shards together are at most this part longer: 257 lines of a spectrum on 8 devices, not 3.

Measured: from 0 to 1 nothing changes on the programs of `benchmarks.constants`, whose sizes divide evenly. That uneven dimensions
of real programs prefer this bound to another one is not measured."""

LEAST_GAIN = 1e-5
"""A change stays if it saves at least this part of the total: below it, rounding decides, and collectives multiply for nothing.

Measured (`benchmarks.constants`): with 0, llama_scan_fsdp executes 230 collectives for 22,571 KB instead of 211 for 22,573, and
resnet_spatial 57 for 292.6 instead of 47 for 293.1. With 1e-3, gpt12 sends 29,575 KB instead of 29,419."""

MANAGEABLE = 1000
"""Nodes up to which a program is refined once more unfolded: the stacks of a loop are folded, but may be sharded differently.

Measured (`benchmarks.constants`): without it llama_scan_fsdp sends 25,522 KB instead of 22,573. Unfolded, gpt12 (more nodes)
takes a fifth longer and sends as much."""

Reader = tuple[int, int, bool]
"""A node that reads a tensor, the operand that it is there, and whether it does so in the loop that carries it."""

Key = tuple[Kind, tuple[Tensor | None, ...]]
"""A kind of node and what is known of its operands and results: all that its cost depends on."""

Changes = dict[int, Tensor]
"""Tensors by number, as they are to be."""


@dataclass(frozen=True)
class NodeCost:
    """What an op costs under its cheapest option, in bytes: computing and reducing its results. Bringing its operands to what it
    `needs` is counted apart, since several ops may share it."""

    own: float
    needs: tuple[Sharding, ...]
    arriving: tuple[float, ...]
    "Bytes of resharding each operand to that."


@dataclass(frozen=True)
class Trial:
    """What a move changes: how much the total falls, and tensors, costs of nodes and of uses as they become."""

    gain: float
    tensors: Changes
    costs: dict[int, NodeCost]
    shared: dict[int, float]


@dataclass(frozen=True)
class DimensionClass:
    """Dimensions that are sharded alike, the nodes that mention their tensors, and the tensors that those read."""

    dimensions: tuple[Dimension, ...]
    members: tuple[tuple[int, tuple[int, ...]], ...]
    "The dimensions by tensor."
    near: tuple[int, ...]
    read: tuple[int, ...]


def refine(graph: Graph, budget: int) -> None:
    """Refines the splits of `graph` in place, trying at most `budget` moves."""
    for index, tensor in enumerate(graph.tensors):
        if tensor.boundary:
            graph.describe(index, found=frozenset(sum(tensor.split, ())))
    folded, standing_for = fold_layers(graph)
    left = Refiner(folded, budget).run(WIDE, NARROW)
    graph.tensors = [folded.tensors[colour] for colour in standing_for]
    if len(graph.nodes) <= MANAGEABLE:
        Refiner(graph, left).run(NARROW, HELD)


class Refiner:
    """Refines the splits of one folded graph in place."""

    def __init__(self, graph: Graph, budget: int) -> None:
        self.graph = graph
        self.budget = budget
        "Moves that may still be tried."
        self._memo: dict[Key, NodeCost] = {}
        self._moved: dict[tuple[Tensor, tuple[int, ...], Axes], Tensor | None] = {}
        self._members = [(*node.operands, *node.results) for node in graph.nodes]
        self._readers = self._readers_of_tensors()
        self._order = self._largest_first()
        self._costs = [self._node_cost(self._key(index)) for index in range(len(graph.nodes))]
        self._shared = [self._uses(tensor, {}) for tensor in range(len(graph.tensors))]
        self._total = sum(cost.own for cost in self._costs) + sum(self._shared)
        mesh = graph.mesh
        used = {axis for tensor in graph.tensors for axes in tensor.split for axis in axes if mesh.shape[axis] > 1}
        self._units = [axes for axes in whole_and_parts(mesh) if used.issuperset(axes)]
        "What a move may shard along: axes that shard something. Along others all devices compute the same and none sends."
        self._whole: dict[Kind, float] = {}
        "What a node of each kind computes if nothing of it is split."
        self._devices: dict[int, int] = {}
        "How many devices a set of axes splits over."
        self._stale = set(range(len(graph.tensors)))
        "Tensors near which something has changed since their classes were last tried."

    def run(self, *sizes: ClassSize) -> int:
        """Tries the moves of all classes, size after size, until none helps or the budget is spent; returns the rest of it."""
        classes = [*map(self._class, dict.fromkeys(dimensions for size in sizes for dimensions in classes_of(self.graph, size)))]
        while self._stale and self.budget > 0:
            stale, self._stale = self._stale, set()
            for found in classes:
                if any(tensor in stale for tensor, _ in found.members):
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
        """Each node's place among all by what it could cost at most: a move that costs too much shows it there first."""
        tensors = self.graph.tensors
        sizes = [
            node.kind.weight * sum(prod(tensors[tensor].shape) for tensor in members if tensor >= 0)
            for node, members in zip(self.graph.nodes, self._members, strict=True)
        ]
        places = [0] * len(sizes)
        for place, index in enumerate(sorted(range(len(sizes)), key=lambda index: -sizes[index])):
            places[index] = place
        return places

    # Moves

    def _class(self, dimensions: tuple[Dimension, ...]) -> DimensionClass:
        members: dict[int, list[int]] = {}
        for tensor, dim in dimensions:
            members.setdefault(tensor, []).append(dim)
        near, read = self._near(members)
        return DimensionClass(dimensions, tuple((tensor, tuple(dims)) for tensor, dims in members.items()), near, read)

    def _near(self, tensors: Collection[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The nodes that mention some of `tensors`, the largest first, and all tensors that those read or that are given."""
        near = {user for tensor in tensors for user in self.graph.users[tensor]}
        read = {tensor for user in near for tensor in self.graph.nodes[user].operands if tensor >= 0}
        return tuple(sorted(near, key=self._order.__getitem__)), tuple(sorted(read.union(tensors)))

    def _improve(self, found: DimensionClass) -> None:
        """Gives the class the axes that save most, if any do."""
        least = LEAST_GAIN * self._total
        if self._at_stake(found.near, found.read) <= least:
            return
        best: Trial | None = None
        for axes in self._alternatives(found.dimensions):
            if self.budget <= 0:
                break
            self.budget -= 1
            changed = self._changed(found, axes)
            trial = self._try(changed, least) if changed else None
            if trial is not None:
                best, least = trial, trial.gain
        if best is not None:
            self._take(best)

    def _take(self, trial: Trial) -> None:
        """Makes a move."""
        graph = self.graph
        for index, tensor in trial.tensors.items():
            graph.tensors[index] = tensor
        for node, cost in trial.costs.items():
            self._costs[node] = cost
        for index, shared in trial.shared.items():
            self._shared[index] = shared
        self._total -= trial.gain
        near = {user for tensor in trial.tensors for user in graph.users[tensor]}
        self._stale.update(tensor for user in near for tensor in self._members[user])

    def _at_stake(self, near: Iterable[int], read: Iterable[int]) -> float:
        """All that a move could save: the cost of everything that touches it."""
        return sum(self._costs[node].own for node in near) + sum(self._shared[tensor] for tensor in read)

    def _alternatives(self, dimensions: tuple[Dimension, ...]) -> Iterator[Axes]:
        """Axes that a class may be split along: none, one, or two in either order, alone or after axes that the user wrote on a
        dimension of the class. Parts of an axis go together or alone."""
        tensors = self.graph.tensors
        first, dim = dimensions[0]
        tried = {tensors[first].split[dim]}
        for written in dict.fromkeys([(), *(tensors[tensor].free_along(dim) for tensor, dim in dimensions)]):
            for chosen in chain([()], *(permutations(self._units, count) for count in (1, 2))):
                axes = (*written, *chain.from_iterable(chosen))
                if axes not in tried and len(set(axes)) == len(axes):
                    tried.add(axes)
                    yield axes

    def _changed(self, found: DimensionClass, axes: Axes) -> Changes | None:
        """New splits of the tensors concerned; None where shards would be padded by more than a little, or axes that may not move
        are in the way. A dimension on which the user wrote other axes keeps these alone."""
        mesh, tensors = self.graph.mesh, self.graph.tensors
        size = mesh.group_size(axes)
        changed: Changes = {}
        for index, dims in found.members:
            key = (tensors[index], dims, axes)
            if key not in self._moved:
                self._moved[key] = _moved(tensors[index], dims, axes, size)
            moved = self._moved[key]
            if moved is None:
                return None
            if moved is not tensors[index]:
                changed[index] = moved
        return changed

    # Cost

    def _try(self, changed: Changes, least: float) -> Trial | None:
        """What follows if the tensors become these; None unless the total falls by more than `least`."""
        tensors = self.graph.tensors
        before = {index: tensors[index] for index in changed}
        for index, tensor in changed.items():
            tensors[index] = tensor
        costs = self._costs_after(changed, least)
        trial = None
        if costs is not None:
            moved = set(changed)
            for index, cost in costs.items():
                if cost.needs != self._costs[index].needs:
                    moved.update(tensor for tensor in self.graph.nodes[index].operands if tensor >= 0)
            shared = {tensor: self._uses(tensor, costs) for tensor in moved}
            gain = sum(self._costs[node].own - cost.own for node, cost in costs.items())
            gain += sum(self._shared[tensor] - cost for tensor, cost in shared.items())
            trial = Trial(gain, changed, costs, shared) if gain > least else None
        for index, tensor in before.items():
            tensors[index] = tensor
        return trial

    def _costs_after(self, changed: Changes, least: float) -> dict[int, NodeCost] | None:
        """The costs of nodes that change; None as soon as those seen leave no `least` to be gained."""
        near, read = self._near(changed)
        left = self._at_stake(near, read) - least + ROUNDING * self._total
        costs: dict[int, NodeCost] = {}
        dearest: dict[int, float] = {}  # per tensor, its dearest use: all of them cost so much at least
        unknown: list[tuple[int, Key, float]] = []

        def spend(index: int, cost: NodeCost) -> float:
            """What a node leaves of what there is to gain."""
            if cost is not self._costs[index]:
                costs[index] = cost
            spent = cost.own
            for tensor, bytes_moved in zip(self._members[index], cost.arriving, strict=False):
                if bytes_moved > (most := dearest.get(tensor, 0.0)):
                    dearest[tensor] = bytes_moved
                    spent += bytes_moved - most
            return spent

        for index in near:
            key = self._key(index)
            cost = self._memo.get(key)
            if cost is None:
                floor = self._floor(*key)
                unknown.append((index, key, floor))
                left -= floor
            else:
                left -= spend(index, cost)
            if left < 0:
                return None
        for index, key, floor in unknown:
            left += floor - spend(index, self._node_cost(key))
            if left < 0:
                return None
        return costs

    def _floor(self, kind: Kind, known: tuple[Tensor | None, ...]) -> float:
        """What a node computes at least: no option splits it along axes that split none of its tensors."""
        mesh = self.graph.mesh
        if kind.is_identity:
            return 0.0
        whole = self._whole.get(kind)
        if whole is None:
            choice = self.graph.pricing.choice(kind.rule, ((),) * len(kind.rule.loops))
            whole = self._whole[kind] = kind.weight * choice.compute
        if kind.fixed_option is not None:
            return whole / mesh.size
        axes = 0
        for tensor in known:
            if tensor is not None:
                axes |= tensor.axes
        devices = self._devices.get(axes)
        if devices is None:
            devices = self._devices[axes] = mesh.group_size(axis for axis in range(mesh.rank) if axes >> axis & 1)
        return whole / devices

    def _uses(self, tensor: int, changed: dict[int, NodeCost]) -> float:
        """Bytes of resharding a value to all that its users need, each distinct need once, as often as its most frequent user.
        What a loop carries is another value in the loop than behind it. Of `changed` nodes the costs are these."""
        needs: dict[tuple[Sharding, bool], float] = {}
        for user, operand, inside in self._readers[tensor]:
            cost = changed.get(user) or self._costs[user]
            if bytes_moved := cost.arriving[operand]:
                need = cost.needs[operand], inside
                needs[need] = max(needs.get(need, 0.0), bytes_moved)
        return sum(needs.values())

    def _key(self, index: int) -> Key:
        """All that the cost of a node depends on."""
        tensors = self.graph.tensors
        return self.graph.nodes[index].kind, tuple([tensors[t] if t >= 0 else None for t in self._members[index]])

    def _node_cost(self, key: Key) -> NodeCost:
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._compute_cost(*key)
        return found

    def _compute_cost(self, kind: Kind, known: tuple[Tensor | None, ...]) -> NodeCost:
        pricing = self.graph.pricing
        count = len(kind.rule.operands)
        if kind.is_identity:
            source, target = [tensor for tensor in known if tensor is not None]
            return self._cost(kind, 0.0, (self.graph.identity_need(kind, source, target),), known)
        taken = kind.kept or ((),) * count
        operands = [
            tensor and pricing.arriving(tensor.type, with_partial(sharding_of(tensor.mesh, tensor.split), summed))
            for tensor, summed in zip(known, taken, strict=False)
        ]
        wanted = wanted_layout(known[count:])
        results = [
            tensor
            and pricing.leaving(
                tensor.type,
                with_split(wanted, tensor.split) if wanted else sharding_of(tensor.mesh, tensor.split),
                kind.reduce_share,
            )
            for tensor in known[count:]
        ]
        if kind.fixed_option is not None:
            choices = choices_of([pricing.choice(kind.rule, kind.fixed_option, kind.kept)])
        else:
            splits = [tensor.split if tensor is not None else () for tensor in known]
            choices = pricing.choices(kind.rule, splits, wanted_partial(kind, known[count:]), kind.kept)
        choice, own = cheapest(choices, operands, results)
        return self._cost(kind, kind.weight * own, choice.needs, known)

    def _cost(self, kind: Kind, own: float, needs: tuple[Sharding, ...], known: tuple[Tensor | None, ...]) -> NodeCost:
        pricing = self.graph.pricing
        arriving = [
            kind.weight * pricing.arriving(tensor.type, tensor.sharding)[need] if tensor is not None else 0.0
            for tensor, need in zip(known, needs, strict=False)
        ]
        return NodeCost(own, needs, tuple(arriving))


def _moved(tensor: Tensor, dims: tuple[int, ...], axes: Axes, size: int) -> Tensor | None:
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
