"""Writing decisions back: every result gets a `mesh.shard` on its definition, every operand one for its use, every op its option.

%s0 = mesh.sharding @mesh split_axes = [[0], [1]]      one per distinct sharding, at the top of the function
%1 = stablehlo.add %a, %b {meshbridge.sharding_option = …}
%2 = mesh.shard %1 to %s0                              the definition
%3 = mesh.shard %2 to %s1 annotate_for_users           one per use

Where nothing moves, the annotations repeat what the options say; a program that goes straight on to partitioning does without.
"""

from __future__ import annotations

from dataclasses import replace

from meshbridge.decide.assign import Assignment
from meshbridge.decide.graph import Graph, Node
from meshbridge.dialect import build
from meshbridge.dialect.attributes import axis_array_attr
from meshbridge.dialect.ops import OPTION
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import MANUAL, REGION_OPS, ir
from meshbridge.ir.sharding import Sharding, even_split, is_even
from meshbridge.ir.subaxes import completed_split, whole_split
from meshbridge.ops.option import Option


class Annotator:
    """Annotates one function: every definition and use, or (`only_moves`) those where a value is not taken as it lies."""

    def __init__(self, graph: Graph, defined: dict[int, Sharding], *, only_moves: bool = False) -> None:
        self.graph = graph
        self.defined = defined
        self.only_moves = only_moves
        self._plain: set[int] = set()
        "Tensors whose definitions need no annotation."
        self.block = graph.function.regions[0].blocks[0]
        self._tops: dict[ir.Block | None, ir.InsertionPoint] = {}
        self._marks: list[ir.Operation] = []
        self._values: dict[tuple[ir.Block | None, Sharding], ir.Value] = {}
        self._options: dict[Option, ir.Attribute] = {}

    def sharding(self, value: Sharding, home: ir.Block | None) -> ir.Value:
        """The SSA value of a sharding, declared at the top of the function or of the isolated block `home`."""
        found = self._values.get((home, value))
        if found is None:
            found = self._values[home, value] = build.sharding(value, at=Builder(ir.Location.current, self._top(home)))
        return found

    def _top(self, home: ir.Block | None) -> ir.InsertionPoint:
        """Before everything that stood in the function or the isolated block, and before all annotations of uses."""
        found = self._tops.get(home)
        if found is None:
            mark = ir.Operation.create("mesh.top", ip=ir.InsertionPoint.at_block_begin(home or self.block))
            self._marks.append(mark)
            found = self._tops[home] = ir.InsertionPoint(mark)
        return found

    def run(self, settled: list[Assignment]) -> None:
        """Uses first: they still name the original values, which `tensor_of` knows; definitions then slip in under them."""
        for node, decision in zip(self.graph.nodes, settled, strict=True):
            if node.is_identity:
                self._use_identity(node, decision)
            else:
                self._use_payload(node, decision)
                if self.only_moves:
                    self._plain.update(
                        tensor for tensor, made in zip(node.results, decision.computed, strict=True) if self._lies(tensor, made)
                    )
        for op in self.graph.returns:
            self._returns(op)
        self._definitions(self.block, None)
        for mark in self._marks:
            mark.erase()

    def _lies(self, tensor: int, sharding: Sharding | None) -> bool:
        """Whether a tensor of one definition is defined as `sharding`."""
        return tensor >= 0 and self.defined[tensor] == sharding and not self.graph.tensors[tensor].tied

    def _use_identity(self, node: Node, decision: Assignment) -> None:
        target = decision.operands[0]
        assert target is not None
        if node.op.name == "mesh.shard":
            node.op.operands[1] = self.sharding(target, node.home)
        else:
            self._use(node.op, node.operand_index, target, node.home)

    def _use_payload(self, node: Node, decision: Assignment) -> None:
        if decision.option and (self.only_moves or any(decision.option)):
            attr = self._options.get(decision.option)
            if attr is None:
                attr = self._options[decision.option] = axis_array_attr(decision.option)
            node.op.attributes[OPTION] = attr
        for index, (tensor, need) in enumerate(zip(node.operands, decision.operands, strict=True)):
            if need is not None and not (self.only_moves and need == self.defined[tensor]):
                self._use(node.op, index, need, node.home)

    def _use(self, op: ir.Operation, index: int, need: Sharding, home: ir.Block | None = None) -> None:
        sharding = self.sharding(need, home)
        op.operands[index] = build.shard(op.operands[index], sharding, annotate_for_users=True, at=Builder.before(op))

    def _definitions(self, block: ir.Block, home: ir.Block | None) -> None:
        """Annotates the arguments of a block and the results of its ops."""
        is_home = block == self.block if home is None else block == home
        top = self._top(home) if is_home else ir.InsertionPoint.at_block_begin(block)
        for view in list(block.operations):
            op = view.operation
            if op.name == "mesh.shard":
                self._refresh(op, home)
            elif not op.name.startswith("mesh."):
                results = op.results
                if len(results):
                    after = ir.InsertionPoint.after(op)
                    for result in results:
                        self._define(result, op.location, after, home)
                if op.name in REGION_OPS:
                    for region in op.regions:
                        inner = region.blocks[0]
                        self._definitions(inner, inner if op.name == MANUAL else home)
        at_boundary = is_home and home is None
        for argument in block.arguments:
            self._define(argument, argument.location, top, home, at_boundary=at_boundary)

    def _refresh(self, op: ir.Operation, home: ir.Block | None) -> None:
        """A definition that the user annotated with open dimensions may have been split further."""
        tensor = self.graph.tensor_of.get(op.results[0])
        if tensor is not None and "annotate_for_users" not in op.attributes:
            op.operands[1] = self.sharding(self.defined[tensor], home)

    def _returns(self, op: ir.Operation) -> None:
        """Results lie as they are defined, as far as a caller can put the shards together."""
        for index, value in enumerate(op.operands):
            tensor = self.graph.tensor_of.get(value, -1)
            if tensor >= 0:
                given = self._at_boundary(tensor, finer=True)
                given = given if self.graph.tensors[tensor].user else given.without_partial()
                if given != self.defined[tensor] or not _is_annotated_use(value):  # otherwise the user has said it for this use
                    self._use(op, index, given)

    def _at_boundary(self, tensor: int, *, finer: bool = False) -> Sharding:
        """As the tensor is defined, but in equal shards, and along parts of axes only if the user wrote them. Where a part is all
        there is, a result may lie `finer`, along the whole axis: that costs nothing."""
        defined, description, mesh = self.defined[tensor], self.graph.tensors[tensor], self.graph.mesh
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

    def _define(
        self, value: ir.Value, loc: ir.Location, ip: ir.InsertionPoint, home: ir.Block | None, *, at_boundary: bool = False
    ) -> None:
        """An argument of the function comes as a caller can make it, and is split further inside."""
        tensor = self.graph.tensor_of.get(value, -1)
        if tensor < 0 or tensor in self._plain or value in self.graph.annotated:
            return
        defined = self._at_boundary(tensor) if at_boundary else self.defined[tensor]
        shard = ir.Operation.create("mesh.shard", [value.type], [value, self.sharding(defined, home)], loc=loc, ip=ip)
        value.replace_all_uses_except(shard.results[0], shard)
        if defined != self.defined[tensor]:
            inside, users = self.sharding(self.defined[tensor], home), list(shard.results[0].uses)
            further = build.shard(shard.results[0], inside, annotate_for_users=True, at=Builder(loc, ip))
            for use in users:
                use.owner.operands[use.operand_number] = further


def _is_annotated_use(value: ir.Value) -> bool:
    """Whether `value` is what a `mesh.shard` makes for its users."""
    op = value.owner
    return not isinstance(op, ir.Block) and op.name == "mesh.shard" and "annotate_for_users" in op.attributes
