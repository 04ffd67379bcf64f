"""Deciding: the user's annotations are propagated to a fixed point, refined if asked for, and every op and value is assigned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from meshbridge.decide.graph import Graph, Tensor
from meshbridge.decide.open_inside import open_inside
from meshbridge.decide.propagate import Propagator
from meshbridge.decide.routes import refine
from meshbridge.decide.split_queries import keep_split_queries
from meshbridge.decide.unknown_sizes import refuse_unknown_axes
from meshbridge.decide.unreduced import carry_declarations
from meshbridge.dialect.module_mesh import find_mesh
from meshbridge.dialect.renumber import renumber
from meshbridge.ir.mlir import BARRIER, COMPOSITE, MANUAL, REGION_OPS, ShardingWarning, ir
from meshbridge.ir.sharding import Mesh, Sharding, even_split, is_even
from meshbridge.ir.subaxes import completed_split, whole_split
from meshbridge.ops.composites import composite_body, composite_rule
from meshbridge.ops.option import Option, needed_sharding, result_sharding
from meshbridge.ops.refused import refuse_types
from meshbridge.ops.rule import Interface, ShardingRule
from meshbridge.resharding import BYTES, Objective


def decide(
    functions: Iterable[ir.Operation],
    module: ir.Module,
    interface: Interface,
    *,
    moves: int = 0,
    objective: Objective = BYTES,
    keep_queries: bool = False,
    inside_open: bool = False,
) -> Decisions:
    """Decides for every function that names a mesh, what costs least under `objective`; refinement tries `moves` changes. Of the
    module nothing is changed but how axes are numbered, where one is cut. If attention's queries are to be kept split, refinement
    leaves them, and if constraints are `inside_open`, it splits further what they close; where there are none of these, it
    changes nothing: that plan is another one.

    Raises OpError where the user's annotations cannot be followed, and warns (ShardingWarning) where they contradict each other.
    """
    decided = []
    graphs = propagated(list(functions), module, interface, objective.plain)
    kept = [keep_split_queries(graph) for graph in graphs] if keep_queries else []
    opened = [open_inside(graph) for graph in graphs] if inside_open else []
    is_own = any(kept) == keep_queries and any(opened) == inside_open
    for graph in graphs:
        for text in graph.warnings:
            warnings.warn(text, ShardingWarning, stacklevel=2)
        if moves and is_own:
            refine(graph, moves, objective)
        decided.append(_DecisionReader(graph, Bodies(graph.pricing, interface)).function())
    return Decisions(tuple(decided), is_own)


def propagated(functions: Sequence[ir.Operation], module: ir.Module, interface: Interface, objective: Objective) -> list[Graph]:
    """The graphs of the functions that name a mesh, in which the user's annotations have been propagated.

    Where that meets a reshape which an axis fits only in part, the axis is cut in the graph, and then in the module. Other graphs
    of that mesh, and of operations that have been replaced there, are made anew.
    """
    graphs: list[Graph] = []
    for function in functions:
        mesh = find_mesh(module, function)
        if mesh is None:
            continue
        refuse_unknown_axes(function, mesh)
        refuse_types(function, function.regions[0].blocks[0].arguments)
        graph = GraphBuilder(function, interface, pricing_of(mesh, objective)).build()
        _propagate(graph)
        if graph.mesh != mesh:
            has_stayed = renumber(module, mesh, graph.mesh, ops_below=[(function, graph.may_name_axes())])
            if mesh in [other.mesh for other in graphs] or not has_stayed:
                return propagated(functions, module, interface, objective)
        graphs.append(graph)
    return graphs


def _propagate(graph: Graph) -> None:
    """Propagates the user's annotations to a fixed point."""
    carry_declarations(graph)
    Propagator(graph).run("backward-forward")


class Bodies:
    """The decisions of the bodies of composites that are sharded as one op: once per option and manual axes around.

    What the rule says of operands and results is given; inside, the rest is decided as in any function. So the numbers are right
    whatever the rule says: what a body needs of other shards is communicated.
    """

    def __init__(self, pricing: Pricing, interface: Interface) -> None:
        self.pricing = pricing
        self.mesh = pricing.mesh
        self.interface = interface
        self._decided: dict[tuple[ir.Operation, ShardingRule, Option, frozenset[int]], BlockDecisions] = {}

    def decide(self, op: ir.Operation, rule: ShardingRule, option: Option, manual: frozenset[int]) -> BlockDecisions | None:
        """The decisions of the body of `op`, which stands in manual computations along `manual`; None if it has no rule."""
        if op.name != COMPOSITE or composite_rule(op) is None:
            return None
        function = composite_body(op)
        key = (function, rule, option, manual)
        found = self._decided.get(key)
        if found is None:
            found = self._decided[key] = self._body(function, rule, option, manual)
        return found

    def _body(self, function: ir.Operation, rule: ShardingRule, option: Option, manual: frozenset[int]) -> BlockDecisions:
        block = function.regions[0].blocks[0]
        *_, terminator = block.operations
        tensors = [isinstance(value.type, ir.RankedTensorType) for value in (*block.arguments, *terminator.operation.operands)]
        shardings = [needed_sharding(dims, option, self.mesh.name) for dims in rule.operands]
        shardings += [result_sharding(rule, option, index, self.mesh) for index in range(len(rule.results))]
        given = tuple(sharding if is_tensor else None for sharding, is_tensor in zip(shardings, tensors, strict=True))
        count = len(rule.operands)
        ends = BodyBoundary(given[:count], given[count:], manual)
        graph = GraphBuilder(function, self.interface, self.pricing, ends=ends).build()
        _propagate(graph)  # between ends that are given there is little to refine
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
        held = tuple([self._passed(tensor) for tensor in map(self._tensor, block.arguments)])
        return FunctionDecisions(self.graph.function, self.graph.mesh, held, self._block(block, self._returned))

    def body(self) -> BlockDecisions:
        """Those of a body, which returns what its ends say."""
        return self._block(self.graph.function.regions[0].blocks[0], self._ended)

    def _ended(self, op: ir.Operation) -> Shardings:
        needed = [self.assigned.needed.get((op, index)) for index in range(len(op.operands))]
        return tuple([need or held for need, held in zip(needed, self._defined(op.operands), strict=True)])

    def _tensor(self, value: ir.Value) -> int:
        return self.graph.tensor_of.get(value, -1)

    def _defined(self, values: Iterable[ir.Value]) -> Shardings:
        return tuple([self.assigned.defined(self._tensor(value)) for value in values])

    def _block(self, block: ir.Block, returned: Callable[[ir.Operation], Shardings]) -> BlockDecisions:
        decided, nodes, statements = self.assigned.decided, self.graph.nodes, self.graph.statements[block]
        ops = [decided[said] if isinstance(said, int) else self._op(said, returned) for said in statements]
        operations = [nodes[said].op if isinstance(said, int) else said for said in statements]
        return BlockDecisions(self._defined(block.arguments), tuple(ops), operations)

    def _op(self, op: ir.Operation, returned: Callable[[ir.Operation], Shardings]) -> OpDecision:
        name = op.name
        if name == "mesh.shard":
            said = self._defined(op.results)
            if said not in self._annotated:
                self._annotated[said] = OpDecision(ANNOTATED, said, said)
            return self._annotated[said]
        if name == "func.return":
            return OpDecision(ANNOTATED, returned(op))
        needed = tuple([self.assigned.needed.get((op, index)) for index in range(len(op.operands))])
        blocks = [region.blocks[0] for region in op.regions] if name in REGION_OPS or name == MANUAL else []
        if name == BARRIER:
            needed = tuple([held and held.without_partial() for held in self._defined(op.operands)])
        if name == MANUAL:
            needed = tuple([need and need.plain() for need in needed])
        inner = tuple([self._block(block, returned) for block in blocks])
        return OpDecision(SAME_VALUE, needed, self._defined(op.results), regions=inner)

    def _returned(self, op: ir.Operation) -> Shardings:
        """Results are sharded as they are defined, as far as a caller can put the shards together."""
        given = []
        for tensor in map(self._tensor, op.operands):
            sharding = self._passed(tensor, finer=True)
            if sharding is not None and not self.graph.tensors[tensor].user:
                sharding = sharding.without_partial()
            given.append(sharding)
        return tuple(given)

    def _passed(self, tensor: int, *, finer: bool = False) -> Sharding | None:
        """How a tensor is passed from or to a caller."""
        defined = self.assigned.defined(tensor)
        return self._at_boundary(self.graph.tensors[tensor], defined.for_callers(), finer) if defined is not None else None


def _in_equal_shards(mesh: Mesh, description: Tensor, defined: Sharding, finer: bool) -> Sharding:
    """As the tensor is defined, but in equal shards, and along parts of axes only if the user wrote them. Where a part is all
    there is, a result may be split `finer`, along the whole axis: that costs nothing."""
    if not defined.is_plain:  # `mesh-spmdization=boundary` gives callers equal shards
        return defined
    split = defined.split_axes
    if finer and not description.user and is_even(description.shape, mesh, fine := completed_split(mesh, split)):
        split = fine
    if description.is_kept_by(whole := whole_split(mesh, split)):
        split = whole
    split = even_split(description.shape, mesh, split)
    if whole_split(mesh, description.written) == description.written:  # equal shards may have left a part of an axis over
        split = whole_split(mesh, split)
    return defined if split == defined.split_axes else replace(defined, split_axes=split)
