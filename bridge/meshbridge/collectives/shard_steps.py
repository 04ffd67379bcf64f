"""Operations that compute a shard of their result from shards of their operands, along one dimension, as they compute the result
from the operands."""

from __future__ import annotations

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.dialect.signature import element_of
from meshbridge.ir.elements import neutral, resized
from meshbridge.ir.mlir import ir
from meshbridge.ops.dimensions import BROADCAST, REDUCE, RESHAPE, SLICE
from meshbridge.ops.reductions import body_kind


def adds_up(op: ir.Operation, dim: int) -> bool:
    """Whether `op` reduces along dimension `dim`, so that what it gives of shards is reduced once more, over the devices."""
    if op.name != REDUCE or len(op.results) != 1 or dim not in integers(op.attributes["dimensions"]):
        return False
    kind = body_kind(op)
    return bool(kind) and is_splat(op.operands[1], neutral(kind, element_of(op.results[0].type)))


def shrink(op: ir.Operation, before: int, behind: int | None, count: int) -> None:
    """Lets `op` give a shard of what it gives, along dimension `behind`, where it gives any; its operands have shards along
    dimension `before`."""
    if behind is None:
        return
    type_ = resized(ir.RankedTensorType(op.results[0].type), behind, divide=count)
    op.results[0].set_type(type_)
    if op.name == SLICE:
        limits = list(integers(op.attributes["limit_indices"]))
        limits[before] = type_.shape[before] * integers(op.attributes["strides"])[before]
        op.attributes["limit_indices"] = integers_attr(limits)


IDLE = frozenset((BROADCAST, RESHAPE))
"""Those that compute nothing: what reads their results reads their operands in another order."""
