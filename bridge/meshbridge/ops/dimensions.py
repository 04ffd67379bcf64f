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
    dims = _result_dims(op)
    if dims is None:
        return () if len(op.results) == 1 and not op.regions and isinstance(known(op.results[0]), Splat) else None
    along = tuple(own.index(dim) if dim in own else None for own in dims)
    is_computed = op.name == BROADCAST or not along or any(number is not None for number in along)
    return along if is_computed else None


def result_dim(op: ir.Operation, operand: int, dim: int) -> int | None:
    """The dimension of the result whose blocks read blocks of an operand along `dim`; None if there is none."""
    dims = _result_dims(op)
    return dims[operand][dim] if dims and dims[operand] else None


def result_dim_of_blocks(op: ir.Operation, dim: int, count: int) -> int | None:
    """The dimension of the result whose `count` equal blocks `op` computes from the blocks of its operands along `dim`; None if
    there is none. Operands without `dim` are scalars. Unlike a single index, a block survives a reshape that merges or divides
    dimensions, a strided slice, and a reduction by any op."""
    if op.name not in BLOCKWISE or len(op.results) != 1:
        return None
    if op.name == RESHAPE:
        return reshaped_dim(shape_of(op.operands[0]), shape_of(op.results[0]), dim, count)
    if op.name == SLICE:
        return dim if _slices_blocks_equally(op, dim, count) else None
    return next((own[dim] for own in _RESULT_DIMS[op.name](op) if own), None)


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


ResultDims = tuple[tuple["int | None", ...], ...]
"""Per operand, for each of its dimensions, the dimension of the result that runs along it; `()` for a scalar."""


def _result_dims(op: ir.Operation) -> ResultDims | None:
    """The dimensions that `op` keeps index by index; None if it has no such description."""
    if op.name not in _RESULT_DIMS or len(op.results) != 1:
        return None
    if op.regions and not (op.name == REDUCE and body_kind(op)):
        return None
    return _RESULT_DIMS[op.name](op)


def _of_elementwise(op: ir.Operation) -> ResultDims:
    return tuple(tuple(range(len(shape_of(operand)))) for operand in op.operands)


def _of_broadcast(op: ir.Operation) -> ResultDims:
    """A dimension of size 1 that is repeated is no dimension of the result."""
    placed, sizes, result = integers(op.attributes["broadcast_dimensions"]), shape_of(op.operands[0]), shape_of(op.results[0])
    return (tuple(to if size == result[to] else None for to, size in zip(placed, sizes, strict=True)),)


def _of_transpose(op: ir.Operation) -> ResultDims:
    permutation = integers(op.attributes["permutation"])
    return (tuple(permutation.index(dim) for dim in range(len(permutation))),)


def _of_reshape(op: ir.Operation) -> ResultDims:
    """Dimensions of several indices that stand at the same place in memory."""
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    dims = {(size, prod(after[:dim])): dim for dim, size in enumerate(after) if size != 1}
    return (tuple(dims.get((size, prod(before[:dim]))) for dim, size in enumerate(before)),)


def _of_concatenate(op: ir.Operation) -> ResultDims:
    joined = ir.IntegerAttr(op.attributes["dimension"]).value
    return (tuple(None if dim == joined else dim for dim in range(len(shape_of(op.results[0])))),) * len(op.operands)


def _of_slice(op: ir.Operation) -> ResultDims:
    sizes = zip(shape_of(op.operands[0]), shape_of(op.results[0]), strict=True)
    return (tuple(dim if before == after else None for dim, (before, after) in enumerate(sizes)),)


def _of_dot(op: ir.Operation) -> ResultDims:
    product = Einsum(op)
    return tuple(tuple(product.result_dim(loop) for loop in loops) for loops in product.loops)


def _of_reduce(op: ir.Operation) -> ResultDims:
    reduced = integers(op.attributes["dimensions"])
    rank = len(shape_of(op.operands[0]))
    return tuple(None if dim in reduced else dim - sum(number < dim for number in reduced) for dim in range(rank)), ()


def _slices_blocks_equally(op: ir.Operation, dim: int, count: int) -> bool:
    """True if a slice takes as much of every block: all of it, or a strided part from its beginning."""
    block, size = shape_of(op.operands[0])[dim] // count, shape_of(op.results[0])[dim]
    start, stride = (integers(op.attributes[name])[dim] for name in ("start_indices", "strides"))
    return start < stride and block % stride == 0 and size == count * block // stride


_RESULT_DIMS: dict[str, Callable[[ir.Operation], ResultDims]] = {
    **dict.fromkeys(ELEMENTWISE, _of_elementwise),
    BROADCAST: _of_broadcast,
    TRANSPOSE: _of_transpose,
    RESHAPE: _of_reshape,
    _CONCATENATE: _of_concatenate,
    SLICE: _of_slice,
    DOT: _of_dot,
    REDUCE: _of_reduce,
    _IOTA: lambda op: (),
}

BLOCKWISE = frozenset((*ELEMENTWISE, BROADCAST, RESHAPE, TRANSPOSE, SLICE, REDUCE))
"""Ops that `result_dim_of_blocks` supports."""
