"""How XLA:TPU lays arrays out in memory: in tiles of their last two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

TILE = (128, 8)
"""The elements of a tile in the memory of a TPU along the last dimension, and along the one before."""


def memory_order(shape: Sequence[int]) -> list[int]:
    """The dimensions of an argument or result of a program from the outermost in memory to the innermost: as they are written,
    but the last two the other way round where tiles hold less padding so. Read off XLA:TPU's programs (libtpu 0.0.42): of
    [4096, 32064], whose 32,064 columns are no multiple of 128, columns stand one after the other."""
    order = list(range(len(shape)))
    if len(shape) < 2:
        return order
    *_, rows, columns = shape
    if _padded(columns, rows) < _padded(rows, columns):
        order[-2:] = reversed(order[-2:])
    return order


def _padded(rows: int, columns: int) -> int:
    """The elements of the tiles that such a matrix takes."""
    return prod(ceil(size / tile) * tile for size, tile in zip((columns, rows), TILE, strict=True))
