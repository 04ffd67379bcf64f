"""Builds the graph of a function (`graph.py`): tensors and nodes, in one walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from meshbridge.analysis.known_values import is_splat
from meshbridge.analysis.trip_count import trip_count
from meshbridge.decide.choice import Pricing
from meshbridge.decide.dynamic_sizes import refuse_dynamic_sizes
from meshbridge.decide.graph import Graph, Node, NodeKind, Tensor
from meshbridge.decide.loop_invariant import loop_invariants
from meshbridge.decide.option_attribute import option_attribute
from meshbridge.decide.required_subaxes import may_require_subaxes
from meshbridge.decide.sharding_groups import share_tensors
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.module_mesh import sharding_on
from meshbridge.dialect.ops import MANUAL_AXES, OPEN_DIMS, PRIORITIES, REPLICATED_AXES, SOURCE
from meshbridge.dialect.renumber import may_name_axes
from meshbridge.dialect.signature import shape_of
from meshbridge.ir.elements import type_bytes
from meshbridge.ir.mlir import BARRIER, MANUAL, SHARDING_GROUP, OpError, has_no_regions, ir, source_location, walk
from meshbridge.ir.registry import Registry
from meshbridge.ir.sharding import Sharding, Split, even_split, is_even
from meshbridge.ir.uses import unchanged_numbers
from meshbridge.ops.linear import ADD, UNARY, fills_rows, is_reshape, is_widening
from meshbridge.ops.rule import Dims, Interface, Loop, ShardingRule, Signature, region_names


@dataclass(frozen=True)
class BodyBoundary:
    """The shardings of a body's arguments and results, and the axes of the manual computations around it."""

    arguments: tuple[Sharding | None, ...]
    results: tuple[Sharding | None, ...]
    manual: frozenset[int]


_Handler = Callable[["GraphBuilder", ir.Operation, int, tuple[int, ...]], None]
_HANDLERS: Registry[str, _Handler] = Registry("handler of the graph")
"""Ops that do not become nodes with a rule, and what adds them to the graph."""


class GraphBuilder:
    """Walks a function once and builds its Graph.

    `ends` are given for a body inside another function: no caller then has to assemble its arguments and results from equal
    shards.
    """

    def __init__(
        self, function: ir.Operation, interface: Interface, pricing: Pricing, *, ends: BodyBoundary | None = None
    ) -> None:
        self.graph = Graph(function, pricing.mesh, pricing)
        self._ends = ends
        self.interface = interface
        self._shardings: dict[ir.Value, Sharding] = {}
        self._identities: dict[tuple[object, ...], NodeKind] = {}
        "Kinds of identities, by shape, weight and region."
        self._unknown: dict[ir.Type, Tensor] = {}
        "The description of an unannotated tensor, by type."
        self._kinds: dict[int, dict[Signature, NodeKind]] = {}
        "By weight, the kinds of ops, by signature."
        self._annotated: dict[tuple[object, ...], Tensor] = {}
        "Descriptions of annotated tensors, by tensor and annotation."
        self._scopes = 0
        self._arguments: set[ir.Value] = set()
        self._manual = ends.manual if ends is not None else frozenset()
        self._groups: dict[int, list[int]] = {}
        self._members: dict[int, str] = {}
        "Per tensor in a group, the source location of the statement that puts it there."
        self._added: dict[int, ir.Value] = {}
        "Per carried tensor that a loop only adds to, the added value."
        self._unchanged: dict[int, int] = {}
        "Per tensor that a loop carries unchanged, the tensor that it starts from."
        self._stacked: dict[int, tuple[ir.Value, int]] = {}
        "Per carried tensor that a loop only writes rows into, the row and the number of rows."
        self._reader_sizes: dict[int, list[int]] = {}
        "Per tensor, the number of elements of each reader's result that loops only accumulate."
        self._producers: dict[int, Node] = {}
        "Per tensor, the op of one result that defines it, among the nodes searched so far."
        self._searched = 0
        self._returned: list[int] = []
        self._from_caller: set[int] = set()
        "Tensors with an annotation that is no constraint inside the program; such a result is the caller's boundary condition."

    def build(self) -> Graph:
        block = self.graph.function.regions[0].blocks[0]
        if self._ends is None:
            self._arguments = set(block.arguments)
        for index, argument in enumerate(block.arguments):
            if (tensor := self.tensor(argument)) >= 0:
                if self._ends is None:
                    self.graph.describe(tensor, boundary=True)
                elif (sharding := self._ends.arguments[index]) is not None:
                    self._annotate(tensor, sharding)
        self._block(block, 1, ())
        share_tensors(self.graph, self._groups.values(), self._members)
        self.graph.connect(self._returned)
        self.graph.invariant = loop_invariants(self.graph, self._unchanged)
        return self.graph

    def tensor(self, value: ir.Value) -> int:
        """The tensor of `value`, a new one if it has none; -1 if it is no ranked tensor."""
        tensor = self.graph.tensor_of.get(value)
        if tensor is None:
            tensor = self.graph.tensor_of[value] = self._new_tensor(value.type)
        return tensor

    def _new_tensor(self, of: ir.Type) -> int:
        description = self._unknown.get(of) or self._unannotated(of)
        return self.graph.add(description) if description is not None else -1

    def _unannotated(self, of: ir.Type) -> Tensor | None:
        """The description of an unannotated tensor of that type; None if it is no ranked tensor."""
        if not isinstance(of, ir.RankedTensorType):
            return None
        if not of.has_static_shape:
            refuse_dynamic_sizes(self.graph.function)
        shape = tuple(of.shape)
        open_dims = (True,) * len(shape)
        tensor = Tensor(self.graph.mesh.name, shape, str(of.element_type), ((),) * len(shape), open_dims, self._manual)
        description = self._unknown[of] = self.graph.unique(tensor)
        return description

    def identity(
        self, op: ir.Operation, index: int, source: int, target: int, weight: int, scope: tuple[int, ...], **region: Any
    ) -> None:
        """Adds a node that passes tensor `source`, operand `index` of `op`, on to tensor `target` unchanged."""
        if source < 0:
            return
        key = (shape := self.graph.tensors[source].shape, weight, *region.items())
        kind = self._identities.get(key)
        if kind is None:
            kind = self._identities[key] = self.graph.kind(identity_rule(shape), weight, is_identity=True, **region)
        self.graph.nodes.append(Node(op, op.name, kind, (source,), (target,), index, self._manual, scope))

    def _new_scope(self) -> int:
        self._scopes += 1
        return self._scopes

    def _block(self, block: ir.Block, weight: int, scope: tuple[int, ...]) -> ir.Operation:
        """Walks the ops of a block; returns its terminator."""
        graph, manual, tensor_of, tensors = self.graph, self._manual, self.graph.tensor_of, self.graph.tensors
        nodes, kinds, statements = graph.nodes, self._kinds.setdefault(weight, {}), graph.statements.setdefault(block, [])
        unannotated, unknown = self._unknown.get, self._unannotated
        for view in block.operations:
            op = view.operation
            name = getattr(view, "OPERATION_NAME", "") or op.name  # reading the class is faster than asking MLIR
            handler = _HANDLERS.get(name)
            if handler is not None:
                statements.append(op)
                handler(self, op, weight, scope)
                continue
            operands = tuple([tensor_of[value] for value in op.operands])
            signature: list[object] = [name, len(operands), *op.attributes.items()]
            signature += [value.type for value in op.operands] if -1 in operands else [tensors[tensor] for tensor in operands]
            results = []
            for value in op.results:
                description = unannotated(of := value.type) or unknown(of)
                tensor_of[value] = tensor = -1 if description is None else len(tensors)
                if description is not None:
                    tensors.append(description)
                signature.append(description or of)
                results.append(tensor)
            if not has_no_regions(view) and len(op.regions):
                signature += region_names(op)
            key = tuple(signature)
            kind = kinds.get(key)
            if kind is None:
                option = option_attribute(op, rule := self.interface.rule(op), graph.mesh)
                requires_subaxes = self._ends is None and may_require_subaxes(name, rule)
                graph.has_naming_nodes |= any(map(may_name_axes, walk(op)))
                kind = kinds[key] = graph.kind(rule, weight, fixed_option=option, requires_subaxes=requires_subaxes)
            statements.append(len(nodes))
            nodes.append(Node(op, name, kind, operands, tuple(results), 0, manual, scope))
        return op

    @_HANDLERS.register("mesh.sharding")
    def _sharding(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Records the sharding that `mesh.shard` ops refer to."""
        self._shardings[op.results[0]] = sharding_on(self.graph.mesh, op)

    @_HANDLERS.register("mesh.shard")
    def _shard(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Describes the tensor as the user annotated it."""
        (source, declared), result, attributes = op.operands, op.results[0], dict(op.attributes.items())
        sharding = self._shardings[declared]
        origin = self.tensor(source)
        if source in self._arguments:
            shape = self.graph.tensors[origin].shape
            split = sharding.padded(len(shape)).split_axes
            if not is_even(shape, self.graph.mesh, split):
                if "annotate_for_users" not in attributes and sharding.is_plain:
                    self._check_room(op, shape, split)
                even = even_split(shape, self.graph.mesh, split)
                self.graph.describe(origin, split=even, written=even, open=(False,) * len(shape), annotated=True)
        if "annotate_for_users" in attributes or self.graph.tensors[origin].annotated:
            target = self._new_tensor(result.type)
            self.identity(op, 0, origin, target, weight, scope)
        else:
            target = origin
        self.graph.tensor_of[result] = target
        if SOURCE not in attributes:
            self._from_caller.add(target)
        self._annotate(target, sharding, attributes)

    def _annotate(self, index: int, sharding: Sharding, attributes: Mapping[str, ir.Attribute] = MappingProxyType({})) -> None:
        """Annotates a tensor; `attributes` may give open dimensions, replicated axes and priorities."""
        key = (before := self.graph.tensors[index], sharding, self._manual, *attributes.items())
        if (after := self._annotated.get(key)) is not None:
            self.graph.tensors[index] = after
            return
        sharding = sharding.padded(len(before.shape))
        open_dims = integers(attributes[OPEN_DIMS]) if OPEN_DIMS in attributes else ()
        banned = self._manual | frozenset(sharding.partial_axes)
        if REPLICATED_AXES in attributes:
            banned |= frozenset(integers(attributes[REPLICATED_AXES]))
        priorities = before.priorities
        if PRIORITIES in attributes:
            priorities = tuple(max(priority, 0) for priority in integers(attributes[PRIORITIES]))
        self.graph.describe(
            index,
            banned=banned,
            split=sharding.split_axes,
            written=sharding.split_axes,
            open=tuple(dim in open_dims for dim in range(len(before.shape))),
            priorities=priorities,
            layout=sharding if sharding.partial_axes or not sharding.is_plain else None,
            annotated=True,
        )
        self._annotated[key] = self.graph.tensors[index]

    @_HANDLERS.register("func.return")
    def _return(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Results are annotated by `mesh.shard`; without one they keep the sharding of their definition."""
        if self._ends is not None:
            self._end(op, self._ends, weight, scope)
            return
        for operand in op.operands:
            if (tensor := self.tensor(operand)) >= 0:
                self._returned.append(tensor)
                self.graph.describe(tensor, boundary=True)
                layout = self.graph.tensors[tensor].layout
                if tensor in self._from_caller and (layout is None or layout.is_plain):
                    self._check_room(op, self.graph.tensors[tensor].shape, self.graph.tensors[tensor].split)

    def _end(self, op: ir.Operation, ends: BodyBoundary, weight: int, scope: tuple[int, ...]) -> None:
        """Annotates a body's results for this use; a partial result where it is defined, if the definition may stay partial."""
        for index, (operand, sharding) in enumerate(zip(op.operands, ends.results, strict=True)):
            tensor = self.tensor(operand)
            if tensor >= 0 and sharding is not None:
                if sharding.partial_axes and not self.graph.tensors[tensor].annotated:
                    self.graph.returned_partial.add(tensor)
                    self._annotate(tensor, sharding)
                else:
                    target = self._new_tensor(operand.type)
                    self.identity(op, index, tensor, target, weight, scope)
                    self._annotate(target, sharding.without_partial())

    def _check_room(self, op: ir.Operation, shape: tuple[int, ...], split: Split) -> None:
        """Raises OpError for an argument or result that is sharded over more devices than it has elements. Values inside the
        program, such as a use of an argument, may be."""
        for dim, (size, axes) in enumerate(zip(shape, split, strict=True)):
            devices = self.graph.mesh.group_size(axes)
            if devices > size > 0:  # an empty dimension is split evenly
                names = ", ".join(self.graph.mesh.axis_name(axis) for axis in axes)
                shared = f"dimension {dim} of an argument or result, which has {size} elements"
                raise OpError(op, f"lets {devices} devices (axes {names}) share {shared}", "split it along fewer axes")

    @_HANDLERS.register("stablehlo.while")
    def _while(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Initial value, region arguments and result of a carried value share one tensor; the yield passes into it."""
        regions = [region.blocks[0] for region in op.regions]
        carried: list[int] = []
        for index, (init, result) in enumerate(zip(op.operands, op.results, strict=True)):
            target = self.tensor(result)
            self._tie(target)
            for block in regions:
                self.graph.tensor_of[block.arguments[index]] = target
            self.identity(op, index, self.tensor(init), target, weight, scope)
            carried.append(target)
        inner = weight * (trip_count(op) or 1)
        body: tuple[int, ...] = scope
        for block in regions:  # the condition, then the body
            body = (*scope, self._new_scope())
            terminator = self._block(block, inner, body)
        self.graph.carried.update((tensor, body[-1]) for tensor in carried if tensor >= 0)
        unchanged = set(unchanged_numbers(op))
        for index, yielded in enumerate(terminator.operands):
            self.identity(terminator, index, self.tensor(yielded), carried[index], inner, body)
            arguments = [block.arguments[index] for block in regions]
            if index in unchanged and carried[index] >= 0:
                self._unchanged[carried[index]] = self.tensor(op.operands[index])
            elif (added := self._added_value(yielded, *arguments)) is not None:
                self._added[carried[index]] = added
                self._reduce_less_often(added, weight, added.type)
            elif (row := self._row(yielded, *arguments)) is not None and is_splat(op.operands[index], 0):
                self._stacked[carried[index]] = row, shape_of(yielded.type)[0]

    @_HANDLERS.register(BARRIER)
    def _hand_on(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Operands of an optimization barrier are its results. A barrier passes the stored sharding: a program that recomputes a
        layer after a barrier does not want gathered values to stay in memory across it."""
        for operand, result in zip(op.operands, op.results, strict=True):
            self.graph.tensor_of[result] = self.tensor(operand)

    def _added_value(self, yielded: ir.Value, tested: ir.Value, carried: ir.Value) -> ir.Value | None:
        """The value that a loop adds to a carried value, if it does nothing else with the carried value; otherwise None."""
        addition = self._producer(self.tensor(yielded))
        if addition is None or addition.name not in ADD or carried not in list(addition.op.operands):
            return None
        position = list(addition.op.operands).index(carried)
        is_sum = addition.name == "stablehlo.add" or position == 0
        if not is_sum or any(True for _ in tested.uses) or not (_used_once(carried) and _used_once(yielded)):
            return None
        value: ir.Value = addition.op.operands[1 - position]
        return value

    def _row(self, yielded: ir.Value, tested: ir.Value, carried: ir.Value) -> ir.Value | None:
        """The row that a loop writes into a carried stack, if it does nothing else with the stack; otherwise None."""
        write = self._producer(self.tensor(yielded))
        if write is None or not fills_rows(write.op, carried):
            return None
        if any(True for _ in tested.uses) or not (_used_once(carried) and _used_once(yielded)):
            return None
        row: ir.Value = write.op.operands[1]
        return row

    def _reduce_less_often(self, value: ir.Value, weight: int, type_: ir.Type) -> None:
        """Partial values from which linear ops alone compute `value` are reduced only `weight` times. Each reader computes one
        value of that type from it. All readers must do so, with no more elements in total: slices, for example."""
        tensor = self.tensor(value)
        sizes = self._reader_sizes.setdefault(tensor, [])
        sizes.append(prod(shape_of(type_)))
        if len(sizes) < sum(1 for _ in value.uses) or sum(sizes) > prod(shape_of(value.type)):
            return
        producer = self._producer(tensor)
        self.graph.accumulated.add(tensor)
        if tensor in self._added:
            self._reduce_less_often(self._added[tensor], weight, value.type)
        elif tensor in self._stacked:
            row, rows = self._stacked[tensor]
            self._reduce_less_often(row, weight * rows, row.type)
        elif producer is None:
            return
        elif producer.rule.reduces:
            self.graph.change_kind(producer, reduce_weight=min(weight, producer.kind.weight))
        elif producer.name in ADD:
            for operand in producer.op.operands:
                self._reduce_less_often(operand, weight, value.type)
        elif producer.name in UNARY or is_reshape(producer.op):
            self._reduce_less_often(producer.op.operands[0], weight, value.type)
        elif is_widening(producer.op):
            narrow = producer.op.operands[0]
            if weight * type_bytes(value.type) < producer.kind.weight * type_bytes(narrow.type):
                self._reduce_less_often(narrow, weight, value.type)

    def _producer(self, tensor: int) -> Node | None:
        """The op of one result that defines a tensor."""
        nodes = self.graph.nodes
        self._producers.update((node.only_result, node) for node in nodes[self._searched :] if not node.is_identity)
        self._searched = len(nodes)
        return self._producers.get(tensor) if tensor >= 0 else None

    def _tie(self, tensor: int) -> None:
        if tensor >= 0:
            self.graph.describe(tensor, tied=True)

    @_HANDLERS.register("stablehlo.case", "stablehlo.if")
    def _branches(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """`case` and `if`: every branch yields into the result's tensor."""
        results = [self.tensor(result) for result in op.results]
        for tensor in results:
            self._tie(tensor)
        for region in op.regions:
            block = region.blocks[0]
            inside = (*scope, self._new_scope())
            terminator = self._block(block, weight, inside)
            for index, yielded in enumerate(terminator.operands):
                self.identity(terminator, index, self.tensor(yielded), results[index], weight, inside)

    @_HANDLERS.register(MANUAL)
    def _manual_computation(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """The region is local along its manual axes: shapes inside are smaller, and those axes do not exist there."""
        axes = frozenset(integers(op.attributes[MANUAL_AXES]))
        block = op.regions[0].blocks[0]
        outside = self._manual, self._unknown
        self._manual, self._unknown = self._manual | axes, {}
        inside = (*scope, self._new_scope())
        for index, (operand, argument) in enumerate(zip(op.operands, block.arguments, strict=True)):
            source, target = self.tensor(operand), self.tensor(argument)
            self._at_region(op, source, axes)
            self.identity(op, index, source, target, weight, scope, region_axes=axes, is_entry=True)
        terminator = self._block(block, weight, inside)
        self._manual, self._unknown = outside
        for index, (yielded, result) in enumerate(zip(terminator.operands, op.results, strict=True)):
            target = self.tensor(result)
            self.identity(terminator, index, self.tensor(yielded), target, weight, inside, region_axes=axes)
            if target >= 0:
                self.graph.describe(target, region_axes=self.graph.tensors[target].region_axes | axes)

    def _at_region(self, op: ir.Operation, tensor: int, axes: frozenset[int]) -> None:
        if tensor >= 0:
            description = self.graph.tensors[tensor]
            if not description.annotated:
                raise OpError(op, "has an operand whose sharding along the manual axes is not annotated")
            self.graph.describe(tensor, region_axes=description.region_axes | axes)

    @_HANDLERS.register(SHARDING_GROUP)
    def _group(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Values of one sharding group are sharded alike."""
        tensor = self.tensor(op.operands[0])
        if tensor >= 0:
            self._members[tensor] = source_location(op)
            self._groups.setdefault(ir.IntegerAttr(op.attributes["group_id"]).value, []).append(tensor)

    @_HANDLERS.register("sdy.propagation_barrier")
    def _barrier(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Splits pass a barrier in its allowed direction only."""
        allowed = str(op.attributes["allowed_direction"])
        forward, backward = "FORWARD" in allowed or "BOTH" in allowed, "BACKWARD" in allowed or "BOTH" in allowed
        source, target = self.tensor(op.operands[0]), self.tensor(op.results[0])
        self.identity(op, 0, source, target, weight, scope, forward=forward, backward=backward)

    @_HANDLERS.register("sdy.data_flow_edge")
    def _edge(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """A data-flow edge is its operand."""
        self.graph.tensor_of[op.results[0]] = self.tensor(op.operands[0])

    @_HANDLERS.register("stablehlo.return", "sdy.return", "mesh.get_sharding")
    def _nothing(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Terminators of regions, whose yields the loop or branch has connected, and ops about sharding alone."""


def _used_once(value: ir.Value) -> bool:
    return sum(1 for _ in value.uses) == 1


def identity_rule(shape: tuple[int, ...]) -> ShardingRule:
    dims: Dims = tuple((dim,) for dim in range(len(shape)))
    return ShardingRule(tuple(Loop(size) for size in shape), (dims,), (dims,))
