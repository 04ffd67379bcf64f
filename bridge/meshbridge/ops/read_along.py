"""Which dimension of each operand a block along a dimension of the result reads.

read_along(%0, 1)  %0 = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1]   (None, 0): all of %q, a block of %k's rows
read_along(%1, 0)  %1 = stablehlo.transpose %0, dims = [1, 0]                        (1,)
read_along(%2, 0)  %2 = stablehlo.cholesky %1                                        None: no block is computed alone
"""

from __future__ import annotations

from math import prod

from meshbridge.analysis.known_values import Splat, known
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import op_of, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import is_argument
from meshbridge.ops.einsum import DOT, Einsum
from meshbridge.ops.elementwise import ELEMENTWISE
from meshbridge.ops.reductions import body_kind

BROADCAST, RESHAPE, TRANSPOSE = (f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "transpose"))
_CONCATENATE, _IOTA, REDUCE, SLICE = (f"stablehlo.{name}" for name in ("concatenate", "iota", "reduce", "slice"))

Along = tuple["int | None", ...]
"""For each operand the dimension of which a block is read; None where all of it is."""


def read_along(op: ir.Operation, dim: int) -> Along | None:
    """What a block along dimension `dim` of the result reads; None where `op` cannot be computed block by block."""
    if op.name == REDUCE:
        return _reduced(op, dim)
    if len(op.results) != 1 or op.regions:
        return None
    rank = len(shape_of(op.results[0]))
    if op.name in ELEMENTWISE:
        ranks = [len(shape_of(operand)) for operand in op.operands]
        return tuple(dim if each else None for each in ranks) if set(ranks) <= {0, rank} else None
    if op.name == BROADCAST:
        placed = list(integers(op.attributes["broadcast_dimensions"]))
        if dim not in placed or shape_of(op.operands[0])[placed.index(dim)] != shape_of(op.results[0])[dim]:
            return (None,)
        return (placed.index(dim),)
    if op.name == TRANSPOSE:
        return (integers(op.attributes["permutation"])[dim],)
    if op.name == RESHAPE:
        found = _reshaped(shape_of(op.results[0]), shape_of(op.operands[0]), dim)
        return None if found is None else (found,)
    if op.name == _CONCATENATE:
        joined = ir.IntegerAttr(op.attributes["dimension"]).value
        return None if joined == dim else (dim,) * len(op.operands)
    if op.name == SLICE:
        return (dim,) if shape_of(op.operands[0])[dim] == shape_of(op.results[0])[dim] else None
    if op.name == DOT:
        product = Einsum(op)
        loop = product.result_loops[dim]
        return product.dim(0, loop), product.dim(1, loop)
    return () if op.name == _IOTA or isinstance(known(op.results[0]), Splat) else None


def _reduced(op: ir.Operation, dim: int) -> Along | None:
    """Of a sum or the like over other dimensions."""
    if len(op.results) != 1 or not body_kind(op):
        return None
    reduced = integers(op.attributes["dimensions"])
    kept = [each for each in range(len(shape_of(op.operands[0]))) if each not in reduced]
    return kept[dim], None


def read_by(op: ir.Operation, number: int, dim: int) -> int | None:
    """The dimension of the result of `op` whose blocks read those of its operand `number` along `dim`."""
    if len(op.results) != 1:
        return None
    for each in range(len(shape_of(op.results[0]))):
        along = read_along(op, each)
        if along and along[number] == dim:
            return each
    return None


def _reshaped(shape: list[int], other: list[int], dim: int) -> int | None:
    """The dimension of `other`, the same elements in another shape, that is `dim` of `shape`."""
    for each, size in enumerate(other):
        if size == shape[dim] and size != 1 and prod(other[:each]) == prod(shape[:dim]):
            return each
    return None


def varies(value: ir.Value, dim: int) -> bool:
    """Whether `value` may differ between two indices of `dim`, by the operations that give it."""
    seen = {(value, dim)}
    waiting = [(value, dim)]
    while waiting:
        value, dim = waiting.pop()
        if is_argument(value):
            return True
        op = op_of(value)
        along = read_along(op, dim)
        if along is None or (op.name == _IOTA and ir.IntegerAttr(op.attributes["iota_dimension"]).value == dim):
            return True
        sources = {(operand, each) for operand, each in zip(op.operands, along, strict=bool(along)) if each is not None}
        waiting += sources - seen
        seen |= sources
    return False
