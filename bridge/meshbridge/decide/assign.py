"""Assigns, once all tensors are decided, an option to each op and a sharding to each definition and use, in program order.

Values may stay partial here. If a sum over shards is only added to another sum over the same shards, or only passes through
linear ops that do not make it larger, it is all-reduced once, at the end of the chain (the RFC's all-reduce reassociation, before
any all-reduce exists). A resharding that an earlier use has paid for is free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from meshbridge.decide.choice import Choice, EndPrices, Pair, PartialOperands, ranked
from meshbridge.decide.decisions import AS_OPERANDS, CHEAPEST, GIVEN, BlockDecisions, OpDecision, Shardings
from meshbridge.decide.graph import Graph, Node, NodeKind, Tensor, wanted_partial
from meshbridge.decide.kind_choices import has_layout
from meshbridge.decide.tensor_state import TensorState
from meshbridge.ir.mlir import COMPOSITE, CUSTOM_CALL, ir
from meshbridge.ir.sharding import Axes, Sharding, Split, is_even
from meshbridge.ops.irregular_shardings import irregular_operands, shared_irregular_sharding
from meshbridge.ops.linear import ADD, LINEAR
from meshbridge.ops.option import Option, sharding_of
from meshbridge.ops.rule import ShardingRule
from meshbridge.ops.unsupported import is_partitioned_callback

_SUMMED = ("f", "bf", "complex", "i8", "i16", "i32", "i64", "ui")
"""Element types whose `add` is a sum (not i1, where it is "or", which no other linear op commutes with)."""


BodyFn = Callable[[ir.Operation, ShardingRule, Option, frozenset[int]], BlockDecisions | None]
"""Decides the body of an op that is sharded as one op, within manual computations along some axes; None for any other op."""


@dataclass(frozen=True)
class Outcome:
    """The result of assigning a node."""

    decision: OpDecision
    changed: tuple[tuple[int, TensorState], ...]
    "The operands and results whose state changes, by index in `operands + results`."


class Assigner:
    """Assigns the decisions of one graph."""

    def __init__(self, graph: Graph, decide_body: BodyFn) -> None:
        self.graph = graph
        self.decide_body = decide_body
        self.decided: dict[int, OpDecision] = {}
        "Per node, the decision of an op with a sharding rule."
        self.needed: dict[tuple[ir.Operation, int], Sharding] = {}
        "The reshardings of operands that other ops pass on unchanged."
        self._values: list[TensorState] = []
        self._interned: dict[tuple[object, ...], TensorState] = {}
        self._memo: dict[tuple[object, ...], Outcome] = {}
        self._sums: dict[tuple[object, ...], Axes] = {}
        self._unreduced: dict[int, Axes] = {}
        self._free: dict[int, Axes] = {}
        self._may_stay = {tensor: _may_stay_partial(tensor) for tensor in {*graph.tensors}}

    @property
    def count(self) -> int:
        """Number of distinct nodes decided so far."""
        return len(self._memo)

    def defined(self, tensor: int) -> Sharding | None:
        """The sharding of a tensor where it is defined."""
        return self._values[tensor].defined if tensor >= 0 else None

    def run(self) -> None:
        """Decides every node in order."""
        nodes = self.graph.nodes
        staying = [node for node in nodes if (node.name in LINEAR or node.kind.rule.reduces) and self._may_leave_partial(node)]
        self._unreduced = self._possible(staying)
        self._combine_sums(staying)
        self._unreduced = self._worthwhile(self._unreduced, staying)
        self._values = self._at_first()
        for index, node in enumerate(nodes):
            if node.kind.is_identity:
                self._identity(node)
            else:
                self.decided[index] = self._payload(node)

    def _identity(self, node: Node) -> None:
        """Decides the sharding in which an identity takes its operand."""
        source, target = (self.graph.tensors[tensor] for tensor in (*node.operands, *node.results))
        need = self.needed[node.op, node.operand_index] = self.graph.identity_need(node.kind, source, target)
        self._pay(node, node.operands[0], need)

    def _at_first(self) -> list[TensorState]:
        """The initial states of all tensors."""
        graph = self.graph
        initial = cache(lambda tensor, *facts: self._intern(TensorState(tensor, tensor.sharding, *facts)))
        values = [initial(tensor, (), (), False, uses > 1) for tensor, uses in zip(graph.tensors, graph.uses, strict=True)]
        for index in {*self._unreduced, *self._free, *graph.returned_partial}:
            unreduced, free = self._unreduced.get(index, ()), self._free.get(index, ())
            is_passed_on = bool(unreduced) and self._is_passed_on(index, unreduced)
            facts = (unreduced, free, is_passed_on, graph.uses[index] > 1, index in graph.returned_partial)
            values[index] = initial(graph.tensors[index], *facts)
        return values

    def _intern(self, value: TensorState) -> TensorState:
        """The unique object equal to `value`."""
        return self._interned.setdefault(value.signature, value)

    def _possible(self, staying: Sequence[Node]) -> dict[int, Axes]:
        """Tensors that could stay partial, by axes, if no chain of linear ops were reduced."""
        partial = {index: tensor.summed_axes for index, tensor in enumerate(self.graph.tensors) if tensor.summed_axes}
        for node in staying:
            carried = () if partial.keys().isdisjoint(node.operands) else self._carried(node, partial)
            if not carried and node.kind.rule.reduces:
                carried = self._sum_axes(node)
            if carried:
                self._mark(partial, node, carried)
        return partial

    def _worthwhile(self, partial: dict[int, Axes], staying: Sequence[Node]) -> dict[int, Axes]:
        """`partial` without the tensors that would be reduce-scattered along the same axes and that no addition, here or in the
        next iteration of a loop, combines with another sum: reducing them at once costs the same, and later ops compute on
        smaller shards.
        """
        worthwhile = {tensor: axes for tensor, axes in partial.items() if self.graph.tensors[tensor].summed_axes}
        for node in reversed(staying):
            tensor = node.results[0]
            axes = partial.get(tensor)
            if axes and (
                not self._splits(tensor, axes)
                or tensor in self.graph.accumulated
                or self._adds(node, partial)
                or self._is_combined(tensor, axes, partial, worthwhile)
            ):
                worthwhile[tensor] = axes
        return worthwhile

    def _splits(self, tensor: int, axes: Axes) -> bool:
        """Whether the tensor is sharded along some of `axes`."""
        return any(axis in axes for split in self.graph.tensors[tensor].split for axis in split)

    def _adds(self, node: Node, partial: dict[int, Axes]) -> bool:
        """Whether the node adds two sums that have no other reader."""
        return node.name in ADD and all(tensor in partial and self.graph.uses[tensor] == 1 for tensor in node.operands)

    def _is_combined(self, tensor: int, axes: Axes, partial: dict[int, Axes], worthwhile: dict[int, Axes]) -> bool:
        """Whether the only user of `tensor` adds it to another such sum, or passes it on to an op that does."""
        user = self._only_user(tensor)
        if user is None or user.is_identity or worthwhile.get(user.only_result) != axes:
            return False
        reduced = [operand for operand in user.operands if operand >= 0 and operand not in partial]
        return self._adds(user, partial) or not any(self._splits(operand, axes) for operand in reduced)

    def _only_user(self, tensor: int) -> Node | None:
        if self.graph.uses[tensor] != 1:
            return None
        return next((self.graph.nodes[i] for i in self.graph.users[tensor] if tensor in self.graph.nodes[i].operands), None)

    def _may_leave_partial(self, node: Node) -> bool:
        """Whether a linear op or a reduction could leave its only result partial."""
        result = node.only_result
        return result >= 0 and not node.is_identity and self._may_stay[self.graph.tensors[result]]

    def _sum_axes(self, node: Node, free: Axes = ()) -> Axes:
        """The axes over which the node's cheapest option leaves its result a partial sum, before anything is resharded."""
        tensors = self.graph.tensors
        operands, results = (
            tuple([tensors[tensor] if tensor >= 0 else None for tensor in members]) for members in (node.operands, node.results)
        )
        key = (node.kind, operands, results, free)
        axes = self._sums.get(key)
        if axes is None:
            values = [tensor and TensorState(tensor, tensor.sharding) for tensor in operands]
            choice = self._choose(node.kind, (), values, results, ((),) * len(operands), free)
            computed = choice.computed[0]
            axes = self._sums[key] = computed.partial_axes if computed.partial_kind == "sum" else ()
        return axes

    def _mark(self, partial: dict[int, Axes], node: Node, axes: Axes) -> bool:
        """Records that the node's result may stay partial over `axes`; returns whether this is new."""
        tensor = node.only_result
        wanted = self.graph.tensors[tensor].layout
        if not axes or tensor in partial or (wanted is not None and wanted.partial_axes != axes):
            return False
        partial[tensor] = axes
        return True

    def _combine_sums(self, staying: Sequence[Node]) -> None:
        """Lets an op whose result is only added to a partial value leave its own result partial: one all-reduce serves both.

        Example: the gradient of a value that three contractions read; alone, each might gather its operands.
        """
        producers = {node.results[0]: node for node in staying}
        linear = [node for node in producers.values() if node.name in LINEAR]
        partial, has_changed = self._unreduced.keys(), True
        while has_changed:
            has_changed = False
            for node in linear:
                if partial.isdisjoint(node.operands):
                    continue
                axes = self._carried(node, self._unreduced)
                if not axes and node.name in ADD:
                    axes = self._combined(node, producers)
                has_changed |= self._mark(self._unreduced, node, axes)

    def _combined(self, node: Node, producers: dict[int, Node]) -> Axes:
        """Leaves the reduced operand of an addition partial like the other one, if the ops that produce it then prefer this."""
        left, right = node.operands
        for partial, reduced in ((left, right), (right, left)):
            axes = self._unreduced.get(partial, ())
            summing = self._summing_producers(reduced, axes, producers) if axes else None
            if summing is not None:
                for producer in summing:
                    self._free[producer.only_result] = axes
                    self._mark(self._unreduced, producer, axes)
                return self._carried(node, self._unreduced)
        return ()

    def _summing_producers(self, tensor: int, axes: Axes, producers: dict[int, Node]) -> list[Node] | None:
        """The ops that would leave `tensor` partial over `axes`, innermost first; None if one of them would not."""
        summing: list[Node] = []
        waiting = [tensor]
        while waiting:  # a chain of additions is as long as a model has parameters
            tensor = waiting.pop()
            producer = producers.get(tensor)
            if producer is None or self.graph.uses[tensor] != 1:
                return None
            if tensor in self._unreduced:
                if self._unreduced[tensor] != axes:
                    return None
                continue
            if producer.name in ADD:
                waiting += producer.operands
            elif not producer.rule.reduces or self._sum_axes(producer, axes) != axes:
                return None
            summing.append(producer)
        return summing[::-1]

    def _carried(self, node: Node, partial: dict[int, Axes]) -> Axes:
        """The axes over which the node's result stays partial like its operands; () if it needs them reduced."""
        if node.name not in LINEAR:
            return ()
        return node.carried([partial.get(tensor, ()) for tensor in node.operands])

    def _is_passed_on(self, tensor: int, axes: Axes) -> bool:
        """Whether users take the partial definition: the only user passes it on in no more bytes, or loops accumulate what
        several users compute from it."""
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
        """Decides an op. Equal ops share one decision."""
        values, numbers = self._values, node.operands + node.results
        before = tuple([values[tensor] if tensor >= 0 else None for tensor in numbers])
        alias = () if len({*numbers}) == len(numbers) else tuple(map(numbers.index, numbers))
        key = (node.kind, node.name, node.scope, before, alias)
        outcome = self._memo.get(key)
        if outcome is None:
            decision, is_general = self._decide(node, before)
            after = [(position, values[tensor]) for position, tensor in enumerate(numbers) if tensor >= 0]
            outcome = Outcome(decision, tuple([(position, value) for position, value in after if value is not before[position]]))
            if is_general:
                self._memo[key] = outcome
        for position, value in outcome.changed:
            values[numbers[position]] = value
        return outcome.decision

    def _decide(self, node: Node, before: tuple[TensorState | None, ...]) -> tuple[OpDecision, bool]:
        """The decision for one op, and whether equal ops can share it: not if it depends on a constant or has a body."""
        kind, count = node.kind, len(node.operands)
        arriving = before[:count]
        layout = shared_irregular_sharding(node.op, kind.rule, [value and value.defined for value in arriving])
        if layout is not None:
            return self._in_layout(node, layout, arriving), False
        if node.name == CUSTOM_CALL and is_partitioned_callback(node.op):
            return self._on_shards(node, arriving), False
        taken_partial = self._taken_partial(node, arriving)
        results = [value and value.tensor for value in before[count:]]
        free = self._free.get(node.only_result, ())
        choice = self._choose(kind, node.scope, arriving, results, taken_partial, free)
        needs = tuple([need if value is not None else None for value, need in zip(arriving, choice.needs, strict=True)])
        for tensor, need in zip(node.operands, needs, strict=True):
            if need is not None:
                self._pay(node, tensor, need)
        body = self.decide_body(node.op, kind.rule, choice.option, node.manual)
        why, regions = CHEAPEST if kind.fixed_option is None else GIVEN, (body,) if body is not None else ()
        carried: Axes = next((axes for axes in taken_partial if axes), ())
        if not any(choice.option[loop] for loop in kind.rule.blocked):  # splits do not propagate along blocked loops
            for tensor, computed in zip(node.results, body.returned if body is not None else choice.computed, strict=True):
                if tensor >= 0 and computed is not None:
                    self._define(tensor, computed)
        is_plain = all(value is None or value.defined.is_plain for value in arriving)
        decision = OpDecision(why, needs, self._defined(node), kind.rule, choice.option, carried=carried, regions=regions)
        return decision, is_plain and node.name != COMPOSITE

    def _defined(self, node: Node) -> Shardings:
        return tuple([self.defined(tensor) for tensor in node.results])

    def _in_layout(self, node: Node, layout: Sharding, arriving: Sequence[TensorState | None]) -> OpDecision:
        """An elementwise op whose operands have halos or offsets computes its results with the same ones."""
        for number in node.results:
            tensor = self._values[number].tensor
            if not (tensor.annotated or tensor.tied):
                self._change(number, defined=layout)
        operands = irregular_operands(layout, node.rule, [value and value.defined for value in arriving])
        return OpDecision(AS_OPERANDS, operands, self._defined(node), node.rule, layout=layout)

    def _on_shards(self, node: Node, arriving: Sequence[TensorState | None]) -> OpDecision:
        """A Python callback takes the shards that each device has, however its operands are sharded, but none with padding."""
        mesh, needs = self.graph.mesh, list[Sharding | None]()
        for number, value in zip(node.operands, arriving, strict=True):
            need = value and value.defined.without_partial()
            if value is not None and need is not None and not is_even(value.tensor.shape, mesh, need.split_axes):
                need = sharding_of(mesh.name, ((),) * len(value.tensor.shape))
            if need is not None:
                self._pay(node, number, need)
            needs.append(need)
        return OpDecision(AS_OPERANDS, tuple(needs), self._defined(node), node.rule, ((),) * len(node.rule.loops))

    def _taken_partial(self, node: Node, arriving: Sequence[TensorState | None]) -> PartialOperands:
        """Per operand, the axes over which the op takes it partial and passes it on."""
        if node.kind.unreduced:
            return node.kind.unreduced
        partial = [value.defined.summed_axes if value is not None else () for value in arriving]
        partial = [
            axes if value is not None and value.unreduced == axes else () for axes, value in zip(partial, arriving, strict=True)
        ]
        carried = node.carried(partial) if any(partial) and node.only_result >= 0 else ()
        return tuple([carried if axes == carried else () for axes in partial])

    def _define(self, number: int, computed: Sharding) -> None:
        """Decides the annotation of the definition: as the tensor is decided, unless the op itself conflicts. In a conflict each
        user reshards, and users that need the decided sharding share one resharding."""
        value, tensor = self._values[number], self._values[number].tensor
        if value.may_be_returned and computed != value.defined:
            self._change(number, defined=value.defined.without_partial())
        fixed = tensor.annotated or tensor.tied or any(tensor.decided) or tensor.layout is not None
        is_left = value.is_passed_on and value.unreduced == computed.partial_axes
        if not fixed and (not computed.partial_axes or is_left):
            if value.is_shared and not computed.partial_axes and computed != value.defined:
                self._change(number, anticipated=value.defined)
            self._change(number, defined=computed)

    def _change(self, number: int, **changed: Any) -> None:
        self._values[number] = self._intern(self._values[number].but(changed))

    def _choose(
        self,
        kind: NodeKind,
        scope: tuple[int, ...],
        arriving: Sequence[TensorState | None],
        results: Sequence[Tensor | None],
        taken_partial: PartialOperands,
        free: Axes,
    ) -> Choice:
        """The choice of the fewest bytes; of equal ones, the choice whose bytes the decision has counted already."""
        pricing = self.graph.pricing
        op = pricing.op(kind.rule, taken_partial)
        if kind.fixed_option is not None:
            return op.choice(kind.fixed_option)
        passed = max(taken_partial, default=())
        splits = [value.defined.split_axes if value is not None else () for value in arriving]
        splits += [tensor.split if tensor is not None else () for tensor in results]
        only_split = not any(value.defined.partial_axes or value.tensor.layout for value in arriving if value is not None)
        if only_split and not has_layout(results) and (fitting := op.fitting(tuple(splits))) is not None:
            return fitting
        ready = [value.ready(scope) if value is not None else [] for value in arriving]
        suggested = [*enumerate(splits)]
        for end, (value, present) in enumerate(zip(arriving, ready, strict=True)):
            candidates = (*present, value and value.anticipated)
            suggested += [(end, sharding.split_axes) for sharding in candidates if sharding is not None]
        suggestions = tuple([op.suggestion(end, split) for end, split in suggested])
        nothing, staying, share = pricing.nothing, passed or free, kind.reduce_share
        operand_prices = [
            self._arriving(value, present) if value else nothing for value, present in zip(arriving, ready, strict=True)
        ]
        result_prices = [self._leaving(tensor, staying, share) if tensor else nothing for tensor in results]

        def counted(choice: Choice) -> float:
            return sum(
                pricing.arriving(value.tensor.type, value.defined, value.tensor.gathered).price(need)
                for value, need, available in zip(arriving, choice.needs, ready, strict=True)
                if value is not None and need == value.anticipated and need not in available
            )

        choices = op.suggested(suggestions, wanted_partial(kind, results))
        rank = counted if any(value is not None and value.anticipated is not None for value in arriving) else None
        return ranked(choices, pricing.compute(kind.rule, kind.sharing), result_prices, operand_prices, rank)[0]

    def _arriving(self, value: TensorState, ready: list[Sharding]) -> EndPrices:
        """Bytes of resharding an operand to an op's need, unless that sharding exists or is counted already."""
        if not ready and value.anticipated is None:
            return self.graph.pricing.arriving(value.tensor.type, value.defined, value.tensor.gathered)
        free = (*ready, value.anticipated)
        return self.graph.pricing.prices(
            value.tensor.type, lambda need: None if need in free else (value.defined, need, 1.0), value.tensor.gathered
        )

    def _leaving(self, tensor: Tensor, staying: Axes, share: float) -> EndPrices:
        """Bytes of resharding the computed value to the result, leaving a sum over the axes `staying` unreduced."""
        if not staying:
            return self.graph.pricing.leaving(tensor.type, tensor.sharding, share, tensor.reduced)

        def pair(computed: Sharding) -> Pair:
            target, axes = tensor.sharding, computed.partial_axes
            if axes and axes == staying:
                target = sharding_of(tensor.mesh, _without(tensor.split, axes), axes, computed.partial_kind)
            return computed, target, share if axes else 1.0

        return self.graph.pricing.prices(tensor.type, pair, tensor.reduced)

    def _pay(self, node: Node, number: int, need: Sharding) -> None:
        """Records that `need` is available from here on in this scope."""
        if number >= 0:
            value = self._values[number]
            if need != value.defined and need not in value.ready(node.scope):
                self._change(number, available=(*value.available, (node.scope, need)))


def _may_stay_partial(tensor: Tensor) -> bool:
    """Whether a tensor could stay a partial sum."""
    layout = tensor.layout
    is_wanted = layout is not None and bool(layout.partial_axes) and layout.partial_kind == "sum"
    return (is_wanted or not tensor.annotated) and not tensor.tied and tensor.dtype.startswith(_SUMMED)


def _without(split: Split, axes: Axes) -> Split:
    """`split` without some axes."""
    return tuple(tuple(axis for axis in along if axis not in axes) for along in split)
