"""One walk over a function that makes its tensors and nodes (`graph.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from meshbridge.analysis.known_values import is_splat
from meshbridge.analysis.trip_count import trip_count
from meshbridge.decide.choice import Pricing
from meshbridge.decide.cut_axes import may_cut
from meshbridge.decide.given_option import given_option
from meshbridge.decide.graph import Graph, Kind, Node, Tensor
from meshbridge.decide.groups import share_tensors
from meshbridge.decide.unknown_sizes import refuse_unknown_sizes
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.module_mesh import sharding_on
from meshbridge.dialect.ops import MANUAL_AXES, OPEN_DIMS, PRIORITIES, REPLICATED_AXES, SOURCE
from meshbridge.dialect.renumber import may_name_axes
from meshbridge.dialect.signature import shape_of
from meshbridge.ir.elements import type_bytes
from meshbridge.ir.mlir import BARRIER, MANUAL, SHARDING_GROUP, OpError, has_no_regions, ir, source_location, walk
from meshbridge.ir.registry import Registry
from meshbridge.ir.sharding import Sharding, Split, even_split, is_even
from meshbridge.ops.linear import ADD, UNARY, is_reshape, is_widening, writes_rows
from meshbridge.ops.rule import Dims, Interface, Loop, ShardingRule, Signature, region_names


@dataclass(frozen=True)
class BodyBoundary:
    """How the arguments and results of a body are sharded, and the axes of the manual computations that it stands in."""

    arguments: tuple[Sharding | None, ...]
    results: tuple[Sharding | None, ...]
    manual: frozenset[int]


_Handler = Callable[["GraphBuilder", ir.Operation, int, tuple[int, ...]], None]
_HANDLERS: Registry[str, _Handler] = Registry("handler of the graph")
"""Ops that are no nodes of their own kind, and what adds them to the graph."""


class GraphBuilder:
    """Walks a function once and builds its Graph.

    `ends` are given for a body that will stand inside another function: then no caller has to put its arguments and results
    together from equal shards.
    """

    def __init__(
        self, function: ir.Operation, interface: Interface, pricing: Pricing, *, ends: BodyBoundary | None = None
    ) -> None:
        self.graph = Graph(function, pricing.mesh, pricing)
        self._ends = ends
        self.interface = interface
        self._shardings: dict[ir.Value, Sharding] = {}
        self._identities: dict[tuple[object, ...], Kind] = {}
        "Per shape, weight and what else an identity says, its kind."
        self._unknown: dict[ir.Type, Tensor] = {}
        "Per type, what is known here of a tensor that nobody has annotated."
        self._kinds: dict[int, dict[Signature, Kind]] = {}
        "Per weight and what an op says, the kind of its node."
        self._annotated: dict[tuple[object, ...], Tensor] = {}
        "Per tensor and annotation, what is known then."
        self._scopes = 0
        self._arguments: set[ir.Value] = set()
        self._manual = ends.manual if ends is not None else frozenset()
        self._groups: dict[int, list[int]] = {}
        self._members: dict[int, str] = {}
        "Per tensor in a group, the source location of the statement that puts it there."
        self._added: dict[int, ir.Value] = {}
        "Per carried tensor that a loop only adds to, the value that it adds."
        self._stacked: dict[int, tuple[ir.Value, int]] = {}
        "Per carried tensor that a loop only writes rows into, the row, and how many there are."
        self._made_of: dict[int, list[int]] = {}
        "Per tensor, the elements of what its readers make of it that loops only add up."
        self._makers: dict[int, Node] = {}
        "Per tensor, the op of one result that defines it, as far as nodes have been searched."
        self._searched = 0
        self._returned: list[int] = []
        self._from_caller: set[int] = set()
        "Tensors annotated as such, not by a constraint inside the program: a result there is the caller's boundary condition."

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
        return self.graph

    def tensor(self, value: ir.Value) -> int:
        """The tensor of `value`, a new one if it has none; -1 if it is no ranked tensor."""
        found = self.graph.tensor_of.get(value)
        if found is None:
            found = self.graph.tensor_of[value] = self._new_tensor(value.type)
        return found

    def _new_tensor(self, of: ir.Type) -> int:
        known = self._unknown.get(of) or self._unannotated(of)
        return self.graph.add(known) if known is not None else -1

    def _unannotated(self, of: ir.Type) -> Tensor | None:
        """What is known of a tensor of that type before anything else is; None for what is no ranked tensor."""
        if not isinstance(of, ir.RankedTensorType):
            return None
        if not of.has_static_shape:
            refuse_unknown_sizes(self.graph.function)
        shape = tuple(of.shape)
        open_dims = (True,) * len(shape)
        found = Tensor(self.graph.mesh.name, shape, str(of.element_type), ((),) * len(shape), open_dims, self._manual)
        known = self._unknown[of] = self.graph.known(found)
        return known

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
            name = getattr(view, "OPERATION_NAME", "") or op.name  # what a class knows costs less than to ask MLIR
            handler = _HANDLERS.get(name)
            if handler is not None:
                statements.append(op)
                handler(self, op, weight, scope)
                continue
            operands = tuple([tensor_of[value] for value in op.operands])
            said: list[object] = [name, len(operands), *op.attributes.items()]
            said += [value.type for value in op.operands] if -1 in operands else [tensors[tensor] for tensor in operands]
            made = []
            for value in op.results:
                known = unannotated(of := value.type) or unknown(of)
                tensor_of[value] = tensor = -1 if known is None else len(tensors)
                if known is not None:
                    tensors.append(known)
                said.append(known or of)
                made.append(tensor)
            if not has_no_regions(view) and len(op.regions):
                said += region_names(op)
            key = tuple(said)
            kind = kinds.get(key)
            if kind is None:
                option = given_option(op, rule := self.interface.rule(op), graph.mesh)
                cuts = self._ends is None and may_cut(name, rule)
                graph.has_naming_nodes |= any(map(may_name_axes, walk(op)))
                kind = kinds[key] = graph.kind(rule, weight, fixed_option=option, cuts=cuts)
            statements.append(len(nodes))
            nodes.append(Node(op, name, kind, operands, tuple(made), 0, manual, scope))
        return op

    @_HANDLERS.register("mesh.sharding")
    def _sharding(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Notes the sharding for those that name it."""
        self._shardings[op.results[0]] = sharding_on(self.graph.mesh, op)

    @_HANDLERS.register("mesh.shard")
    def _shard(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Describes the tensor as the user has annotated it."""
        (source, declared), result, said = op.operands, op.results[0], dict(op.attributes.items())
        sharding = self._shardings[declared]
        origin = self.tensor(source)
        if source in self._arguments:
            shape = self.graph.tensors[origin].shape
            split = sharding.padded(len(shape)).split_axes
            if not is_even(shape, self.graph.mesh, split):
                if "annotate_for_users" not in said and sharding.is_plain:
                    self._check_room(op, shape, split)
                even = even_split(shape, self.graph.mesh, split)
                self.graph.describe(origin, split=even, written=even, open=(False,) * len(shape), user=True)
        if "annotate_for_users" in said or self.graph.tensors[origin].user:
            target = self._new_tensor(result.type)
            self.identity(op, 0, origin, target, weight, scope)
        else:
            target = origin
        self.graph.tensor_of[result] = target
        if SOURCE not in said:
            self._from_caller.add(target)
        self._annotate(target, sharding, said)

    def _annotate(self, index: int, sharding: Sharding, said: Mapping[str, ir.Attribute] = MappingProxyType({})) -> None:
        """Gives a tensor an annotation, of which attributes may have `said` more; the same one once."""
        key = (before := self.graph.tensors[index], sharding, self._manual, *said.items())
        if (after := self._annotated.get(key)) is not None:
            self.graph.tensors[index] = after
            return
        sharding = sharding.padded(len(before.shape))
        open_dims = integers(said[OPEN_DIMS]) if OPEN_DIMS in said else ()
        banned = self._manual | frozenset(sharding.partial_axes)
        if REPLICATED_AXES in said:
            banned |= frozenset(integers(said[REPLICATED_AXES]))
        priorities = before.priorities
        if PRIORITIES in said:
            priorities = tuple(max(priority, 0) for priority in integers(said[PRIORITIES]))
        self.graph.describe(
            index,
            banned=banned,
            split=sharding.split_axes,
            written=sharding.split_axes,
            open=tuple(dim in open_dims for dim in range(len(before.shape))),
            priorities=priorities,
            layout=sharding if sharding.partial_axes or not sharding.is_plain else None,
            user=True,
        )
        self._annotated[key] = self.graph.tensors[index]

    @_HANDLERS.register("func.return")
    def _return(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Results are annotated by `mesh.shard`; without one they are sharded as defined."""
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
        """What a body returns is annotated for this use; a partial value where it is defined, if that may leave it so."""
        for index, (operand, sharding) in enumerate(zip(op.operands, ends.results, strict=True)):
            tensor = self.tensor(operand)
            if tensor >= 0 and sharding is not None:
                if sharding.partial_axes and not self.graph.tensors[tensor].user:
                    self.graph.returned_partial.add(tensor)
                    self._annotate(tensor, sharding)
                else:
                    target = self._new_tensor(operand.type)
                    self.identity(op, index, tensor, target, weight, scope)
                    self._annotate(target, sharding.without_partial())

    def _check_room(self, op: ir.Operation, shape: tuple[int, ...], split: Split) -> None:
        """A value inside a program, such as a use of an argument, may be sharded along more devices than it has elements; an
        argument or result that is so is a mistake."""
        for dim, (size, axes) in enumerate(zip(shape, split, strict=True)):
            devices = self.graph.mesh.group_size(axes)
            if devices > size > 0:  # of nothing, everybody has an equal share
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
        for index, yielded in enumerate(terminator.operands):
            self.identity(terminator, index, self.tensor(yielded), carried[index], inner, body)
            arguments = [block.arguments[index] for block in regions]
            if (added := self._added_value(yielded, *arguments)) is not None:
                self._added[carried[index]] = added
                self._reduce_less_often(added, weight, added.type)
            elif (row := self._row(yielded, *arguments)) is not None and is_splat(op.operands[index], 0):
                self._stacked[carried[index]] = row, shape_of(yielded.type)[0]

    @_HANDLERS.register(BARRIER)
    def _hand_on(self, op: ir.Operation, weight: int, scope: tuple[int, ...]) -> None:
        """Each operand of an optimisation barrier is a result. It passes as it is stored: who recomputes a layer behind a barrier
        does not want what was gathered in front of it to stay."""
        for operand, result in zip(op.operands, op.results, strict=True):
            self.graph.tensor_of[result] = self.tensor(operand)

    def _added_value(self, yielded: ir.Value, tested: ir.Value, carried: ir.Value) -> ir.Value | None:
        """What a loop adds to a carried value of which it makes no other use; None if it does something else."""
        join = self._maker(self.tensor(yielded))
        if join is None or join.name not in ADD or carried not in list(join.op.operands):
            return None
        place = list(join.op.operands).index(carried)
        is_sum = join.name == "stablehlo.add" or place == 0
        if not is_sum or any(True for _ in tested.uses) or not (_used_once(carried) and _used_once(yielded)):
            return None
        value: ir.Value = join.op.operands[1 - place]
        return value

    def _row(self, yielded: ir.Value, tested: ir.Value, carried: ir.Value) -> ir.Value | None:
        """What a loop writes into a carried stack of which it makes no other use; None if it does something else."""
        write = self._maker(self.tensor(yielded))
        if write is None or not writes_rows(write.op, carried):
            return None
        if any(True for _ in tested.uses) or not (_used_once(carried) and _used_once(yielded)):
            return None
        row: ir.Value = write.op.operands[1]
        return row

    def _reduce_less_often(self, value: ir.Value, weight: int, type_: ir.Type) -> None:
        """Partial values that `value` is made of by linear ops alone are reduced only `weight` times. A reader makes one value of
        that type of it; it counts once all its readers do so, if these have no more elements together: slices, for one."""
        tensor = self.tensor(value)
        made = self._made_of.setdefault(tensor, [])
        made.append(prod(shape_of(type_)))
        if len(made) < sum(1 for _ in value.uses) or sum(made) > prod(shape_of(value.type)):
            return
        maker = self._maker(tensor)
        self.graph.accumulated.add(tensor)
        if tensor in self._added:
            self._reduce_less_often(self._added[tensor], weight, value.type)
        elif tensor in self._stacked:
            row, rows = self._stacked[tensor]
            self._reduce_less_often(row, weight * rows, row.type)
        elif maker is None:
            return
        elif maker.rule.reduces:
            self.graph.change_kind(maker, reduce_weight=min(weight, maker.kind.weight))
        elif maker.name in ADD:
            for operand in maker.op.operands:
                self._reduce_less_often(operand, weight, value.type)
        elif maker.name in UNARY or is_reshape(maker.op):
            self._reduce_less_often(maker.op.operands[0], weight, value.type)
        elif is_widening(maker.op):
            given = maker.op.operands[0]
            if weight * type_bytes(value.type) < maker.kind.weight * type_bytes(given.type):
                self._reduce_less_often(given, weight, value.type)

    def _maker(self, tensor: int) -> Node | None:
        """The op of one result that defines a tensor."""
        nodes = self.graph.nodes
        self._makers.update((node.only_result, node) for node in nodes[self._searched :] if not node.is_identity)
        self._searched = len(nodes)
        return self._makers.get(tensor) if tensor >= 0 else None

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
        """The region is local along its manual axes: inside, shapes are smaller and those axes are not to be had."""
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
            if not description.user:
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
        """Terminators of regions, whose loop or branch has related what they yield, and statements about sharding alone."""


def _used_once(value: ir.Value) -> bool:
    return sum(1 for _ in value.uses) == 1


def identity_rule(shape: tuple[int, ...]) -> ShardingRule:
    dims: Dims = tuple((dim,) for dim in range(len(shape)))
    return ShardingRule(tuple(Loop(size) for size in shape), (dims,), (dims,))
