"""Which operations commute with a reduction over devices: `op(reduce x, reduce y)` equals `reduce op(x, y)`."""

from __future__ import annotations

from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.dialect.signature import element_of
from meshbridge.ir.mlir import ir

_SUMS = ("stablehlo.add", "stablehlo.subtract", "arith.addf", "arith.addi", "arith.subf", "arith.subi")

JOINS: dict[str, frozenset[str]] = {
    "sum": frozenset(_SUMS),
    "average": frozenset(_SUMS),
    "max": frozenset(("stablehlo.maximum", "arith.maximumf", "arith.maxsi", "arith.maxui")),
    "min": frozenset(("stablehlo.minimum", "arith.minimumf", "arith.minsi", "arith.minui")),
    "product": frozenset(("stablehlo.multiply", "arith.mulf", "arith.muli")),
    "bitwise_and": frozenset(("stablehlo.and", "arith.andi")),
    "bitwise_or": frozenset(("stablehlo.or", "arith.ori")),
    "bitwise_xor": frozenset(("stablehlo.xor", "arith.xori")),
}
"""By reduction kind, the operations of two operands that are endomorphisms of it."""

SUM_OF = {"stablehlo.subtract": "stablehlo.add", "arith.subf": "arith.addf", "arith.subi": "arith.addi"}
"""What adds up numbers that each of these takes away."""

_SIGNED = frozenset(("arith.maxsi", "arith.minsi"))
_UNSIGNED = frozenset(("arith.maxui", "arith.minui"))

NAMES = frozenset[str]().union(*JOINS.values())
"""All of them."""


def joins(op_name: str, kind: str, element: ir.Type) -> bool:
    """Whether `op_name` is an endomorphism of a reduction of `kind` over elements of type `element`.

    An average of integers rounds, and arithmetic on i1 is not what sums count. Signless integers are ordered as signed ones by a
    mesh reduction, and i1 as unsigned: the operation of the other order does not commute with it.
    """
    is_bit = isinstance(element, ir.IntegerType) and element.width == 1
    if op_name not in JOINS.get(kind, ()) or (kind == "average" and is_integer(element)):
        return False
    if is_bit and kind in ("sum", "product"):
        return False
    return op_name not in (_SIGNED if is_bit else _UNSIGNED)


def keeps_type(reduction: AllReduceOp | ReduceScatterOp) -> bool:
    """Whether the collective reduces in the element type that it is given."""
    return element_of(reduction.input.type) == element_of(reduction.operation.results[0].type)
