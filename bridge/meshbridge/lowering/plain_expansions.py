"""Ops of StableHLO that some compilers lack, by means of ops that all have: gradients of pooling, Cholesky factors, triangular
systems, barriers."""

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
"""By the op that is expanded: what gives values for its results, None where it cannot."""

_LARGEST_WINDOW = 256
"""A window of more elements is not expanded: each takes some ten ops."""


def expand(op: ir.Operation) -> bool:
    """Puts ops that all compilers have in the place of `op`, and says whether it did."""
    if op.name not in EXPANSIONS or (values := EXPANSIONS[op.name](op, Builder.before(op))) is None:
        return False
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()
    return True


@EXPANSIONS.register("stablehlo.optimization_barrier")
def barrier(op: ir.Operation, emit: Builder) -> Sequence[ir.Value]:
    """Its operands."""
    return list(op.operands)


@EXPANSIONS.register("stablehlo.select_and_scatter")
def select_and_scatter(op: ir.Operation, emit: Builder) -> Sequence[ir.Value] | None:
    """One slice of the operand for each element of a window. Of the elements in one place of all slices, the selected one takes
    what the source has there; each slice then goes back to where it is from. Padding is never selected."""
    operand, source, initial = op.operands
    shape, rank = shape_of(operand), len(shape_of(operand))
    window, strides = (_sizes(op, name, [1] * rank) for name in ("window_dimensions", "window_strides"))
    edges = _edges(op, rank)
    chosen, scattered = (_only_op(region) for region in op.regions)
    if chosen is None or chosen.name != "stablehlo.compare" or scattered is None or prod(window) > _LARGEST_WINDOW:
        return None
    low, high = edges
    padded = emit.pad(operand, 0, low, high)
    boolean = ir.IntegerType.get_signless(1)
    inside = emit.pad(emit.splat(tensor(shape, boolean), 1), 0, low, high)
    sizes, taken = shape_of(source), shape_of(padded)
    offsets = list(product(*map(range, window)))

    def elements(value: ir.Value, offset: Sequence[int]) -> ir.Value:
        limits = [start + (size - 1) * stride + 1 for start, size, stride in zip(offset, sizes, strides, strict=True)]
        return emit.cut(value, offset, limits, strides)

    best, found = elements(padded, offsets[0]), elements(inside, offsets[0])
    number = emit.splat(tensor(sizes, ir.IntegerType.get_signless(32)), 0)
    for index, offset in enumerate(offsets[1:], 1):
        value, is_inside = elements(padded, offset), elements(inside, offset)
        kept = emit.again(chosen, tensor(sizes, boolean), _in_order(chosen, [best, value]))
        stays = emit.elementwise("and", found, kept)
        takes = emit.elementwise("and", is_inside, emit.value("not", stays.type, [stays]))
        best, number = emit.select(takes, value, best), emit.select(takes, emit.like(number, index), number)
        found = emit.elementwise("or", found, is_inside)
    result = emit.broadcast(initial, taken)
    between = [stride - 1 for stride in strides]
    for index, offset in enumerate(offsets):
        behind = [
            whole - start - (size - 1) * stride - 1
            for whole, start, size, stride in zip(taken, offset, sizes, strides, strict=True)
        ]
        mask = emit.elementwise("and", emit.compare("EQ", number, index), found)
        where = emit.pad(mask, 0, offset, behind, between)
        given = emit.pad(source, 0, offset, behind, between)
        result = emit.select(where, emit.again(scattered, result.type, _in_order(scattered, [result, given])), result)
    return [emit.cut(result, low, [start + size for start, size in zip(low, shape, strict=True)])]


def _sizes(op: ir.Operation, name: str, default: list[int]) -> list[int]:
    return list(integers(op.attributes[name])) if name in op.attributes else default


def _edges(op: ir.Operation, rank: int) -> tuple[list[int], list[int]]:
    """The padding in front of and behind each dimension."""
    if "padding" not in op.attributes:
        return [0] * rank, [0] * rank
    table = np.array(ir.DenseElementsAttr(op.attributes["padding"])).reshape(rank, 2)
    return [int(size) for size in table[:, 0]], [int(size) for size in table[:, 1]]


def _only_op(region: ir.Region) -> ir.Operation | None:
    """The op of a body that is one op of the body's two arguments."""
    block = region.blocks[0]
    ops = [view.operation for view in block.operations]
    if len(ops) != 2 or len(ops[0].operands) != 2 or {*ops[0].operands} != {*block.arguments}:
        return None
    return ops[0] if ops[1].operands[0] == ops[0].results[0] else None


def _in_order(op: ir.Operation, values: list[ir.Value]) -> list[ir.Value]:
    """What stands for a body's arguments, as its only op takes them."""
    arguments: list[ir.Value] = list(op.block.arguments)
    return [values[arguments.index(operand)] for operand in op.operands]


@EXPANSIONS.register("stablehlo.cholesky")
def cholesky(op: ir.Operation, emit: Builder) -> Sequence[ir.Value] | None:
    """A loop over columns: each is one of what remains of the matrix, over the root of its diagonal; its product with itself is
    taken off what remains."""
    (matrix,) = op.operands
    if isinstance(element_of(matrix), ir.ComplexType):
        return None
    is_lower = _flag(op, "lower")
    rows = len(shape_of(matrix)) - 2
    columns = rows + 1
    count, shape = shape_of(matrix)[-1], shape_of(matrix)

    def step(emit: Builder, index: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        rest, factor = state
        column = emit.dynamic_slice(rest, columns, index, 1)
        root = emit.value("sqrt", (diagonal := emit.dynamic_slice(column, rows, index, 1)).type, [diagonal])
        scaled = emit.elementwise("divide", column, _spread(emit, root, shape_of(column)))
        below = emit.compare("GE", emit.iota(shape_of(column), rows), index)
        scaled = emit.select(below, scaled, 0)
        across = emit.transpose(scaled, [*range(rows), columns, rows])
        taken = emit.elementwise("multiply", _spread(emit, scaled, shape), _spread(emit, across, shape))
        return [emit.subtract(rest, taken), emit.dynamic_update(factor, scaled, columns, index)]

    swapped = [*range(rows), columns, rows]
    start = matrix if is_lower else emit.transpose(matrix, swapped)
    factor = _loop(emit, count, [start, emit.splat(matrix.type, 0)], step)[1]
    return [factor if is_lower else emit.transpose(factor, swapped)]


@EXPANSIONS.register("stablehlo.triangular_solve")
def triangular_solve(op: ir.Operation, emit: Builder) -> Sequence[ir.Value] | None:
    """A loop over rows, from the one of a single unknown on: each is what the rows before leave of the right side, over the
    diagonal."""
    matrix, right = op.operands
    if isinstance(element_of(matrix), ir.ComplexType):
        return None
    rows = len(shape_of(matrix)) - 2
    columns = rows + 1
    swapped = [*range(rows), columns, rows]
    is_left, is_lower, is_unit = (_flag(op, name) for name in ("left_side", "lower", "unit_diagonal"))
    is_transposed = "NO_TRANSPOSE" not in str(op.attributes["transpose_a"])
    if is_transposed == is_left:  # x a = b is a' x' = b'
        matrix, is_lower = emit.transpose(matrix, swapped), not is_lower
    right = right if is_left else emit.transpose(right, swapped)
    count = shape_of(matrix)[-1]
    place = emit.iota(shape_of(right), rows)

    def step(emit: Builder, index: ir.Value, state: list[ir.Value]) -> list[ir.Value]:
        (solved,) = state
        index = index if is_lower else emit.subtract(emit.scalar(count - 1), index)
        row = emit.transpose(emit.dynamic_slice(matrix, rows, index, 1), swapped)
        known = emit.compare("LT" if is_lower else "GT", place, index)
        terms = emit.select(known, emit.elementwise("multiply", _spread(emit, row, shape_of(solved)), solved), 0)
        total = emit.reduce(terms, 0, [rows], "add")
        one = emit.dynamic_slice(right, rows, index, 1)
        value = emit.subtract(one, emit.reshape(total, shape_of(one)))
        if not is_unit:
            value = emit.elementwise("divide", value, _spread(emit, emit.dynamic_slice(row, rows, index, 1), shape_of(one)))
        return [emit.dynamic_update(solved, value, rows, index)]

    (solved,) = _loop(emit, count, [emit.splat(right.type, 0)], step)
    return [solved if is_left else emit.transpose(solved, swapped)]


def _flag(op: ir.Operation, name: str) -> bool:
    return name in op.attributes and ir.BoolAttr(op.attributes[name]).value


def _spread(emit: Builder, value: ir.Value, shape: Sequence[int]) -> ir.Value:
    """`value` in another shape of the same rank, in which its dimensions of one element have more."""
    return emit.broadcast(value, shape, range(len(shape)))


Step = Callable[[Builder, ir.Value, list[ir.Value]], list[ir.Value]]


def _loop(emit: Builder, count: int, state: list[ir.Value], step: Step) -> list[ir.Value]:
    """The state after `count` steps, each of which is told its number."""
    start = [emit.scalar(0), *state]
    types = [value.type for value in start]
    loop = emit.op("while", types, start, regions=2)
    condition, body = (region.blocks.append(*types, arg_locs=[emit.loc] * len(types)) for region in loop.regions)
    head = Builder(emit.loc, ir.InsertionPoint(condition))
    head.op("return", [], [head.compare("LT", condition.arguments[0], count)])
    inside = Builder(emit.loc, ir.InsertionPoint(body))
    number, *held = body.arguments
    made = step(inside, number, list(held))
    inside.op("return", [], [inside.add(number, 1), *made])
    results: list[ir.Value] = [*loop.results]
    return results[1:]
