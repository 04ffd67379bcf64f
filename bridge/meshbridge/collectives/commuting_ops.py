"""Operations that commute with a reduction over devices: `op(reduce x, reduce y)` equals `reduce op(x, y)`."""

from __future__ import annotations

from meshbridge.dialect.constraints import is_integer
from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.dialect.signature import element_of
from meshbridge.ir.mlir import ir

_SUMS = ("stablehlo.add", "stablehlo.subtract", "arith.addf", "arith.addi", "arith.subf", "arith.subi")

COMMUTING: dict[str, frozenset[str]] = {
    "sum": frozenset(_SUMS),
    "average": frozenset(_SUMS),
    "max": frozenset(("stablehlo.maximum", "arith.maximumf", "arith.maxsi", "arith.maxui")),
    "min": frozenset(("stablehlo.minimum", "arith.minimumf", "arith.minsi", "arith.minui")),
    "product": frozenset(("stablehlo.multiply", "arith.mulf", "arith.muli")),
    "bitwise_and": frozenset(("stablehlo.and", "arith.andi")),
    "bitwise_or": frozenset(("stablehlo.or", "arith.ori")),
    "bitwise_xor": frozenset(("stablehlo.xor", "arith.xori")),
}
"""By reduction kind, the binary operations that commute with it."""

ADDITION_OF = {"stablehlo.subtract": "stablehlo.add", "arith.subf": "arith.addf", "arith.subi": "arith.addi"}
"""The addition for each subtraction."""

_SIGNED = frozenset(("arith.maxsi", "arith.minsi"))
_UNSIGNED = frozenset(("arith.maxui", "arith.minui"))

NAMES = frozenset[str]().union(*COMMUTING.values())
"""All commuting operations."""


def commutes(op_name: str, kind: str, element: ir.Type) -> bool:
    """True if `op_name` commutes with a reduction of `kind` over elements of type `element`.

    An average of integers rounds, and sums and products of i1 are not arithmetic on numbers. A mesh reduction orders signless
    integers as signed, and i1 as unsigned: operations of the other order do not commute with it.
    """
    is_bit = isinstance(element, ir.IntegerType) and element.width == 1
    if op_name not in COMMUTING.get(kind, ()) or (kind == "average" and is_integer(element)):
        return False
    if is_bit and kind in ("sum", "product"):
        return False
    return op_name not in (_SIGNED if is_bit else _UNSIGNED)


def keeps_type(reduction: AllReduceOp | ReduceScatterOp) -> bool:
    """True if the collective reduces in the element type of its operand."""
    return element_of(reduction.input.type) == element_of(reduction.operation.results[0].type)
