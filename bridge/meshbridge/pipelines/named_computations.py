"""Reads the stages of programs in Shardy's MPMD dialect: its named computations become boundaries of stages.

    %1 = mpmd.named_computation<"b"> (%0, %w) (%x: …, %k: …) {…}           %0 comes from another stage, %w is an argument
    %3 = mpmd.named_computation<"a"(1)> (%2, %v) (%g: …, %k: …) {…}        backward; %2 comes from the backward pass of "b"

becomes both bodies: the first reads `%0` after the forward boundary of "b", the second `%2` after its backward boundary.
Other operations of the dialect, which say on which meshes fragments run, are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import BARRIER, OpError, inline_region, ir, mpmd, op_names, walk_all
from meshbridge.pipelines.marker import Direction, Marker

NAMED = "mpmd.named_computation"
_UNDERSTOOD = (NAMED, "mpmd.return")

Origin = tuple[str, bool]
"""The name of a computation, and whether it is a backward pass."""


def read_named_computations(module: ir.Module) -> None:
    """Replaces the named computations of a program by their bodies, between boundaries of stages. Raises OpError for other ops of
    the dialect."""
    if not any(name.startswith("mpmd.") for name in op_names(module)):
        return
    for op in walk_all(module):
        if op.name.startswith("mpmd.") and op.name not in _UNDERSTOOD:
            hint = "give the program with its named computations, before it is mapped to meshes"
            raise OpError(op, f"is not read, only {NAMED} is", hint)
    with module.context:
        for block in {op.block: None for op in walk_all(module) if op.name == NAMED}:
            _read_block(block)


def _read_block(block: ir.Block) -> None:
    origins: dict[ir.Value, frozenset[Origin]] = {}
    for view in list(block.operations):
        op = view.operation
        if op.name != NAMED:
            known = frozenset(origin for value in op.operands for origin in origins.get(value, ()))
            origins |= dict.fromkeys(op.results, known)
            continue
        own = _origin(op)
        for direction, name, numbers in _boundaries(op, own, origins):
            _mark(op, direction, name, numbers)
        for result, value in zip(list(op.results), inline_region(op), strict=True):
            origins[value] = frozenset({own})
            result.replace_all_uses_with(value)
        op.erase()


def _origin(op: ir.Operation) -> Origin:
    origin = mpmd.UserOriginAttr(op.attributes["origin"])
    return origin.user_name, origin.transpose_count % 2 == 1


def _boundaries(
    op: ir.Operation, own: Origin, origins: dict[ir.Value, frozenset[Origin]]
) -> list[tuple[Direction, str, list[int]]]:
    """The boundaries that operands of a computation pass, with the numbers of these: forward its own, unless they have passed it
    already; backward those of the computations that the operands come from."""
    name, is_backward = own
    passed: dict[tuple[Direction, str], list[int]] = {}
    for number, value in enumerate(op.operands):
        value_origins = origins.get(value, frozenset())
        before = [origin for origin, backward in value_origins if backward == is_backward and origin != name]
        if before and (is_backward or own not in value_origins):
            key: tuple[Direction, str] = ("backward", before[0]) if is_backward else ("forward", name)
            passed.setdefault(key, []).append(number)
    return [(direction, stage, numbers) for (direction, stage), numbers in passed.items()]


def _mark(op: ir.Operation, direction: Direction, name: str, numbers: Sequence[int]) -> None:
    """Puts a boundary before operands of an op."""
    operands = [op.operands[number] for number in numbers]
    types = [value.type for value in operands]
    barrier = Builder.before(op).op(BARRIER, types, operands, Marker(name, direction).attributes())
    for number, result in zip(numbers, barrier.results, strict=True):
        op.operands[number] = result
