"""Propagates the user's annotations to a fixed point, refines them on request, and assigns shardings to all ops and values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from meshbridge.decide.assign import Assigner
from meshbridge.decide.build_graph import BodyBoundary, GraphBuilder
from meshbridge.decide.choice import Pricing, pricing_of
from meshbridge.decide.decisions import (
    ANNOTATED,
    SAME_VALUE,
    BlockDecisions,
    Decisions,
    FunctionDecisions,
    OpDecision,
    Shardings,
)
from meshbridge.decide.dynamic_sizes import refuse_dynamic_axes
from meshbridge.decide.graph import Graph, Tensor
from meshbridge.decide.propagate import Propagator
from meshbridge.decide.relax_constraints import relax_constraints
from meshbridge.decide.routes import Refinements, refine
from meshbridge.decide.split_queries import keep_split_queries
from meshbridge.decide.unreduced import propagate_unreduced
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.renumber import renumber
from meshbridge.ir.mlir import BARRIER, COMPOSITE, MANUAL, REGION_OPS, ShardingWarning, ir
from meshbridge.ir.sharding import Mesh, Sharding, even_split, is_even
from meshbridge.ir.subaxes import completed_split, whole_split
from meshbridge.ops.composites import composite_body, composite_rule
from meshbridge.ops.option import Option, needed_sharding, result_sharding
from meshbridge.ops.rule import Interface, ShardingRule
from meshbridge.ops.unsupported import check_types
from meshbridge.resharding import BYTES, Objective


@dataclass
class Propagation:
    """The graphs of a module after propagation, and what was refined from them: variants of a plan share them."""

    graphs: list[tuple[Graph, Refinements]] | None = None
    "None until one of the variants is decided."


def decide(
    functions: Iterable[ir.Operation],
    module: ir.Module,
    interface: Interface,
    *,
    moves: int = 0,
    objective: Objective = BYTES,
    keep_queries: bool = False,
    inside_open: bool = False,
    propagation: Propagation | None = None,
) -> Decisions:
    """Decides every function that names a mesh, at the lowest cost under `objective`; refinement tries up to `moves` changes. The
    module changes only in the numbering of axes, if one is split into sub-axes. `keep_queries`: refinement keeps attention's
    queries split. `inside_open`: it may split values further than constraints close them. If the program has none of these,
    refinement is skipped: the plan with it is a different variant. Of the variants that share a `propagation`, which are on one
    module, such a one has no decisions.

    Raises OpError if the user's annotations cannot be followed, and warns (ShardingWarning) if they contradict each other.
    """
    shared = Propagation() if propagation is None else propagation
    if shared.graphs is None:
        built = propagated(list(functions), module, interface, objective.alone)
        shared.graphs = [(graph, Refinements()) for graph in built]
    graphs = [(graph.copy(), known) for graph, known in shared.graphs]
    with_queries = [keep_split_queries(graph) for graph, _ in graphs] if keep_queries else []
    opened = [relax_constraints(graph) for graph, _ in graphs] if inside_open else []
    is_as_requested = any(with_queries) == keep_queries and any(opened) == inside_open
    decided = []
    for graph, known in graphs if is_as_requested or propagation is None else ():
        for text in graph.warnings:
            warnings.warn(text, ShardingWarning, stacklevel=2)
        if moves and is_as_requested:
            refine(graph, moves, objective, known)
        decided.append(_DecisionReader(graph, Bodies(graph.pricing, interface)).function())
    return Decisions(tuple(decided), is_as_requested)


def propagated(functions: Sequence[ir.Operation], module: ir.Module, interface: Interface, objective: Objective) -> list[Graph]:
    """The graphs, with propagated annotations, of the functions that name a mesh.

    If an axis fits a reshape only in part, it is split into sub-axes in the graph, and then in the module. Other graphs of that
    mesh, and of operations that were replaced, are then rebuilt.
    """
    graphs: list[Graph] = []
    for function in functions:
        mesh = find_mesh(module, function)
        if mesh is None:
            continue
        refuse_dynamic_axes(function, mesh)
        check_types(function, function.regions[0].blocks[0].arguments)
        graph = GraphBuilder(function, interface, pricing_of(mesh, objective)).build()
        _propagate(graph)
        if graph.mesh != mesh:
            has_stayed = renumber(module, mesh, graph.mesh, ops_below=[(function, graph.may_name_axes())])
            if mesh in [built.mesh for built in graphs] or not has_stayed:
                return propagated(functions, module, interface, objective)
        graphs.append(graph)
    return graphs


def _propagate(graph: Graph) -> None:
    """Propagates the user's annotations to a fixed point."""
    propagate_unreduced(graph)
    Propagator(graph).run("backward-forward")


class Bodies:
    """The decisions of the bodies of composites that are sharded as one op: one per option and set of manual axes around.

    The rule gives the shardings of operands and results; the rest is decided as in any function. The result is right whatever the
    rule says: if the body needs other shards, it communicates.
    """

    def __init__(self, pricing: Pricing, interface: Interface) -> None:
        self.pricing = pricing
        self.mesh = pricing.mesh
        self.interface = interface
        self._decided: dict[tuple[ir.Operation, ShardingRule, Option, frozenset[int]], BlockDecisions] = {}

    def decide(self, op: ir.Operation, rule: ShardingRule, option: Option, manual: frozenset[int]) -> BlockDecisions | None:
        """The decisions of the body of `op` inside manual computations along `manual`; None if it has no rule."""
        if op.name != COMPOSITE or composite_rule(op) is None:
            return None
        function = composite_body(op)
        key = (function, rule, option, manual)
        decided = self._decided.get(key)
        if decided is None:
            decided = self._decided[key] = self._body(function, rule, option, manual)
        return decided

    def _body(self, function: ir.Operation, rule: ShardingRule, option: Option, manual: frozenset[int]) -> BlockDecisions:
        block = function.regions[0].blocks[0]
        *_, terminator = block.operations
        tensors = [isinstance(value.type, ir.RankedTensorType) for value in (*block.arguments, *terminator.operation.operands)]
        shardings = [needed_sharding(dims, option, self.mesh.name) for dims in rule.operands]
        shardings += [result_sharding(rule, option, index, self.mesh) for index in range(len(rule.results))]
        boundary = tuple(sharding if is_tensor else None for sharding, is_tensor in zip(shardings, tensors, strict=True))
        count = len(rule.operands)
        ends = BodyBoundary(boundary[:count], boundary[count:], manual)
        graph = GraphBuilder(function, self.interface, self.pricing, ends=ends).build()
        _propagate(graph)  # between given ends there is little to refine
        return _DecisionReader(graph, self).body()


class _DecisionReader:
    """Reads the decisions of one function off its graph."""

    def __init__(self, graph: Graph, bodies: Bodies) -> None:
        self.graph = graph
        self.assigned = Assigner(graph, bodies.decide)
        self.assigned.run()
        self._annotated: dict[Shardings, OpDecision] = {}
        self._at_boundary = cache(partial(_in_equal_shards, graph.mesh))

    def function(self) -> FunctionDecisions:
        """The decisions of a function that has callers."""
        block = self.graph.function.regions[0].blocks[0]
        from_caller = tuple([self._passed(tensor) for tensor in map(self._tensor, block.arguments)])
        return FunctionDecisions(self.graph.function, self.graph.mesh, from_caller, self._block(block, self._returned))

    def body(self) -> BlockDecisions:
        """The decisions of a body, whose results are given."""
        return self._block(self.graph.function.regions[0].blocks[0], self._ended)

    def _ended(self, op: ir.Operation) -> Shardings:
        needed = [self.assigned.needed.get((op, index)) for index in range(len(op.operands))]
        return tuple([need or defined for need, defined in zip(needed, self._defined(op.operands), strict=True)])

    def _tensor(self, value: ir.Value) -> int:
        return self.graph.tensor_of.get(value, -1)

    def _defined(self, values: Iterable[ir.Value]) -> Shardings:
        return tuple([self.assigned.defined(self._tensor(value)) for value in values])

    def _block(self, block: ir.Block, returned: Callable[[ir.Operation], Shardings]) -> BlockDecisions:
        decided, nodes, statements = self.assigned.decided, self.graph.nodes, self.graph.statements[block]
        ops = [decided[statement] if isinstance(statement, int) else self._op(statement, returned) for statement in statements]
        operations = [nodes[statement].op if isinstance(statement, int) else statement for statement in statements]
        return BlockDecisions(self._defined(block.arguments), tuple(ops), operations)

    def _op(self, op: ir.Operation, returned: Callable[[ir.Operation], Shardings]) -> OpDecision:
        name = op.name
        if name == "mesh.shard":
            shardings = self._defined(op.results)
            if shardings not in self._annotated:
                self._annotated[shardings] = OpDecision(ANNOTATED, shardings, shardings)
            return self._annotated[shardings]
        if name == "func.return":
            return OpDecision(ANNOTATED, returned(op))
        needed = tuple([self.assigned.needed.get((op, index)) for index in range(len(op.operands))])
        blocks = [region.blocks[0] for region in op.regions] if name in REGION_OPS or name == MANUAL else []
        if name == BARRIER:
            needed = tuple([sharding and sharding.without_partial() for sharding in self._defined(op.operands)])
        if name == MANUAL:
            needed = tuple([need and need.plain() for need in needed])
        inner = tuple([self._block(block, returned) for block in blocks])
        return OpDecision(SAME_VALUE, needed, self._defined(op.results), regions=inner)

    def _returned(self, op: ir.Operation) -> Shardings:
        """Results keep the sharding of their definition, as far as a caller can assemble the shards."""
        shardings = []
        for tensor in map(self._tensor, op.operands):
            sharding = self._passed(tensor, finer=True)
            if sharding is not None and not self.graph.tensors[tensor].annotated:
                sharding = sharding.without_partial()
            shardings.append(sharding)
        return tuple(shardings)

    def _passed(self, tensor: int, *, finer: bool = False) -> Sharding | None:
        """The sharding in which a tensor is passed from or to a caller."""
        defined = self.assigned.defined(tensor)
        return self._at_boundary(self.graph.tensors[tensor], defined.for_callers(), finer) if defined is not None else None


def _in_equal_shards(mesh: Mesh, description: Tensor, defined: Sharding, finer: bool) -> Sharding:
    """The sharding of the definition, but in equal shards, and along sub-axes only if the user wrote them. If only one sub-axis
    is used, a `finer` result may be split along the whole axis: that is free."""
    if not defined.is_plain:  # `mesh-spmdization=boundary` gives callers equal shards
        return defined
    split = defined.split_axes
    if finer and not description.annotated and is_even(description.shape, mesh, fine := completed_split(mesh, split)):
        split = fine
    if description.allows(whole := whole_split(mesh, split)):
        split = whole
    split = even_split(description.shape, mesh, split)
    if whole_split(mesh, description.written) == description.written:  # equal shards may have left a sub-axis
        split = whole_split(mesh, split)
    return defined if split == defined.split_axes else replace(defined, split_axes=split)
