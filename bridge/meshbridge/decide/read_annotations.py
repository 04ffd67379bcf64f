"""Reads decisions from annotated functions, which may be written by hand and annotated in part.

    %0 = mesh.shard %arg0 to %columns                        the argument is split along its columns
    %1 = mesh.shard %0 to %rows annotate_for_users           resharded here
    %2 = stablehlo.tanh %1 {meshbridge.sharding_option = …}  split according to the option; without one, like its operands

Nothing is propagated: an operand without annotation is not resharded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshbridge.decide.choice import pricing_of
from meshbridge.decide.decide import Bodies
from meshbridge.decide.decisions import (
    ANNOTATED,
    AS_OPERANDS,
    GIVEN,
    SAME_VALUE,
    BlockDecisions,
    Decisions,
    FunctionDecisions,
    OpDecision,
    Shardings,
    without_manual_axes,
)
from meshbridge.decide.option_attribute import option_attribute
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.module_mesh import find_mesh, sharding_on
from meshbridge.dialect.ops import MANUAL_AXES
from meshbridge.ir.mlir import BARRIER, MANUAL, REGION_OPS, SHARDING_GROUP, OpError, functions_to_partition, ir, walk
from meshbridge.ir.sharding import Axes, Mesh, Sharding, is_even, replicated
from meshbridge.ops.irregular_shardings import irregular_operands, shared_irregular_sharding
from meshbridge.ops.linear import carried_axes
from meshbridge.ops.option import Option, is_legal, loop_candidates, needed_sharding, suggested_axes
from meshbridge.ops.placements import load_option
from meshbridge.ops.rule import Interface, ShardingRule, shape_of

STATEMENTS = frozenset({"sdy.data_flow_edge", "sdy.propagation_barrier", SHARDING_GROUP})
"""Ops about sharding that compute nothing."""


def decisions_from_annotations(module: ir.Module) -> Decisions:
    """The decisions of the annotations of `module`. Raises OpError if they cannot be followed."""
    interface = Interface()
    meshes = [(function, find_mesh(module, function)) for function in functions_to_partition(module)]
    return Decisions(
        tuple([_AnnotationReader(function, mesh, interface).function() for function, mesh in meshes if mesh is not None])
    )


class _AnnotationReader:
    """Reads one function in program order."""

    def __init__(self, function: ir.Operation, mesh: Mesh, interface: Interface) -> None:
        self._function = function
        self.mesh = mesh
        self.interface = interface
        self.bodies = Bodies(pricing_of(mesh), interface)
        self.manual: frozenset[int] = frozenset()
        "Axes of the manual computations around the current op."
        self._now: dict[ir.Value, Sharding] = {}
        "The shardings of the values defined so far."
        self._declared: dict[ir.Value, Sharding] = {}

    def function(self) -> FunctionDecisions:
        """The decisions of the function."""
        for op in walk(self._function):
            if op.name == "mesh.sharding":
                self._declared[op.results[0]] = sharding_on(self.mesh, op)
        block = self._function.regions[0].blocks[0]
        arguments = tuple([self._caller_sharding(argument) for argument in block.arguments])
        return FunctionDecisions(self._function, self.mesh, arguments, self._block(block, arguments))

    def _caller_sharding(self, argument: ir.Value) -> Sharding | None:
        """The caller's sharding of an argument, which may be partial."""
        if not isinstance(argument.type, ir.RankedTensorType):
            return None
        sharding = self._annotated(argument) or self._as_used(argument)
        return sharding.for_callers()

    def _target(self, op: ir.Operation) -> Sharding:
        """The sharding that a `mesh.shard` op names, with an entry per dimension."""
        sharding = self._declared.get(op.operands[1])
        if sharding is None:
            raise OpError(op, "takes its sharding from something other than mesh.sharding")
        return sharding.padded(len(shape_of(op.results[0])))

    def _annotated(self, value: ir.Value) -> Sharding | None:
        """The annotation of a value's definition."""
        for use in value.uses:
            op = use.owner.operation
            if op.name == "mesh.shard" and "annotate_for_users" not in op.attributes:
                return self._target(op)
        return None

    def _as_used(self, argument: ir.Value) -> Sharding:
        """The sharding of an argument without annotation of its definition: that of its only reader."""
        readers = [use.owner for use in argument.uses]
        if len(readers) == 1 and readers[0].operation.name == "mesh.shard":
            wanted = self._target(readers[0].operation)
            if not wanted.is_plain or is_even(shape_of(argument), self.mesh, wanted.split_axes):
                return wanted.without_partial()
        return self._replicated(argument)

    def _replicated(self, value: ir.Value) -> Sharding:
        return replicated(self.mesh, len(shape_of(value)))

    def _define(self, values: Sequence[ir.Value], shardings: Sequence[Sharding | None]) -> Shardings:
        for value, sharding in zip(values, shardings, strict=True):
            if sharding is not None:
                self._now[value] = sharding
        return tuple(shardings)

    def _block(self, block: ir.Block, arguments: Sequence[Sharding | None], yielded: Shardings = ()) -> BlockDecisions:
        """The decisions of a block, given the shardings of its arguments and of the values that its terminator yields."""
        defined = self._define(list(block.arguments), arguments)
        operations = [view.operation for view in block.operations]
        ops = [self._op(op) for op in operations]
        if ops and yielded:
            ops[-1] = replace(ops[-1], operands=yielded)
        return BlockDecisions(defined, tuple(ops), operations)

    def _op(self, op: ir.Operation) -> OpDecision:
        name = op.name
        if name == "mesh.shard":
            shardings = self._define(op.results, [self._target(op)])
            return OpDecision(ANNOTATED, shardings, shardings)
        if name == "func.return":
            return OpDecision(ANNOTATED, tuple([self._returned(value) for value in op.operands]))
        if name == "stablehlo.while":
            return self._while(op)
        if name == MANUAL:
            return self._manual(op)
        if name in REGION_OPS:
            return self._branches(op)
        if name == BARRIER:
            return self._barrier(op)
        if name in STATEMENTS:
            return OpDecision(SAME_VALUE, results=self._define(op.results, [self._now.get(op.operands[0]) for _ in op.results]))
        if name.startswith("mesh.") or name in ("stablehlo.return", "sdy.return"):
            return OpDecision()
        return self._payload(op)

    def _returned(self, value: ir.Value) -> Sharding | None:
        """Results of a function are partial only if annotated so."""
        sharding, op = self._now.get(value), value.owner
        is_annotated = not isinstance(op, ir.Block) and op.name == "mesh.shard"
        if sharding is None:
            return None
        return sharding.for_callers() if is_annotated else sharding.without_partial()

    def _payload(self, op: ir.Operation) -> OpDecision:
        rule = self.interface.rule(op)
        arriving = [self._now.get(operand) for operand in op.operands]
        annotated = [self._annotated(result) for result in op.results]
        option = (load_option(op, rule, arriving[0]) if arriving else None) or option_attribute(op, rule, self.mesh)
        why = AS_OPERANDS if option is None else GIVEN
        layout = shared_irregular_sharding(op, rule, arriving)
        if layout is not None:
            results = self._define(op.results, [annotation or layout for annotation in annotated])
            return OpDecision(AS_OPERANDS, irregular_operands(layout, rule, arriving), results, rule, layout=layout)
        if option is None:
            option = self._suggested(rule, arriving, annotated)
        carried = carried_axes(op, rule, [source.summed_axes if source else () for source in arriving])
        if carried and set(carried) & {axis for axes in option for axis in axes}:
            carried = ()
        needs = tuple(
            [
                source and needed_sharding(dims, option, self.mesh.name, carried if source.summed_axes == carried else ())
                for dims, source in zip(rule.operands, arriving, strict=True)
            ]
        )
        body = self.bodies.decide(op, rule, option, self.manual)
        decision = OpDecision(why, needs, (), rule, option, carried=carried, regions=(body,) if body is not None else ())
        shardings = [
            annotation or (decision.computed(index, self.mesh) if isinstance(result.type, ir.RankedTensorType) else None)
            for index, (result, annotation) in enumerate(zip(op.results, annotated, strict=True))
        ]
        return replace(decision, results=self._define(op.results, shardings))

    def _suggested(self, rule: ShardingRule, arriving: Sequence[Sharding | None], annotated: Sequence[Sharding | None]) -> Option:
        """The first legal option that the operands, or an annotated result, suggest."""
        pairs = zip((*rule.operands, *rule.results), (*arriving, *annotated), strict=True)
        suggestions = [
            suggestion
            for dims, sharding in pairs
            if sharding is not None
            for suggestion in suggested_axes(rule, dims, sharding.split_axes, self.mesh)
        ]
        partial = {axis for source in arriving if source is not None for axis in source.summed_axes}
        chosen: list[Axes] = [()] * len(rule.loops)
        for loop, candidates in enumerate(loop_candidates(rule, suggestions)):
            for axes in candidates:
                option = [*chosen[:loop], axes, *chosen[loop + 1 :]]
                if not partial & set(axes) and is_legal(rule, tuple(option), self.mesh):
                    chosen = option
                    break
        return tuple(chosen)

    def _while(self, op: ir.Operation) -> OpDecision:
        """The initial values, region arguments, yielded values and results of a loop have equal shardings."""
        condition, body = [region.blocks[0] for region in op.regions]
        carried: list[Sharding | None] = []
        for init, result, argument in zip(op.operands, op.results, body.arguments, strict=True):
            source = self._now.get(init)
            annotation = self._annotated(result) or self._annotated(argument)
            carried.append(source and (annotation or source.without_partial()))
        inner = (self._block(condition, carried), self._block(body, carried, tuple(carried)))
        return OpDecision(SAME_VALUE, tuple(carried), self._define(op.results, carried), regions=inner)

    def _barrier(self, op: ir.Operation) -> OpDecision:
        """Results have the shardings of the operands, which are reduced first: a barrier is there to keep values unchanged."""
        targets = []
        for operand, result in zip(op.operands, op.results, strict=True):
            source = self._now.get(operand)
            targets.append(source and (self._annotated(result) or source.without_partial()))
        return OpDecision(SAME_VALUE, tuple(targets), self._define(op.results, targets))

    def _branches(self, op: ir.Operation) -> OpDecision:
        """Every branch yields the sharding of the result's annotation."""
        targets = [
            self._annotated(result) or self._replicated(result) if isinstance(result.type, ir.RankedTensorType) else None
            for result in op.results
        ]
        inner = [self._block(region.blocks[0], (), tuple(targets)) for region in op.regions]
        return OpDecision(SAME_VALUE, results=self._define(op.results, targets), regions=tuple(inner))

    def _manual(self, op: ir.Operation) -> OpDecision:
        """The region is local along its manual axes: shardings inside only have the other axes."""
        axes = frozenset(integers(op.attributes[MANUAL_AXES]))
        operands = [(sharding := self._now.get(operand)) and sharding.plain() for operand in op.operands]
        targets = [self._annotated(result) for result in op.results]
        outside, self.manual = self.manual, self.manual | axes
        inner = self._block(op.regions[0].blocks[0], [sharding and without_manual_axes(sharding, axes) for sharding in operands])
        self.manual = outside
        return OpDecision(SAME_VALUE, tuple(operands), self._define(op.results, targets), regions=(inner,))
