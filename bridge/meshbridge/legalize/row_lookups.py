"""Look-ups and updates of one element in each row, as cross-entropies have them: tensors made for these alone need no memory."""

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
    "The dimension of the operand along which rows lie."
    batch: dict[int, int]
    "Per other dimension of the operand, which dimension of the result (update) it is. The result's others have size 1."

    @staticmethod
    def of(op: ir.Operation, indices: ir.Value) -> RowAddressing | None:
        """None for an op that addresses anything else."""
        how, shape, index_shape = addressing_of(op), shape_of(op.operands[0]), shape_of(indices)
        if len(how.addressed) != 1 or how.window or len(how.batching) != len(shape) - 1:
            return None
        numbers = [dim for dim in range(len(index_shape)) if dim != how.vector_dim]
        paired = {index_dim for _, index_dim in how.batching}
        if any(index_shape[dim] != 1 for dim in numbers if dim not in paired):
            return None
        return RowAddressing(how.addressed[0], {dim: numbers.index(index_dim) for dim, index_dim in how.batching})

    def spread(self, value: ir.Value, shape: list[int], emit: Builder) -> ir.Value:
        """What an update, or the indices of one, has for each row, everywhere in it."""
        dims = sorted(self.batch, key=self.batch.__getitem__)
        return emit.broadcast(emit.reshape(value, [shape[dim] for dim in dims]), shape, dims)


@replaces("stablehlo.scatter")
def select_row_updates(op: ir.Operation) -> list[ir.Value] | None:
    """Makes a select of a scatter of one update for each row into a tensor of equal elements: readers compute it on the way.

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
    emit = Builder.current()
    if combiner:
        before = emit.constant(updates.type, ir.DenseElementsAttr.get_splat(ir.RankedTensorType(updates.type), filled.element))
        updates = emit.value(combiner, updates.type, [before, updates])
    here = emit.compare("EQ", emit.iota(shape, rows.dim, element_of(indices)), rows.spread(indices, shape, emit))
    return [emit.select(here, rows.spread(updates, shape, emit), operand)]


def _combiner(op: ir.Operation) -> str | None:
    """The op by which a scatter combines an update with what was there; empty if the update takes its place, None if neither."""
    block = op.regions[0].blocks[0]
    first, *others = [view.operation for view in block.operations]
    if not others:
        return "" if list(first.operands) == [block.arguments[1]] else None
    return first.name if body_kind(op) else None


def _counts(element: ir.Type, size: int) -> bool:
    """Whether integers of that type reach `size`."""
    integer = ir.IntegerType(element)
    return size < 1 << (integer.width - (not integer.is_unsigned))


@rewrites("stablehlo.gather")
def look_up_row_sources(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Looks one element of each row up in what an elementwise op reads, and computes with these. What else the op reads must
    be the same in all of a row.

    Input:   %0 = stablehlo.subtract %x, %largest in each row : tensor<8x16xf32>
             %1 = "stablehlo.gather"(%0, %labels) collapsed_slice_dims = [1], operand_batching_dims = [0],
                  start_indices_batching_dims = [0], start_index_map = [1] : … -> tensor<8xf32>
    Output:  %0 = "stablehlo.gather"(%x, %labels) … -> tensor<8xf32>
             %1 = stablehlo.subtract %0, %largest : tensor<8xf32>
    """
    source, indices = op.operands
    made = defining_op(source)
    if made is None or made.name not in ELEMENTWISE or made.regions or (rows := RowAddressing.of(op, indices)) is None:
        return False
    shape = shape_of(source)
    result = shape_of(op.results[0])
    alike = {value: _of_rows(value, rows, result) for value in made.operands}
    varying = [value for value, make in alike.items() if make is None]
    if min(shape) < 1 or shape[rows.dim] < 2 or len(varying) != 1:
        return False
    emit = Builder.current()
    looked_up = emit.again(op, tensor(result, element_of(varying[0])), [varying[0], indices])
    rewriter.adopt(looked_up)
    values = [looked_up if (make := alike[value]) is None else make(emit) for value in made.operands]
    rewriter.replace(op, emit.again(made, op.results[0].type, values))
    return True


def _of_rows(value: ir.Value, rows: RowAddressing, shape: list[int]) -> Callable[[Builder], ir.Value] | None:
    """How to make `value`, if it is the same in all of a row, in the `shape` of what is looked up. A scalar stays one."""
    if not shape_of(value):
        return lambda emit: value
    if isinstance(found := known(value), Splat):
        type_ = tensor(shape, element_of(value))
        return lambda emit: emit.constant(type_, ir.DenseElementsAttr.get_splat(type_, found.element))
    op = defining_op(value)
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return None
    (source,), dims = op.operands, integers(op.attributes["broadcast_dimensions"])
    sizes = shape_of(source)
    if any(dim == rows.dim and size != 1 for dim, size in zip(dims, sizes, strict=True)):
        return None
    kept = [number for number, dim in enumerate(dims) if dim != rows.dim]

    def make(emit: Builder) -> ir.Value:
        return emit.broadcast(
            emit.reshape(source, [sizes[number] for number in kept]), shape, [rows.batch[dims[number]] for number in kept]
        )

    return make
