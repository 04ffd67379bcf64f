"""Assigning: with all tensors decided, each op in program order gets its option, and each definition and use its sharding.

Here values may stay partial. A sum over shards that is only added to another sum over the same shards, or passes through linear
ops that do not make it larger, is all-reduced once, at the end of that chain (the RFC's all-reduce reassociation, done before any
all-reduce exists). A resharding that an earlier use has paid for is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from meshbridge.decide.choice import Choice, EndPrices, Pair, Taken, ranked
from meshbridge.decide.decisions import AS_OPERANDS, CHEAPEST, GIVEN, BlockDecisions, OpDecision, Shardings
from meshbridge.decide.graph import Graph, Kind, Node, Tensor, wanted_partial
from meshbridge.decide.kind_choices import has_layout
from meshbridge.decide.value import Value
from meshbridge.ir.mlir import COMPOSITE, CUSTOM_CALL, ir
from meshbridge.ir.sharding import Axes, Sharding, Split, is_even
from meshbridge.ops.layouts import in_layout, shared_layout
from meshbridge.ops.linear import ADD, LINEAR
from meshbridge.ops.option import Option, sharding_of
from meshbridge.ops.refused import is_of_shards
from meshbridge.ops.rule import ShardingRule

_SUMMED = ("f", "bf", "complex", "i8", "i16", "i32", "i64", "ui")
"""Element types whose `add` is a sum (not i1, where it is "or", which no other linear op commutes with)."""


BodyFn = Callable[[ir.Operation, ShardingRule, Option, frozenset[int]], BlockDecisions | None]
"""Decides the body of an op that is sharded as one, within manual computations along some axes; None for any other op."""


@dataclass(frozen=True)
class Outcome:
    """What assigning a node has led to."""

    decision: OpDecision
    changed: tuple[tuple[int, Value], ...]
    "Which of its operands and results have changed, by place."


class Assigner:
    """Assigns the decisions of one graph."""

    def __init__(self, graph: Graph, decide_body: BodyFn) -> None:
        self.graph = graph
        self.decide_body = decide_body
        self.decided: dict[int, OpDecision] = {}
        "Per node of an op that is split by its loops."
        self.needed: dict[tuple[ir.Operation, int], Sharding] = {}
        "What operands that other ops hand on as they are must be resharded to."
        self._values: list[Value] = []
        self._interned: dict[tuple[object, ...], Value] = {}
        self._memo: dict[tuple[object, ...], Outcome] = {}
        self._sums: dict[tuple[object, ...], Axes] = {}
        self._unreduced: dict[int, Axes] = {}
        self._free: dict[int, Axes] = {}
        self._may_stay = {tensor: _may_stay_partial(tensor) for tensor in {*graph.tensors}}

    @property
    def count(self) -> int:
        """How many nodes differed from all before."""
        return len(self._memo)

    def defined(self, tensor: int) -> Sharding | None:
        """The sharding of a tensor where it is defined."""
        return self._values[tensor].defined if tensor >= 0 else None

    def run(self) -> None:
        """Decides for every node, in order."""
        nodes = self.graph.nodes
        staying = [each for each in nodes if (each.name in LINEAR or each.kind.rule.reduces) and self._may_leave_partial(each)]
        self._unreduced = self._possible(staying)
        self._join_sums(staying)
        self._unreduced = self._worthwhile(self._unreduced, staying)
        self._values = self._at_first()
        for index, node in enumerate(nodes):
            if node.kind.is_identity:
                self._identity(node)
            else:
                self.decided[index] = self._payload(node)

    def _identity(self, node: Node) -> None:
        """Decides what an identity needs of its operand."""
        source, target = (self.graph.tensors[tensor] for tensor in (*node.operands, *node.results))
        need = self.needed[node.op, node.operand_index] = self.graph.identity_need(node.kind, source, target)
        self._pay(node, node.operands[0], need)

    def _at_first(self) -> list[Value]:
        """All tensors before anything is assigned."""
        graph = self.graph
        first = cache(lambda tensor, *known: self._one(Value(tensor, tensor.sharding, *known)))
        values = [first(tensor, (), (), False, uses > 1) for tensor, uses in zip(graph.tensors, graph.uses, strict=True)]
        for index in {*self._unreduced, *self._free, *graph.returned_partial}:
            unreduced, free = self._unreduced.get(index, ()), self._free.get(index, ())
            is_passed_on = bool(unreduced) and self._is_passed_on(index, unreduced)
            known = (unreduced, free, is_passed_on, graph.uses[index] > 1, index in graph.returned_partial)
            values[index] = first(graph.tensors[index], *known)
        return values

    def _one(self, value: Value) -> Value:
        """The one object for what is known of a tensor."""
        return self._interned.setdefault(value.signature, value)

    def _possible(self, staying: Sequence[Node]) -> dict[int, Axes]:
        """Tensors that could stay partial, and over which axes, if no linear chain were reduced."""
        partial = {index: tensor.summed_axes for index, tensor in enumerate(self.graph.tensors) if tensor.summed_axes}
        known = partial.keys()
        for node in staying:
            carried = () if known.isdisjoint(node.operands) else self._carried(node, partial)
            if not carried and node.kind.rule.reduces:
                carried = self._sum_axes(node)
            if carried:
                self._mark(partial, node, carried)
        return partial

    def _worthwhile(self, partial: dict[int, Axes], staying: Sequence[Node]) -> dict[int, Axes]:
        """`partial` without the tensors that would be scattered along the same axes and that no addition, here or in the next
        iteration of a loop, joins with another sum: reducing them at once costs the same, and what follows computes on
        smaller shards.
        """
        kept = {tensor: axes for tensor, axes in partial.items() if self.graph.tensors[tensor].summed_axes}
        for node in reversed(staying):
            tensor = node.results[0]
            axes = partial.get(tensor)
            if axes and (
                not self._splits(tensor, axes)
                or tensor in self.graph.accumulated
                or self._adds(node, partial)
                or self._is_joined(tensor, axes, partial, kept)
            ):
                kept[tensor] = axes
        return kept

    def _splits(self, tensor: int, axes: Axes) -> bool:
        """Whether the tensor is decided to be split along some of `axes`."""
        return any(axis in axes for split in self.graph.tensors[tensor].split for axis in split)

    def _adds(self, node: Node, partial: dict[int, Axes]) -> bool:
        """Whether the node adds two sums, neither of which anything else reads."""
        return node.name in ADD and all(tensor in partial and self.graph.uses[tensor] == 1 for tensor in node.operands)

    def _is_joined(self, tensor: int, axes: Axes, partial: dict[int, Axes], kept: dict[int, Axes]) -> bool:
        """Whether the only user of `tensor` adds it to another such sum, or hands it on to where that happens."""
        user = self._only_user(tensor)
        if user is None or user.is_identity or kept.get(user.only_result) != axes:
            return False
        beside = [other for other in user.operands if other >= 0 and other not in partial]
        return self._adds(user, partial) or not any(self._splits(other, axes) for other in beside)

    def _only_user(self, tensor: int) -> Node | None:
        if self.graph.uses[tensor] != 1:
            return None
        return next((self.graph.nodes[i] for i in self.graph.users[tensor] if tensor in self.graph.nodes[i].operands), None)

    def _may_leave_partial(self, node: Node) -> bool:
        """Whether a linear op or a reduction could leave its only result partial."""
        result = node.only_result
        return result >= 0 and not node.is_identity and self._may_stay[self.graph.tensors[result]]

    def _sum_axes(self, node: Node, free: Axes = ()) -> Axes:
        """The axes over which the node's cheapest option leaves its result a partial sum, nothing having been resharded yet."""
        tensors = self.graph.tensors
        operands, results = (
            tuple([tensors[tensor] if tensor >= 0 else None for tensor in members]) for members in (node.operands, node.results)
        )
        key = (node.kind, operands, results, free)
        found = self._sums.get(key)
        if found is None:
            values = [tensor and Value(tensor, tensor.sharding) for tensor in operands]
            choice = self._choose(node.kind, (), values, results, ((),) * len(operands), free)
            computed = choice.computed[0]
            found = self._sums[key] = computed.partial_axes if computed.partial_kind == "sum" else ()
        return found

    def _mark(self, partial: dict[int, Axes], node: Node, axes: Axes) -> bool:
        """Notes that the node's result may stay partial over `axes`. Whether that is news."""
        tensor = node.only_result
        wanted = self.graph.tensors[tensor].layout
        if not axes or tensor in partial or (wanted is not None and wanted.partial_axes != axes):
            return False
        partial[tensor] = axes
        return True

    def _join_sums(self, staying: Sequence[Node]) -> None:
        """An op whose result is only added to a partial value may leave its own partial too: all-reducing both costs what one
        does.

        The gradient of a value that three contractions read is the case: alone, each might rather gather its operands.
        """
        made_by = {node.results[0]: node for node in staying}
        linear = [node for node in made_by.values() if node.name in LINEAR]
        partial, news = self._unreduced.keys(), True
        while news:
            news = False
            for node in linear:
                if partial.isdisjoint(node.operands):
                    continue
                axes = self._carried(node, self._unreduced)
                if not axes and node.name in ADD:
                    axes = self._joined(node, made_by)
                news |= self._mark(self._unreduced, node, axes)

    def _joined(self, node: Node, made_by: dict[int, Node]) -> Axes:
        """Lets the reduced side of an addition stay partial like the other one, if the ops behind it then prefer to."""
        left, right = node.operands
        for partial, other in ((left, right), (right, left)):
            axes = self._unreduced.get(partial, ())
            makers = self._willing(other, axes, made_by) if axes else None
            if makers is not None:
                for maker in makers:
                    self._free[maker.only_result] = axes
                    self._mark(self._unreduced, maker, axes)
                return self._carried(node, self._unreduced)
        return ()

    def _willing(self, tensor: int, axes: Axes, made_by: dict[int, Node]) -> list[Node] | None:
        """The ops that would make `tensor` partial over `axes`, innermost first; None if one of them would not."""
        makers: list[Node] = []
        waiting = [tensor]
        while waiting:  # additions stand in chains as long as a model has parameters
            tensor = waiting.pop()
            maker = made_by.get(tensor)
            if maker is None or self.graph.uses[tensor] != 1:
                return None
            if tensor in self._unreduced:
                if self._unreduced[tensor] != axes:
                    return None
                continue
            if maker.name in ADD:
                waiting += maker.operands
            elif not maker.rule.reduces or self._sum_axes(maker, axes) != axes:
                return None
            makers.append(maker)
        return makers[::-1]

    def _carried(self, node: Node, partial: dict[int, Axes]) -> Axes:
        """The axes over which the node's result stays partial because its operands are; () if it needs them reduced."""
        if node.name not in LINEAR:
            return ()
        return node.carried([partial.get(tensor, ()) for tensor in node.operands])

    def _is_passed_on(self, tensor: int, axes: Axes) -> bool:
        """Whether a partial definition is left to its only user because that passes it on in no more bytes; or to several users,
        if loops add up what these make of it."""
        users = [node for index in self.graph.users[tensor] for node in (self.graph.nodes[index],) if tensor in node.operands]
        if len(users) != self.graph.uses[tensor] or not (len(users) == 1 or tensor in self.graph.accumulated):
            return False
        if any(user.is_identity or self._unreduced.get(user.only_result) != axes for user in users):
            return False
        passed = sum(prod(self.graph.tensors[user.only_result].shape) for user in users)
        return passed <= prod(self.graph.tensors[tensor].shape) and all(
            self._carried(user, self._unreduced) == axes for user in users
        )

    def _payload(self, node: Node) -> OpDecision:
        """Decides for an op; one whose like has been decided for is assigned the same."""
        values, numbers = self._values, node.operands + node.results
        before = tuple([values[tensor] if tensor >= 0 else None for tensor in numbers])
        alias = () if len({*numbers}) == len(numbers) else tuple(map(numbers.index, numbers))
        key = (node.kind, node.name, node.scope, before, alias)
        found = self._memo.get(key)
        if found is None:
            decision, is_general = self._decide(node, before)
            after = [(place, values[tensor]) for place, tensor in enumerate(numbers) if tensor >= 0]
            found = Outcome(decision, tuple([(place, value) for place, value in after if value is not before[place]]))
            if is_general:
                self._memo[key] = found
        for place, value in found.changed:
            values[numbers[place]] = value
        return found.decision

    def _decide(self, node: Node, before: tuple[Value | None, ...]) -> tuple[OpDecision, bool]:
        """The decision for one op, and whether it is the same for all that are alike: not if it depends on a constant, or has a
        body."""
        kind, count = node.kind, len(node.operands)
        arriving = before[:count]
        layout = shared_layout(node.op, kind.rule, [value and value.defined for value in arriving])
        if layout is not None:
            return self._in_layout(node, layout, arriving), False
        if node.name == CUSTOM_CALL and is_of_shards(node.op):
            return self._as_they_come(node, arriving), False
        taken = self._taken(node, arriving)
        results = [value and value.tensor for value in before[count:]]
        free = self._free.get(node.only_result, ())
        choice = self._choose(kind, node.scope, arriving, results, taken, free)
        needs = tuple([need if value is not None else None for value, need in zip(arriving, choice.needs, strict=True)])
        for tensor, need in zip(node.operands, needs, strict=True):
            if need is not None:
                self._pay(node, tensor, need)
        body = self.decide_body(node.op, kind.rule, choice.option, node.manual)
        why, regions = CHEAPEST if kind.fixed_option is None else GIVEN, (body,) if body is not None else ()
        carried: Axes = next((axes for axes in taken if axes), ())
        if not any(choice.option[loop] for loop in kind.rule.blocked):  # along such, what is computed decides nothing
            for tensor, computed in zip(node.results, body.returned if body is not None else choice.computed, strict=True):
                if tensor >= 0 and computed is not None:
                    self._define(tensor, computed)
        is_plain = all(value is None or value.defined.is_plain for value in arriving)
        decision = OpDecision(why, needs, self._defined(node), kind.rule, choice.option, carried=carried, regions=regions)
        return decision, is_plain and node.name != COMPOSITE

    def _defined(self, node: Node) -> Shardings:
        return tuple([self.defined(tensor) for tensor in node.results])

    def _in_layout(self, node: Node, layout: Sharding, arriving: Sequence[Value | None]) -> OpDecision:
        """An elementwise op whose operands have halos or offsets computes, and leaves, its results so."""
        for number in node.results:
            tensor = self._values[number].tensor
            if not (tensor.user or tensor.tied):
                self._change(number, defined=layout)
        held = in_layout(layout, node.rule, [value and value.defined for value in arriving])
        return OpDecision(AS_OPERANDS, held, self._defined(node), node.rule, layout=layout)

    def _as_they_come(self, node: Node, arriving: Sequence[Value | None]) -> OpDecision:
        """A call of Python is given the shards that each device holds, whatever operands beside each other are sharded like; but
        none with padding."""
        mesh, needs = self.graph.mesh, list[Sharding | None]()
        for number, value in zip(node.operands, arriving, strict=True):
            need = value and value.defined.without_partial()
            if value is not None and need is not None and not is_even(value.tensor.shape, mesh, need.split_axes):
                need = sharding_of(mesh.name, ((),) * len(value.tensor.shape))
            if need is not None:
                self._pay(node, number, need)
            needs.append(need)
        return OpDecision(AS_OPERANDS, tuple(needs), self._defined(node), node.rule, ((),) * len(node.rule.loops))

    def _taken(self, node: Node, arriving: Sequence[Value | None]) -> Taken:
        """Per operand, the axes over which it arrives partial and is passed on so."""
        if node.kind.kept:
            return node.kind.kept
        partial = [value.defined.summed_axes if value is not None else () for value in arriving]
        partial = [
            axes if value is not None and value.unreduced == axes else () for axes, value in zip(partial, arriving, strict=True)
        ]
        carried = node.carried(partial) if any(partial) and node.only_result >= 0 else ()
        return tuple([carried if axes == carried else () for axes in partial])

    def _define(self, number: int, computed: Sharding) -> None:
        """Decides how the definition is annotated: as the tensor was decided; but a conflict within the op is left to the users,
        of whom those that go by the decision share one resharding."""
        value, tensor = self._values[number], self._values[number].tensor
        if value.may_be_returned and computed != value.defined:
            self._change(number, defined=value.defined.without_partial())
        fixed = tensor.user or tensor.tied or any(tensor.decided) or tensor.layout is not None
        is_left = value.is_passed_on and value.unreduced == computed.partial_axes
        if not fixed and (not computed.partial_axes or is_left):
            if value.is_shared and not computed.partial_axes and computed != value.defined:
                self._change(number, anticipated=value.defined)
            self._change(number, defined=computed)

    def _change(self, number: int, **changed: Any) -> None:
        self._values[number] = self._one(self._values[number].but(changed))

    def _choose(
        self,
        kind: Kind,
        scope: tuple[int, ...],
        arriving: Sequence[Value | None],
        results: Sequence[Tensor | None],
        taken: Taken,
        free: Axes,
    ) -> Choice:
        """The choice of the fewest bytes; of equals, that with the most of them counted already, which may yet be spared."""
        pricing = self.graph.pricing
        op = pricing.op(kind.rule, taken)
        if kind.fixed_option is not None:
            return op.choice(kind.fixed_option)
        passed = max(taken, default=())
        splits = [value.defined.split_axes if value is not None else () for value in arriving]
        splits += [tensor.split if tensor is not None else () for tensor in results]
        only_split = not any(value.defined.partial_axes or value.tensor.layout for value in arriving if value is not None)
        if only_split and not has_layout(results) and (fitting := op.fitting(tuple(splits))) is not None:
            return fitting
        ready = [value.ready(scope) if value is not None else [] for value in arriving]
        suggested = [*enumerate(splits)]
        for end, (value, have) in enumerate(zip(arriving, ready, strict=True)):
            suggested += [(end, sharding.split_axes) for sharding in (*have, value and value.anticipated) if sharding is not None]
        suggestions = tuple([op.suggestion(end, split) for end, split in suggested])
        first = [self._arriving(value, have) if value else pricing.nothing for value, have in zip(arriving, ready, strict=True)]
        last = [self._leaving(tensor, passed or free, kind.reduce_share) if tensor else pricing.nothing for tensor in results]

        def counted(choice: Choice) -> float:
            return sum(
                pricing.arriving(value.tensor.type, value.defined, value.tensor.gathered).price(need)
                for value, need, have in zip(arriving, choice.needs, ready, strict=True)
                if value is not None and need == value.anticipated and need not in have
            )

        choices = op.suggested(suggestions, wanted_partial(kind, results))
        rank = counted if any(value is not None and value.anticipated is not None for value in arriving) else None
        return ranked(choices, pricing.compute(kind.rule, kind.sharing), last, first, rank)[0]

    def _arriving(self, value: Value, ready: list[Sharding]) -> EndPrices:
        """Bytes of resharding an operand to what is needed of it, unless that exists or is counted already."""
        if not ready and value.anticipated is None:
            return self.graph.pricing.arriving(value.tensor.type, value.defined, value.tensor.gathered)
        free = (*ready, value.anticipated)
        return self.graph.pricing.prices(
            value.tensor.type, lambda need: None if need in free else (value.defined, need, 1.0), value.tensor.gathered
        )

    def _leaving(self, tensor: Tensor, staying: Axes, share: float) -> EndPrices:
        """Bytes of resharding what is computed to the result, whose sum over the axes `staying` is not reduced here."""
        if not staying:
            return self.graph.pricing.leaving(tensor.type, tensor.sharding, share, tensor.reduced)

        def pair(computed: Sharding) -> Pair:
            target, axes = tensor.sharding, computed.partial_axes
            if axes and axes == staying:
                target = sharding_of(tensor.mesh, _without(tensor.split, axes), axes, computed.partial_kind)
            return computed, target, share if axes else 1.0

        return self.graph.pricing.prices(tensor.type, pair, tensor.reduced)

    def _pay(self, node: Node, number: int, need: Sharding) -> None:
        """Remembers that `need` exists from here on in this scope."""
        if number >= 0:
            value = self._values[number]
            if need != value.defined and need not in value.ready(node.scope):
                self._change(number, available=(*value.available, (node.scope, need)))


def _may_stay_partial(tensor: Tensor) -> bool:
    """Whether a tensor could be left a partial sum at all."""
    layout = tensor.layout
    is_wanted = layout is not None and bool(layout.partial_axes) and layout.partial_kind == "sum"
    return (is_wanted or not tensor.user) and not tensor.tied and tensor.dtype.startswith(_SUMMED)


def _without(split: Split, axes: Axes) -> Split:
    """`split` less some axes."""
    return tuple(tuple(axis for axis in along if axis not in axes) for along in split)
