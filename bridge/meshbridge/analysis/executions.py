"""Which operations of a program run, and how often: loop bodies as often as they go round, every branch as if it were taken."""

from __future__ import annotations

from collections.abc import Iterator

from meshbridge.dialect.attributes import integers
from meshbridge.dialect.ops import MANUAL_AXES
from meshbridge.mlir import ir
from meshbridge.propagation.graph import MANUAL, REGION_OPS
from meshbridge.propagation.trip_count import trip_count
from meshbridge.sharding import Mesh

Execution = tuple[ir.Operation, int]


def executed(module: ir.Module, whole: Mesh | None = None) -> Iterator[Execution]:
    """Every op of the module's functions, in order, with how often one run executes it.

    The bodies of reducers are part of their op. A loop whose trip count is unknown counts once (see `is_unknown_loop`). With
    `whole` the ops speak of a program that is not partitioned yet, on that mesh: the body of a manual computation then runs once
    for each device along its axes.
    """
    for view in module.body.operations:
        function = view.operation
        if function.name == "func.func":
            for region in function.regions:
                for block in region.blocks:
                    yield from _in_block(block, 1, whole)


def is_unknown_loop(op: ir.Operation) -> bool:
    """Whether nothing says how often this loop goes round."""
    return op.name == "stablehlo.while" and trip_count(op) is None


def _in_block(block: ir.Block, times: int, whole: Mesh | None) -> Iterator[Execution]:
    for view in block.operations:
        op = view.operation
        yield op, times
        if op.name in REGION_OPS:
            inner = times * _repeated(op, whole)
            for region in op.regions:
                yield from _in_block(region.blocks[0], inner, whole)


def _repeated(op: ir.Operation, whole: Mesh | None) -> int:
    if op.name == "stablehlo.while":
        found = trip_count(op)
        return 1 if found is None else found
    if op.name == MANUAL and whole is not None and MANUAL_AXES in op.attributes:
        return whole.group_size(integers(op.attributes[MANUAL_AXES]))
    return 1
