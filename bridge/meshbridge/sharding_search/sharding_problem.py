"""The sharding problem of a graph: what a search minimises, as variables, choices and costs of pairs.

A variable for every tensor, whose choices are its splits, and for every op, whose choices are its sharding options. A pair costs
what it takes to reshard an operand from its split to what the option needs, or a result from what the option computes to its
split. Splits name axes in the mesh's order: the other orders cost as much.

    %w (splits) ---- reshard to need ---- dot (options) ---- reduce, reshard ---- %y (splits)

Ops that read one tensor in the same form share its resharding. So a choice of a tensor with several readers is its split and one
other form in which it is also held, the dearest, which is paid once, as often as it is computed. Ops that need further forms each
pay their share of these, and all of it if that is dearer. So the cheapest solution costs no more than the cheapest plan of the
graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import permutations
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meshbridge.decide.choice import ROUNDING, Choice, EndPrices, Pricing, disjoint
from meshbridge.decide.graph import Graph, Node, Tensor
from meshbridge.decide.node_costs import KindCosts, costs_of_nodes
from meshbridge.decide.refine import moved_tensor
from meshbridge.ir.sharding import Axes, Sharding, Split
from meshbridge.ops.option import sharding_of
from meshbridge.solver.problem import Numbers, Problem

MOST_FORMS = 700
"""The most pairs of a split and another form that are choices of a tensor. Beyond that, each reader pays its share of a
resharding of its own: with two axes this concerns tensors of five dimensions."""


Flags = NDArray[np.bool_]


class TensorReader(NamedTuple):
    """An op that reads a tensor as one of its operands."""

    node: int
    operand: int


class Form(NamedTuple):
    """A choice of a tensor that several ops read."""

    split: int
    "The number of a split."
    need: Sharding | None = None
    "The form that is also held; None for none."
    runs: int = 0
    "How often that form is computed: as often as the most frequent op that reads it."
    is_inside: bool = False
    "Whether it is computed in the loop that carries it."


@dataclass
class ShardingProblem:
    """The problem of a graph that `axes` may split; variables are in program order."""

    graph: Graph
    pricing: Pricing
    axes: Sequence[int]
    splits: list[list[Split]] = field(init=False)
    "The splits of each tensor."
    options: list[list[Choice]] = field(init=False)
    "The choices of each node; none for an identity."

    def __post_init__(self) -> None:
        self._runs = [tuple(run) for count in range(1, len(self.axes) + 1) for run in permutations(self.axes, count)]
        self._by_tensor: dict[Tensor, list[Split]] = {}
        self.splits = [self._splits(tensor) for tensor in self.graph.tensors]
        self._by_kind: dict[int, list[Choice]] = {}
        self._kinds = costs_of_nodes(self.graph)
        self.options = [self._options(node, kind) for node, kind in zip(self.graph.nodes, self._kinds, strict=True)]
        self._readers = self._readers_of_tensors()
        forms = {tensor: self._forms(tensor, readers) for tensor, readers in self._readers.items()}
        self._forms_of = {tensor: choices for tensor, choices in forms.items() if choices}
        "The choices of tensors with several readers: the number of a split, and another form."
        self._matrices: dict[tuple[object, ...], Numbers] = {}

    def _splits(self, tensor: Tensor) -> list[Split]:
        """The splits of a tensor: its present split, and those that moves of its dimensions reach."""
        cached = self._by_tensor.get(tensor)
        if cached is None:
            splits = {tensor.split: None}
            for along in disjoint((((), *self._runs),) * len(tensor.shape)):
                if (after := self._moved(tensor, along)) is not None:
                    splits[after.split] = None
            cached = self._by_tensor[tensor] = list(splits)
        return cached

    def _moved(self, tensor: Tensor, along: Sequence[Axes]) -> Tensor | None:
        """The tensor with each dimension moved; None if one may not be moved."""
        result: Tensor | None = tensor
        for dim, axes in enumerate(along):
            if result is None:
                return None
            if axes != result.split[dim]:
                result = moved_tensor(result, (dim,), axes, self.graph.mesh.group_size(axes))
        return result if result is not None and result.split == tuple(along) else None

    def _options(self, node: Node, kind: KindCosts) -> list[Choice]:
        if node.is_identity:
            return []
        cached = self._by_kind.get(id(kind))
        if cached is None:
            op = self.pricing.op(kind.kind.rule, kind.kind.unreduced)
            fixed = kind.kind.fixed_option
            cached = self._by_kind[id(kind)] = op.along(self._runs) if fixed is None else [op.choice(fixed)]
        return cached

    def problem(self) -> Problem:
        """The whole problem. Takes time in the distinct kinds of ops and tensors, and memory in the pairs of choices of each."""
        readers = self._readers
        costs = [self._of_tensor(tensor) for tensor in range(len(self.splits))]
        edges: list[tuple[int, int, Numbers]] = []
        for index, node in enumerate(self.graph.nodes):
            if node.is_identity:
                edges.append(self._identity(index, node, len(readers[node.operands[0]])))
                costs.append(np.zeros(1))
                continue
            costs.append(self._alone(index, node))
            edges += [
                (tensor, len(self.splits) + index, self._operand(index, operand, tensor, len(readers[tensor])))
                for operand, tensor in enumerate(node.operands)
                if tensor >= 0
            ]
            edges += [
                (tensor, len(self.splits) + index, self._result(index, result, tensor))
                for result, tensor in enumerate(node.results)
                if tensor >= 0
            ]
        places = self._places
        ordered = sorted(zip(places, costs, strict=True), key=itemgetter(0))
        return Problem(tuple(cost for _, cost in ordered), tuple((places[i], places[j], matrix) for i, j, matrix in edges))

    @cached_property
    def _places(self) -> list[int]:
        """The position among the variables of each tensor, and after all of them of each op: in program order, since a bound
        rises from sweep to sweep along chains of variables in order. Measured on a GPT's 804 variables: as much in 20 rounds as
        in 160 if all ops follow all tensors."""
        order: dict[int, None] = {}
        for index, node in enumerate(self.graph.nodes):
            order |= dict.fromkeys(tensor for tensor in node.operands if tensor >= 0)
            order[len(self.splits) + index] = None
            order |= dict.fromkeys(tensor for tensor in node.results if tensor >= 0)
        order |= dict.fromkeys(range(len(self.splits)))  # tensors that no op mentions
        places = [0] * len(order)
        for place, variable in enumerate(order):
            places[variable] = place
        return places

    def tensors(self, chosen: Sequence[int]) -> list[Tensor]:
        """The tensors of the graph, split as a solution says."""
        tensors = []
        for index, tensor in enumerate(self.graph.tensors):
            choice = chosen[self._places[index]]
            if index in self._forms_of:
                choice = self._forms_of[index][choice].split
            tensors.append(tensor.with_split(self.splits[index][choice]))
        return tensors

    def _readers_of_tensors(self) -> dict[int, list[TensorReader]]:
        readers: dict[int, list[TensorReader]] = {}
        for index, node in enumerate(self.graph.nodes):
            for operand, tensor in enumerate(node.operands):
                if tensor >= 0:
                    readers.setdefault(tensor, []).append(TensorReader(index, operand))
        return readers

    def _forms(self, tensor: int, readers: Sequence[TensorReader]) -> list[Form]:
        """The choices of a tensor that several ops read."""
        if len(readers) < 2:
            return []
        other_forms = dict.fromkeys(
            (choice.needs[reader.operand], self._weight(reader), self._is_inside(reader))
            for reader in readers
            for choice in self.options[reader.node]
        )
        if len(self.splits[tensor]) * (len(other_forms) + 1) > MOST_FORMS:
            return []
        forms = []
        for number, split in enumerate(self.splits[tensor]):
            forms += [Form(number), *(Form(number, *other) for other in other_forms if other[0].split_axes != split)]
        return forms

    def _weight(self, reader: TensorReader) -> int:
        return self.graph.nodes[reader.node].kind.weight

    def _is_inside(self, reader: TensorReader) -> bool:
        return reader.operand in self.graph.nodes[reader.node].kind.loop_carried

    def _of_tensor(self, tensor: int) -> Numbers:
        forms = self._forms_of.get(tensor)
        if forms is None:
            return np.zeros(len(self.splits[tensor]))
        prices = [self._arriving(self.graph.tensors[tensor].with_split(split)) for split in self.splits[tensor]]
        return np.array([form.runs * prices[form.split].price(form.need) if form.need is not None else 0.0 for form in forms])

    def _alone(self, index: int, node: Node) -> Numbers:
        tensors = tuple(self.graph.tensors[tensor] if tensor >= 0 else None for tensor in (*node.operands, *node.results))
        kind = self._kinds[index]
        return np.array([node.kind.weight * kind.computing(choice, tensors) for choice in self.options[index]])

    def _arriving(self, tensor: Tensor) -> EndPrices:
        return self.pricing.arriving(tensor.type, tensor.sharding, tensor.gathered)

    def _operand(self, index: int, operand: int, tensor: int, readers: int) -> Numbers:
        """The cost of resharding a tensor to what the options of an op need, by choices of the tensor and options."""
        needs = [choice.needs[operand] for choice in self.options[index]]
        reader = TensorReader(index, operand)
        forms, weight, is_inside = self._forms_of.get(tensor), self._weight(reader), self._is_inside(reader)
        described, splits = self.graph.tensors[tensor], self.splits[tensor]
        kind = (id(self.options[index]), operand, described.gathered, weight, is_inside)
        key = ("operand", id(splits), kind, readers, id(forms) if forms else 0)
        if (known_matrix := self._matrices.get(key)) is not None:
            return known_matrix
        table = weight * self._table(described, splits, needs)
        slicing = weight * np.where(table, 0.0, self._slicing(index, described, splits, needs))
        if forms is None:
            table = table / readers
        else:
            table, slicing = (matrix[[form.split for form in forms]] for matrix in (table, slicing))
            dearer = table > (1 + ROUNDING) * self._of_tensor(tensor)[:, None]
            table = np.where(dearer, table, table / max(1, readers - 1))
            table[self._served(forms, needs, weight, is_inside=is_inside)] = 0.0
        cost = self._matrices[key] = np.asarray(table + slicing)
        return cost

    def _table(self, tensor: Tensor, splits: Sequence[Split], needs: Sequence[Sharding]) -> Numbers:
        """The cost of resharding, by split of a tensor and needed sharding."""
        distinct = list(dict.fromkeys(needs))
        rows = []
        for split in splits:
            prices = self._arriving(tensor.with_split(split))
            rows.append([prices.price(need) for need in distinct])
        numbers = {need: number for number, need in enumerate(distinct)}
        return np.array(rows)[:, [numbers[need] for need in needs]]

    def _served(self, forms: Sequence[Form], needs: Sequence[Sharding], weight: int, *, is_inside: bool) -> Flags:
        """By form of a tensor and needed sharding, whether the form is what a reader needs."""
        numbers = {need: number for number, need in enumerate(dict.fromkeys(needs))}
        serve = [form.need if form.runs >= weight and form.is_inside == is_inside else None for form in forms]
        also = np.array([-1 if need is None else numbers.get(need, -1) for need in serve])
        return np.asarray(also[:, None] == np.array([numbers[need] for need in needs])[None, :])

    def _slicing(self, index: int, tensor: Tensor, splits: Sequence[Split], needs: Sequence[Sharding]) -> Numbers:
        """The cost of slicing a tensor without communication, in the same layout; each op does so for itself."""
        kind, distinct = self._kinds[index], list(dict.fromkeys(needs))
        rows = [[kind.slicing(tensor.with_split(split), need) for need in distinct] for split in splits]
        numbers = {need: number for number, need in enumerate(distinct)}
        return np.array(rows)[:, [numbers[need] for need in needs]]

    def _result(self, index: int, result: int, tensor: int) -> Numbers:
        """The cost of resharding what the options of an op compute to a tensor's choices, by choices and options."""
        node, described, splits = self.graph.nodes[index], self.graph.tensors[tensor], self.splits[tensor]
        forms = self._forms_of.get(tensor)
        kind = node.kind
        key = (
            "result",
            id(splits),
            id(self.options[index]),
            result,
            described.reduced,
            kind.weight,
            kind.reduce_share,
            id(forms) if forms else 0,
        )
        if (cached := self._matrices.get(key)) is not None:
            return cached
        computed = [choice.computed[result] for choice in self.options[index]]
        distinct = {sharding: number for number, sharding in enumerate(dict.fromkeys(computed))}
        rows = []
        for split in splits:
            target = sharding_of(described.mesh, split) if described.layout is None else described.with_split(split).sharding
            prices = self.pricing.leaving(described.type, target, kind.reduce_share, described.reduced)
            rows.append([prices.price(sharding) for sharding in distinct])
        table = kind.weight * np.array(rows)[:, [distinct[sharding] for sharding in computed]]
        if forms is not None:
            table = table[[form.split for form in forms]]
        self._matrices[key] = table
        return table

    def _identity(self, index: int, node: Node, readers: int) -> tuple[int, int, Numbers]:
        """The cost of passing a tensor on as another one."""
        source, target = node.operands[0], node.results[0]
        before, after = self.graph.tensors[source], self.graph.tensors[target]
        ends = (self._forms_of.get(source), self._forms_of.get(target))
        is_inside = self._is_inside(TensorReader(index, 0))
        key = ("identity", id(self.splits[source]), id(self.splits[target]), node.kind, before.gathered, readers, *map(id, ends))
        if (cost := self._matrices.get(key)) is None:
            rows = []
            for form in ends[0] or map(Form, range(len(self.splits[source]))):
                resharded = before.with_split(self.splits[source][form.split])
                prices = self._arriving(resharded)
                serves = form.need if form.runs >= node.kind.weight and form.is_inside == is_inside else None
                needs = [self.graph.identity_need(node.kind, resharded, after.with_split(split)) for split in self.splits[target]]
                rows.append([0.0 if need == serves else prices.price(need) for need in needs])
            cost = node.kind.weight / readers * np.array(rows)
            if ends[1] is not None:
                cost = cost[:, [form.split for form in ends[1]]]
            self._matrices[key] = cost
        return source, target, cost
