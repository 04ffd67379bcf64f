"""Identity elements of the reduction kinds, for values that become partial."""

from __future__ import annotations

from meshbridge.mlir import MeshError, ir

_IDENTITY = {"sum": 0, "product": 1, "bitwise_xor": 0}
_IDEMPOTENT = frozenset({"max", "min", "average", "bitwise_and", "bitwise_or"})


def identity(kind: str, type_: ir.RankedTensorType) -> ir.Attribute | None:
    """`dense<identity>` of `type_`; None for the kinds that leave equal values as they are. Raises MeshError for other kinds."""
    if kind in _IDEMPOTENT:
        return None
    if kind not in _IDENTITY:
        raise MeshError(f"no value is the identity of the reduction '{kind}'")
    value, element = _IDENTITY[kind], type_.element_type
    if isinstance(element, ir.IntegerType):
        text = ("true" if value else "false") if element.width == 1 else str(value)
    elif isinstance(element, ir.ComplexType):
        inner = "" if isinstance(element.element_type, ir.IntegerType) else ".0"
        text = f"({value}{inner}, 0{inner})"
    else:
        text = f"{value}.0"
    return ir.Attribute.parse(f"dense<{text}> : {type_}")
