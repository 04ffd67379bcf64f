"""What is decided of a program: how each op is split, how each value is sharded where it is defined and used, and why.

One `Decisions` stands between deciding and partitioning. It is made by propagation and refinement (`decide`) or read off
annotations (`read_annotations`); `annotate` writes it down as such; the partitioner does what it says and nothing else. It has
the shape of the program: a block's decisions hold one entry per op, in order, and those of a loop hold what is decided of its
blocks. A product whose rows are split along mesh axis 0:

    OpDecision(why=CHEAPEST, option=((0,), (), ()), operands=([[0], []], [[], []]), results=([[0], []],), rule=…)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes, Mesh, Sharding
from meshbridge.ops.option import Option, computed_sharding
from meshbridge.ops.rule import ShardingRule

Shardings = tuple[Sharding | None, ...]
"""One per value; None for what is no ranked tensor, and where nothing is asked for."""

ANNOTATED = "the program is annotated so"
GIVEN = "the program gives the option"
CHEAPEST = "the least modelled cost"
AS_OPERANDS = "the operands are sharded so"
SAME_VALUE = "values that are handed on are sharded alike"
"""Reasons of decisions."""


@dataclass(frozen=True)
class OpDecision:
    """What is decided of one op. Ops that are split by their loops may share one if their names and types are the same and their
    operands are sharded alike."""

    why: str = ""
    operands: Shardings = ()
    "What each operand is resharded to before the op; () for none. None: it is taken as it is."
    results: Shardings = ()
    "What each result is resharded to where it is defined; for ops with regions, how it is sharded."
    rule: ShardingRule | None = None
    "Of ops that are split by their loops."
    option: Option = ()
    "Per loop of the rule, the mesh axes that split it."
    layout: Sharding | None = None
    "The halo sizes or offsets in which an elementwise op computes, if its operands have such."
    carried: Axes = ()
    "The axes along which the op takes operands as partial sums and passes them on."
    regions: tuple[BlockDecisions, ...] = ()
    "Of loops, branches and manual computations; the body of a composite that is sharded as one op."

    def computed(self, index: int, mesh: Mesh) -> Sharding | None:
        """How the op computes a result, before that is resharded; None for ops that are not split by their loops."""
        if self.rule is None or self.layout is not None:
            return self.layout
        if self.regions:
            return self.regions[0].returned[index]
        return computed_sharding(self.rule, self.option, index, mesh, self.carried)


@dataclass(frozen=True)
class BlockDecisions:
    """What is decided of the ops of one block."""

    arguments: Shardings
    ops: tuple[OpDecision, ...]
    operations: Sequence[ir.Operation] = field(compare=False, repr=False)
    "The ops themselves, in the same order."

    @property
    def returned(self) -> Shardings:
        """How the values that the terminator names are sharded."""
        return self.ops[-1].operands


@dataclass(frozen=True)
class FunctionDecisions:
    """What is decided of one function."""

    function: ir.Operation
    mesh: Mesh
    held: Shardings
    "What the caller holds of each argument; it is resharded to `block.arguments` at once."
    block: BlockDecisions


@dataclass(frozen=True)
class Decisions:
    """What is decided of a program: of its functions that run on a mesh."""

    functions: tuple[FunctionDecisions, ...]
    is_own: bool = True
    "Whether there is what was asked for beside: queries that are kept split, constraints inside that are opened."


def at_manual_edge(sharding: Sharding, shape: Sequence[int], mesh: Mesh, manual: frozenset[int]) -> Sharding:
    """`sharding` of a tensor of global `shape` without the axes that cannot pass the edge of a manual computation along `manual`.

    A dimension of 12 along manual "i" of 4 has 3 elements inside. Along "j" of 2, the 3 are padded to 4 inside, and the 12 to 16
    outside, so that the pieces hold other elements: such a dimension passes the edge sharded along "i" alone.
    """

    def passing(size: int, axes: Axes) -> Axes:
        outer = tuple(axis for axis in axes if axis in manual)
        inside = size // mesh.group_size(outer)
        kept = outer
        for axis in axes[len(outer) :]:
            if inside % mesh.group_size((*kept[len(outer) :], axis)):
                break
            kept = (*kept, axis)
        return kept if outer else axes

    split = tuple(passing(size, axes) for size, axes in zip(shape, sharding.split_axes, strict=True))
    return sharding if split == sharding.split_axes else replace(sharding, split_axes=split)


def free_part(sharding: Sharding, manual: frozenset[int]) -> Sharding:
    """What is left of a sharding where the axes `manual` do not exist."""
    split = tuple(tuple(axis for axis in axes if axis not in manual) for axes in sharding.split_axes)
    return replace(sharding.without_partial().plain(), split_axes=split)
