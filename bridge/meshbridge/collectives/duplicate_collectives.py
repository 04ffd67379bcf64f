"""Replaces collectives of values that differ only in dimensions of size one. XLA removes such duplicates itself, but not inside a
combined buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from meshbridge.analysis.known_values import Splat, known
from meshbridge.collectives.rewriter import CONSTANTS, ELEMENTWISE, MeshRewriter, collective_dims, sharing_key
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_op

_DEPTH = 4
"""The number of operations in a row that are compared, to bound the time. Not measured."""

Key = object


@dataclass(frozen=True)
class CollectiveKind:
    """The properties of collectives of the same name, attributes and types."""

    duplicate_key: Key
    "Equal for collectives that return the same for the same operand, apart from dimensions of size one."


KindT = TypeVar("KindT", bound=CollectiveKind)


def drop_duplicates(ops: list[tuple[ir.Operation, KindT]], rewriter: MeshRewriter) -> list[tuple[ir.Operation, KindT]]:
    """Replaces each of `ops`, collectives in program order, that duplicates an earlier one of its block by a reshape of its
    result; returns the others."""
    first_of_key: dict[Key, ir.Operation] = {}
    distinct: list[tuple[ir.Operation, KindT]] = []
    for op, kind in ops:
        original = first_of_key.setdefault((op.block, kind.duplicate_key, _computed(op.operands[0], rewriter, _DEPTH)), op)
        if original is op:
            distinct.append((op, kind))
            continue
        rewriter.replace(op, Builder.before(op).reshape(original.results[0], shape_of(op.results[0].type)))
    return distinct


def duplicate_key(op: ir.Operation) -> Key:
    """See `CollectiveKind`."""
    source, target = op.operands[0].type, op.results[0].type
    shape = shape_of(source)
    dim_positions = tuple((len(_squeezed(shape[:dim])), shape[dim] == 1) for dim in collective_dims(op))
    return sharing_key(op), dim_positions, element_of(source), element_of(target), _squeezed(shape)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([size for size in shape if size != 1])


def _computed(value: ir.Value, rewriter: MeshRewriter, depth: int) -> Key:
    """A key of the computation of `value`; the value itself if its op is not compared."""
    op = defining_op(value)
    if op is None or depth == 0:
        return value
    name = op.name
    if name in _SPREADING and isinstance(splat := known(value), Splat):
        return "splat", splat.element
    if name not in _LOOKED_THROUGH:
        return value
    operands = list(op.operands)
    shapes = [shape_of(operand.type) for operand in operands]
    if name == _BROADCAST and not shapes[0]:
        return "splat", operands[0]
    squeezed = _squeezed(shape_of(value.type))
    if any(shape and _squeezed(shape) != squeezed for shape in shapes):
        return value
    if name in ELEMENTWISE:
        inside = tuple([_computed(operand, rewriter, depth - 1) for operand in operands])
        return name, tuple(op.attributes.items()), element_of(value.type), inside
    if name == _BROADCAST:
        placed = list(integers(op.attributes["broadcast_dimensions"]))
        if placed != sorted(placed):
            return value
    return _computed(operands[0], rewriter, depth - 1)


_BROADCAST = "stablehlo.broadcast_in_dim"
_SPREADING = CONSTANTS | {_BROADCAST}
"""Ops whose result may be a splat."""

_LOOKED_THROUGH = ELEMENTWISE | {_BROADCAST, "stablehlo.reshape"}
