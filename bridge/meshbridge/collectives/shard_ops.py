"""Operations that compute a shard of their result from shards of their operands along one dimension."""

from __future__ import annotations

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.dialect.signature import element_of
from meshbridge.ir.elements import neutral, resized
from meshbridge.ir.mlir import ir
from meshbridge.ops.dimensions import BROADCAST, REDUCE, RESHAPE, SLICE
from meshbridge.ops.reductions import body_kind


def reduces_along(op: ir.Operation, dim: int) -> bool:
    """True if `op` reduces along dimension `dim`, so that its results on shards need a reduction over the devices."""
    if op.name != REDUCE or len(op.results) != 1 or dim not in integers(op.attributes["dimensions"]):
        return False
    kind = body_kind(op)
    return bool(kind) and is_splat(op.operands[1], neutral(kind, element_of(op.results[0].type)))


def resize_to_shard(op: ir.Operation, operand_dim: int, result_dim: int | None, count: int) -> None:
    """Makes `op` return a shard of its result along dimension `result_dim`, if it has one; its operands have shards along
    `operand_dim`."""
    if result_dim is None:
        return
    type_ = resized(ir.RankedTensorType(op.results[0].type), result_dim, divide=count)
    op.results[0].set_type(type_)
    if op.name == SLICE:
        limits = list(integers(op.attributes["limit_indices"]))
        limits[operand_dim] = type_.shape[operand_dim] * integers(op.attributes["strides"])[operand_dim]
        op.attributes["limit_indices"] = integers_attr(limits)


REARRANGING = frozenset((BROADCAST, RESHAPE))
"""Ops that compute nothing: their readers could read the operands in another order."""
