"""Writes decisions as annotations: `mesh.shard` on each definition and each use, and the sharding option of each op.

%s0 = mesh.sharding @mesh split_axes = [[0], [1]]      each distinct sharding once, at the top of the function
%1 = stablehlo.add %a, %b {meshbridge.sharding_option = …}
%2 = mesh.shard %1 to %s0                              the definition
%3 = mesh.shard %2 to %s1 annotate_for_users           one per use

`read_annotations` reads the decisions back.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshbridge.decide.decisions import BlockDecisions, Decisions, FunctionDecisions, OpDecision, Shardings
from meshbridge.dialect import build
from meshbridge.dialect.attributes import axis_array_attr
from meshbridge.dialect.ops import OPTION
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import MANUAL, ir
from meshbridge.ir.sharding import Sharding


def annotate(decisions: Decisions) -> None:
    """Annotates every definition and every use in place."""
    for function in decisions.functions:
        with function.function.context, ir.Location.unknown():
            _Annotator(function.function.regions[0].blocks[0]).function(function)


class _Annotator:
    """Annotates a function, or the isolated block of a manual computation. Shardings go to the top of the block."""

    def __init__(self, block: ir.Block) -> None:
        self.block = block
        self._mark = ir.Operation.create("mesh.top", ip=ir.InsertionPoint.at_block_begin(block))
        "After the shardings, before all annotations."
        self._top = Builder.before(self._mark)
        self._values: dict[Sharding, ir.Value] = {}

    def function(self, decisions: FunctionDecisions) -> None:
        """Annotates a function. Arguments are defined with the caller's sharding, then split further if decided."""
        block = self.block
        self._ops(block, decisions.block)
        for argument, from_caller, inside in zip(block.arguments, decisions.from_caller, decisions.block.arguments, strict=True):
            at = Builder(argument.location, self._top.ip)
            shard = self._define(argument, from_caller, at)
            if shard is not None and inside is not None and inside != from_caller:
                users = list(shard.uses)
                further = build.shard(shard, self._sharding(inside), annotate_for_users=True, at=at)
                for use in users:
                    use.owner.operands[use.operand_number] = further
        self._mark.erase()

    def isolated(self, decisions: BlockDecisions) -> None:
        """Annotates the block of a manual computation."""
        self._ops(self.block, decisions)
        self._arguments(self.block, decisions.arguments, self._top.ip)
        self._mark.erase()

    def _inner(self, block: ir.Block, decisions: BlockDecisions) -> None:
        self._ops(block, decisions)
        self._arguments(block, decisions.arguments, ir.InsertionPoint.at_block_begin(block))

    def _arguments(self, block: ir.Block, shardings: Shardings, ip: ir.InsertionPoint) -> None:
        for argument, sharding in zip(block.arguments, shardings, strict=True):
            self._define(argument, sharding, Builder(argument.location, ip))

    def _ops(self, block: ir.Block, decisions: BlockDecisions) -> None:
        ops = [view.operation for view in block.operations if view.operation != self._mark]
        for op, decision in zip(ops, decisions.ops, strict=True):
            if op.name == "mesh.shard":
                self._refresh(op, decision)
            elif not op.name.startswith("mesh."):
                self._op(op, decision)

    def _op(self, op: ir.Operation, decision: OpDecision) -> None:
        split = [sharding.split_axes for sharding in decision.results if sharding is not None]
        if any(decision.option) or (decision.option and any(map(any, split))):  # else it follows from the annotations
            op.attributes[OPTION] = axis_array_attr(decision.option)
        for index, need in enumerate(decision.operands):
            value = op.operands[index]
            if need is not None and not (op.name == "func.return" and self._has_annotation(value, need)):
                op.operands[index] = build.shard(value, self._sharding(need), annotate_for_users=True, at=Builder.before(op))
        if len(decision.results):
            after = Builder.after(op)
            for result, sharding in zip(op.results, decision.results, strict=True):
                self._define(result, sharding, after)
        if op.name == MANUAL:
            _Annotator(op.regions[0].blocks[0]).isolated(decision.regions[0])
        elif decision.rule is None:  # the body of a composite is decided when it is read
            for region, inner in zip(op.regions, decision.regions, strict=False):
                self._inner(region.blocks[0], inner)

    def _refresh(self, op: ir.Operation, decision: OpDecision) -> None:
        """Updates the user's annotation, whose open dimensions may have been split further."""
        (sharding,) = decision.results
        assert sharding is not None
        op.operands[1] = self._sharding(sharding)

    def _has_annotation(self, value: ir.Value, need: Sharding) -> bool:
        """Whether the user annotated this use with this sharding."""
        op = value.owner
        if isinstance(op, ir.Block) or op.name != "mesh.shard" or "annotate_for_users" not in op.attributes:
            return False
        return bool(op.operation.operands[1] == self._sharding(need))

    def _define(self, value: ir.Value, sharding: Sharding | None, at: Builder) -> ir.Value | None:
        if sharding is None or _is_annotated(use.owner.operation for use in value.uses):
            return None
        return build.shard_definition(value, self._sharding(sharding), at=at)

    def _sharding(self, sharding: Sharding) -> ir.Value:
        """The SSA value of a sharding."""
        declared = self._values.get(sharding)
        if declared is None:
            declared = self._values[sharding] = build.sharding(sharding, at=self._top)
        return declared


def _is_annotated(users: Iterable[ir.Operation]) -> bool:
    """Whether one of the users of a value annotates its definition."""
    return any(user.name == "mesh.shard" and "annotate_for_users" not in user.attributes for user in users)
