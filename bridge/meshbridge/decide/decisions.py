"""The decisions about a program: how each op is split, how each value is sharded at its definition and its uses, and why.

`Decisions` connect deciding and partitioning. Propagation and refinement (`decide`) make them, or `read_annotations` reads them;
`annotate` writes them into the program; the partitioner follows them. They have the structure of the program: a block's decisions
have one entry per op, in order, and those of a loop contain the decisions of its blocks. A product with rows split along axis 0:

    OpDecision(why=CHEAPEST, option=((0,), (), ()), operands=([[0], []], [[], []]), results=([[0], []],), rule=…)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from meshbridge.ir.mlir import COMPOSITE, ir
from meshbridge.ir.sharding import Axes, Mesh, Sharding
from meshbridge.ops.composites import composite_body
from meshbridge.ops.option import Option, computed_sharding
from meshbridge.ops.rule import ShardingRule

Shardings = tuple[Sharding | None, ...]
"""One per value; None for a value that is no ranked tensor, or if no sharding is required."""

ANNOTATED = "the program is annotated so"
GIVEN = "the program gives the option"
CHEAPEST = "the least modelled cost"
AS_OPERANDS = "the operands are sharded so"
SAME_VALUE = "values that are handed on are sharded alike"
"""Reasons of decisions."""


@dataclass(frozen=True)
class OpDecision:
    """The decision about one op. Ops with sharding rules may share one if their names, types and operand shardings are equal."""

    why: str = ""
    operands: Shardings = ()
    "The sharding that each operand is resharded to before the op; () for no operands. None: it is not resharded."
    results: Shardings = ()
    "The sharding that each result is resharded to at its definition; for ops with regions, its sharding."
    rule: ShardingRule | None = None
    "For ops that are split by their loops."
    option: Option = ()
    "Per loop of the rule, the mesh axes that split it."
    layout: Sharding | None = None
    "The halo sizes or offsets in which an elementwise op computes, if its operands have any."
    carried: Axes = ()
    "The axes along which the op takes operands as partial sums and passes them on."
    regions: tuple[BlockDecisions, ...] = ()
    "For loops, branches and manual computations; the body of a composite that is sharded as one op."

    def on_copy(self, op: ir.Operation) -> OpDecision:
        """The same about a copy of the op."""
        regions = composite_body(op).regions if op.name == COMPOSITE else op.regions
        return replace(
            self,
            regions=tuple([block.on_copy(region.blocks[0]) for block, region in zip(self.regions, regions, strict=True)]),
        )

    def computed(self, index: int, mesh: Mesh) -> Sharding | None:
        """The sharding in which the op computes a result, before resharding; None for ops that are not split by their loops."""
        if self.rule is None or self.layout is not None:
            return self.layout
        if self.regions:
            return self.regions[0].returned[index]
        return computed_sharding(self.rule, self.option, index, mesh, self.carried)


@dataclass(frozen=True)
class BlockDecisions:
    """The decisions about the ops of one block."""

    arguments: Shardings
    ops: tuple[OpDecision, ...]
    operations: Sequence[ir.Operation] = field(compare=False, repr=False)
    "The ops themselves, in the same order."

    @property
    def returned(self) -> Shardings:
        """The shardings of the terminator's operands."""
        return self.ops[-1].operands

    def on_copy(self, block: ir.Block) -> BlockDecisions:
        """The same about a copy of the block."""
        operations = [view.operation for view in block.operations]
        ops = [decision.on_copy(op) if decision.regions else decision for decision, op in zip(self.ops, operations, strict=True)]
        return replace(self, ops=tuple(ops), operations=operations)


@dataclass(frozen=True)
class FunctionDecisions:
    """The decisions about one function."""

    function: ir.Operation
    mesh: Mesh
    from_caller: Shardings
    "The caller's sharding of each argument, which is resharded to `block.arguments` at once."
    block: BlockDecisions

    def on_copy(self, function: ir.Operation) -> FunctionDecisions:
        """The same about a copy of the function."""
        return replace(self, function=function, block=self.block.on_copy(function.regions[0].blocks[0]))


@dataclass(frozen=True)
class Decisions:
    """The decisions about the functions of a program that run on a mesh."""

    functions: tuple[FunctionDecisions, ...]
    is_as_requested: bool = True
    "Whether the program has what the request was about: queries to keep split, or constraints to relax."

    def on_copy(self, functions: Iterable[ir.Operation], copies: Iterable[ir.Operation]) -> Decisions:
        """The same about copies of the functions of the program."""
        copy_of = dict(zip(functions, copies, strict=True))
        return replace(self, functions=tuple([decided.on_copy(copy_of[decided.function]) for decided in self.functions]))


def at_manual_boundary(sharding: Sharding, shape: Sequence[int], mesh: Mesh, manual: frozenset[int]) -> Sharding:
    """`sharding` of a tensor of global `shape`, without the axes that cannot cross the boundary of a manual computation along
    `manual`.

    A dimension of 12 along manual "i" of 4 has 3 elements inside. Along "j" of 2, the 3 are padded to 4 inside, and the 12 to 16
    outside, and the shards have different elements: such a dimension crosses the boundary sharded along "i" alone.
    """

    def passing(size: int, axes: Axes) -> Axes:
        outer = tuple(axis for axis in axes if axis in manual)
        inside = size // mesh.group_size(outer)
        crossing = outer
        for axis in axes[len(outer) :]:
            if inside % mesh.group_size((*crossing[len(outer) :], axis)):
                break
            crossing = (*crossing, axis)
        return crossing if outer else axes

    split = tuple(passing(size, axes) for size, axes in zip(shape, sharding.split_axes, strict=True))
    return sharding if split == sharding.split_axes else replace(sharding, split_axes=split)


def without_manual_axes(sharding: Sharding, manual: frozenset[int]) -> Sharding:
    """A sharding without the axes `manual`, which do not exist inside the computation."""
    split = tuple(tuple(axis for axis in axes if axis not in manual) for axes in sharding.split_axes)
    return replace(sharding.without_partial().plain(), split_axes=split)
