"""What waits for an operation: all that is computed of its results, found from its readers on."""

from __future__ import annotations

from collections.abc import Container, Iterable

from meshbridge.ir.mlir import ancestor_in, in_program_order, ir


def waiting(first: Iterable[ir.Operation], last: ir.Operation, but: Container[ir.Operation] = ()) -> list[ir.Operation]:
    """Those operations and what waits for any of them, up to `last`, in program order; not those of `but`, nor what waits
    for these alone. All stand in one block; what reads within a region counts as the operation around it."""
    found = dict.fromkeys(first)
    left = list(found)
    while left:
        op = left.pop()
        for result in op.results:
            for use in result.uses:
                reader = ancestor_in(last.block, use.owner.operation)
                if reader is None or reader in found or reader in but or not (reader == last or reader.is_before_in_block(last)):
                    continue
                found[reader] = None
                left.append(reader)
    return in_program_order(found)
