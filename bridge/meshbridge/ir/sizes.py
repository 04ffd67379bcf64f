"""Sizes of tensors in bytes, as XLA stores them."""

from __future__ import annotations

from math import prod

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.mlir import ir


def tensor_bytes(value: ir.Value) -> float:
    """Bytes of a ranked tensor of static shape; 0 for anything else (tokens, sharding values, sizes that only a run knows)."""
    if not isinstance(value.type, ir.RankedTensorType) or not ir.RankedTensorType(value.type).has_static_shape:
        return 0.0
    return type_bytes(value.type)


def type_bytes(type_: ir.Type) -> float:
    """Bytes of a tensor type of static shape. Raises MeshError for elements without a size."""
    tensor = ir.RankedTensorType(type_)
    return prod(tensor.shape) * element_bytes(str(tensor.element_type))
