"""Annotates one tensor at its definition or at one use, replacing the present annotations."""

from __future__ import annotations

from meshbridge.dialect import build
from meshbridge.dialect.constraints import check_split_axes
from meshbridge.dialect.ops import ShardOp
from meshbridge.dialect.signature import Broken
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.mlir import OpError, ir, tensor_type
from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.ir.uses import is_argument


def annotate_result(op: ir.Operation, number: int, lists: Split, mesh: Mesh) -> None:
    """Shards a result of `op`, for all users, by lists: the axes of each dimension, and those of a partial sum.

    Before:  %0 = stablehlo.tanh %x          After:  %0 = stablehlo.tanh %x
                                                     %1 = mesh.shard %0 to %s
             return %0                               return %1

    A partial sum that the function returns is reduced, as in the RFC's example: callers hold no partial sums.
    Raises OpError for a result that `op` does not have, and for lists that do not fit it.
    """
    value = _tensor(op, "result", list(op.results), number)
    sharding = _sharding(op, f"result {number}", value, lists, mesh)
    for use in list(value.uses):
        if _annotates(use.owner.operation, for_users=False):
            use.owner.operation.results[0].replace_all_uses_with(value)
            _erase(use.owner.operation)
    at = Builder.after(op)
    shard = build.shard_definition(value, build.sharding(sharding, at=at), at=at)
    if sharding.partial_axes:
        _return_reduced(shard, sharding)


def annotate_operand(op: ir.Operation, number: int, lists: Split, mesh: Mesh) -> None:
    """Shards an operand of `op` by lists, for this use.

    Before:  %1 = stablehlo.tanh %0          After:  %1 = mesh.shard %0 to %s annotate_for_users
                                                     %2 = stablehlo.tanh %1

    Raises OpError for an operand that `op` does not have, and for lists that do not fit it.
    """
    value = _tensor(op, "operand", list(op.operands), number)
    sharding = _sharding(op, f"operand {number}", value, lists, mesh)
    replaced = []
    while not is_argument(value) and _annotates(op_of(value), for_users=True):
        replaced.append(op_of(value))
        value = op_of(value).operands[0]
    at = Builder.before(op)
    op.operands[number] = build.shard(value, build.sharding(sharding, at=at), annotate_for_users=True, at=at)
    for shard in replaced:
        if next(iter(shard.results[0].uses), None) is None:
            _erase(shard)


def _return_reduced(value: ir.Value, sharding: Sharding) -> None:
    """Annotates the uses of a partial sum in a function's return."""
    for use in list(value.uses):
        returned = use.owner.operation
        if returned.name == "func.return":
            at = Builder.before(returned)
            reduced = build.sharding(sharding.without_partial(), at=at)
            returned.operands[use.operand_number] = build.shard(value, reduced, annotate_for_users=True, at=at)


def _annotates(op: ir.Operation, *, for_users: bool) -> bool:
    return op.name == ShardOp.OPERATION_NAME and ("annotate_for_users" in op.attributes) == for_users


def _tensor(op: ir.Operation, what: str, values: list[ir.Value], number: int) -> ir.Value:
    if not 0 <= number < len(values):
        raise OpError(op, f"has {len(values)} {what}s, but the mutation names {what} {number}, from 0")
    if tensor_type(values[number]) is None:
        raise OpError(op, f"has {what} {number} of type {values[number].type}, expected a tensor to shard")
    return values[number]


def _sharding(op: ir.Operation, what: str, value: ir.Value, lists: Split, mesh: Mesh) -> Sharding:
    """The sharding of the RFC's lists: one with the axes of each dimension, followed by one of partial axes."""
    rank = ir.RankedTensorType(value.type).rank
    if len(lists) > rank + 1:
        message = f"has {what} of type {value.type}, but the mutation has {len(lists)} lists of axes"
        raise OpError(op, f"{message}, expected at most {rank + 1} with that of a partial sum")
    try:
        check_split_axes(lists, mesh)
    except Broken as error:
        raise OpError(op, f"cannot have {what} sharded as {[list(axes) for axes in lists]}: {error}") from None
    return Sharding(mesh.name, lists[:rank], lists[rank] if len(lists) > rank else ()).padded(rank)


def _erase(shard: ir.Operation) -> None:
    """Erases an annotation, and its sharding if nothing else names it."""
    declared = shard.operands[1].owner.operation
    shard.erase()
    if next(iter(declared.results[0].uses), None) is None:
        declared.erase()
