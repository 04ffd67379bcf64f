"""Reading decisions off annotated functions, which may be written by hand and annotated in part.

    %0 = mesh.shard %arg0 to %columns                        the argument is split along its columns
    %1 = mesh.shard %0 to %rows annotate_for_users           resharded here
    %2 = stablehlo.tanh %1 {meshbridge.sharding_option = …}  split as the option says; without one, as its operands are

Nothing is propagated: an operand that is not annotated is taken as it is.
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
    free_part,
)
from meshbridge.decide.given_option import given_option
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.module_mesh import find_mesh, sharding_on
from meshbridge.dialect.ops import MANUAL_AXES
from meshbridge.ir.mlir import BARRIER, MANUAL, REGION_OPS, SHARDING_GROUP, OpError, functions_to_partition, ir, walk
from meshbridge.ir.sharding import Axes, Mesh, Sharding, is_even, replicated
from meshbridge.ops.layouts import in_layout, shared_layout
from meshbridge.ops.linear import carried_axes
from meshbridge.ops.option import Option, is_legal, loop_candidates, needed_sharding, suggested_axes
from meshbridge.ops.placements import as_held
from meshbridge.ops.rule import Interface, ShardingRule, shape_of

STATEMENTS = frozenset({"sdy.data_flow_edge", "sdy.propagation_barrier", SHARDING_GROUP})
"""Ops that speak of sharding and compute nothing."""


def decisions_from_annotations(module: ir.Module) -> Decisions:
    """What the annotations of `module` say. Raises OpError where they cannot be followed."""
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
        "Axes of the manual computations around."
        self._now: dict[ir.Value, Sharding] = {}
        "How the values that have been defined are sharded."
        self._declared: dict[ir.Value, Sharding] = {}

    def function(self) -> FunctionDecisions:
        """What the annotations of the function say."""
        for op in walk(self._function):
            if op.name == "mesh.sharding":
                self._declared[op.results[0]] = sharding_on(self.mesh, op)
        block = self._function.regions[0].blocks[0]
        held = tuple([self._held(argument) for argument in block.arguments])
        return FunctionDecisions(self._function, self.mesh, held, self._block(block, held))

    def _held(self, argument: ir.Value) -> Sharding | None:
        """What the caller holds of an argument: a shard, or terms of a sum."""
        if not isinstance(argument.type, ir.RankedTensorType):
            return None
        sharding = self._annotated(argument) or self._as_used(argument)
        return sharding.for_callers()

    def _target(self, op: ir.Operation) -> Sharding:
        """The sharding that a `mesh.shard` names, with an entry per dimension."""
        sharding = self._declared.get(op.operands[1])
        if sharding is None:
            raise OpError(op, "takes its sharding from something other than mesh.sharding")
        return sharding.padded(len(shape_of(op.results[0])))

    def _annotated(self, value: ir.Value) -> Sharding | None:
        """What the annotation of a value's definition says."""
        for use in value.uses:
            op = use.owner.operation
            if op.name == "mesh.shard" and "annotate_for_users" not in op.attributes:
                return self._target(op)
        return None

    def _as_used(self, argument: ir.Value) -> Sharding:
        """How an argument is sharded that no annotation of its definition speaks of: as its only reader wants it."""
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
        """What the annotations of a block say, whose arguments are sharded so and whose terminator yields values so."""
        held = self._define(list(block.arguments), arguments)
        operations = [view.operation for view in block.operations]
        ops = [self._op(op) for op in operations]
        if ops and yielded:
            ops[-1] = replace(ops[-1], operands=yielded)
        return BlockDecisions(held, tuple(ops), operations)

    def _op(self, op: ir.Operation) -> OpDecision:
        name = op.name
        if name == "mesh.shard":
            said = self._define(op.results, [self._target(op)])
            return OpDecision(ANNOTATED, said, said)
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
        """Results of a function are partial only where they are annotated so."""
        now, op = self._now.get(value), value.owner
        is_annotated = not isinstance(op, ir.Block) and op.name == "mesh.shard"
        if now is None:
            return None
        return now.for_callers() if is_annotated else now.without_partial()

    def _payload(self, op: ir.Operation) -> OpDecision:
        rule = self.interface.rule(op)
        arriving = [self._now.get(operand) for operand in op.operands]
        annotated = [self._annotated(result) for result in op.results]
        option = (as_held(op, rule, arriving[0]) if arriving else None) or given_option(op, rule, self.mesh)
        why = AS_OPERANDS if option is None else GIVEN
        layout = shared_layout(op, rule, arriving)
        if layout is not None:
            results = self._define(op.results, [said or layout for said in annotated])
            return OpDecision(AS_OPERANDS, in_layout(layout, rule, arriving), results, rule, layout=layout)
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
        made = [
            said or (decision.computed(index, self.mesh) if isinstance(result.type, ir.RankedTensorType) else None)
            for index, (result, said) in enumerate(zip(op.results, annotated, strict=True))
        ]
        return replace(decision, results=self._define(op.results, made))

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
                tried = [*chosen[:loop], axes, *chosen[loop + 1 :]]
                if not partial & set(axes) and is_legal(rule, tuple(tried), self.mesh):
                    chosen = tried
                    break
        return tuple(chosen)

    def _while(self, op: ir.Operation) -> OpDecision:
        """Initial values, region arguments, yielded values and results of a loop are sharded alike."""
        condition, body = [region.blocks[0] for region in op.regions]
        carried: list[Sharding | None] = []
        for init, result, argument in zip(op.operands, op.results, body.arguments, strict=True):
            source = self._now.get(init)
            said = self._annotated(result) or self._annotated(argument)
            carried.append(source and (said or source.without_partial()))
        inner = (self._block(condition, carried), self._block(body, carried, tuple(carried)))
        return OpDecision(SAME_VALUE, tuple(carried), self._define(op.results, carried), regions=inner)

    def _barrier(self, op: ir.Operation) -> OpDecision:
        """Results are sharded as the operands are, which are reduced first: a barrier is there to keep values as they are."""
        targets = []
        for operand, result in zip(op.operands, op.results, strict=True):
            source = self._now.get(operand)
            targets.append(source and (self._annotated(result) or source.without_partial()))
        return OpDecision(SAME_VALUE, tuple(targets), self._define(op.results, targets))

    def _branches(self, op: ir.Operation) -> OpDecision:
        """Every branch yields what the result's annotation says."""
        targets = [
            self._annotated(result) or self._replicated(result) if isinstance(result.type, ir.RankedTensorType) else None
            for result in op.results
        ]
        inner = [self._block(region.blocks[0], (), tuple(targets)) for region in op.regions]
        return OpDecision(SAME_VALUE, results=self._define(op.results, targets), regions=tuple(inner))

    def _manual(self, op: ir.Operation) -> OpDecision:
        """The region is local along its manual axes: what is left of a sharding inside are the other axes."""
        axes = frozenset(integers(op.attributes[MANUAL_AXES]))
        held = [(now := self._now.get(operand)) and now.plain() for operand in op.operands]
        targets = [self._annotated(result) for result in op.results]
        outside, self.manual = self.manual, self.manual | axes
        inner = self._block(op.regions[0].blocks[0], [now and free_part(now, axes) for now in held])
        self.manual = outside
        return OpDecision(SAME_VALUE, tuple(held), self._define(op.results, targets), regions=(inner,))
