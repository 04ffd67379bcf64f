"""Sizes of tensor elements."""

from __future__ import annotations

import re
from functools import lru_cache
from math import ceil

from meshbridge.ir.mlir import MeshError

_COMPLEX = re.compile(r"complex<(\w+)>")


@lru_cache(maxsize=256)
def element_bytes(dtype: str) -> float:
    """Bytes of one element of an MLIR element type, as it travels: whole bytes, two elements of 4 bits in one (those of 2 bits
    travel as bytes, see `lowering/narrow.py`).

    Raises MeshError for a type without a size.
    """
    if found := _COMPLEX.fullmatch(dtype):
        return 2 * element_bytes(found.group(1))
    if dtype == "index":
        return 8.0
    width = re.match(r"(?:ui|si|i|bf|tf|f)(\d+)", dtype)
    if width is None:
        raise MeshError(f"elements of {dtype} have no size in bytes")
    bits = int(width.group(1))
    return 0.5 if bits == 4 else float(ceil(bits / 8))
