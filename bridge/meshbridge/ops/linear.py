"""Ops that commute with a sum over shards, so that a partial operand may stay partial through them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Axes
from meshbridge.ops.rule import ShardingRule
from meshbridge.ops.traits import linear_operands

UNARY = frozenset(
    f"stablehlo.{name}" for name in ["negate", "transpose", "reshape", "slice", "reverse", "reduce", "real", "imag"]
)
"""Ops that are linear in their first operand, the only one that may be partial; `reduce` only if its body is `add`."""

SCALE = {"stablehlo.multiply": (0, 1), "stablehlo.divide": (0,)}
"""By op, the operands that may be partial if the other one is not; a division of integers has none."""

ADD = frozenset(("stablehlo.add", "stablehlo.subtract"))
"""Ops on two sums over the same shards, whose result is such a sum."""


WIDER = {"f16": ("f32", "f64"), "bf16": ("f32", "f64"), "f32": ("f64",)}
"""By floating-point type, the wider types that represent all its numbers."""

LINEAR = UNARY | SCALE.keys() | ADD
"""Ops that pass partial operands on if that sends no more."""


def carried_axes(op: ir.Operation, rule: ShardingRule, partial: Sequence[Axes]) -> Axes:
    """The axes over which the op's result stays partial, given those of its operands; () if they must be all-reduced."""
    if not any(partial):
        return ()
    name = op.name
    if name in ADD:
        return partial[0] if partial[0] == partial[1] else ()
    if name == "stablehlo.divide" and is_integer(element_of(op.results[0].type)):
        return ()  # each term would be rounded
    if name in SCALE:
        if partial[0] and not partial[1]:
            return partial[0]
        return partial[1] if name == "stablehlo.multiply" and not partial[0] else ()
    if name in UNARY and not any(partial[1:]):
        kinds = {loop.reduction for loop in rule.loops}
        return partial[0] if kinds <= {"", "sum"} and ("sum" in kinds or name != "stablehlo.reduce") else ()
    return ()


def termwise_operands(op: ir.Operation) -> tuple[int, ...]:
    """The operands that an op takes as terms of sums over shards if the user declares operand and result to be such sums.

    This includes `convert` and `reduce_precision`, which round each term, because JAX's types say so.
    """
    if op.name == "stablehlo.convert" and not _rounds_to_integers(op):
        return (0,)
    if op.name == "stablehlo.pad":
        return (0,) if is_splat(op.operands[1], 0) else ()
    return (0,) if op.name == "stablehlo.reduce_precision" else linear_operands(op.name, len(op.operands))


def _rounds_to_integers(op: ir.Operation) -> bool:
    source, target = (element_of(value.type) for value in (op.operands[0], op.results[0]))
    return is_integer(target) and (not is_integer(source) or ir.IntegerType(target).width == 1)


def is_reshape(op: ir.Operation) -> bool:
    """True if the op returns the operand's elements in order, in another shape."""
    if op.name == "stablehlo.reshape":
        return True
    if op.name != "stablehlo.broadcast_in_dim" or prod(shape_of(op.results[0].type)) != prod(shape_of(op.operands[0].type)):
        return False
    dims = integers(op.attributes["broadcast_dimensions"])
    return list(dims) == sorted(dims)


def is_widening(op: ir.Operation) -> bool:
    """True if the op converts to a wider floating-point type, so that a sum after it is rounded less."""
    if op.name != "stablehlo.convert":
        return False
    source, target = (element_of(value.type) for value in (op.operands[0], op.results[0]))
    return str(target) in WIDER.get(str(source), ())


def fills_rows(write: ir.Operation, stack: ir.Value) -> bool:
    """True if `write` fills `stack` row by row, one whole row at a time."""
    if write.name != "stablehlo.dynamic_update_slice" or write.operands[0] != stack:
        return False
    stack_shape, row = shape_of(stack.type), shape_of(write.operands[1].type)
    return (
        len(stack_shape) > 0 and [*row] == [1, *stack_shape[1:]] and all(is_splat(start, 0) for start in list(write.operands)[3:])
    )
