"""Assigning: with all tensors decided, each op in program order gets its option, and each definition and use its sharding.

Here values may stay partial. A sum over shards that is only added to another sum over the same shards, or passes through linear
ops that do not make it larger, is all-reduced once, at the end of that chain (the RFC's all-reduce reassociation, done before any
all-reduce exists). A resharding that an earlier use has paid for is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from meshbridge.decide.choice import compute_price, options, reducing_cost, reshard_cost
from meshbridge.decide.decisions import AS_OPERANDS, CHEAPEST, GIVEN, BlockDecisions, OpDecision, Shardings
from meshbridge.decide.graph import Graph, Node
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes, Sharding, Split
from meshbridge.ops.layouts import in_layout, shared_layout
from meshbridge.ops.linear import ADD, LINEAR, carried_axes
from meshbridge.ops.option import Option, computed_sharding, needed_sharding, result_sharding

_SUMMED = ("f", "bf", "complex", "i8", "i16", "i32", "i64", "ui")
"""Element types whose `add` is a sum (not i1, where it is "or", which no other linear op commutes with)."""


BodyFn = Callable[[Node, Option], BlockDecisions | None]
"""Decides the body of an op that is sharded as one; None for any other op."""


class Assigner:
    """Assigns the decisions of one graph."""

    def __init__(self, graph: Graph, decide_body: BodyFn) -> None:
        self.graph = graph
        self.decide_body = decide_body
        self.decided: dict[ir.Operation, OpDecision] = {}
        "Of ops that are split by their loops."
        self.needed: dict[tuple[ir.Operation, int], Sharding] = {}
        "What operands that other ops hand on as they are must be resharded to."
        self.defined: dict[int, Sharding] = {}
        "The sharding of each tensor where it is defined."
        self._available: dict[int, list[tuple[tuple[int, ...], Sharding]]] = {}
        self._anticipated: dict[int, Sharding] = {}
        "How tensors of several users were decided that are computed otherwise: the decision has counted this resharding, once."
        self._memo: dict[tuple[object, ...], Option] = {}
        self._unreduced: dict[int, Axes] = {}
        self._free: dict[int, Axes] = {}
        "Tensors whose reduction over these axes costs nothing extra, since a partial value that they join pays for it."

    def run(self) -> None:
        """Decides for every node, in order."""
        for index, tensor in enumerate(self.graph.tensors):
            self.defined[index] = tensor.sharding(self.graph.mesh.name)
        self._unreduced = self._possible()
        self._join_sums()
        self._unreduced = self._worthwhile(self._unreduced)
        for node in self.graph.nodes:
            if node.is_identity:
                need = self.needed[node.op, node.operand_index] = self.graph.identity_need(node)
                self._pay(node, node.operands[0], need)
            else:
                self.decided[node.op] = self._payload(node)

    def _possible(self) -> dict[int, Axes]:
        """Tensors that could stay partial, and over which axes, if no linear chain were reduced."""
        partial = {index: tensor.summed_axes for index, tensor in enumerate(self.graph.tensors) if tensor.summed_axes}
        for node in self.graph.nodes:
            if self._may_stay(node):
                carried = self._carried(node, partial)
                if not carried and node.rule.reduces:
                    carried = self._sum_axes(node)
                self._mark(partial, node, carried)
        return partial

    def _worthwhile(self, partial: dict[int, Axes]) -> dict[int, Axes]:
        """`partial` without the tensors that would be scattered along the same axes and that no addition, here or in the next
        iteration of a loop, joins with another sum: reducing them at once costs the same, and what follows computes on
        smaller shards.
        """
        kept = {tensor: axes for tensor, axes in partial.items() if self.graph.tensors[tensor].summed_axes}
        for node in reversed(self.graph.nodes):
            tensor = node.only_result
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
        return node.op.name in ADD and all(tensor in partial and self.graph.tensors[tensor].uses == 1 for tensor in node.operands)

    def _is_joined(self, tensor: int, axes: Axes, partial: dict[int, Axes], kept: dict[int, Axes]) -> bool:
        """Whether the only user of `tensor` adds it to another such sum, or hands it on to where that happens."""
        user = self._only_user(tensor)
        if user is None or user.is_identity or kept.get(user.only_result) != axes:
            return False
        beside = [other for other in user.operands if other >= 0 and other not in partial]
        return self._adds(user, partial) or not any(self._splits(other, axes) for other in beside)

    def _only_user(self, tensor: int) -> Node | None:
        if self.graph.tensors[tensor].uses != 1:
            return None
        return next((self.graph.nodes[i] for i in self.graph.users[tensor] if tensor in self.graph.nodes[i].operands), None)

    def _may_stay(self, node: Node) -> bool:
        """Whether the node's only result could stay a partial sum at all."""
        if node.is_identity or node.only_result < 0:
            return False
        tensor = self.graph.tensors[node.only_result]
        is_wanted = tensor.layout is not None and bool(tensor.layout.partial_axes) and tensor.layout.partial_kind == "sum"
        return (is_wanted or not tensor.user) and not tensor.tied and tensor.dtype.startswith(_SUMMED)

    def _sum_axes(self, node: Node, free: Axes = ()) -> Axes:
        """The axes over which the node's cheapest option leaves its result a partial sum."""
        unkept: list[Axes] = [()] * len(node.operands)
        option = self._choose(node, [self.defined.get(operand) for operand in node.operands], unkept, free)
        computed = result_sharding(node.rule, option, 0, self.graph.mesh)
        return computed.partial_axes if computed.partial_kind == "sum" else ()

    def _mark(self, partial: dict[int, Axes], node: Node, axes: Axes) -> bool:
        """Notes that the node's result may stay partial over `axes`. Whether that is news."""
        tensor = node.only_result
        wanted = self.graph.tensors[tensor].layout
        if not axes or tensor in partial or (wanted is not None and wanted.partial_axes != axes):
            return False
        partial[tensor] = axes
        return True

    def _join_sums(self) -> None:
        """An op whose result is only added to a partial value may leave its own partial too: all-reducing both costs what one
        does.

        The gradient of a value that three contractions read is the case: alone, each might rather gather its operands.
        """
        made_by = {node.only_result: node for node in self.graph.nodes if self._may_stay(node)}
        linear = [node for node in made_by.values() if node.op.name in LINEAR]
        news = True
        while news:
            news = False
            for node in linear:
                axes = self._carried(node, self._unreduced)
                if not axes and node.op.name in ADD:
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
        maker = made_by.get(tensor)
        if maker is None or self.graph.tensors[tensor].uses != 1:
            return None
        if tensor in self._unreduced:
            return [] if self._unreduced[tensor] == axes else None
        if maker.op.name in ADD:
            left, right = (self._willing(operand, axes, made_by) for operand in maker.operands)
            return None if left is None or right is None else [*left, *right, maker]
        return [maker] if maker.rule.reduces and self._sum_axes(maker, axes) == axes else None

    def _carried(self, node: Node, partial: dict[int, Axes]) -> Axes:
        """The axes over which the node's result stays partial because its operands are; () if it needs them reduced."""
        return carried_axes(node.op, node.rule, [partial.get(tensor, ()) for tensor in node.operands])

    def _stays_partial(self, tensor: int, computed: Sharding) -> bool:
        """Whether a partial definition is left to its only user, because the user passes it on in no more bytes."""
        description = self.graph.tensors[tensor]
        user = self._only_user(tensor)
        if description.user or description.tied or self._unreduced.get(tensor) != computed.partial_axes:
            return False
        if user is None or user.is_identity or self._unreduced.get(user.only_result) != computed.partial_axes:
            return False
        grown = self.graph.tensors[user.only_result]
        return prod(grown.shape) <= prod(description.shape) and self._carried(user, self._unreduced) == computed.partial_axes

    def _payload(self, node: Node) -> OpDecision:
        mesh = self.graph.mesh
        arriving = [self.defined.get(tensor) for tensor in node.operands]
        layout = shared_layout(node.op, node.rule, arriving)
        if layout is not None:
            return self._in_layout(node, layout, arriving)
        carried = self._carried_now(node)
        kept: Axes = next((axes for axes in carried if axes), ())
        free = self._free.get(node.only_result, ())
        option = self._choose(node, [self.defined.get(tensor) for tensor in node.operands], carried, free)
        needs = tuple(
            needed_sharding(node.rule.operands[index], option, mesh.name, carried[index]) if tensor >= 0 else None
            for index, tensor in enumerate(node.operands)
        )
        for tensor, need in zip(node.operands, needs, strict=True):
            if need is not None:
                self._pay(node, tensor, need)
        body = self.decide_body(node, option)
        why, regions = CHEAPEST if node.fixed_option is None else GIVEN, (body,) if body is not None else ()
        decision = OpDecision(why, needs, (), node.rule, option, carried=kept, regions=regions)
        if not any(option[loop] for loop in node.rule.blocked):  # what is computed must not decide how the result is sharded
            for index, tensor in enumerate(node.results):
                if tensor >= 0 and (computed := decision.computed(index, mesh)) is not None:
                    self._define(tensor, computed)
        return replace(decision, results=self._defined(node))

    def _defined(self, node: Node) -> Shardings:
        return tuple([self.defined.get(tensor) for tensor in node.results])

    def _in_layout(self, node: Node, layout: Sharding, arriving: list[Sharding | None]) -> OpDecision:
        """An elementwise op whose operands have halos or offsets computes, and leaves, its results so."""
        for tensor in node.results:
            description = self.graph.tensors[tensor]
            if not (description.user or description.tied):
                self.defined[tensor] = layout
        return OpDecision(AS_OPERANDS, in_layout(layout, node.rule, arriving), self._defined(node), node.rule, layout=layout)

    def _carried_now(self, node: Node) -> list[Axes]:
        """Per operand, the axes over which it arrives partial and is passed on so."""
        if node.kept:
            return list(node.kept)
        arriving = {tensor: self.defined[tensor].summed_axes for tensor in node.operands if tensor >= 0}
        arriving = {tensor: axes for tensor, axes in arriving.items() if axes and self._unreduced.get(tensor) == axes}
        axes = self._carried(node, arriving) if arriving and node.only_result >= 0 else ()
        return [axes if axes and arriving.get(tensor) == axes else () for tensor in node.operands]

    def _define(self, tensor: int, computed: Sharding) -> None:
        """Decides how the definition is annotated: as the tensor was decided; but a conflict within the op is left to the users,
        of whom those that go by the decision share one resharding."""
        description = self.graph.tensors[tensor]
        if tensor in self.graph.returned_partial and computed != self.defined[tensor]:
            self.defined[tensor] = self.defined[tensor].without_partial()
        fixed = description.user or description.tied or any(description.decided) or description.layout is not None
        if not fixed and (not computed.partial_axes or self._stays_partial(tensor, computed)):
            if description.uses > 1 and not computed.partial_axes and computed != self.defined[tensor]:
                self._anticipated[tensor] = self.defined[tensor]
            self.defined[tensor] = computed

    def _choose(self, node: Node, defined: list[Sharding | None], carried: list[Axes], free: Axes = ()) -> Option:
        if node.fixed_option is not None:
            return node.fixed_option
        tensors = self.graph.tensors
        targets = tuple(tensors[tensor].split if tensor >= 0 else () for tensor in node.results)
        ready = tuple(tuple(sharding for _, sharding in self._reachable(tensor, node.scope)) for tensor in node.operands)
        partial = self.graph.wanted_partial(node)
        anticipated = tuple(map(self._anticipated.get, node.operands))
        key = (node.rule, tuple(defined), targets, tuple(carried), ready, anticipated, partial, free, node.reduce_share)
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._cheapest(node, defined, targets, carried, ready, anticipated, partial, free)
        return found

    def _cheapest(
        self,
        node: Node,
        defined: list[Sharding | None],
        targets: tuple[Split, ...],
        carried: list[Axes],
        ready: tuple[tuple[Sharding, ...], ...],
        anticipated: tuple[Sharding | None, ...],
        partial: Axes,
        free: Axes,
    ) -> Option:
        mesh, tensors, rule = self.graph.mesh, self.graph.tensors, node.rule
        splits: list[Split] = [sharding.split_axes if sharding else () for sharding in defined]
        kept = max(carried, default=())

        def cost(option: Option) -> tuple[float, float]:
            """Bytes, and then those among them that are counted already, which may yet be spared."""
            total, counted = compute_price(rule, option, mesh), 0.0
            for index, (tensor, source) in enumerate(zip(node.operands, defined, strict=True)):
                if source is not None:
                    need = needed_sharding(rule.operands[index], option, mesh.name, carried[index])
                    moved = (
                        0.0
                        if need in ready[index]
                        else reshard_cost(tensors[tensor].shape, tensors[tensor].dtype, mesh, source, need)
                    )
                    if need == anticipated[index]:
                        counted += moved
                    else:
                        total += moved
            for index, tensor in enumerate(node.results):
                if tensor >= 0:
                    computed = computed_sharding(rule, option, index, mesh, kept)
                    if computed.partial_axes and computed.partial_axes == (kept or free):  # stays partial
                        target = replace(computed, split_axes=_without(targets[index], computed.partial_axes))
                    else:
                        target = tensors[tensor].sharding(mesh.name)
                    total += reducing_cost(
                        tensors[tensor].shape, tensors[tensor].dtype, mesh, computed, target, node.reduce_share
                    )
            return total, counted

        return min(options(rule, [*splits, *targets], mesh, partial, kept), key=cost)

    def _reachable(self, tensor: int, scope: tuple[int, ...]) -> list[tuple[tuple[int, ...], Sharding]]:
        return [entry for entry in self._available.get(tensor, ()) if scope[: len(entry[0])] == entry[0]]

    def _pay(self, node: Node, tensor: int, need: Sharding) -> None:
        """Remembers that `need` exists from here on in this scope."""
        if tensor >= 0 and need != self.defined[tensor] and all(need != have for _, have in self._reachable(tensor, node.scope)):
            self._available.setdefault(tensor, []).append((node.scope, need))


def _without(split: Split, axes: Axes) -> Split:
    """`split` less some axes."""
    return tuple(tuple(axis for axis in along if axis not in axes) for along in split)
