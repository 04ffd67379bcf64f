"""Windows over tensors: reduce_window, select_and_scatter, and the patches of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from meshbridge.ir.mlir import ir
from meshbridge.verification.field import Array
from meshbridge.verification.machine import Evaluator, align, evaluates, index, integers
from meshbridge.verification.movement import padded
from meshbridge.verification.reductions import Combiner, combiner_of, reduced, run_scalars


@dataclass(frozen=True)
class Window1D:
    """The window along one dimension: `size` elements, `spread` apart, every `stride` positions of an operand that is padded and
    dilated by `base`."""

    size: int
    stride: int = 1
    low: int = 0
    high: int = 0
    base: int = 1
    spread: int = 1

    def places(self, size: int) -> int:
        """The number of windows in a dimension of this size."""
        whole = self.low + self.high + (max(0, (size - 1) * self.base + 1) if size else 0)
        extent = (self.size - 1) * self.spread + 1
        return max(0, (whole - extent) // self.stride + 1) if whole >= extent else 0


def windows_of(x: Array, value: Array, dims: Sequence[Window1D]) -> Array:
    """A view with dimensions devices, positions…, window…; padding holds `value`, a scalar for each device."""
    widened = padded(x, value, tuple(d.low for d in dims), tuple(d.high for d in dims), tuple(d.base - 1 for d in dims))
    places = [dim.places(size) for dim, size in zip(dims, x.shape[1:], strict=True)]
    steps = widened.strides[1:]
    strides = [step * dim.stride for step, dim in zip(steps, dims, strict=True)]
    inner = [step * dim.spread for step, dim in zip(steps, dims, strict=True)]
    return np.lib.stride_tricks.as_strided(
        widened, (x.shape[0], *places, *(dim.size for dim in dims)), (widened.strides[0], *strides, *inner), writeable=False
    )


def window_dims(op: ir.Operation, sizes: Sequence[int], padding: Sequence[int], base: str, spread: str) -> list[Window1D]:
    """The windows of an op along each dimension; `base` and `spread` name the attributes that dilate operand and window."""
    strides, bases, spreads = (integers(op, name, (1,) * len(sizes)) for name in ("window_strides", base, spread))
    return [Window1D(*fields) for fields in zip(sizes, strides, padding[::2], padding[1::2], bases, spreads, strict=True)]


def _dilated_windows(op: ir.Operation, rank: int) -> list[Window1D]:
    sizes, padding = integers(op, "window_dimensions", (1,) * rank), integers(op, "padding", (0,) * 2 * rank)
    return window_dims(op, sizes, padding, "base_dilations", "window_dilations")


@evaluates("stablehlo.reduce_window")
def reduce_window(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The initial value combined with each window. If the region is one op, padding is left out, as in XLA; StableHLO's
    specification pads with the initial value, which gives the same if that is neutral."""
    half = len(operands) // 2
    operands = align(*operands)
    values, inits = operands[:half], operands[half:]
    rank = values[0].ndim - 1
    dims = _dilated_windows(op, rank)
    combiner = combiner_of(machine, op, 0)
    padding = [np.full_like(init, neutral) for init in inits] if (neutral := combiner.neutral(inits[0])) is not None else inits
    views = [windows_of(value, around, dims) for value, around in zip(values, padding, strict=True)]
    begun = [init.reshape(-1, *(1,) * rank) for init in inits]
    if not combiner.name:
        return _in_order(combiner, begun, views, dims)
    return combiner.combine(begun, reduced(combiner, views, tuple(range(rank + 1, 2 * rank + 1))))


def _in_order(combiner: Combiner, begun: list[Array], views: list[Array], dims: Sequence[Window1D]) -> list[Array]:
    """Combines each window's elements one after the other, as XLA does: a region that compares is not associative for NaN."""
    for corner in product(*(range(dim.size) for dim in dims)):
        begun = combiner.combine(begun, [view[index(..., *corner)] for view in views])
    return begun


@evaluates("stablehlo.select_and_scatter")
def select_and_scatter(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Each window selects one of its elements, which receives the window's number; the first region selects."""
    x, source, init = align(*operands)
    rank = x.ndim - 1
    dims = _dilated_windows(op, rank)
    numbers = np.arange(int(np.prod(x.shape[1:], dtype=np.int64))).reshape(1, *x.shape[1:]) + 1
    outside = np.zeros(x.shape[0], np.int64)
    places = windows_of(np.broadcast_to(numbers, x.shape), outside, dims)
    values = windows_of(x, np.zeros(x.shape[0], x.dtype), dims)
    best, chosen = None, None
    for corner in product(*(range(dim.size) for dim in dims)):
        at = index(..., *corner)
        value, place = values[at], places[at]
        if best is None or chosen is None:
            best, chosen = value, place
            continue
        keeps = run_scalars(machine, op, 0, [best, value])[0]
        takes = (place > 0) & (~keeps | (chosen == 0))
        best, chosen = np.where(takes, value, best), np.where(takes, place, chosen)
    assert chosen is not None
    result = np.broadcast_to(init.reshape(-1, *(1,) * rank), x.shape).reshape(x.shape[0], -1).copy()
    combiner = combiner_of(machine, op, 1)
    for device, place in enumerate(chosen.reshape(x.shape[0], -1)):
        combiner.scatter([result[device]], place - 1, [source[device].reshape(-1)])
    return [result.reshape(x.shape)]
