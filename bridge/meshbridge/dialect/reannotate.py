"""Changes the shardings of arguments and results of an annotated program, and removes constraints."""

from __future__ import annotations

from collections.abc import Iterable

from meshbridge.dialect import build
from meshbridge.dialect.ops import SOURCE, UNSAID, ShardOp
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir, terminator, walk_all
from meshbridge.ir.sharding import Sharding
from meshbridge.ir.uses import defining_name, defining_op


def constraints(module: ir.Module) -> list[ir.Operation]:
    """The annotations that come from sharding constraints, also in called functions."""
    annotations = [op for op in walk_all(module) if op.name == ShardOp.OPERATION_NAME]
    return [op for op in annotations if _is_constraint(op)]


def _is_constraint(op: ir.Operation) -> bool:
    if SOURCE not in op.attributes or UNSAID in op.attributes:
        return False
    return "constraint" in ir.StringAttr(op.attributes[SOURCE]).value.lower()


def constraint_of_argument(main: ir.Operation, index: int) -> ir.Operation | None:
    """The first constraint whose operand is the argument itself."""
    waiting: list[ir.Value] = [main.regions[0].blocks[0].arguments[index]]
    while waiting:
        for op in [use.owner.operation for use in waiting.pop().uses if use.owner.operation.name == ShardOp.OPERATION_NAME]:
            if _is_constraint(op):
                return op
            waiting.append(op.results[0])
    return None


def constraint_of_result(main: ir.Operation, index: int) -> ir.Operation | None:
    """The last constraint whose result is returned directly."""
    value = _returned(main).operands[index]
    while defining_name(value) == ShardOp.OPERATION_NAME:
        op: ir.Operation = value.owner.operation
        if _is_constraint(op):
            return op
        value = op.operands[0]
    return None


def drop(ops: Iterable[ir.Operation]) -> None:
    """Removes annotations from the program."""
    for op in list(ops):
        value, declared = op.operands
        op.results[0].replace_all_uses_with(value)
        op.erase()
        if not list(declared.uses) and (sharding := defining_op(declared)) is not None:
            sharding.erase()


def annotation_of_argument(main: ir.Operation, index: int) -> ir.Operation | None:
    """The annotation with the caller's sharding of an argument."""
    argument = main.regions[0].blocks[0].arguments[index]
    return next((use.owner.operation for use in argument.uses if _is_boundary(use.owner.operation, for_users=False)), None)


def annotation_of_result(main: ir.Operation, index: int) -> ir.Operation | None:
    """The annotation with the caller's sharding of a result."""
    op = defining_op(_returned(main).operands[index])
    return op if op is not None and _is_boundary(op, for_users=True) else None


def _is_boundary(op: ir.Operation, *, for_users: bool) -> bool:
    return (
        op.name == ShardOp.OPERATION_NAME and SOURCE not in op.attributes and ("annotate_for_users" in op.attributes) is for_users
    )


def annotate_argument(main: ir.Operation, index: int, sharding: Sharding | None) -> None:
    """Sets the caller's sharding of an argument of `main`; None leaves it open."""
    if (annotation := annotation_of_argument(main, index)) is not None:
        drop([annotation])
    if sharding is None:
        return
    block = main.regions[0].blocks[0]
    at = Builder(main.location, ir.InsertionPoint.at_block_begin(block))  # where converters say that annotations come from
    build.shard_definition(block.arguments[index], build.sharding(sharding, at=at), at=at)


def annotate_result(main: ir.Operation, index: int, sharding: Sharding | None) -> None:
    """Sets the caller's sharding of a result of `main`; None leaves it open."""
    returned, annotation = _returned(main), annotation_of_result(main, index)
    if annotation is not None:
        returned.operands[index] = annotation.operands[0]
        if not list(annotation.results[0].uses):
            annotation.erase()
    if sharding is not None:
        at = Builder(main.location, ir.InsertionPoint(returned))
        value = returned.operands[index]
        returned.operands[index] = build.shard(value, build.sharding(sharding, at=at), annotate_for_users=True, at=at)


def _returned(main: ir.Operation) -> ir.Operation:
    end = terminator(main.regions[0].blocks[0])
    assert end is not None
    return end
