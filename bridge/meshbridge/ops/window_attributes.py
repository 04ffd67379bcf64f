"""The attributes of reduce_window and select_and_scatter, one value per dimension."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.ir.mlir import ir


@dataclass(frozen=True)
class WindowDim:
    """The window along one dimension: `size` elements, `spread` apart, every `stride` places; elements stand `base` apart in the
    padded operand."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base: int = 1
    spread: int = 1

    @property
    def extent(self) -> int:
        """Places from the window's first element to its last, both counted."""
        return (self.size - 1) * self.spread + 1

    @property
    def is_single(self) -> bool:
        """Whether windows are single elements, one after the other, without padding."""
        return self == WindowDim(1, spread=self.spread)


def window_dims(op: ir.Operation, rank: int) -> list[WindowDim]:
    """The windows of an op along each of its `rank` dimensions."""
    attrs = op.attributes

    def per_dim(name: str) -> tuple[int, ...]:
        return integers(attrs[name]) if name in attrs else (1,) * rank

    padding: list[list[int]] = [[0, 0]] * rank
    if "padding" in attrs:
        padding = np.array(ir.DenseIntElementsAttr(attrs["padding"])).reshape(rank, 2).tolist()
    names = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    return [
        WindowDim(size, stride, low, high, base, spread)
        for size, stride, base, spread, (low, high) in zip(*map(per_dim, names), padding, strict=True)
    ]


def set_window_dims(op: ir.Operation, dims: list[WindowDim]) -> None:
    """Writes the windows back. Dilations are only written where there are any: select_and_scatter knows none."""
    attrs = op.attributes
    attrs["window_dimensions"] = integers_attr([dim.size for dim in dims])
    attrs["window_strides"] = integers_attr([dim.stride for dim in dims])
    pairs: Any = np.array([(dim.low, dim.high) for dim in dims], np.int64)  # any buffer will do; the stubs do not know numpy's
    attrs["padding"] = ir.DenseIntElementsAttr.get(pairs)
    for name, values in (("base_dilations", [dim.base for dim in dims]), ("window_dilations", [dim.spread for dim in dims])):
        if name in attrs or any(value != 1 for value in values):
            attrs[name] = integers_attr(values)
