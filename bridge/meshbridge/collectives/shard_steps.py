"""Operations that compute a shard of their result from shards of their operands, along one dimension, as they compute the result
from the operands."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from meshbridge.analysis.known_values import is_splat
from meshbridge.collectives.rewriter import ELEMENTWISE
from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.elements import neutral, resized
from meshbridge.ir.mlir import ir
from meshbridge.ir.registry import Registry
from meshbridge.ops.reductions import body_kind

_BEHIND: Registry[str, Callable[[ir.Operation, int, int], int | None]] = Registry("step on shards")
"""By op, what `dim_behind` answers."""


def dim_behind(op: ir.Operation, dim: int, count: int) -> int | None:
    """The dimension of the result that has `count` shards where operands have them along dimension `dim`; None where shards of
    the operands do not make shards of the result."""
    return _BEHIND[op.name](op, dim, count)


def adds_up(op: ir.Operation, dim: int) -> bool:
    """Whether `op` reduces along dimension `dim`, so that what it gives of shards is reduced once more, over the devices."""
    if op.name != "stablehlo.reduce" or len(op.results) != 1 or dim not in integers(op.attributes["dimensions"]):
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
    if op.name == "stablehlo.slice":
        limits = list(integers(op.attributes["limit_indices"]))
        limits[before] = type_.shape[before] * integers(op.attributes["strides"])[before]
        op.attributes["limit_indices"] = integers_attr(limits)


@_BEHIND.register(*ELEMENTWISE)
def _same(op: ir.Operation, dim: int, count: int) -> int | None:
    """Elementwise: all operands of a rank have the result's shape."""
    return dim


@_BEHIND.register("stablehlo.transpose")
def _permuted(op: ir.Operation, dim: int, count: int) -> int | None:
    """Where the permutation puts it."""
    return integers(op.attributes["permutation"]).index(dim)


@_BEHIND.register("stablehlo.slice")
def _sliced_alike(op: ir.Operation, dim: int, count: int) -> int | None:
    """A slice that takes as much of every shard: all of it, or one of every so many elements from its beginning on."""
    piece, taken = shape_of(op.operands[0].type)[dim] // count, shape_of(op.results[0].type)[dim]
    start, stride = (integers(op.attributes[name])[dim] for name in ("start_indices", "strides"))
    return dim if start < stride and piece % stride == 0 and taken == count * piece // stride else None


@_BEHIND.register("stablehlo.reduce")
def _unreduced(op: ir.Operation, dim: int, count: int) -> int | None:
    """A reduction of one operand along other dimensions."""
    reduced = integers(op.attributes["dimensions"])
    return None if dim in reduced or len(op.results) != 1 else dim - sum(each < dim for each in reduced)


@_BEHIND.register("stablehlo.broadcast_in_dim")
def _repeated(op: ir.Operation, dim: int, count: int) -> int | None:
    """Along other dimensions: what has several shards is larger than one."""
    return integers(op.attributes["broadcast_dimensions"])[dim]


@_BEHIND.register("stablehlo.reshape")
def _reshaped(op: ir.Operation, dim: int, count: int) -> int | None:
    """The dimension of the result that begins where `dim` does in memory, if shards are pieces of it."""
    before, behind = shape_of(op.operands[0].type), shape_of(op.results[0].type)
    outside = prod(before[:dim])
    return next((to for to, size in enumerate(behind) if prod(behind[:to]) == outside and size % count == 0), None)


NAMES = frozenset(_BEHIND)
"""What such operations are called."""

IDLE = frozenset(("stablehlo.broadcast_in_dim", "stablehlo.reshape"))
"""Those that compute nothing: what reads their results reads their operands in another order."""
