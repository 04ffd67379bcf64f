"""Elements of tensors on the wire, and tensors of other sizes."""

from __future__ import annotations

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.mlir import ir


def is_bytewise(type_: ir.Type) -> bool:
    """Whether elements take whole bytes. XLA packs smaller ones, and not alike in every collective."""
    return element_bytes(str(ir.RankedTensorType(type_).element_type)) >= 1


def resized(tensor: ir.RankedTensorType, dim: int, *, multiply: int = 1, divide: int = 1) -> ir.RankedTensorType:
    """The type with dimension `dim` multiplied or divided."""
    shape = list(tensor.shape)
    shape[dim] = shape[dim] * multiply // divide
    return ir.RankedTensorType.get(shape, tensor.element_type)


def splat_element(constant: ir.Operation) -> ir.Attribute | None:
    """The one number that a constant holds; None if it holds several, or complex ones, which the bindings cannot write."""
    value = constant.attributes["value"]
    if not isinstance(value, ir.DenseElementsAttr) or not value.is_splat or "complex" in str(value.type):
        return None
    return value.get_splat_value()
