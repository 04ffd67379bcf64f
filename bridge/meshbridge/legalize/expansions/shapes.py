"""Expands implicit broadcasts, static dimension sizes, and index_select."""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, Shape, shape_of
from meshbridge.ir.mlir import OpError, ir, stablehlo
from meshbridge.legalize.table import replaces


@replaces("stablehlo.broadcast")
def expand_broadcast(op: ir.Operation) -> list[ir.Value]:
    """`stablehlo.broadcast` prepends dimensions."""
    rank, added = len(shape_of(op.operands[0])), len(integers(op.attributes["broadcast_sizes"]))
    return [broadcast(op.operands[0], shape_of(op.results[0]), range(added, added + rank))]


def broadcast(value: ir.Value, shape: Shape, dims: Sequence[int]) -> ir.Value:
    """Broadcasts `value` to `shape`, its dimensions along `dims`."""
    return value if shape_of(value) == shape else Builder.current().broadcast(value, shape, dims)


_BROADCASTING = (
    "add and atan2 compare complex divide maximum minimum multiply next_after or polygamma power remainder select shift_left "
    "shift_right_arithmetic shift_right_logical subtract xor zeta"
)


@replaces(*(f"chlo.broadcast_{name}" for name in _BROADCASTING.split()))
def expand_broadcasting(op: ir.Operation) -> list[ir.Value]:
    """`chlo.broadcast_add` and the like: operands of smaller rank have `broadcast_dimensions`, or the last dimensions."""
    result = shape_of(op.results[0])
    ranks = [len(shape_of(value)) for value in op.operands]
    dims = integers(op.attributes["broadcast_dimensions"]) if "broadcast_dimensions" in op.attributes else None
    operands = []
    for value, rank in zip(op.operands, ranks, strict=True):
        along = dims if dims is not None and rank == len(dims) < max(ranks) else range(len(result) - rank, len(result))
        operands.append(broadcast(value, result, along))
    attribute_names = ("comparison_direction", "compare_type")
    dialect = "chlo" if op.name.removeprefix("chlo.broadcast_") in _CHLO else "stablehlo"
    name = f"{dialect}.{op.name.removeprefix('chlo.broadcast_')}"
    attributes = {key: _as_stablehlo(op.attributes[key]) for key in attribute_names if key in op.attributes}
    return [Builder.current().value(name, op.results[0].type, operands, attributes)]


_CHLO = ("next_after", "polygamma", "zeta")
"""Ops that StableHLO does not have."""


def _as_stablehlo(attribute: ir.Attribute) -> ir.Attribute:
    """The comparison attributes of both dialects are spelled alike."""
    return ir.Attribute.parse(str(attribute).replace("#chlo<", "#stablehlo<"))


@replaces("chlo.constant", "sdy.constant")
def expand_constant(op: ir.Operation) -> list[ir.Value]:
    """`chlo.constant` is StableHLO's."""
    return [stablehlo.constant(op.attributes["value"])]


@replaces("chlo.constant_like")
def expand_constant_like(op: ir.Operation) -> list[ir.Value]:
    """A constant with the shape of the operand."""
    value = op.attributes["value"]
    if not isinstance(value, ir.IntegerAttr | ir.FloatAttr):
        raise OpError(op, f"has the value {value}, expected an integer or a float")
    return [Builder.current().splat(op.results[0].type, value.value)]


@replaces("stablehlo.get_dimension_size")
def expand_dimension_size(op: ir.Operation) -> list[ir.Value]:
    """A constant: shapes are static here."""
    dim = ir.IntegerAttr(op.attributes["dimension"]).value
    return [Builder.current().splat(op.results[0].type, shape_of(op.operands[0])[dim])]


@replaces("stablehlo.torch_index_select")
def expand_index_select(op: ir.Operation) -> list[ir.Value]:
    """`stablehlo.torch_index_select` is a gather along one dimension, with leading batch dimensions."""
    operand, indices = op.operands
    dim, batch = (ir.IntegerAttr(op.attributes[name]).value for name in ("dim", "batch_dims"))
    rank, index_rank = len(shape_of(operand)), len(shape_of(indices))
    window = [window_dim for window_dim in range(rank) if window_dim >= batch and window_dim != dim]
    offsets = [window_dim if window_dim < dim else window_dim + index_rank - batch - 1 for window_dim in window]
    sizes = [1 if operand_dim == dim or operand_dim < batch else size for operand_dim, size in enumerate(shape_of(operand))]
    numbers = stablehlo.GatherDimensionNumbers.get(
        offset_dims=offsets,
        collapsed_slice_dims=[dim],
        operand_batching_dims=list(range(batch)),
        start_indices_batching_dims=list(range(batch)),
        start_index_map=[dim],
        index_vector_dim=index_rank,
    )
    return [stablehlo.gather(operand, indices, numbers, sizes)]
