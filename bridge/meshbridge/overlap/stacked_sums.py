"""Sums of stacks of which an inner loop computes the last term row by row: added up and communicated in that loop.

    %0:2 = while(%i, %stack = zeros : 8x4x4) {            %0:2 = while(%i, %stack = zeros : 8x2x4) {
                                                            %1 = dynamic_slice %sum, %i, 0, 0 : 1x4x4
                                                            %2 = add %1, %row : 1x4x4
                                                            %3 = mesh.reduce_scatter %2 : 1x4x4 -> 1x2x4
      %1 = dynamic_update_slice %stack, %row, %i, 0, 0      %4 = dynamic_update_slice %stack, %3, %i, 0, 0
      return %i_plus_one, %1                                return %i_plus_one, %4
    }                                                     }
    %2 = add %sum, %0#1 : 8x4x4
    %3 = mesh.reduce_scatter %2 : 8x4x4 -> 8x2x4

As many bytes in as many times more collectives as there are rows. What is communicated may have the type of the sum, as in
all-reduces: then the loop carries the sum, and each row is written over by what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshbridge.analysis.known_values import Splat, known
from meshbridge.collectives.rewriter import ELEMENTWISE, in_size, piece_dims
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of, op_of, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ops.linear import is_reshape, writes_rows
from meshbridge.overlap.accumulated_sums import Sum, arranges, is_only_returned, only_reader
from meshbridge.overlap.row_numbers import row_numbers


@dataclass(frozen=True)
class StackedSum:
    """A sum of stacks, and the loop that writes the last term."""

    before: ir.Value
    "The sum without the last term."
    reduced: Sum
    loop: ir.Operation
    number: int
    "Of the loop's results: the last term's stack."
    write: ir.Operation
    arranged: tuple[ir.Operation, ...]
    "What is done with the stack before it is added."

    @property
    def rows(self) -> int:
        return shape_of(self.before)[0]

    def rewrite(self) -> None:
        """Adds and communicates each row in the trip of the loop that computes it."""
        addition, communicated = self.reduced.addition, self.reduced.communicated
        whole, result = communicated[-1].results[0], self.loop.results[self.number]
        in_place = whole.type == self.before.type
        self.loop.operands[self.number] = self.before if in_place else Builder.before(self.loop).splat(whole.type, 0)
        for value in (*(region.blocks[0].arguments[self.number] for region in self.loop.regions), result):
            value.set_type(whole.type)
        emit = Builder.before(self.write)
        stack, term, index, *_ = self.write.operands
        term = _of_row(emit, self.arranged, term)
        held = _row(emit, stack if in_place else self.before, index)
        total = emit.again(addition, held.type, [held if value == self.before else term for value in addition.operands])
        written = emit.dynamic_paste(stack, _of_row(emit, communicated, total), _starts(emit, index, stack))
        self.write.results[0].replace_all_uses_with(written)
        whole.replace_all_uses_with(result)
        for op in (self.write, *reversed((*self.arranged, addition, *communicated))):
            op.erase()


def stacked_sums(additions: Sequence[tuple[ir.Value, Sum]]) -> Iterator[StackedSum]:
    """Those sums, of which what they are `before` their additions is given too, whose last term is a stack that a loop in the
    same block fills row by row."""
    for before, reduced in additions:
        if (found := _stacked_sum(before, reduced)) is not None:
            yield found


def _stacked_sum(before: ir.Value, reduced: Sum) -> StackedSum | None:
    addition = reduced.addition
    term = next(value for value in addition.operands if value != before)
    shape, arranged = shape_of(before), list[ir.Operation]()
    if not shape or DYNAMIC in shape or only_reader(before) != addition:
        return None
    while not isinstance(term.owner, ir.Block) and only_reader(term) is not None and arranges(op_of(term)):
        arranged.insert(0, op_of(term))
        term = op_of(term).operands[0]
    loop = None if isinstance(term.owner, ir.Block) else op_of(term)
    if loop is None or loop.name != "stablehlo.while" or loop.block != addition.block or only_reader(term) is None:
        return None
    number = ir.OpResult(term).result_number
    write = _write_of_every_row(loop, number, shape[0])
    late: set[ir.Value] = {result for view in loop.block.operations for result in view.operation.results}
    late -= _before(loop)
    of_rows = all(_is_of_rows(op, shape[0], late) for op in (*arranged, *reduced.communicated))
    return StackedSum(before, reduced, loop, number, write, tuple(arranged)) if write is not None and of_rows else None


def _write_of_every_row(loop: ir.Operation, number: int, rows: int) -> ir.Operation | None:
    """What writes each row of a carried stack once, if nothing else is done with the stack."""
    tested, carried = (region.blocks[0].arguments[number] for region in loop.regions)
    write = only_reader(carried)
    if write is None or list(tested.uses) or write.block != loop.regions[1].blocks[0] or not writes_rows(write, carried):
        return None
    if not is_only_returned(write.results[0], number):
        return None
    numbers = row_numbers(loop, write.operands[2], rows)
    return write if numbers is not None and sorted(numbers) == [*range(rows)] else None


def _before(loop: ir.Operation) -> set[ir.Value]:
    """What stands in the block of `loop` before it."""
    found: set[ir.Value] = {*loop.block.arguments}
    for view in loop.block.operations:
        if view.operation == loop:
            break
        found.update(view.operation.results)
    return found


def _is_of_rows(op: ir.Operation, rows: int, late: set[ir.Value]) -> bool:
    """Whether each row of what `op` gives is computed of the same row of what the operation before it gives."""
    shapes = [shape_of(op.operands[0]), shape_of(op.results[0])]
    if any(not shape or shape[0] != rows or DYNAMIC in shape for shape in shapes):
        return False
    if op.name in ELEMENTWISE:
        return sum(not _is_like_each_row(value, rows, late) for value in op.operands) == 1
    if op.name == "stablehlo.transpose":
        return integers(op.attributes["permutation"])[0] == 0
    return is_reshape(op) or 0 not in _dims(op)


def _dims(op: ir.Operation) -> list[int]:
    """The dimensions along which a collective joins or divides, or takes the device's slice."""
    sliced = [int(ir.IntegerAttr(op.attributes["slice_axis"]).value)] if "slice_axis" in op.attributes else []
    return piece_dims(op) + sliced


def _is_like_each_row(value: ir.Value, rows: int, late: set[ir.Value]) -> bool:
    """Whether `value` is the same in each row, and nothing that it is made of is `late`."""
    if in_size(value, 0, divide=rows) is None:
        return False
    if not shape_of(value):
        return value not in late
    return isinstance(known(value), Splat) or late.isdisjoint(op_of(value).operands)


def _of_row(emit: Builder, operations: Sequence[ir.Operation], row: ir.Value) -> ir.Value:
    """What the operations, one after the other, give of `row` instead of all rows."""
    for op in operations:
        rows, *sizes = shape_of(op.results[0])
        type_ = tensor([1, *sizes], element_of(op.results[0]))
        if is_reshape(op):
            row = emit.reshape(row, [1, *sizes])
            continue
        others = [in_size(value, 0, divide=rows) for value in op.operands] if op.name in ELEMENTWISE else [None]
        row = emit.again(op, type_, [row if other is None else other(emit) for other in others])
    return row


def _row(emit: Builder, stack: ir.Value, index: ir.Value) -> ir.Value:
    return emit.dynamic_cut(stack, _starts(emit, index, stack), [1, *shape_of(stack)[1:]])


def _starts(emit: Builder, index: ir.Value, stack: ir.Value) -> list[ir.Value]:
    """Where the row of that number begins."""
    return [index, *[emit.splat(index.type, 0)] * (len(shape_of(stack)) - 1)]
