"""Corresponding dimensions of an op's operands and result.

operand_dims(%0, 1)  %0 = stablehlo.dot_general %q, %k, contracting_dims = [1] x [1]   (None, 0): all of %q, rows of %k
operand_dims(%1, 0)  %1 = stablehlo.transpose %0, dims = [1, 0]                        (1,)
operand_dims(%2, 0)  %2 = stablehlo.cholesky %1                                        None: no part of it is computed alone
result_dim(%1, 0, 1) the transpose's operand 0, dimension 1                            0

A sharding rule (`ops/rule.py`) states the same for shards, for every op, and leaves out dimensions of size 1.
"""

from __future__ import annotations

from collections.abc import Callable
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

OperandDims = tuple["int | None", ...]
"""Per operand, the dimension of which a block is read; None if all of it is read."""


def operand_dims(op: ir.Operation, dim: int) -> OperandDims | None:
    """Per operand, the dimension of which computing a block along dimension `dim` of the result reads a block; None if `op`
    cannot be computed block by block."""
    if len(op.results) != 1 or (op.regions and op.name != REDUCE):
        return None
    if (rule := _OPERAND_DIMS.get(op.name)) is not None:
        return rule(op, dim)
    return () if isinstance(known(op.results[0]), Splat) else None


def result_dim(op: ir.Operation, operand: int, dim: int) -> int | None:
    """The dimension of the result whose blocks read blocks of an operand along `dim`; None if there is none."""
    if len(op.results) != 1:
        return None
    for number in range(len(shape_of(op.results[0]))):
        dims = operand_dims(op, number)
        if dims and dims[operand] == dim:
            return number
    return None


def result_dim_of_blocks(op: ir.Operation, dim: int, count: int) -> int | None:
    """The dimension of the result whose `count` equal blocks `op` computes from the blocks of its operands along `dim`; None if
    there is none. Operands without `dim` are scalars."""
    rule = _RESULT_DIM_OF_BLOCKS.get(op.name)
    return None if rule is None else rule(op, dim, count)


def reshaped_dim(before: list[int], after: list[int], dim: int, count: int) -> int | None:
    """The dimension of shape `after` whose `count` equal blocks hold the elements of those of dimension `dim` of shape
    `before`."""
    outer = prod(before[:dim])
    return next((to for to, size in enumerate(after) if prod(after[:to]) == outer and size % count == 0), None)


def varies_along(value: ir.Value, dim: int) -> bool:
    """True if elements of `value` at different indices of `dim` may differ."""
    visited = {(value, dim)}
    worklist = [(value, dim)]
    while worklist:
        value, dim = worklist.pop()
        if is_argument(value):
            return True
        op = op_of(value)
        dims = operand_dims(op, dim)
        if dims is None or (op.name == _IOTA and ir.IntegerAttr(op.attributes["iota_dimension"]).value == dim):
            return True
        sources = {(operand, number) for operand, number in zip(op.operands, dims, strict=bool(dims)) if number is not None}
        worklist += sources - visited
        visited |= sources
    return False


def _of_elementwise(op: ir.Operation, dim: int) -> OperandDims | None:
    rank, ranks = len(shape_of(op.results[0])), [len(shape_of(operand)) for operand in op.operands]
    return tuple(dim if operand_rank else None for operand_rank in ranks) if set(ranks) <= {0, rank} else None


def _of_broadcast(op: ir.Operation, dim: int) -> OperandDims:
    """A broadcast dimension reads all of the operand."""
    placed = list(integers(op.attributes["broadcast_dimensions"]))
    if dim not in placed or shape_of(op.operands[0])[placed.index(dim)] != shape_of(op.results[0])[dim]:
        return (None,)
    return (placed.index(dim),)


def _of_transpose(op: ir.Operation, dim: int) -> OperandDims:
    return (integers(op.attributes["permutation"])[dim],)


def _of_reshape(op: ir.Operation, dim: int) -> OperandDims | None:
    """A dimension of several indices that the reshape keeps."""
    shape, operand_shape = shape_of(op.results[0]), shape_of(op.operands[0])
    outer = prod(shape[:dim])
    for number, size in enumerate(operand_shape):
        if size == shape[dim] and size != 1 and prod(operand_shape[:number]) == outer:
            return (number,)
    return None


def _of_concatenate(op: ir.Operation, dim: int) -> OperandDims | None:
    return None if ir.IntegerAttr(op.attributes["dimension"]).value == dim else (dim,) * len(op.operands)


def _of_slice(op: ir.Operation, dim: int) -> OperandDims | None:
    return (dim,) if shape_of(op.operands[0])[dim] == shape_of(op.results[0])[dim] else None


def _of_dot(op: ir.Operation, dim: int) -> OperandDims:
    product = Einsum(op)
    loop = product.result_loops[dim]
    return product.dim(0, loop), product.dim(1, loop)


def _of_reduce(op: ir.Operation, dim: int) -> OperandDims | None:
    """A reduction of one operand by a known op keeps the other dimensions."""
    if not body_kind(op):
        return None
    reduced = integers(op.attributes["dimensions"])
    kept_dims = [number for number in range(len(shape_of(op.operands[0]))) if number not in reduced]
    return kept_dims[dim], None


_OPERAND_DIMS: dict[str, Callable[[ir.Operation, int], OperandDims | None]] = {
    **dict.fromkeys(ELEMENTWISE, _of_elementwise),
    BROADCAST: _of_broadcast,
    TRANSPOSE: _of_transpose,
    RESHAPE: _of_reshape,
    _CONCATENATE: _of_concatenate,
    SLICE: _of_slice,
    DOT: _of_dot,
    REDUCE: _of_reduce,
    _IOTA: lambda op, dim: (),
}


def _same_dim(op: ir.Operation, dim: int, count: int) -> int | None:
    return dim


def _transposed_dim(op: ir.Operation, dim: int, count: int) -> int | None:
    return integers(op.attributes["permutation"]).index(dim)


def _sliced_dim(op: ir.Operation, dim: int, count: int) -> int | None:
    """A slice that takes equally much of every block: all of it, or a strided part from its beginning."""
    piece, size = shape_of(op.operands[0])[dim] // count, shape_of(op.results[0])[dim]
    start, stride = (integers(op.attributes[name])[dim] for name in ("start_indices", "strides"))
    return dim if start < stride and piece % stride == 0 and size == count * piece // stride else None


def _unreduced_dim(op: ir.Operation, dim: int, count: int) -> int | None:
    reduced = integers(op.attributes["dimensions"])
    return None if dim in reduced or len(op.results) != 1 else dim - sum(number < dim for number in reduced)


def _broadcast_dim(op: ir.Operation, dim: int, count: int) -> int | None:
    """A dimension of several blocks is not broadcast, because its size is larger than 1."""
    return integers(op.attributes["broadcast_dimensions"])[dim]


def _reshaped_dim(op: ir.Operation, dim: int, count: int) -> int | None:
    return reshaped_dim(shape_of(op.operands[0]), shape_of(op.results[0]), dim, count)


_RESULT_DIM_OF_BLOCKS: dict[str, Callable[[ir.Operation, int, int], int | None]] = {
    **dict.fromkeys(ELEMENTWISE, _same_dim),
    TRANSPOSE: _transposed_dim,
    SLICE: _sliced_dim,
    REDUCE: _unreduced_dim,
    BROADCAST: _broadcast_dim,
    RESHAPE: _reshaped_dim,
}

BLOCKWISE = frozenset(_RESULT_DIM_OF_BLOCKS)
"""Ops that `result_dim_of_blocks` supports."""
