"""The windows of reduce_window, select_and_scatter and convolution, one per dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.ir.mlir import ir
from meshbridge.ops.affine_access import AffineAccess


@dataclass(frozen=True)
class WindowDim:
    """The window along one dimension: `size` elements, `spread` apart, every `stride` positions; elements are `base` apart in the
    padded operand."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base: int = 1
    spread: int = 1

    @property
    def extent(self) -> int:
        """Positions from the window's first element to its last, inclusive."""
        return (self.size - 1) * self.spread + 1

    @property
    def is_single(self) -> bool:
        """True if windows are consecutive single elements without padding."""
        return self == WindowDim(1, spread=self.spread)

    def access(self, source: int, result: int) -> AffineAccess:
        """The access of a dimension of the result, of that size, to the operand's."""
        return AffineAccess(result, source, self.stride, self.low, self.extent, self.base)


_SPREADS = {"stablehlo.convolution": ("lhs_dilation", "rhs_dilation")}
"""The dilations of operand and windows, if not `base_dilations` and `window_dilations`."""


def _names(op: ir.Operation) -> tuple[str, ...]:
    return ("window_strides", *_SPREADS.get(op.name, ("base_dilations", "window_dilations")))


def window_dims(op: ir.Operation, sizes: Sequence[int] | None = None) -> list[WindowDim]:
    """The windows of an op along each of its dimensions; those of a convolution are along spatial dimensions and have the `sizes`
    of its kernel."""
    attrs = op.attributes
    sizes = integers(attrs["window_dimensions"]) if sizes is None else sizes
    padding: list[list[int]] = [[0, 0]] * len(sizes)
    if "padding" in attrs:
        padding = np.array(ir.DenseIntElementsAttr(attrs["padding"])).reshape(len(sizes), 2).tolist()
    strides, bases, spreads = (integers(attrs[name]) if name in attrs else (1,) * len(sizes) for name in _names(op))
    return [
        WindowDim(size, stride, low, high, base, spread)
        for size, stride, base, spread, (low, high) in zip(sizes, strides, bases, spreads, padding, strict=True)
    ]


def set_window_dims(op: ir.Operation, dims: list[WindowDim]) -> None:
    """Writes the windows back. Dilations of 1 are not added: select_and_scatter has none."""
    attrs = op.attributes
    if "window_dimensions" in attrs:
        attrs["window_dimensions"] = integers_attr([dim.size for dim in dims])
    pairs: Any = np.array([(dim.low, dim.high) for dim in dims], np.int64).reshape(-1, 2)  # the stubs lack numpy's buffers
    attrs["padding"] = ir.DenseIntElementsAttr.get(pairs)
    for name, field in zip(_names(op), ("stride", "base", "spread"), strict=True):
        values = [getattr(dim, field) for dim in dims]
        if name in attrs or any(value != 1 for value in values):
            attrs[name] = integers_attr(values)
