"""Partitions annotated programs into one device's program with explicit communication (stage 2 to stage 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from meshbridge.analysis.known_values import Splat, known
from meshbridge.cost.objective import objective
from meshbridge.decide.choice import pricing_of
from meshbridge.decide.decisions import (
    ANNOTATED,
    CHEAPEST,
    GIVEN,
    BlockDecisions,
    Decisions,
    FunctionDecisions,
    OpDecision,
    Shardings,
    at_manual_boundary,
    without_manual_axes,
)
from meshbridge.decide.read_annotations import STATEMENTS, decisions_from_annotations
from meshbridge.decide.runner_up import runner_up
from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.names import names_in
from meshbridge.dialect.ops import GATHERED, MANUAL_AXES, OPTION
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.mlir import BARRIER, COMPOSITE, MANUAL, OpError, function_type, inline_region, ir, walk, walk_all
from meshbridge.ir.passes import Analyses, Pass, register
from meshbridge.ir.registry import Registry
from meshbridge.ir.sharding import Axes, Sharding, replicated
from meshbridge.legalize.inline_calls import CALLEE, Inliner, callee
from meshbridge.machines.compile_target import BYTES_TARGET, CompileTarget
from meshbridge.ops.boundary import boundary_sharding, record_result_shardings, return_equal_shards, set_boundary
from meshbridge.ops.composites import composite_body
from meshbridge.ops.irregular_shardings import splat_shard
from meshbridge.ops.reasons import CHOSEN_HERE, Reasons
from meshbridge.ops.rule import ShardingRule, shape_of
from meshbridge.ops.spmd import SpmdProgram, lower_op, mask_padding
from meshbridge.ops.unsupported import check_supported
from meshbridge.partitioner.template import PartitionTemplate, padded_loops, partition_template, resharded
from meshbridge.resharding import Objective

_IS_PARTITIONED = (
    "stands in a program that is not partitioned yet, where only mesh.sharding and mesh.shard may",
    "--local takes it as one device's program; what mesh-spmdization=boundary has partitioned says so itself",
)
"""The diagnostic and hint for a collective of the dialect in such a program."""

Resharding = Literal["cheapest", "exact"]


@register
@dataclass(frozen=True)
class MeshSpmdization(Pass):
    """Turns annotated functions into the program of one device: local shapes, and collectives wherever shardings differ.

    Input:   %0 = mesh.shard %arg0 to %columns : tensor<8x16xf32>
             %1 = mesh.shard %0 to %whole annotate_for_users : tensor<8x16xf32>
             %2 = stablehlo.tanh %1 : tensor<8x16xf32>
    Output:  %0 = mesh.all_gather %arg0 on @m mesh_axes = [0] gather_axis = 1 : tensor<8x8xf32> -> tensor<8x16xf32>
             %1 = stablehlo.tanh %0 : tensor<8x16xf32>

    Arguments and results become shards. Partly annotated functions are accepted: an operand without annotation is not resharded.
    """

    name: ClassVar[str] = "mesh-spmdization"
    aliases: ClassVar[tuple[str, ...]] = ("shard-partition",)
    resharding: Resharding = "cheapest"
    "The resharding plans: the cheapest by bytes and number of collectives, or `exact`, the fewest bytes in any number."

    target: CompileTarget = BYTES_TARGET
    "What plans are the cheapest for, as in `sharding-refinement`."

    boundary: bool = False
    """Record the global types and shardings of arguments and results, in their attributes `meshbridge.global`, `meshbridge.mesh`
    and `meshbridge.split_axes`, which `wrap-local` and running on devices need."""

    materialized: bool = False
    "Record the sharding of every result too, which the RFC's spelling needs for types of global tensors."

    explain: bool = False
    "Record the reason for each collective in its location (see `meshbridge.ir.locations`)."

    def run(self, module: ir.Module) -> None:
        self.run_with(module, {})

    def run_with(self, module: ir.Module, analyses: Analyses) -> None:
        """Partitions according to the decisions of the same run, or else to the annotations."""
        bodies = _bodies_of_composites(module)
        with module.context, ir.Location.unknown():
            decisions: Decisions = analyses.pop(Decisions, None) or decisions_from_annotations(module)
            for function in decisions.functions:
                planning_for = objective(self.target, function.mesh)
                partitioner = _FunctionPartitioner(function, planning_for, exact=self.resharding == "exact")
                partitioner.at.reasons = Reasons(function.mesh, names_in(function.function).results) if self.explain else None
                partitioner.run(boundary=self.boundary or self.materialized)
                if self.materialized:
                    record_result_shardings(function.function, partitioner.at)
                else:
                    partitioner.erase_boundary_casts()
            erase_unused(module, bodies)


def _bodies_of_composites(module: ir.Module) -> set[str]:
    """The bodies of composites, which are unused after partitioning."""
    if sum(view.operation.name == "func.func" for view in module.body.operations) < 2:
        return set()
    return {callee(op) for op in walk_all(module) if op.name == COMPOSITE}


def erase_unused(module: ir.Module, functions: set[str]) -> None:
    """Erases those of the functions that are unused; those of outer composites first."""
    while functions:
        named = {callee(op) for op in walk_all(module) if op.name in CALLEE}
        unused = functions - named
        if not unused:
            return
        symbols = ir.SymbolTable(module.operation)
        for name in unused:
            symbols[name].erase()
        functions = functions & named


_CHOSEN = {GIVEN: "your program gives the option", ANNOTATED: CHOSEN_HERE}
"""By reason of a decision, who has decided, if not meshbridge. Annotations are ops of their own, so ANNOTATED are results that
the program leaves open."""


_Handler = Callable[["_FunctionPartitioner", ir.Operation, OpDecision], None]
_HANDLERS: Registry[str, _Handler] = Registry("handler of partitioning")
"""The handlers of ops without a sharding rule."""


class _FunctionPartitioner:
    """Partitions one function in place according to decisions."""

    def __init__(self, decisions: FunctionDecisions, planning_for: Objective, *, exact: bool = False) -> None:
        self.decisions = decisions
        self.function = decisions.function
        self.mesh = decisions.mesh
        self.block = self.function.regions[0].blocks[0]
        self._templates: dict[int, PartitionTemplate] = {}
        "By the identity of the decision, which repeated layers share."
        self._said: dict[int, str] = {}
        "Likewise, who has decided and why, if reasons are recorded."
        self._annotations: list[ir.Operation] = []
        self._inliner = Inliner({}, {})
        self._boundary_casts: list[ir.Operation] = []
        "Ops at the results of manual computations that give a value another sharding, and compute nothing."
        self.at = SpmdProgram(self.mesh, self.block)
        self.at.resharding = replace(planning_for.planning_on(self.mesh), exact=exact)
        self.pricing = pricing_of(self.mesh, planning_for)

    def run(self, *, boundary: bool) -> None:
        types = function_type(self.function)
        ops = self.decisions.block.operations
        arguments = [sharding or replicated(self.mesh, 0) for sharding in self.decisions.from_caller]
        if boundary:
            shapes = [shape_of(argument) for argument in self.block.arguments]
            arguments = [boundary_sharding(shape, self.mesh, passed) for shape, passed in zip(shapes, arguments, strict=True)]
        for argument, sharding in zip(self.block.arguments, arguments, strict=True):
            self.at.define(argument, sharding)
        for argument, inside in zip(self.block.arguments, self.decisions.block.arguments, strict=True):
            if inside is not None:
                self._reshard_uses(argument, inside, list(argument.uses), argument.location, ops[0])
        results = self._ops(ops, self.decisions.block)
        self.at.erase_unused_placements()
        for op in self._annotations:
            op.erase()
        if boundary:
            results = return_equal_shards(ops[-1], results, self.at)
            set_boundary(self.function, "arg_attrs", list(types.inputs), arguments)
            set_boundary(self.function, "res_attrs", list(types.results), results)
        inputs = [argument.type for argument in self.block.arguments]
        outputs = [value.type for value in ops[-1].operands]
        self.function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, outputs))

    def erase_boundary_casts(self) -> None:
        """Erases the ops that distinguish a value inside of a manual computation from the same value outside."""
        for op in self._boundary_casts:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()

    def _replicated(self, value: ir.Value) -> Sharding:
        return replicated(self.mesh, len(self.at.global_shape(value)))

    def _ops(self, ops: Sequence[ir.Operation], decisions: BlockDecisions) -> list[Sharding]:
        """Partitions ops in order; returns the shardings of the terminator's operands."""
        values = self.at.shards
        for op, decision, following in zip(ops, decisions.ops, [*ops[1:], ops[-1]], strict=True):
            rule = decision.rule
            if self.at.reasons is not None:
                self.at.reasons.chosen = self._chosen(op, decision)
            if rule is None:
                self._follow(op, decision, following)
                continue
            template = self._templates.get(id(decision))  # decisions outlive the partitioner
            if template is None:
                template = self._templates[id(decision)] = partition_template(op, op.name, rule, decision, self.at)
            for index, need in template.resharded:
                op.operands[index] = self._reshard(op.operands[index], need, op)
            if template.results is None or not (template.condition is None or template.condition(op, rule, self.at)):
                self._lower(op, rule, decision, following)
                continue
            results = [op.results[0]] if len(template.results) == 1 else op.results  # the bindings take twice as long to iterate
            for result, shard in zip(results, template.results, strict=True):
                if shard is not None:
                    if shard.type is not None:
                        result.set_type(shard.type)
                    values[result] = shard
            if template.targets:
                self._reshard_results(op, template.targets, following)
        return [self.at.sharding(value) or replicated(self.mesh, 0) for value in ops[-1].operands]

    def _chosen(self, op: ir.Operation, decision: OpDecision) -> str:
        """Who has decided about an op and why; the next best way to compute it, if the cheapest is taken."""
        if decision.why == CHEAPEST:
            if (said := self._said.get(id(decision))) is None:
                text = ""
                if all(isinstance(value.type, ir.RankedTensorType) for value in (*op.operands, *op.results)):
                    arriving = [self.at.sharding(operand) for operand in op.operands]
                    shapes = [*map(self.at.global_shape, op.operands), *map(shape_of, op.results)]
                    other = runner_up(op, decision, arriving, shapes, self.pricing)
                    text = "" if other is None else other.text()
                said = self._said[id(decision)] = f"{CHOSEN_HERE}; next best: {text}" if text else CHOSEN_HERE
            return said
        return _CHOSEN.get(decision.why, f"{CHOSEN_HERE}: {decision.why}")

    def _reshard_results(self, op: ir.Operation, targets: Shardings, following: ir.Operation) -> None:
        """Reshards the results of an op to their decided shardings."""
        for result, target in zip(op.results, targets, strict=True):
            if target is not None and (uses := list(result.uses)):
                self._reshard_uses(result, target, uses, op.location, following)

    def _lower(self, op: ir.Operation, rule: ShardingRule, decision: OpDecision, following: ir.Operation) -> None:
        """Partitions an op by its SPMD lowering, and reshards its results if decided."""
        uses, location = [list(result.uses) for result in op.results], op.location
        self._payload(op, op.name, rule, decision)
        self._reshard_replaced(decision.results, uses, location, following)

    def _follow(self, op: ir.Operation, decision: OpDecision, following: ir.Operation) -> None:
        """Partitions an op without a sharding rule."""
        handler = _HANDLERS.get(op.name)
        if handler is None:
            raise OpError(op, *_IS_PARTITIONED)
        for index, need in resharded(op, decision, self.at):
            op.operands[index] = self._reshard(op.operands[index], need, op)
        if decision.results in ((), decision.operands):
            handler(self, op, decision)
            return
        uses, location = [list(result.uses) for result in op.results], op.location
        handler(self, op, decision)
        self._reshard_replaced(decision.results, uses, location, following)

    def _reshard_replaced(
        self, targets: Shardings, uses: list[list[ir.OpOperand]], location: ir.Location, following: ir.Operation
    ) -> None:
        """Reshards the results of an op, which may have been replaced, for these uses."""
        for target, users in zip(targets, uses, strict=False):
            if users and target is not None:
                value = users[0].owner.operands[users[0].operand_number]
                self._reshard_uses(value, target, users, location, following)

    def _reshard(self, value: ir.Value, target: Sharding, before: ir.Operation) -> ir.Value:
        """`value` resharded to `target`; a splat constant is rebuilt in the shape of shards with halos or offsets."""
        if not target.is_plain and isinstance(known(value), Splat):
            return splat_shard(value, target, before, self.at)
        return self.at.reshard(value, target, before)

    def _reshard_uses(
        self, value: ir.Value, target: Sharding, uses: list[ir.OpOperand], location: ir.Location, before: ir.Operation
    ) -> None:
        """Reshards a value at its definition, for these uses."""
        if self.at.sharding(value) in (None, target):
            return
        resharded_value = self.at.reshard(value, target, before, defined_at=location)
        for use in uses:
            use.owner.operands[use.operand_number] = resharded_value

    @_HANDLERS.register("mesh.get_sharding")
    def _name_sharding(self, op: ir.Operation, decision: OpDecision) -> None:
        """Materializes the sharding of a value, which has no annotation after partitioning."""
        sharding = self.at.shards[op.operands[0]].sharding
        op.results[0].replace_all_uses_with(build.sharding(sharding, at=Builder.before(op)))
        op.erase()

    @_HANDLERS.register("mesh.sharding")
    def _annotation(self, op: ir.Operation, decision: OpDecision) -> None:
        """Keeps a sharding that later ops refer to."""
        self._annotations.append(op)

    @_HANDLERS.register("func.return", "stablehlo.return", "sdy.return")
    def _terminator(self, op: ir.Operation, decision: OpDecision) -> None:
        """The operands of a terminator are resharded like others."""

    @_HANDLERS.register("mesh.shard", *STATEMENTS)
    def _statement(self, op: ir.Operation, decision: OpDecision) -> None:
        """Erases an op about sharding alone, which has been followed."""
        for result in op.results:
            result.replace_all_uses_with(op.operands[0])
        op.erase()

    def _payload(self, op: ir.Operation, name: str, rule: ShardingRule, decision: OpDecision) -> None:
        option = decision.option
        if name.startswith("mesh.") and not self._is_manual(op):
            raise OpError(op, *_IS_PARTITIONED)
        check_supported(op, name, is_inside=bool(self.at.manual))
        if decision.why != CHEAPEST and OPTION in op.attributes:
            del op.attributes[OPTION]
        if decision.regions:
            self._composite(op, decision.regions[0])
        elif decision.layout is not None:
            for result in op.results:
                self.at.define(result, decision.layout)
        else:
            for loop in padded_loops(name, rule, option, self.mesh):
                self._mask(op, rule, option[loop], loop)
            if not rule.has_rule and (self._gather_captured(op) or any(operand in self.at.resharded for operand in op.operands)):
                op.attributes[GATHERED] = ir.UnitAttr.get()
            self.at.carried = decision.carried
            lower_op(op, rule, option, self.at)

    def _is_manual(self, op: ir.Operation) -> bool:
        """Whether an op of the dialect is in manual computations along all axes that it names."""
        named = "mesh_axes" if "mesh_axes" in op.attributes else "axes"
        return bool(self.at.manual) and {*(integers(op.attributes[named]) if named in op.attributes else ())} <= {*self.at.manual}

    def _composite(self, op: ir.Operation, body: BlockDecisions) -> None:
        """Replaces a composite that is sharded as one op by its body."""
        if self.at.reasons is not None:
            self.at.reasons.record_op(op, exchanges=False)
        copies = self._inliner.copy(op, composite_body(op))
        self._ops(copies, body)
        for result, value in zip(list(op.results), copies[-1].operands, strict=True):
            result.replace_all_uses_with(value)
        copies[-1].erase()
        op.erase()

    def _mask(self, op: ir.Operation, rule: ShardingRule, axes: Axes, loop: int) -> None:
        """Masks the padding of uneven shards in a reduction along a loop that is split along `axes`."""
        size, kind = rule.loops[loop].size, rule.loops[loop].reduction
        self.at.write_before(op)
        for index, dims in enumerate(rule.operands):
            if (loop,) in dims:
                value, dim = op.operands[index], dims.index((loop,))
                masked = mask_padding(value, dim, size, axes, kind, self.at)
                op.operands[index] = self.at.register(masked, *self.at.shards[value][:2])

    def _gather_captured(self, op: ir.Operation) -> bool:
        """Replicates the values from outside that the regions of an op without a rule use; returns whether there are any."""
        has_gathered = False
        for inner in list(walk(op))[1:]:
            for index, value in enumerate(inner.operands):
                source = self.at.sharding(value)
                if source is not None and not source.is_replicated:
                    inner.operands[index] = self.at.reshard(value, self._replicated(value), op)
                    has_gathered = True
        return has_gathered

    @_HANDLERS.register("stablehlo.while")
    def _while(self, op: ir.Operation, decision: OpDecision) -> None:
        """The initial values, region arguments, yielded values and results of a loop have equal shardings."""
        for region, inner in zip(op.regions, decision.regions, strict=True):
            block = region.blocks[0]
            self._define(block.arguments, decision.operands)
            self._inside(inner)
        self._define(op.results, decision.operands)

    def _define(self, values: Iterable[ir.Value], shardings: Shardings) -> None:
        for value, sharding in zip(values, shardings, strict=True):
            if sharding is not None:
                self.at.define(value, sharding)

    def _inside(self, decisions: BlockDecisions) -> None:
        self.at.enter_block()
        self._ops(decisions.operations, decisions)
        self.at.leave_block()

    @_HANDLERS.register(BARRIER)
    def _hand_on(self, op: ir.Operation, decision: OpDecision) -> None:
        """A barrier does not reshard values."""
        self._define(op.results, tuple([self.at.sharding(operand) for operand in op.operands]))

    @_HANDLERS.register("stablehlo.case", "stablehlo.if")
    def _branches(self, op: ir.Operation, decision: OpDecision) -> None:
        """Every branch yields the decided shardings of the results; the predicate is replicated."""
        predicate = op.operands[0]
        if predicate in self.at.shards:
            op.operands[0] = self._reshard(predicate, self._replicated(predicate), op)
        for inner in decision.regions:
            self._inside(inner)
        self._define(op.results, decision.results)

    def _at_boundary(self, sharding: Sharding, shape: Sequence[int], manual: frozenset[int]) -> Sharding:
        return at_manual_boundary(sharding, shape, self.at.mesh, manual)

    @_HANDLERS.register(MANUAL)
    def _manual(self, op: ir.Operation, decision: OpDecision) -> None:
        """Replaces a manual computation by its body. The body is already local along the manual axes, so shardings inside only
        have the other axes; the user's collectives inside are not changed.
        """
        block = op.regions[0].blocks[0]
        manual = frozenset(integers(op.attributes[MANUAL_AXES]))
        for number, (operand, argument) in enumerate(zip(op.operands, block.arguments, strict=True)):
            if operand in self.at.shards:
                sharding = self._at_boundary(self.at.shards[operand].sharding, self.at.global_shape(operand), manual)
                op.operands[number] = operand = self._reshard(operand, sharding, op)
                self.at.define(argument, without_manual_axes(sharding, manual))
                if argument.type != operand.type:
                    raise OpError(op, f"takes {argument.type}, but the annotation of its operand makes it {operand.type}")
        for constraint in [inner for inner in walk(op) if inner.name == "sdy.sharding_constraint"]:  # of scalars, in reducers
            constraint.results[0].replace_all_uses_with(constraint.operands[0])
            constraint.erase()
        outside, self.at.manual = self.at.manual, tuple(sorted({*self.at.manual, *manual}))
        self._ops(decision.regions[0].operations, decision.regions[0])
        terminator = list(block.operations)[-1].operation
        targets = [
            target and self._at_boundary(target, shape_of(result), manual)
            for target, result in zip(decision.results, op.results, strict=True)
        ]
        for index, target in enumerate(targets):
            if target is not None:
                inner = without_manual_axes(target, manual)
                terminator.operands[index] = self._reshard(terminator.operands[index], inner, terminator)
        self.at.manual = outside
        yielded, emit = inline_region(op), Builder.before(op)
        for value, result, target in zip(yielded, op.results, targets, strict=True):
            if target is not None:  # distinguish the values: outside, the same shard is a shard of a larger tensor
                outer = replace(target, partial_axes=tuple(axis for axis in target.partial_axes if axis in manual))
                value = self.at.register(emit.value("convert", value.type, [value]), self.at.global_shape(result), outer)
                self._boundary_casts.append(op_of(value))
            result.replace_all_uses_with(value)
        op.erase()
