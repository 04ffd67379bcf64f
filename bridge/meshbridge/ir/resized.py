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
