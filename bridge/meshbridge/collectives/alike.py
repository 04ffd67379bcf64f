"""Collectives of values that are alike but for dimensions of size one: XLA sees that, but not in a common buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from meshbridge.analysis.known_values import Splat, known
from meshbridge.collectives.rewriter import CONSTANTS, ELEMENTWISE, MeshRewriter, piece_dims, sharing_key
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_op

_DEPTH = 4
"""How many operations in a row are compared. Not measured: a bound on time."""

Key = object


@dataclass(frozen=True)
class CollectiveKind:
    """What is alike in collectives of the same name, attributes and types."""

    looks: Key
    "What collectives share that give the same of the same operand, dimensions of size one aside."


KindT = TypeVar("KindT", bound=CollectiveKind)


def drop_alike(ops: list[tuple[ir.Operation, KindT]], rewriter: MeshRewriter) -> list[tuple[ir.Operation, KindT]]:
    """Lets each of `ops`, collectives in program order, that gives what an earlier one of its block gives be a reshape of that;
    returns the others."""
    known: dict[Key, ir.Operation] = {}
    kept: list[tuple[ir.Operation, KindT]] = []
    for op, kind in ops:
        first = known.setdefault((op.block, kind.looks, _computed(op.operands[0], rewriter, _DEPTH)), op)
        if first is op:
            kept.append((op, kind))
            continue
        rewriter.replace(op, Builder.before(op).reshape(first.results[0], shape_of(op.results[0].type)))
    return kept


def looks(op: ir.Operation) -> Key:
    """See `CollectiveKind`."""
    before, after = op.operands[0].type, op.results[0].type
    shape = shape_of(before)
    places = tuple((len(_squeezed(shape[:dim])), shape[dim] == 1) for dim in piece_dims(op))
    return sharing_key(op), places, element_of(before), element_of(after), _squeezed(shape)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([size for size in shape if size != 1])


def _computed(value: ir.Value, rewriter: MeshRewriter, depth: int) -> Key:
    """How `value` is computed; the value itself where that is not looked into."""
    op = defining_op(value)
    if op is None or depth == 0:
        return value
    name = op.name
    if name in _SPREADING and isinstance(found := known(value), Splat):
        return "splat", found.element
    if name not in _LOOKED_THROUGH:
        return value
    operands = list(op.operands)
    shapes = [shape_of(operand.type) for operand in operands]
    if name == _BROADCAST and not shapes[0]:
        return "splat", operands[0]
    shape = _squeezed(shape_of(value.type))
    if any(each and _squeezed(each) != shape for each in shapes):
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
"""What gives the same number in every place, if anything here does."""

_LOOKED_THROUGH = ELEMENTWISE | {_BROADCAST, "stablehlo.reshape"}
