"""The operations that a program executes, and how often: loop bodies by their trip count, and of a branch the one taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from meshbridge.analysis.known_values import branch
from meshbridge.analysis.trip_count import trip_count
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.ops import MANUAL_AXES
from meshbridge.ir.mlir import MANUAL, REGION_OPS, ir
from meshbridge.ir.sharding import Mesh

Execution = tuple[ir.Operation, int]

Weigh = Callable[[Sequence[Execution]], float]
"""The cost of a branch's operations."""

BRANCHING = frozenset({"stablehlo.case", "stablehlo.if"})


def executed(module: ir.Module, whole: Mesh | None = None, *, weigh: Weigh | None = None) -> Iterator[Execution]:
    """Every op of the module's functions, in order, with its number of executions in one run.

    A `case` or `if` with a known index executes that branch. For others, the first branch of the highest cost by `weigh` counts;
    without `weigh`, all of them do. The bodies of reducers are part of their op. A loop of unknown trip count counts once (see
    `is_unknown_loop`). `whole` is the mesh of a program that is not partitioned yet: the body of a manual computation then runs
    once for each device along its axes.
    """
    for view in module.body.operations:
        function = view.operation
        if function.name == "func.func":
            for region in function.regions:
                for block in region.blocks:
                    yield from _in_block(block, 1, whole, weigh)


def is_unknown_loop(op: ir.Operation) -> bool:
    """Whether this is a loop of unknown trip count."""
    return op.name == "stablehlo.while" and trip_count(op) is None


def branch_weights(op: ir.Operation, weigh: Weigh) -> list[float]:
    """The cost of one execution of each branch of a `case` or `if` with an unknown index; empty for other ops."""
    if op.name not in BRANCHING or branch(op) is not None:
        return []
    return [weigh(list(_in_block(region.blocks[0], 1, None, weigh))) for region in op.regions]


def _in_block(block: ir.Block, times: int, whole: Mesh | None, weigh: Weigh | None) -> Iterator[Execution]:
    for view in block.operations:
        op = view.operation
        yield op, times
        if op.name in REGION_OPS:
            inner = times * _repeated(op, whole)
            regions = [list(_in_block(region.blocks[0], inner, whole, weigh)) for region in op.regions]
            for executions in _taken(op, regions, weigh):
                yield from executions


def _taken(op: ir.Operation, regions: list[list[Execution]], weigh: Weigh | None) -> list[list[Execution]]:
    """The regions of `op` that are executed."""
    if op.name not in BRANCHING:
        return regions
    index = branch(op)
    if index is not None:
        return [regions[index]]
    return regions if weigh is None else [max(regions, key=weigh)]


def _repeated(op: ir.Operation, whole: Mesh | None) -> int:
    if op.name == "stablehlo.while":
        count = trip_count(op)
        return 1 if count is None else count
    if op.name == MANUAL and whole is not None and MANUAL_AXES in op.attributes:
        return whole.group_size(integers(op.attributes[MANUAL_AXES]))
    return 1
