"""Composites that have been split as a whole: each device does on its shards what the body says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.decide.assign import Assignment
from meshbridge.decide.build_graph import GraphBuilder
from meshbridge.decide.complete import propagate, write
from meshbridge.decide.graph import Graph
from meshbridge.dialect import build
from meshbridge.dialect.attributes import axis_array, integers
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.ops import MANUAL_AXES, OPTION
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.mlir import COMPOSITE, OpError, functions_to_partition, ir, walk, walk_all
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import Mesh, Sharding
from meshbridge.legalize.inline_calls import CALLEE, Inliner, callee
from meshbridge.ops.composites import composite_rule
from meshbridge.ops.option import Option, is_legal, needed_sharding, result_sharding
from meshbridge.ops.rule import Interface, ShardingRule


@register
@dataclass(frozen=True)
class ExpandComposites(Pass):
    """Puts its body in place of every composite that has a sharding rule, once its sharding option is decided.

    Input:   %1 = stablehlo.composite "my.norm" %0 {decomposition = @norm, meshbridge.sharding_option = …<[[0]]>}
    Output:  %1 = mesh.shard %0 to %rows annotate_for_users
             %2 = stablehlo.multiply %1, %1 {meshbridge.sharding_option = …<[[0], []]>}
             …

    What the rule says of operands and results stands as annotations around the body; inside it, the rest is decided as in any
    function. So the numbers are right whatever the rule promises: a body that needs what lies on other devices fetches it.
    """

    name: ClassVar[str] = "expand-composites"

    def run(self, module: ir.Module) -> bool:
        if sum(view.operation.name == "func.func" for view in module.body.operations) < 2:
            return False  # a body is a function of its own
        bodies = _bodies(module)
        with module.context, ir.Location.unknown():
            for function in functions_to_partition(module):
                mesh = find_mesh(module, function)
                if mesh is not None:
                    _Expander(module, mesh).run(function)
            erase_unused(module, bodies)
        return bool(bodies)


def _bodies(module: ir.Module) -> set[str]:
    """The functions that composites with a rule stand for."""
    return {callee(op) for op in walk_all(module) if op.name == COMPOSITE and composite_rule(op) is not None}


def erase_unused(module: ir.Module, functions: set[str]) -> None:
    """Erases those of the functions that nothing names any more; first the outer ones of composites in composites."""
    while functions:
        named = {callee(op) for op in walk_all(module) if op.name in CALLEE}
        unused = functions - named
        if not unused:
            return
        symbols = ir.SymbolTable(module.operation)
        for name in unused:
            symbols[name].erase()
        functions = functions & named


class _Expander:
    """Expands the composites of one function. Bodies are annotated once per option and place in manual computations."""

    def __init__(self, module: ir.Module, mesh: Mesh) -> None:
        self.mesh = mesh
        self.interface = Interface()
        self._symbols = ir.SymbolTable(module.operation)
        self._inliner = Inliner({})
        self._bodies: dict[tuple[str, ShardingRule, Option, frozenset[int]], ir.Operation] = {}

    def run(self, function: ir.Operation) -> None:
        self._expand(function, frozenset())
        for body in self._bodies.values():
            body.erase()

    def _expand(self, function: ir.Operation, manual: frozenset[int]) -> None:
        """Expands everything in `function`, which stands in manual computations along the axes `manual`."""
        for op in [op for op in walk(function) if op.name == COMPOSITE and composite_rule(op) is not None]:
            rule = self.interface.rule(op)
            option = axis_array(op.attributes[OPTION]) if OPTION in op.attributes else ((),) * len(rule.loops)
            if len(option) != len(rule.loops) or not is_legal(rule, option, self.mesh):
                raise OpError(op, f"has the sharding option {[list(axes) for axes in option]}, which its loops cannot take")
            key = (callee(op), rule, option, manual | _manual_axes_around(op))
            if key not in self._bodies:
                self._bodies[key] = self._body(*key)
            self._inliner.inline(op, self._bodies[key])

    def _body(self, name: str, rule: ShardingRule, option: Option, manual: frozenset[int]) -> ir.Operation:
        """A copy of the function `name`, beside it, annotated for `option`."""
        function = self._symbols[name].operation
        body = function.clone(ip=ir.InsertionPoint(function)).operation
        body.attributes["sym_name"] = ir.StringAttr.get(f"{name}.{len(self._bodies)}.split")
        taken = _annotate_arguments(body, rule, option, self.mesh)
        partial = _annotate_results(body, rule, option, self.mesh)
        graph = GraphBuilder(body, self.mesh, self.interface, body_within=manual).build()
        propagate(graph)
        settled = write(graph, only_moves=True)  # between ends that are given there is little to refine
        _take_back(partial, graph, settled)
        for shard in taken:  # where the body will stand, others use these values too
            shard.attributes["annotate_for_users"] = ir.UnitAttr.get()
        self._expand(body, manual)
        return body


def _manual_axes_around(op: ir.Operation) -> frozenset[int]:
    """The axes of the manual computations in which `op` stands."""
    axes: set[int] = set()
    parent = op.parent
    while parent is not None:
        if MANUAL_AXES in parent.attributes:
            axes.update(integers(parent.attributes[MANUAL_AXES]))
        parent = parent.operation.parent
    return frozenset(axes)


def _annotate_arguments(body: ir.Operation, rule: ShardingRule, option: Option, mesh: Mesh) -> list[ir.Operation]:
    """Gives the arguments the shardings that the rule asks of the operands."""
    block = body.regions[0].blocks[0]
    at = Builder(ir.Location.current, ir.InsertionPoint.at_block_begin(block))
    made = []
    for argument, dims in zip(block.arguments, rule.operands, strict=True):
        if isinstance(argument.type, ir.RankedTensorType):
            sharding = build.sharding(needed_sharding(dims, option, mesh.name), at=at)
            made.append(op_of(build.shard_definition(argument, sharding, at=at)))
    return made


def _annotate_results(body: ir.Operation, rule: ShardingRule, option: Option, mesh: Mesh) -> dict[ir.Operation, Sharding]:
    """Annotates what the body returns as the rule says that it is computed; returns the annotations of partial values, which a
    split reduction leaves."""
    *_, last = body.regions[0].blocks[0].operations
    terminator = last.operation
    at = Builder.before(terminator)
    partial = {}
    for index, value in enumerate(list(terminator.operands)):
        if isinstance(value.type, ir.RankedTensorType):
            computed = result_sharding(rule, option, index, mesh)
            sharding = build.sharding(computed, at=at)
            shard = build.shard(value, sharding, annotate_for_users=not computed.partial_axes, at=at)
            terminator.operands[index] = shard
            if computed.partial_axes:
                partial[op_of(shard)] = computed
    return partial


def _take_back(partial: dict[ir.Operation, Sharding], graph: Graph, settled: list[Assignment]) -> None:
    """Returns values finished that the body has finished: only what it leaves partial is worth being handed on so."""
    computed = {
        tensor: sharding
        for node, decision in zip(graph.nodes, settled, strict=True)
        for tensor, sharding in zip(node.results, decision.computed, strict=True)
    }
    for shard, wanted in partial.items():
        if computed.get(graph.tensor_of[shard.operands[0]]) != wanted:
            shard.operands[1] = build.sharding(wanted.without_partial(), at=Builder.before(shard))
