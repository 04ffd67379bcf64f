"""Writes gathers and scatters, with StableHLO's rules for indices out of bounds."""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.emit.python.code import Code, call, literal
from meshbridge.emit.python.reductions import combiner_of
from meshbridge.emit.python.scope import Scope
from meshbridge.emit.python.shapes import sizes
from meshbridge.emit.python.table import writes
from meshbridge.ir.builder import shape_of
from meshbridge.ir.mlir import ir, stablehlo, terminator_operands
from meshbridge.ir.uses import defining_op


def _indices(value: ir.Value, vector_dim: int, scope: Scope) -> Code:
    """Indices with the index vectors along the last dimension, as JAX expects."""
    shape, code = shape_of(value), scope.at(value)
    if vector_dim == len(shape):
        return call("jnp.expand_dims", code, literal(-1))
    if vector_dim == len(shape) - 1:
        return code
    return call("jnp.moveaxis", code, literal(vector_dim), literal(-1))


def _index_dims(dims: Sequence[int], vector_dim: int) -> tuple[int, ...]:
    """Dimensions of indices, renumbered for index vectors along the last dimension."""
    return tuple(dim - (dim > vector_dim) for dim in dims)


def _hints(op: ir.Operation, *names: str) -> dict[str, Code]:
    """The promises of the op about its indices."""
    return {name: Code("True") for name in names if name in op.attributes and ir.BoolAttr(op.attributes[name]).value}


def _dims(**named: Sequence[int]) -> dict[str, Code]:
    return {name: literal(tuple(value)) for name, value in named.items()}


@writes("gather")
def gather(op: ir.Operation, scope: Scope) -> Code:
    """`jnp.take` of whole rows, else `lax.gather`; indices are clamped."""
    operand, indices = op.operands
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    axis = _take_axis(op, numbers)
    if axis is not None:
        row_numbers = _row_numbers(indices, numbers.index_vector_dim, scope)
        return call("jnp.take", scope.at(operand), row_numbers, axis=literal(axis), mode=literal("clip"))
    dims = _dims(
        offset_dims=numbers.offset_dims,
        collapsed_slice_dims=numbers.collapsed_slice_dims,
        start_index_map=numbers.start_index_map,
    )
    if numbers.operand_batching_dims:
        dims |= _dims(
            operand_batching_dims=numbers.operand_batching_dims,
            start_indices_batching_dims=_index_dims(numbers.start_indices_batching_dims, numbers.index_vector_dim),
        )
    return call(
        "lax.gather",
        scope.at(operand),
        _indices(indices, numbers.index_vector_dim, scope),
        call("lax.GatherDimensionNumbers", **dims),
        slice_sizes=literal(sizes(op, "slice_sizes")),
        mode=literal("clip"),
        **_hints(op, "indices_are_sorted"),
    )


def _row_numbers(indices: ir.Value, vector_dim: int, scope: Scope) -> Code:
    """Indices whose vectors have one element, without the dimension of the vectors."""
    if vector_dim == len(shape_of(indices)):
        return scope.at(indices)
    owner = defining_op(indices)
    if owner is not None and owner.name == "stablehlo.broadcast_in_dim" and vector_dim == len(shape_of(indices)) - 1:
        (source,) = owner.operands
        if shape_of(source) == shape_of(indices)[:-1] and list(sizes(owner, "broadcast_dimensions")) == list(range(vector_dim)):
            return scope.at(source)
    return call("jnp.squeeze", scope.at(indices), literal(vector_dim))


def _take_axis(op: ir.Operation, numbers: stablehlo.GatherDimensionNumbers) -> int | None:
    """The axis of a gather that is `jnp.take` of whole rows, else None."""
    operand, indices = (shape_of(value) for value in op.operands)
    vector = numbers.index_vector_dim
    if numbers.operand_batching_dims or list(numbers.collapsed_slice_dims) != list(numbers.start_index_map):
        return None
    if len(numbers.start_index_map) != 1 or (vector < len(indices) and indices[vector] != 1):
        return None
    axis = int(numbers.start_index_map[0])
    rank = len(indices) - (vector < len(indices))
    window = [1 if dim == axis else size for dim, size in enumerate(operand)]
    places = [*range(axis), *range(axis + rank, rank + len(operand) - 1)]
    return axis if list(sizes(op, "slice_sizes")) == window and list(numbers.offset_dims) == places else None


_SCATTERS = {
    "add": "lax.scatter_add",
    "multiply": "lax.scatter_mul",
    "minimum": "lax.scatter_min",
    "maximum": "lax.scatter_max",
}


@writes("scatter")
def scatter(op: ir.Operation, scope: Scope) -> Code:
    """`lax.scatter`, `lax.scatter_add` and others, by the op of the region; updates out of bounds are dropped."""
    if len(op.results) != 1:
        raise scope.error(op, f"scatters {len(op.results)} arrays at once, expected one", "scatter each of them by itself")
    operand, indices, updates = op.operands
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    dims = _dims(
        update_window_dims=numbers.update_window_dims,
        inserted_window_dims=numbers.inserted_window_dims,
        scatter_dims_to_operand_dims=numbers.scattered_dims_to_operand_dims,
    )
    if numbers.input_batching_dims:
        dims |= _dims(
            operand_batching_dims=numbers.input_batching_dims,
            scatter_indices_batching_dims=_index_dims(numbers.scatter_indices_batching_dims, numbers.index_vector_dim),
        )
    return call(
        _scatter_function(op, scope),
        scope.at(operand),
        _indices(indices, numbers.index_vector_dim, scope),
        scope.at(updates),
        call("lax.ScatterDimensionNumbers", **dims),
        mode=literal("drop"),
        **_hints(op, "indices_are_sorted", "unique_indices"),
    )


def _scatter_function(op: ir.Operation, scope: Scope) -> str:
    block = op.regions[0].blocks[0]
    if terminator_operands(block) == [block.arguments[1]]:
        return "lax.scatter"
    if (function := _SCATTERS.get(combiner_of(block))) is None:
        expected = "expected one of add, multiply, minimum, maximum, or the update itself"
        raise scope.error(op, f"combines elements in a way that JAX's scatters have not, {expected}")
    return function
