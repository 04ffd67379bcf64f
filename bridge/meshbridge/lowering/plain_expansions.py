"""Expands StableHLO ops that some compilers lack: gradients of pooling, Cholesky factors, triangular systems, barriers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import numpy as np

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.registry import Registry

Expansion = Callable[[ir.Operation, Builder], Sequence[ir.Value] | None]

EXPANSIONS: Registry[str, Expansion] = Registry("expansion")
"""By op name: the function that returns values for the op's results, or None if it cannot expand the op."""

_LARGEST_WINDOW = 256
"""Larger windows are not expanded: each element costs some ten ops."""


def expand(op: ir.Operation) -> bool:
    """Replaces `op` by ops that all compilers have; returns False if no expansion applies."""
    if op.name not in EXPANSIONS or (values := EXPANSIONS[op.name](op, Builder.before(op))) is None:
        return False
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()
    return True


@EXPANSIONS.register("stablehlo.optimization_barrier")
def barrier(op: ir.Operation, builder: Builder) -> Sequence[ir.Value]:
    """The operands of the barrier."""
    return list(op.operands)


@EXPANSIONS.register("stablehlo.select_and_scatter")
def select_and_scatter(op: ir.Operation, builder: Builder) -> Sequence[ir.Value] | None:
    """Builds one slice of the operand for each element of the window. At each position, the selected slice receives the source's
    element; each slice is then scattered back to its offset. Padding is never selected."""
    operand, source, initial = op.operands
    shape, rank = shape_of(operand), len(shape_of(operand))
    window, strides = (_sizes(op, name, [1] * rank) for name in ("window_dimensions", "window_strides"))
    edges = _edges(op, rank)
    chosen, scattered = (_binary_body(region) for region in op.regions)
    if chosen is None or chosen.name != "stablehlo.compare" or scattered is None or prod(window) > _LARGEST_WINDOW:
        return None
    low, high = edges
    padded = builder.pad(operand, 0, low, high)
    boolean = ir.IntegerType.get_signless(1)
    inside = builder.pad(builder.splat(tensor(shape, boolean), 1), 0, low, high)
    sizes, padded_shape = shape_of(source), shape_of(padded)
    offsets = list(product(*map(range, window)))

    def elements(value: ir.Value, offset: Sequence[int]) -> ir.Value:
        limits = [start + (size - 1) * stride + 1 for start, size, stride in zip(offset, sizes, strides, strict=True)]
        return builder.cut(value, offset, limits, strides)

    best, any_inside = elements(padded, offsets[0]), elements(inside, offsets[0])
    number = builder.splat(tensor(sizes, ir.IntegerType.get_signless(32)), 0)
    for index, offset in enumerate(offsets[1:], 1):
        value, is_inside = elements(padded, offset), elements(inside, offset)
        keeps_best = builder.again(chosen, tensor(sizes, boolean), _ordered_like(chosen, [best, value]))
        stays = builder.elementwise("and", any_inside, keeps_best)
        takes = builder.elementwise("and", is_inside, builder.value("not", stays.type, [stays]))
        best, number = builder.select(takes, value, best), builder.select(takes, builder.like(number, index), number)
        any_inside = builder.elementwise("or", any_inside, is_inside)
    result = builder.broadcast(initial, padded_shape)
    between = [stride - 1 for stride in strides]
    for index, offset in enumerate(offsets):
        high_padding = [
            whole - start - (size - 1) * stride - 1
            for whole, start, size, stride in zip(padded_shape, offset, sizes, strides, strict=True)
        ]
        mask = builder.elementwise("and", builder.compare("EQ", number, index), any_inside)
        where = builder.pad(mask, 0, offset, high_padding, between)
        update = builder.pad(source, 0, offset, high_padding, between)
        result = builder.select(where, builder.again(scattered, result.type, _ordered_like(scattered, [result, update])), result)
    return [builder.cut(result, low, [start + size for start, size in zip(low, shape, strict=True)])]


def _sizes(op: ir.Operation, name: str, default: list[int]) -> list[int]:
    return list(integers(op.attributes[name])) if name in op.attributes else default


def _edges(op: ir.Operation, rank: int) -> tuple[list[int], list[int]]:
    """The low and high padding of each dimension."""
    if "padding" not in op.attributes:
        return [0] * rank, [0] * rank
    table = np.array(ir.DenseElementsAttr(op.attributes["padding"])).reshape(rank, 2)
    return [int(size) for size in table[:, 0]], [int(size) for size in table[:, 1]]


def _binary_body(region: ir.Region) -> ir.Operation | None:
    """The op of a body that consists of one op on the body's two arguments, else None."""
    block = region.blocks[0]
    ops = [view.operation for view in block.operations]
    if len(ops) != 2 or len(ops[0].operands) != 2 or {*ops[0].operands} != {*block.arguments}:
        return None
    return ops[0] if ops[1].operands[0] == ops[0].results[0] else None


def _ordered_like(op: ir.Operation, values: list[ir.Value]) -> list[ir.Value]:
    """`values`, given in the order of the body's arguments, in the order of the operands of its op."""
    arguments: list[ir.Value] = list(op.block.arguments)
    return [values[arguments.index(operand)] for operand in op.operands]


@EXPANSIONS.register("stablehlo.cholesky")
def cholesky(op: ir.Operation, builder: Builder) -> Sequence[ir.Value] | None:
    """A loop over columns: divides a column of the Schur complement by the root of its diagonal element, and subtracts the
    column's outer product from the complement."""
    (matrix,) = op.operands
    if isinstance(element_of(matrix), ir.ComplexType):
        return None
    is_lower = _flag(op, "lower")
    rows = len(shape_of(matrix)) - 2
    columns = rows + 1
    count, shape = shape_of(matrix)[-1], shape_of(matrix)

    def step(builder: Builder, index: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        schur, factor = state
        column = builder.dynamic_slice(schur, columns, index, 1)
        root = builder.value("sqrt", (diagonal := builder.dynamic_slice(column, rows, index, 1)).type, [diagonal])
        scaled = builder.elementwise("divide", column, _broadcast(builder, root, shape_of(column)))
        below = builder.compare("GE", builder.iota(shape_of(column), rows), index)
        scaled = builder.select(below, scaled, 0)
        across = builder.transpose(scaled, [*range(rows), columns, rows])
        outer_product = builder.elementwise("multiply", _broadcast(builder, scaled, shape), _broadcast(builder, across, shape))
        return [builder.subtract(schur, outer_product), builder.dynamic_update(factor, scaled, columns, index)]

    swapped = [*range(rows), columns, rows]
    start = matrix if is_lower else builder.transpose(matrix, swapped)
    factor = _loop(builder, count, [start, builder.splat(matrix.type, 0)], step)[1]
    return [factor if is_lower else builder.transpose(factor, swapped)]


@EXPANSIONS.register("stablehlo.triangular_solve")
def triangular_solve(op: ir.Operation, builder: Builder) -> Sequence[ir.Value] | None:
    """Forward or backward substitution: a loop over rows that subtracts the solved rows' terms from the right-hand side and
    divides by the diagonal."""
    matrix, right = op.operands
    if isinstance(element_of(matrix), ir.ComplexType):
        return None
    rows = len(shape_of(matrix)) - 2
    columns = rows + 1
    swapped = [*range(rows), columns, rows]
    is_left, is_lower, is_unit = (_flag(op, name) for name in ("left_side", "lower", "unit_diagonal"))
    is_transposed = "NO_TRANSPOSE" not in str(op.attributes["transpose_a"])
    if is_transposed == is_left:  # x a = b is a' x' = b'
        matrix, is_lower = builder.transpose(matrix, swapped), not is_lower
    right = right if is_left else builder.transpose(right, swapped)
    count = shape_of(matrix)[-1]
    place = builder.iota(shape_of(right), rows)

    def step(builder: Builder, index: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        (solved,) = state
        index = index if is_lower else builder.subtract(builder.scalar(count - 1), index)
        row = builder.transpose(builder.dynamic_slice(matrix, rows, index, 1), swapped)
        is_solved = builder.compare("LT" if is_lower else "GT", place, index)
        terms = builder.select(is_solved, builder.elementwise("multiply", _broadcast(builder, row, shape_of(solved)), solved), 0)
        total = builder.reduce(terms, 0, [rows], "add")
        right_row = builder.dynamic_slice(right, rows, index, 1)
        value = builder.subtract(right_row, builder.reshape(total, shape_of(right_row)))
        if not is_unit:
            value = builder.elementwise(
                "divide", value, _broadcast(builder, builder.dynamic_slice(row, rows, index, 1), shape_of(right_row))
            )
        return [builder.dynamic_update(solved, value, rows, index)]

    (solved,) = _loop(builder, count, [builder.splat(right.type, 0)], step)
    return [solved if is_left else builder.transpose(solved, swapped)]


def _flag(op: ir.Operation, name: str) -> bool:
    return name in op.attributes and ir.BoolAttr(op.attributes[name]).value


def _broadcast(builder: Builder, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """Broadcasts the size-1 dimensions of `value` to a shape of the same rank."""
    return builder.broadcast(value, shape, range(len(shape)))


Step = Callable[[Builder, ir.Value, list[ir.Value]], list[ir.Value]]


def _loop(builder: Builder, count: int, state: list[ir.Value], step: Step) -> list[ir.Value]:
    """The state after `count` calls of `step`, which gets the number of the iteration."""
    start = [builder.scalar(0), *state]
    types = [value.type for value in start]
    loop = builder.op("while", types, start, regions=2)
    condition, body = (region.blocks.append(*types, arg_locs=[builder.loc] * len(types)) for region in loop.regions)
    head = Builder(builder.loc, ir.InsertionPoint(condition))
    head.op("return", [], [head.compare("LT", condition.arguments[0], count)])
    inside = Builder(builder.loc, ir.InsertionPoint(body))
    number, *carried = body.arguments
    next_state = step(inside, number, list(carried))
    inside.op("return", [], [inside.add(number, 1), *next_state])
    results: list[ir.Value] = [*loop.results]
    return results[1:]
