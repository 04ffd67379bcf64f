"""Collectives of values that are alike but for dimensions of size one: XLA sees that, but not in a common buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from meshbridge.analysis.known_values import Splat, known
from meshbridge.collectives.rewriter import ELEMENTWISE, MeshRewriter, piece_dims, sharing_key
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir

_DEPTH = 4
"""How many operations in a row are compared. Not measured: a bound on time."""

Key = object


@dataclass(frozen=True)
class Kind:
    """What is alike in collectives of the same name, attributes and types."""

    looks: Key
    "What collectives share that give the same of the same operand, dimensions of size one aside."


KindT = TypeVar("KindT", bound=Kind)


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
    """See `Kind`."""
    before, after = op.operands[0].type, op.results[0].type
    shape = shape_of(before)
    places = tuple((len(_squeezed(shape[:dim])), shape[dim] == 1) for dim in piece_dims(op))
    return sharing_key(op), places, element_of(before), element_of(after), _squeezed(shape)


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def _computed(value: ir.Value, rewriter: MeshRewriter, depth: int) -> Key:
    """How `value` is computed; the value itself where that is not looked into."""
    op = rewriter.producer(value)
    if op is None or depth == 0:
        return value
    if isinstance(found := known(value), Splat):
        return "splat", found.element
    if op.name not in ELEMENTWISE and op.name not in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
        return value
    shape = _squeezed(shape_of(value.type))
    operands = list(op.operands)
    if op.name == "stablehlo.broadcast_in_dim" and not shape_of(operands[0].type):
        return "splat", operands[0]
    if any(shape_of(operand.type) and _squeezed(shape_of(operand.type)) != shape for operand in operands):
        return value
    if op.name in ELEMENTWISE:
        inside = tuple(_computed(operand, rewriter, depth - 1) for operand in operands)
        return op.name, tuple(op.attributes.items()), element_of(value.type), inside
    if op.name == "stablehlo.broadcast_in_dim":
        placed = list(integers(op.attributes["broadcast_dimensions"]))
        if placed != sorted(placed):
            return value
    return _computed(operands[0], rewriter, depth - 1)
