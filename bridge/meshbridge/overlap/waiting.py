"""What waits for an operation: all that is computed of its results, found from its readers on."""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import inf

from meshbridge.ir.mlir import ancestor_in, in_program_order, ir


def waiting(
    first: Iterable[ir.Operation], last: ir.Operation | None = None, but: Container[ir.Operation] = (), most: float = inf
) -> list[ir.Operation]:
    """Those operations and what waits for any of them, up to `last` or the end, in program order; not those of `but`, nor what
    waits for these alone. All stand in one block; what reads within a region counts as the operation around it. Nothing more is
    looked for once there are more than `most`."""
    found = dict.fromkeys(first)
    left = list(found)
    while left and len(found) <= most:
        op = left.pop()
        for result in op.results:
            for use in result.uses:
                reader = ancestor_in(op.block, use.owner.operation)
                if reader is None or reader in found or reader in but:
                    continue
                if last is not None and reader != last and last.is_before_in_block(reader):
                    continue
                found[reader] = None
                left.append(reader)
    return in_program_order(found)
