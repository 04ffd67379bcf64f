"""Element types: their numpy names, sizes and neutral elements, and the sizes of tensors."""

from __future__ import annotations

import re
from functools import lru_cache
from math import ceil, prod

from meshbridge.ir.mlir import MeshError, ir

_COMPLEX = re.compile(r"complex<(\w+)>")

DTYPES = {
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    "f4E2M1FN": "float4_e2m1fn",
    "f8E3M4": "float8_e3m4",
    "f8E4M3": "float8_e4m3",
    "f8E4M3B11FNUZ": "float8_e4m3b11fnuz",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E4M3FNUZ": "float8_e4m3fnuz",
    "f8E5M2": "float8_e5m2",
    "f8E5M2FNUZ": "float8_e5m2fnuz",
    "f8E8M0FNU": "float8_e8m0fnu",
}
"""MLIR element type to numpy's (and ml_dtypes') name."""


@lru_cache(maxsize=256)
def element_bytes(dtype: str) -> float:
    """Bytes of one element of an MLIR element type in communication: whole bytes, but two 4-bit elements share one (2-bit
    elements are sent as bytes, see `backends/xla_cpu.py`).

    Raises MeshError for a type without a size.
    """
    if match := _COMPLEX.fullmatch(dtype):
        return 2 * element_bytes(match.group(1))
    if dtype == "index":
        return 8.0
    width = re.match(r"(?:ui|si|i|bf|tf|f)(\d+)", dtype)
    if width is None:
        raise MeshError(f"elements of {dtype} have no size in bytes")
    bits = int(width.group(1))
    return 0.5 if bits == 4 else float(ceil(bits / 8))


def is_bytewise(type_: ir.Type) -> bool:
    """Whether elements have whole bytes. XLA packs smaller ones, differently in different collectives."""
    return element_bytes(str(ir.RankedTensorType(type_).element_type)) >= 1


def type_bytes(type_: ir.Type) -> float:
    """Bytes of a tensor type of static shape. Raises MeshError for elements without a size."""
    tensor = ir.RankedTensorType(type_)
    return prod(tensor.shape) * element_bytes(str(tensor.element_type))


def tensor_bytes(value: ir.Value) -> float:
    """Bytes of a ranked tensor of static shape; 0 for other values (tokens, shardings, dynamic shapes)."""
    if not isinstance(value.type, ir.RankedTensorType) or not ir.RankedTensorType(value.type).has_static_shape:
        return 0.0
    return type_bytes(value.type)


def resized(tensor: ir.RankedTensorType, dim: int, *, multiply: int = 1, divide: int = 1) -> ir.RankedTensorType:
    """The type with dimension `dim` multiplied or divided."""
    shape = list(tensor.shape)
    shape[dim] = shape[dim] * multiply // divide
    return ir.RankedTensorType.get(shape, tensor.element_type)


WITHOUT_NEUTRAL = ("average", "generic")
"""Kinds of reductions without a neutral element: a zero counts in an average."""


def neutral(kind: str, element: ir.Type) -> float | int:
    """The neutral element of a reduction of `kind`, none of WITHOUT_NEUTRAL, for an element type."""
    if kind in ("max", "min"):
        return _extreme(element, lowest=kind == "max")
    if kind == "bitwise_and":
        return (
            -1
            if isinstance(element, ir.IntegerType) and element.width > 1 and not element.is_unsigned
            else _extreme(element, lowest=False)
        )
    return 1 if kind == "product" else 0


_WITHOUT_INFINITY = {
    "f4E2M1FN": (-6.0, 6.0),
    "f8E4M3FN": (-448.0, 448.0),
    "f8E4M3FNUZ": (-240.0, 240.0),
    "f8E4M3B11FNUZ": (-30.0, 30.0),
    "f8E5M2FNUZ": (-57344.0, 57344.0),
    "f8E8M0FNU": (2.0**-127, 2.0**127),
}
"""The smallest and the largest number of float types that have no infinity."""


def _extreme(element: ir.Type, *, lowest: bool) -> float | int:
    if not isinstance(element, ir.IntegerType):
        low, high = _WITHOUT_INFINITY.get(str(element), (float("-inf"), float("inf")))
        return low if lowest else high
    width = int(element.width)
    if element.is_unsigned or width == 1:
        return 0 if lowest else (1 << width) - 1
    return -(1 << (width - 1)) if lowest else (1 << (width - 1)) - 1
