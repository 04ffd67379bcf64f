"""Updates of a large part of a tensor at a place that is known (`x.at[1:-1].set(y)`) as a choice between tensors of one size."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from math import prod
from typing import ClassVar

from meshbridge.analysis.known_values import known_integer, known_integers
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.passes import RewritePass, register
from meshbridge.ops.reductions import body_kind
from meshbridge.ops.rule import shape_of

SMALLEST = 1 / 4
"""Part of a tensor that an update must cover. Of a smaller one every device gets all, and writes its part in place."""


@register
@dataclass(frozen=True)
class StaticUpdates(RewritePass):
    """Turns scatters of one window, and dynamic updates, at constant places into selects.

    Input:   %0 = stablehlo.dynamic_update_slice %x, %y, %one : (tensor<8xf32>, tensor<6xf32>, tensor<i32>) -> tensor<8xf32>
    Output:  %0 = stablehlo.pad %y, %zero, low = [1], high = [1] : tensor<8xf32>
             %1 = stablehlo.select (1 <= stablehlo.iota < 7), %0, %x

    Neighbours send each other what crosses the edges of shards for a pad. An update that could lie anywhere would have to be
    whole on every device.
    """

    name: ClassVar[str] = "static-updates"
    rewrites: ClassVar[frozenset[str]] = frozenset({"stablehlo.scatter", "stablehlo.dynamic_update_slice"})

    def rewrite(self, module: ir.Module, ops: list[ir.Operation]) -> bool:
        found = False
        for op in ops:
            place = _place(op)
            if place is not None:
                found = True
                with ir.InsertionPoint(op), op.location:
                    op.results[0].replace_all_uses_with(_selected(op, place))
                op.erase()
        return found


@dataclass(frozen=True)
class _Place:
    """Where an update goes: its shape with all dimensions of the operand, and its first element's place along each."""

    shape: tuple[int, ...]
    starts: tuple[int, ...]


def _place(op: ir.Operation) -> _Place | None:
    """The place of an update that covers much of the operand, if it is constant and the body is known."""
    if len(op.results) != 1:
        return None
    operand = shape_of(op.operands[0])
    update = op.operands[2 if op.name == "stablehlo.scatter" else 1]
    if prod(shape_of(update)) < SMALLEST * prod(operand) or not operand or 0 in operand:
        return None
    return _scattered(op, operand) if op.name == "stablehlo.scatter" else _updated(op, operand)


def _updated(op: ir.Operation, operand: tuple[int, ...]) -> _Place | None:
    """Starts are clamped so that the update fits."""
    shape = shape_of(op.operands[1])
    starts = [known_integer(start) for start in list(op.operands)[2:]]
    known = [start for start in starts if start is not None]
    if len(known) < len(starts):
        return None
    clamped = [min(max(start, 0), whole - size) for start, whole, size in zip(known, operand, shape, strict=True)]
    return _Place(shape, tuple(clamped))


def _scattered(op: ir.Operation, operand: tuple[int, ...]) -> _Place | None:
    """One window, not several; a window that does not fit would be left out."""
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    index, update = known_integers(op.operands[1]), shape_of(op.operands[2])
    if index is None or list(numbers.input_batching_dims) or len(list(numbers.update_window_dims)) != len(update):
        return None
    if not (body_kind(op) or _replaces(op)):
        return None
    starts = [0] * len(operand)
    for dim, start in zip(numbers.scattered_dims_to_operand_dims, index, strict=True):
        starts[dim] = start
    sizes = iter(update)
    inserted = set(numbers.inserted_window_dims)
    shape = tuple(1 if dim in inserted else next(sizes) for dim in range(len(operand)))
    fits = all(0 <= start <= whole - size for start, whole, size in zip(starts, operand, shape, strict=True))
    return _Place(shape, tuple(starts)) if fits else None


def _replaces(op: ir.Operation) -> bool:
    """Whether the body of a scatter gives what it is updated with."""
    block = op.regions[0].blocks[0]
    return len(block.operations) == 1 and block.operations[0].operation.operands[0] == block.arguments[1]


def _selected(op: ir.Operation, place: _Place) -> ir.Value:
    is_scatter = op.name == "stablehlo.scatter"
    operand, update = op.operands[0], op.operands[2 if is_scatter else 1]
    emit, whole = Builder.before(op), shape_of(operand)
    high = [size - start - covered for size, start, covered in zip(whole, place.starts, place.shape, strict=True)]
    placed = emit.pad(emit.reshape(update, place.shape), 0, place.starts, high)
    if is_scatter and not _replaces(op):
        placed = emit.elementwise(op.regions[0].blocks[0].operations[0].operation.name, operand, placed)
    covering = []
    for dim, (start, size) in enumerate(zip(place.starts, place.shape, strict=True)):
        if size < whole[dim]:
            position = emit.iota([whole[dim]], 0)
            inside = emit.elementwise("and", emit.compare("GE", position, start), emit.compare("LT", position, start + size))
            covering.append(emit.broadcast(inside, whole, [dim]))
    return emit.select(reduce(partial(emit.elementwise, "and"), covering), placed, operand) if covering else placed
