"""Partitioning: stage 2 to stage 3, one device's program with every communication written down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from meshbridge.dialect import build
from meshbridge.dialect.attributes import axis_array, integers
from meshbridge.dialect.module_mesh import find_mesh, sharding_on
from meshbridge.dialect.ops import GATHERED, MANUAL_AXES, OPTION
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import (
    BARRIER,
    COMPOSITE,
    MANUAL,
    REGION_OPS,
    OpError,
    function_type,
    functions_to_partition,
    ir,
    stablehlo,
    walk,
    walk_all,
)
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import Mesh, Sharding, is_even, replicated
from meshbridge.legalize.inline_calls import callee
from meshbridge.ops.equal_shards import in_equal_shards, return_equal_shards, set_boundary, set_results
from meshbridge.ops.layouts import filled, shared_layout
from meshbridge.ops.linear import carried_axes
from meshbridge.ops.option import Option, is_legal, loop_candidates, needed_sharding
from meshbridge.ops.placements import as_held
from meshbridge.ops.reasons import Reasons
from meshbridge.ops.refused import refuse
from meshbridge.ops.rule import Interface, ShardingRule, shape_of
from meshbridge.ops.spmd import SpmdProgram, lower_op, mask_padding
from meshbridge.partition.expand_composites import erase_unused
from meshbridge.resharding import Options

_LOOK_UPS = frozenset(f"stablehlo.{name}" for name in ("gather", "slice", "dynamic_slice"))
"""Ops that join what shards have of an element, of which they read none of the padding."""

_STATEMENTS = frozenset({"sdy.data_flow_edge", "sdy.propagation_barrier", "sdy.sharding_group"})
"""Ops that speak of sharding and compute nothing."""

_WITHOUT_LOOPS = frozenset({"stablehlo.return", "sdy.return", BARRIER, *_STATEMENTS})
"""Ops that a program partitions otherwise than by their loops."""

_TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return"})


Resharding = Literal["cheapest", "exact"]


@register
@dataclass(frozen=True)
class MeshSpmdization(Pass):
    """Turns annotated functions into the program of one device: local shapes, and collectives where shardings differ.

    Input:   %0 = mesh.shard %arg0 to %columns : tensor<8x16xf32>
             %1 = mesh.shard %0 to %whole annotate_for_users : tensor<8x16xf32>
             %2 = stablehlo.tanh %1 : tensor<8x16xf32>
    Output:  %0 = mesh.all_gather %arg0 on @m mesh_axes = [0] gather_axis = 1 : tensor<8x8xf32> -> tensor<8x16xf32>
             %1 = stablehlo.tanh %0 : tensor<8x16xf32>

    Arguments and results become shards. Also works on partly annotated functions: an operand without annotation is taken as it
    lies.
    """

    name: ClassVar[str] = "mesh-spmdization"
    also: ClassVar[tuple[str, ...]] = ("shard-partition",)
    resharding: Resharding = "cheapest"
    "Which plans to take: the cheapest by bytes and number of collectives, or `exact`, the fewest bytes whatever the number."

    boundary: bool = False
    "Write down what arguments and results are shards of, in their attributes `meshbridge.global`, `meshbridge.mesh` and"
    " `meshbridge.split_axes`: what `wrap-local` and running on devices need."

    materialized: bool = False
    "Write down how every result lies too: what the RFC's spelling needs for types of whole tensors."

    explain: bool = False
    "Write down in each collective's location why it is there (see `meshbridge.ir.locations`)."

    def run(self, module: ir.Module) -> None:
        bodies = _bodies_of_composites(module)
        with module.context, ir.Location.unknown():
            for function in functions_to_partition(module):
                if (mesh := find_mesh(module, function)) is not None:
                    partitioner = _FunctionPartitioner(function, mesh, Options(exact=self.resharding == "exact"))
                    partitioner.at.reasons = Reasons(mesh) if self.explain else None
                    partitioner.run(boundary=self.boundary or self.materialized)
                    if self.materialized:
                        set_results(function, partitioner.at)
            erase_unused(module, bodies)


def _bodies_of_composites(module: ir.Module) -> set[str]:
    """The functions that composites stand for, which nobody needs once these are partitioned."""
    if sum(view.operation.name == "func.func" for view in module.body.operations) < 2:
        return set()
    return {callee(op) for op in walk_all(module) if op.name == COMPOSITE}


class _FunctionPartitioner:
    """Partitions one function in place."""

    def __init__(self, function: ir.Operation, mesh: Mesh, resharding: Options) -> None:
        self.function = function
        self.mesh = mesh
        self.block = function.regions[0].blocks[0]
        self._rules: list[ShardingRule] = []
        self._shapes: dict[ir.Value, tuple[int, ...]] = {}
        self._annotated: dict[ir.Value, Sharding] = {}
        self._shardings: dict[ir.Value, Sharding] = {}
        self._options: dict[ir.Attribute, Option] = {}
        self._partial_results: set[int] = set()
        "Results of the function that the program annotates as partial sums."
        self._read(Interface())
        self._next = 0
        self.at = SpmdProgram(mesh, self._shapes, self.block)
        self.at.resharding = resharding

    def _read(self, interface: Interface) -> None:
        """One walk over the global program: loop rules in order, shapes of all tensors, annotated definitions."""
        self._read_block(self.block, interface)

    def _read_block(self, block: ir.Block, interface: Interface) -> None:
        self._shapes.update((argument, shape_of(argument)) for argument in block.arguments)
        for view in block.operations:
            op = view.operation
            name = op.name
            for result in op.results:
                self._shapes[result] = shape_of(result)
            if name == "mesh.sharding":
                self._shardings[op.results[0]] = sharding_on(self.mesh, op)
            elif name == "mesh.shard":
                if "annotate_for_users" not in op.attributes:
                    self._annotated.setdefault(op.operands[0], self._target(op))
            elif name in REGION_OPS or name == MANUAL:
                for region in op.regions:
                    self._read_block(region.blocks[0], interface)
            elif name == "func.return":
                self._partial_results = {index for index, value in enumerate(op.operands) if self._is_annotated_partial(value)}
            elif not name.startswith(("mesh.", "func.")) and name not in _WITHOUT_LOOPS:
                self._rules.append(interface.rule(op))

    def _is_annotated_partial(self, value: ir.Value) -> bool:
        owner = value.owner
        return not isinstance(owner, ir.Block) and owner.name == "mesh.shard" and bool(self._target(owner.operation).summed_axes)

    def _target(self, op: ir.Operation) -> Sharding:
        """The sharding that a `mesh.shard` names, with an entry per dimension."""
        sharding = self._shardings.get(op.operands[1])
        if sharding is None:
            raise OpError(op, "takes its sharding from something other than mesh.sharding")
        return sharding.padded(len(self._shapes[op.results[0]]))

    def run(self, *, boundary: bool) -> None:
        types = function_type(self.function)
        arguments = [_held(self._annotated.get(argument) or self._as_used(argument)) for argument in self.block.arguments]
        if boundary:
            shapes = [self._shapes[argument] for argument in self.block.arguments]
            arguments = [in_equal_shards(shape, self.mesh, held) for shape, held in zip(shapes, arguments, strict=True)]
        for argument, sharding in zip(self.block.arguments, arguments, strict=True):
            self.at.define(argument, sharding)
        results = self._partition(self.block)
        self.at.erase_unused_placements()
        if boundary:
            results = return_equal_shards(list(self.block.operations)[-1].operation, results, self.at)
            set_boundary(self.function, "arg_attrs", list(types.inputs), arguments)
            set_boundary(self.function, "res_attrs", list(types.results), results)
        inputs = [argument.type for argument in self.block.arguments]
        outputs = [value.type for value in list(self.block.operations)[-1].operation.operands]
        self.function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs))

    def _as_used(self, argument: ir.Value) -> Sharding:
        """How an argument lies that no annotation of its definition speaks of: as its only reader wants it, or whole."""
        readers = [use.owner for use in argument.uses]
        if len(readers) == 1 and readers[0].operation.name == "mesh.shard":
            wanted = self._target(readers[0].operation)
            if not wanted.is_plain or is_even(self._shapes[argument], self.mesh, wanted.split_axes):
                return wanted.without_partial()
        return self._whole(argument)

    def _whole(self, value: ir.Value) -> Sharding:
        return replicated(self.mesh, len(self._shapes[value]))

    def _partition(self, block: ir.Block) -> list[Sharding]:
        """Partitions a block's ops in order; returns how what its terminator names lies."""
        annotations = []
        for view in list(block.operations):
            op = view.operation
            name = op.name
            if name == "mesh.shard":
                value = self.at.reshard(op.operands[0], self._target(op), op)
                op.results[0].replace_all_uses_with(value)
                op.erase()
            elif name == "mesh.sharding":
                annotations.append(op)
            elif name == "func.return":
                yielded = self._finish(op)
            elif name in _TERMINATORS:
                yielded = [self.at.shardings.get(value) or replicated(self.mesh, 0) for value in op.operands]
            elif name == "stablehlo.while":
                self._while(op)
            elif name == MANUAL:
                self._manual(op)
            elif name in REGION_OPS:
                self._branches(op)
            elif name == BARRIER:
                self._hand_on(op)
            elif name in _STATEMENTS:
                for result in op.results:
                    result.replace_all_uses_with(op.operands[0])
                op.erase()
            elif name == "mesh.get_sharding":
                self._name_sharding(op)
            elif name.startswith("mesh."):
                expected = "stands in a program that is not partitioned yet, where only mesh.sharding and mesh.shard may"
                raise OpError(op, expected, "what mesh-spmdization=boundary has partitioned says so, and is taken as such")
            else:
                self._payload(op)
        for annotation in annotations:
            annotation.erase()
        return yielded

    def _name_sharding(self, op: ir.Operation) -> None:
        """The sharding of a value, which after partitioning no annotation says any more."""
        sharding = self.at.shardings[op.operands[0]]
        op.results[0].replace_all_uses_with(build.sharding(sharding, at=Builder.before(op)))
        op.erase()

    def _finish(self, op: ir.Operation) -> list[Sharding]:
        """Results of a function are partial only where they are annotated so."""
        for index, value in enumerate(op.operands):
            if value in self.at.shardings and index not in self._partial_results:
                op.operands[index] = self.at.reshard(value, self.at.shardings[value].without_partial(), op)
        return [self.at.shardings.get(value) or replicated(self.mesh, 0) for value in op.operands]

    def _payload(self, op: ir.Operation) -> None:
        rule = self._rules[self._next]
        self._next += 1
        refuse(op, is_inside=bool(self.at.manual))
        shardings = [self.at.shardings.get(operand) for operand in op.operands]
        option = (as_held(op, rule, shardings[0]) if shardings else None) or self._option(op, rule)
        layout = shared_layout(op, rule, shardings)
        if layout is not None:
            self._compute_in(layout, op, rule)
            return
        kept = carried_axes(op, rule, [source.summed_axes if source else () for source in shardings])
        if kept and set(kept) & {axis for axes in option for axis in axes}:
            kept = ()
        for index, (dims, source) in enumerate(zip(rule.operands, shardings, strict=True)):
            if source is not None:
                need = needed_sharding(dims, option, self.mesh.name, kept if source.summed_axes == kept else ())
                if source is not need and source != need:
                    op.operands[index] = self.at.reshard(op.operands[index], need, op)
        if rule.reduces:
            self._mask(op, rule, option)
        if not rule.has_rule and (self._gather_captured(op) or any(operand in self.at.moved for operand in op.operands)):
            op.attributes[GATHERED] = ir.UnitAttr.get()
        if OPTION in op.attributes:
            del op.attributes[OPTION]
        lower_op(op, rule, option, self.at)

    def _compute_in(self, layout: Sharding, op: ir.Operation, rule: ShardingRule) -> None:
        """Computes an elementwise op on shards with halos or offsets; constants are made in their shape."""
        for index, (dims, value) in enumerate(zip(rule.operands, op.operands, strict=True)):
            if dims and self.at.shardings[value] != layout:
                op.operands[index] = filled(value, layout, op, self.at)
        if OPTION in op.attributes:
            del op.attributes[OPTION]
        for result in op.results:
            self.at.define(result, layout)

    def _mask(self, op: ir.Operation, rule: ShardingRule, option: Option) -> None:
        """Hides the padding of uneven shards from reductions over them (a look-up does not read it, windows see to it)."""
        exchanged = {each.loop for each in rule.exchanges}
        for loop, axes in enumerate(option):
            description = rule.loops[loop]
            is_uneven = axes and description.reduction and description.size % self.mesh.group_size(axes)
            if is_uneven and op.name not in _LOOK_UPS and loop not in exchanged:
                self.at.emit = Builder.before(op)
                for index, dims in enumerate(rule.operands):
                    if (loop,) in dims:
                        value, dim = op.operands[index], dims.index((loop,))
                        masked = mask_padding(value, dim, description.size, axes, description.reduction, self.at)
                        op.operands[index] = self.at.adopt(masked, self.at.global_shape(value), self.at.shardings[value])

    def _gather_captured(self, op: ir.Operation) -> bool:
        """Makes whole what the regions of an op without a rule use from outside."""
        found = False
        for inner in list(walk(op))[1:]:
            for index, value in enumerate(inner.operands):
                source = self.at.shardings.get(value)
                if source is not None and not source.is_replicated:
                    inner.operands[index] = self.at.reshard(value, self._whole(value), op)
                    found = True
        return found

    def _option(self, op: ir.Operation, rule: ShardingRule) -> Option:
        """The op's own sharding option, else the first legal one that its operands (or its annotated result) suggest."""
        attributes = op.attributes
        if OPTION in attributes:
            attribute = attributes[OPTION]
            option = self._options.get(attribute)
            if option is None:
                option = self._options[attribute] = axis_array(attribute)
            if len(option) != len(rule.loops) or not is_legal(rule, option, self.mesh):
                raise OpError(op, f"has the sharding option {[list(axes) for axes in option]}, which its loops cannot take")
            return option
        splits = [
            (dims, self.at.shardings[value].split_axes)
            for dims, value in zip(rule.operands, op.operands, strict=True)
            if value in self.at.shardings
        ]
        splits += [
            (dims, self._annotated[value].split_axes)
            for dims, value in zip(rule.results, op.results, strict=True)
            if value in self._annotated
        ]
        partial = {axis for operand in op.operands for axis in self.at.partial_axes(operand)}
        chosen: list[tuple[int, ...]] = [()] * len(rule.loops)
        for loop, candidates in enumerate(loop_candidates(rule, splits, self.mesh)):
            for axes in candidates:
                tried = [*chosen[:loop], axes, *chosen[loop + 1 :]]
                if not partial & set(axes) and is_legal(rule, tuple(tried), self.mesh):
                    chosen = tried
                    break
        return tuple(chosen)

    def _while(self, op: ir.Operation) -> None:
        """Initial values, region arguments, yielded values and results of a loop lie alike."""
        blocks = [region.blocks[0] for region in op.regions]
        carried: list[Sharding | None] = []
        for index, (init, result) in enumerate(zip(op.operands, op.results, strict=True)):
            source = self.at.shardings.get(init)
            if source is None:
                carried.append(None)
                continue
            said = self._annotated.get(result) or self._annotated.get(blocks[1].arguments[index])
            target = said or source.without_partial()
            carried.append(target)
            op.operands[index] = self.at.reshard(init, target, op)
            for block in blocks:
                self.at.define(block.arguments[index], target)
        for block in blocks:
            self.at.enter_block()
            self._partition(block)
            if block == blocks[1]:
                self._yield(block, carried)
            self.at.leave_block()
        for result, sharding in zip(op.results, carried, strict=True):
            if sharding is not None:
                self.at.define(result, sharding)

    def _hand_on(self, op: ir.Operation) -> None:
        """Results lie as the operands do, which are finished first: a barrier is there to keep values as they are."""
        for index, (operand, result) in enumerate(zip(op.operands, op.results, strict=True)):
            source = self.at.shardings.get(operand)
            if source is not None:
                target = self._annotated.get(result) or source.without_partial()
                op.operands[index] = self.at.reshard(operand, target, op)
                self.at.define(result, target)

    def _branches(self, op: ir.Operation) -> None:
        """Every branch yields what the result's annotation says; the predicate is whole."""
        predicate = op.operands[0]
        if predicate in self.at.shardings:
            op.operands[0] = self.at.reshard(predicate, self._whole(predicate), op)
        targets = [
            self._annotated.get(result) or self._whole(result) if isinstance(result.type, ir.RankedTensorType) else None
            for result in op.results
        ]
        for region in op.regions:
            self.at.enter_block()
            self._partition(region.blocks[0])
            self._yield(region.blocks[0], targets)
            self.at.leave_block()
        for result, target in zip(op.results, targets, strict=True):
            if target is not None:
                self.at.define(result, target)

    def _manual(self, op: ir.Operation) -> None:
        """Puts the body in place of a manual computation. It is local along the manual axes already, so what is left of a
        sharding inside are the other axes; the user's collectives in it stay as they are.
        """
        block = op.regions[0].blocks[0]
        manual = frozenset(integers(op.attributes[MANUAL_AXES]))
        for index, (operand, argument) in enumerate(zip(op.operands, block.arguments, strict=True)):
            if operand in self.at.shardings:
                operand = op.operands[index] = self.at.reshard(operand, self.at.shardings[operand].plain(), op)
                self.at.define(argument, _free_part(self.at.shardings[operand], manual))
                if argument.type != operand.type:
                    raise OpError(op, f"takes {argument.type}, but the annotation of its operand makes it {operand.type}")
        for constraint in [inner for inner in walk(op) if inner.name == "sdy.sharding_constraint"]:  # of scalars, in reducers
            constraint.results[0].replace_all_uses_with(constraint.operands[0])
            constraint.erase()
        outside, self.at.manual = self.at.manual, tuple(sorted({*self.at.manual, *manual}))
        self._partition(block)
        targets = [self._annotated.get(result) for result in op.results]
        self._yield(block, [None if target is None else _free_part(target, manual) for target in targets])
        self.at.manual = outside
        for operand, argument in zip(op.operands, block.arguments, strict=True):
            argument.replace_all_uses_with(operand)
        *body, terminator = [view.operation for view in block.operations]
        for inner in body:
            inner.move_before(op)
        with ir.InsertionPoint(op), op.location:
            for value, result, target in zip(terminator.operands, op.results, targets, strict=True):
                if target is not None:  # a value of its own: outside, the same shard is a shard of something larger
                    held = replace(target, partial_axes=tuple(axis for axis in target.partial_axes if axis in manual))
                    value = self.at.adopt(stablehlo.convert(value.type, value), self.at.global_shape(result), held)
                result.replace_all_uses_with(value)
        op.erase()

    def _yield(self, block: ir.Block, targets: list[Sharding | None]) -> None:
        terminator = list(block.operations)[-1].operation
        for index, (value, target) in enumerate(zip(terminator.operands, targets, strict=True)):
            if target is not None:
                terminator.operands[index] = self.at.reshard(value, target, terminator)


def _held(sharding: Sharding) -> Sharding:
    """What a caller holds of an argument annotated so: terms of a sum at most."""
    return sharding if sharding.summed_axes else sharding.without_partial()


def _free_part(sharding: Sharding, manual: frozenset[int]) -> Sharding:
    """What is left of a sharding where the axes `manual` do not exist."""
    split = tuple(tuple(axis for axis in axes if axis not in manual) for axes in sharding.split_axes)
    return replace(sharding.without_partial().plain(), split_axes=split)
