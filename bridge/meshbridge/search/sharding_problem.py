"""The sharding problem of a graph: what a search minimises, as variables, choices and costs of pairs.

A variable for every tensor, whose choices are its splits, and for every op, whose choices are its sharding options. A pair costs
what it takes to reshard an operand from its split to what the option needs, or a result from what the option computes to its
split. Splits name axes in the mesh's order: the other orders cost as much.

    %w (splits) ---- reshard to need ---- dot (options) ---- reduce, reshard ---- %y (splits)

Several ops that read one tensor in the same form share its resharding. So the choices of a tensor with several readers are its
split and one other form in which it is held too, the dearest, which is paid once, as often as it is made. Where ops need yet
other forms, each pays its part of what they take, and all of it where that is dearer. So the cheapest solution costs no more
than the cheapest plan of the graph.
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
from meshbridge.decide.refine import moved
from meshbridge.ir.sharding import Axes, Sharding, Split
from meshbridge.ops.option import sharding_of
from meshbridge.search.problem import Numbers, Problem

MOST_FORMS = 700
"""Pairs of a split and another form that a tensor may have as choices. Others are taken to be resharded for each reader, who pays
its part: with two axes these are tensors of five dimensions."""


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
    "What it is held as beside; None for nothing."
    runs: int = 0
    "How often that is made: as often as those ops run that read it most often."
    is_inside: bool = False
    "Whether it is made in the loop that carries it."


@dataclass
class ShardingProblem:
    """The problem of a graph, of which `axes` may split anything; variables stand in the program's order."""

    graph: Graph
    pricing: Pricing
    axes: Sequence[int]
    splits: list[list[Split]] = field(init=False)
    "Per tensor, what it may be split along."
    options: list[list[Choice]] = field(init=False)
    "Per node, its choices; none for an identity."

    def __post_init__(self) -> None:
        self._runs = [tuple(run) for count in range(1, len(self.axes) + 1) for run in permutations(self.axes, count)]
        self._by_tensor: dict[Tensor, list[Split]] = {}
        self.splits = [self._splits(tensor) for tensor in self.graph.tensors]
        self._by_kind: dict[int, list[Choice]] = {}
        self._kinds = costs_of_nodes(self.graph)
        self.options = [self._options(node, kind) for node, kind in zip(self.graph.nodes, self._kinds, strict=True)]
        self._readers = self._readers_of_tensors()
        forms = {tensor: self._forms(tensor, found) for tensor, found in self._readers.items()}
        self._forms_of = {tensor: found for tensor, found in forms.items() if found}
        "Of tensors with several readers, their choices: the number of a split, and another form."
        self._matrices: dict[tuple[object, ...], Numbers] = {}

    def _splits(self, tensor: Tensor) -> list[Split]:
        """What a tensor may be split along: what it is now, and what moves of its dimensions make of that."""
        known = self._by_tensor.get(tensor)
        if known is None:
            found = {tensor.split: None}
            for along in disjoint((((), *self._runs),) * len(tensor.shape)):
                if (after := self._moved(tensor, along)) is not None:
                    found[after.split] = None
            known = self._by_tensor[tensor] = list(found)
        return known

    def _moved(self, tensor: Tensor, along: Sequence[Axes]) -> Tensor | None:
        """The tensor with each dimension moved so; None where one may not be."""
        found: Tensor | None = tensor
        for dim, axes in enumerate(along):
            if found is None:
                return None
            if axes != found.split[dim]:
                found = moved(found, (dim,), axes, self.graph.mesh.group_size(axes))
        return found if found is not None and found.split == tuple(along) else None

    def _options(self, node: Node, kind: KindCosts) -> list[Choice]:
        if node.is_identity:
            return []
        known = self._by_kind.get(id(kind))
        if known is None:
            op = self.pricing.op(kind.kind.rule, kind.kind.kept)
            fixed = kind.kind.fixed_option
            known = self._by_kind[id(kind)] = op.along(self._runs) if fixed is None else [op.choice(fixed)]
        return known

    def problem(self) -> Problem:
        """The whole of it. Takes time in the distinct kinds of ops and tensors, and memory in the pairs of choices of each."""
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
        """By tensor, and behind all of them by op, its place among the variables: those of the program's order, since a bound
        rises from sweep to sweep along chains of variables, each behind the one before. Measured on a GPT's 804 variables: as
        much in 20 rounds as in 160 where all ops follow all tensors."""
        order: dict[int, None] = {}
        for index, node in enumerate(self.graph.nodes):
            order |= dict.fromkeys(tensor for tensor in node.operands if tensor >= 0)
            order[len(self.splits) + index] = None
            order |= dict.fromkeys(tensor for tensor in node.results if tensor >= 0)
        order |= dict.fromkeys(range(len(self.splits)))  # what no op mentions
        places = [0] * len(order)
        for place, variable in enumerate(order):
            places[variable] = place
        return places

    def tensors(self, chosen: Sequence[int]) -> list[Tensor]:
        """The tensors of the graph, as a solution splits them."""
        found = []
        for index, tensor in enumerate(self.graph.tensors):
            choice = chosen[self._places[index]]
            if index in self._forms_of:
                choice = self._forms_of[index][choice].split
            found.append(tensor.with_split(self.splits[index][choice]))
        return found

    def _readers_of_tensors(self) -> dict[int, list[TensorReader]]:
        found: dict[int, list[TensorReader]] = {}
        for index, node in enumerate(self.graph.nodes):
            for operand, tensor in enumerate(node.operands):
                if tensor >= 0:
                    found.setdefault(tensor, []).append(TensorReader(index, operand))
        return found

    def _forms(self, tensor: int, readers: Sequence[TensorReader]) -> list[Form]:
        """The choices of a tensor that several ops read."""
        if len(readers) < 2:
            return []
        made = dict.fromkeys(
            (choice.needs[reader.operand], self._weight(reader), self._is_inside(reader))
            for reader in readers
            for choice in self.options[reader.node]
        )
        if len(self.splits[tensor]) * (len(made) + 1) > MOST_FORMS:
            return []
        found = []
        for number, split in enumerate(self.splits[tensor]):
            found += [Form(number), *(Form(number, *each) for each in made if each[0].split_axes != split)]
        return found

    def _weight(self, reader: TensorReader) -> int:
        return self.graph.nodes[reader.node].kind.weight

    def _is_inside(self, reader: TensorReader) -> bool:
        return reader.operand in self.graph.nodes[reader.node].kind.inside

    def _of_tensor(self, tensor: int) -> Numbers:
        forms = self._forms_of.get(tensor)
        if forms is None:
            return np.zeros(len(self.splits[tensor]))
        prices = [self._arriving(self.graph.tensors[tensor].with_split(split)) for split in self.splits[tensor]]
        return np.array([form.runs * prices[form.split].price(form.need) if form.need is not None else 0.0 for form in forms])

    def _alone(self, index: int, node: Node) -> Numbers:
        known = tuple(self.graph.tensors[tensor] if tensor >= 0 else None for tensor in (*node.operands, *node.results))
        kind = self._kinds[index]
        return np.array([node.kind.weight * kind.computing(choice, known) for choice in self.options[index]])

    def _arriving(self, tensor: Tensor) -> EndPrices:
        return self.pricing.arriving(tensor.type, tensor.sharding, tensor.gathered)

    def _operand(self, index: int, operand: int, tensor: int, readers: int) -> Numbers:
        """What it costs to bring a tensor to what the options of an op need, by its choices and those."""
        needs = [choice.needs[operand] for choice in self.options[index]]
        reader = TensorReader(index, operand)
        forms, weight, is_inside = self._forms_of.get(tensor), self._weight(reader), self._is_inside(reader)
        known, held = self.graph.tensors[tensor], self.splits[tensor]
        kind = (id(self.options[index]), operand, known.gathered, weight, is_inside)
        key = ("operand", id(held), kind, readers, id(forms) if forms else 0)
        if (known_matrix := self._matrices.get(key)) is not None:
            return known_matrix
        table = weight * self._table(known, held, needs)
        cut = weight * np.where(table, 0.0, self._cut(index, known, held, needs))
        if forms is None:
            table = table / readers
        else:
            table, cut = (each[[form.split for form in forms]] for each in (table, cut))
            dearer = table > (1 + ROUNDING) * self._of_tensor(tensor)[:, None]
            table = np.where(dearer, table, table / max(1, readers - 1))
            table[self._served(forms, needs, weight, is_inside=is_inside)] = 0.0
        found = self._matrices[key] = np.asarray(table + cut)
        return found

    def _table(self, tensor: Tensor, held: Sequence[Split], needs: Sequence[Sharding]) -> Numbers:
        """What resharding takes, by what a tensor is split along and what is needed of it."""
        distinct = list(dict.fromkeys(needs))
        rows = []
        for split in held:
            prices = self._arriving(tensor.with_split(split))
            rows.append([prices.price(need) for need in distinct])
        numbers = {need: number for number, need in enumerate(distinct)}
        return np.array(rows)[:, [numbers[need] for need in needs]]

    def _served(self, forms: Sequence[Form], needs: Sequence[Sharding], weight: int, *, is_inside: bool) -> Flags:
        """By the form that a tensor is held in and what a reader needs, whether it is that form."""
        numbers = {need: number for number, need in enumerate(dict.fromkeys(needs))}
        serve = [form.need if form.runs >= weight and form.is_inside == is_inside else None for form in forms]
        also = np.array([-1 if need is None else numbers.get(need, -1) for need in serve])
        return np.asarray(also[:, None] == np.array([numbers[need] for need in needs])[None, :])

    def _cut(self, index: int, tensor: Tensor, held: Sequence[Split], needs: Sequence[Sharding]) -> Numbers:
        """What it takes an op to cut a tensor that nobody sends, likewise; each does so for itself."""
        kind, distinct = self._kinds[index], list(dict.fromkeys(needs))
        rows = [[kind.cutting(tensor.with_split(split), need) for need in distinct] for split in held]
        numbers = {need: number for number, need in enumerate(distinct)}
        return np.array(rows)[:, [numbers[need] for need in needs]]

    def _result(self, index: int, result: int, tensor: int) -> Numbers:
        """What it costs to make a tensor of what the options of an op compute, by its choices and those."""
        node, known, held = self.graph.nodes[index], self.graph.tensors[tensor], self.splits[tensor]
        forms = self._forms_of.get(tensor)
        kind = node.kind
        key = (
            "result",
            id(held),
            id(self.options[index]),
            result,
            known.reduced,
            kind.weight,
            kind.reduce_share,
            id(forms) if forms else 0,
        )
        if (found := self._matrices.get(key)) is not None:
            return found
        computed = [choice.computed[result] for choice in self.options[index]]
        distinct = {each: number for number, each in enumerate(dict.fromkeys(computed))}
        rows = []
        for split in held:
            target = sharding_of(known.mesh, split) if known.layout is None else known.with_split(split).sharding
            prices = self.pricing.leaving(known.type, target, kind.reduce_share, known.reduced)
            rows.append([prices.price(each) for each in distinct])
        table = kind.weight * np.array(rows)[:, [distinct[each] for each in computed]]
        if forms is not None:
            table = table[[form.split for form in forms]]
        self._matrices[key] = table
        return table

    def _identity(self, index: int, node: Node, readers: int) -> tuple[int, int, Numbers]:
        """What it costs to hand a tensor on as another one."""
        source, target = node.operands[0], node.results[0]
        before, after = self.graph.tensors[source], self.graph.tensors[target]
        ends = (self._forms_of.get(source), self._forms_of.get(target))
        is_inside = self._is_inside(TensorReader(index, 0))
        key = ("identity", id(self.splits[source]), id(self.splits[target]), node.kind, before.gathered, readers, *map(id, ends))
        if (found := self._matrices.get(key)) is None:
            rows = []
            for form in ends[0] or map(Form, range(len(self.splits[source]))):
                held = before.with_split(self.splits[source][form.split])
                prices = self._arriving(held)
                serves = form.need if form.runs >= node.kind.weight and form.is_inside == is_inside else None
                needs = [self.graph.identity_need(node.kind, held, after.with_split(other)) for other in self.splits[target]]
                rows.append([0.0 if need == serves else prices.price(need) for need in needs])
            found = node.kind.weight / readers * np.array(rows)
            if ends[1] is not None:
                found = found[:, [form.split for form in ends[1]]]
            self._matrices[key] = found
        return source, target, found
