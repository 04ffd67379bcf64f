"""What nothing reads any more."""

from __future__ import annotations

from collections.abc import Iterable

from meshbridge.ir.mlir import ir


def erase_unread(operations: Iterable[ir.Operation]) -> None:
    """Erases those of `operations` that nothing reads, nor what reads them; fastest where they come in program order."""
    # By their first results: the hash of an operation changes with its operands, that of a value does not.
    left, count = {op.results[0]: op for op in operations if op.results}, -1
    while len(left) != count:
        count = len(left)
        for value, op in reversed(list(left.items())):
            if not any(list(result.uses) for result in op.results):
                left.pop(value).erase()
