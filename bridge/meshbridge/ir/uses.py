"""Who defines a value, who uses it, and what depends on it."""

from __future__ import annotations

from collections.abc import Container, Iterable
from math import inf

from meshbridge.ir.builder import op_of
from meshbridge.ir.mlir import ancestor_in, in_program_order, ir, terminator

LOOK_THROUGH = 64
"""The most operations that an analysis or a rewrite looks through in a row, or visits for one candidate. It bounds the time and
the depth of recursion. Measured: the plans of the sample of `tests/plans` are those of limits between 4 and 64."""


def is_argument(value: ir.Value) -> bool:
    """Whether `value` is a block argument."""
    return isinstance(value.owner, ir.Block)


def defining_op(value: ir.Value) -> ir.Operation | None:
    """The operation that defines `value`; None for a block argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def defining_name(value: ir.Value) -> str:
    """The name of the operation that defines `value`; "" for a block argument."""
    owner = value.owner
    return "" if isinstance(owner, ir.Block) else str(owner.operation.name)


def block_of(value: ir.Value) -> ir.Block:
    """The block that defines `value`."""
    owner = value.owner
    return owner if isinstance(owner, ir.Block) else owner.operation.block


def unchanged_numbers(loop: ir.Operation) -> list[int]:
    """The numbers of the values that every iteration of a `stablehlo.while` passes on unchanged."""
    body = loop.regions[1].blocks[0]
    end = terminator(body)
    yielded = end.operands if end is not None else ()
    return [number for number, (argument, value) in enumerate(zip(body.arguments, yielded, strict=False)) if argument == value]


def look_through(value: ir.Value, names: Container[str]) -> ir.Value:
    """The value from which a chain of operations of `names` computes `value`, each from its first operand."""
    while defining_name(value) in names:
        value = op_of(value).operands[0]
    return value


def has_one_use(value: ir.Value) -> bool:
    """Whether `value` has exactly one use."""
    uses = iter(value.uses)
    return next(uses, None) is not None and next(uses, None) is None


def sole_user(value: ir.Value) -> ir.Operation | None:
    """The user of `value`, if it has exactly one use."""
    return next(iter(value.uses)).owner.operation if has_one_use(value) else None


def forward_slice(
    ops: Iterable[ir.Operation], until: ir.Operation | None = None, exclude: Container[ir.Operation] = (), limit: float = inf
) -> list[ir.Operation]:
    """`ops` and all their transitive users, up to `until` or the end of their block, in program order.

    All of `ops` are in one block; a user within a region counts as its ancestor in that block. Users in `exclude` are left out,
    and so are operations that depend only on them. The search ends once it has more than `limit` operations.
    """
    reached = dict.fromkeys(ops)
    worklist = list(reached)
    while worklist and len(reached) <= limit:
        op = worklist.pop()
        for result in op.results:
            for use in result.uses:
                user = ancestor_in(op.block, use.owner.operation)
                if user is None or user in reached or user in exclude:
                    continue
                if until is not None and user != until and until.is_before_in_block(user):
                    continue
                reached[user] = None
                worklist.append(user)
    return in_program_order(reached)


def erase_dead(ops: Iterable[ir.Operation]) -> None:
    """Erases those of `ops` whose results are unused outside of what is erased; fastest if `ops` are in program order."""
    # By their first results: the hash of an operation changes with its operands, that of a value does not.
    remaining, count = {op.results[0]: op for op in ops if op.results}, -1
    while len(remaining) != count:
        count = len(remaining)
        for value, op in reversed(list(remaining.items())):
            if not any(list(result.uses) for result in op.results):
                remaining.pop(value).erase()
