"""Simplifies gathers and scatters of one element per row, as in cross-entropies, so that their large operands need no memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meshbridge.analysis.known_values import Splat, known
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_op
from meshbridge.legalize.table import Legalizer, replaces, rewrites
from meshbridge.ops.addressing import addressing_of
from meshbridge.ops.elementwise import ELEMENTWISE
from meshbridge.ops.reductions import body_kind


@dataclass(frozen=True)
class RowAddressing:
    """How a gather or scatter addresses one element in each row of its operand."""

    dim: int
    "The dimension of the operand along which a row extends."
    batch: dict[int, int]
    "For each other dimension of the operand, its dimension in the result (update), whose remaining dimensions have size 1."

    @staticmethod
    def of(op: ir.Operation, indices: ir.Value) -> RowAddressing | None:
        """The row addressing of `op`, or None if it addresses more than one element per row."""
        how, shape, index_shape = addressing_of(op), shape_of(op.operands[0]), shape_of(indices)
        if len(how.addressed) != 1 or how.window or len(how.batching) != len(shape) - 1:
            return None
        numbers = [dim for dim in range(len(index_shape)) if dim != how.vector_dim]
        paired = {index_dim for _, index_dim in how.batching}
        if any(index_shape[dim] != 1 for dim in numbers if dim not in paired):
            return None
        return RowAddressing(how.addressed[0], {dim: numbers.index(index_dim) for dim, index_dim in how.batching})

    def broadcast(self, value: ir.Value, shape: list[int], builder: Builder) -> ir.Value:
        """Broadcasts updates or indices, which have one element per row, along the rows."""
        dims = sorted(self.batch, key=self.batch.__getitem__)
        return builder.broadcast(builder.reshape(value, [shape[dim] for dim in dims]), shape, dims)


@replaces("stablehlo.scatter")
def select_row_updates(op: ir.Operation) -> list[ir.Value] | None:
    """Replaces a scatter of one update per row into a splat tensor by a select, which fuses with its readers.

    Input:   %0 = "stablehlo.scatter"(%zeros, %labels, %u) inserted_window_dims = [1], input_batching_dims = [0],
                  scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1] ({ stablehlo.add }) :
                  (tensor<8x16xf32>, tensor<8x1xi32>, tensor<8xf32>) -> tensor<8x16xf32>
    Output:  %i = stablehlo.iota dim = 1 : tensor<8x16xi32>
             %1 = stablehlo.compare EQ, %i, %labels in each row
             %2 = stablehlo.add %zero, %u : tensor<8xf32>
             %0 = stablehlo.select %1, %2 in each row, %zeros : tensor<8x16xf32>
    """
    if len(op.operands) != 3:
        return None
    operand, indices, updates = op.operands
    filled, shape = known(operand), shape_of(operand)
    if not isinstance(filled, Splat) or not _counts(element_of(indices), max(shape, default=0)) or min(shape) < 1:
        return None
    rows, combiner = RowAddressing.of(op, indices), _combiner(op)
    if rows is None or combiner is None:
        return None
    builder = Builder.current()
    if combiner:
        before = builder.constant(updates.type, ir.DenseElementsAttr.get_splat(ir.RankedTensorType(updates.type), filled.element))
        updates = builder.value(combiner, updates.type, [before, updates])
    is_row_index = builder.compare(
        "EQ", builder.iota(shape, rows.dim, element_of(indices)), rows.broadcast(indices, shape, builder)
    )
    return [builder.select(is_row_index, rows.broadcast(updates, shape, builder), operand)]


def _combiner(op: ir.Operation) -> str | None:
    """The op by which a scatter combines an update with the old element; empty if it overwrites; None for other bodies."""
    block = op.regions[0].blocks[0]
    combine, *later_ops = [view.operation for view in block.operations]
    if not later_ops:
        return "" if list(combine.operands) == [block.arguments[1]] else None
    return combine.name if body_kind(op) else None


def _counts(element: ir.Type, size: int) -> bool:
    """True if integers of type `element` can count to `size`."""
    integer = ir.IntegerType(element)
    return size < 1 << (integer.width - (not integer.is_unsigned))


@rewrites("stablehlo.gather")
def look_up_row_sources(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Moves a gather of one element per row before the elementwise op that computes its operand. The op's other operands must be
    constant along rows.

    Input:   %0 = stablehlo.subtract %x, %largest in each row : tensor<8x16xf32>
             %1 = "stablehlo.gather"(%0, %labels) collapsed_slice_dims = [1], operand_batching_dims = [0],
                  start_indices_batching_dims = [0], start_index_map = [1] : … -> tensor<8xf32>
    Output:  %0 = "stablehlo.gather"(%x, %labels) … -> tensor<8xf32>
             %1 = stablehlo.subtract %0, %largest : tensor<8xf32>
    """
    source, indices = op.operands
    producer = defining_op(source)
    if (
        producer is None
        or producer.name not in ELEMENTWISE
        or producer.regions
        or (rows := RowAddressing.of(op, indices)) is None
    ):
        return False
    shape = shape_of(source)
    result = shape_of(op.results[0])
    alike = {value: _row_value(value, rows, result) for value in producer.operands}
    varying = [value for value, make in alike.items() if make is None]
    if min(shape) < 1 or shape[rows.dim] < 2 or len(varying) != 1:
        return False
    builder = Builder.current()
    looked_up = builder.again(op, tensor(result, element_of(varying[0])), [varying[0], indices])
    rewriter.adopt(looked_up)
    values = [looked_up if (make := alike[value]) is None else make(builder) for value in producer.operands]
    rewriter.replace(op, builder.again(producer, op.results[0].type, values))
    return True


def _row_value(value: ir.Value, rows: RowAddressing, shape: list[int]) -> Callable[[Builder], ir.Value] | None:
    """Builds `value`, if it is constant along rows, in the `shape` of the gathered elements, else None. A scalar stays one."""
    if not shape_of(value):
        return lambda builder: value
    if isinstance(splat := known(value), Splat):
        type_ = tensor(shape, element_of(value))
        return lambda builder: builder.constant(type_, ir.DenseElementsAttr.get_splat(type_, splat.element))
    op = defining_op(value)
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return None
    (source,), dims = op.operands, integers(op.attributes["broadcast_dimensions"])
    sizes = shape_of(source)
    if any(dim == rows.dim and size != 1 for dim, size in zip(dims, sizes, strict=True)):
        return None
    batch = [number for number, dim in enumerate(dims) if dim != rows.dim]

    def make(builder: Builder) -> ir.Value:
        return builder.broadcast(
            builder.reshape(source, [sizes[number] for number in batch]), shape, [rows.batch[dims[number]] for number in batch]
        )

    return make
