"""What a program computes: floating-point operations of its contractions, and elements that its other arithmetic makes.

Counted from the operations as they stand: on global shapes for the program, on shapes of shards for one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log2, prod

import numpy as np

from meshbridge.analysis.executions import Execution
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import element_of
from meshbridge.ir.locations import is_repeated
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ops.elementwise import ELEMENTWISE


@dataclass(frozen=True)
class Work:
    """`contractions`: two operations for each multiply-add of dot products and convolutions, a window over padding included.
    `elements`: one for each element that an elementwise operation makes or a reduction reads; 5 n log2 n for an FFT of n.
    """

    contractions: float = 0.0
    elements: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.contractions + other.contractions, self.elements + other.elements)

    def __sub__(self, other: Work) -> Work:
        return Work(self.contractions - other.contractions, self.elements - other.elements)

    def __truediv__(self, devices: int) -> Work:
        return Work(self.contractions / devices, self.elements / devices)


def work(executed: Iterable[Execution]) -> Work:
    """The work of all operations together, each as often as it runs."""
    contractions = elements = 0.0
    for op, times in executed:
        if (contract := _CONTRACTIONS.get(op.name)) is not None:
            contractions += times * contract(op)
        elif op.name in ELEMENTWISE:
            elements += times * _elements(op.results[0])
        elif (count := _COUNTED.get(op.name)) is not None:
            elements += times * count(op)
    return Work(contractions, elements)


def products(executed: Iterable[Execution], *, once: bool = False) -> dict[str, float]:
    """The `contractions` of `work`, by the MLIR element type of the operands; if `once`, without those that are computed again to
    save memory."""
    found: dict[str, float] = {}
    for op, times in executed:
        if (contract := _CONTRACTIONS.get(op.name)) is not None and not (once and is_repeated(op)):
            kind = str(element_of(op.operands[0]))
            found[kind] = found.get(kind, 0.0) + times * contract(op)
    return found


def amount(executed: Sequence[Execution]) -> float:
    """One figure for the work of operations: by that the most expensive branch is chosen."""
    done = work(executed)
    return done.contractions + done.elements


def _shape(value: ir.Value) -> list[int]:
    """Sizes that only a run knows count as 0."""
    return [max(size, 0) for size in ir.RankedTensorType(value.type).shape]


def _elements(value: ir.Value) -> float:
    return float(prod(_shape(value))) if isinstance(value.type, ir.RankedTensorType) else 1.0


def _dot_general(op: ir.Operation) -> float:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left = _shape(op.operands[0])
    return 2.0 * _elements(op.results[0]) * prod(left[dim] for dim in numbers.lhs_contracting_dimensions)


def _dot(op: ir.Operation) -> float:
    return 2.0 * _elements(op.results[0]) * _shape(op.operands[0])[-1]


def _convolution(op: ir.Operation) -> float:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel = _shape(op.operands[1])
    return 2.0 * _elements(op.results[0]) * prod(kernel) / max(kernel[numbers.kernel_output_feature_dimension], 1)


def _fft(op: ir.Operation) -> float:
    length = prod(integers(op.attributes["fft_length"]))
    return 5.0 * max(map(_elements, (op.operands[0], op.results[0]))) * log2(max(length, 1))


def _window(op: ir.Operation) -> float:
    return _elements(op.results[0]) * float(np.prod(integers(op.attributes["window_dimensions"])))


_CONTRACTIONS: dict[str, Callable[[ir.Operation], float]] = {
    "stablehlo.dot_general": _dot_general,
    "stablehlo.dot": _dot,
    "stablehlo.convolution": _convolution,
}

_COUNTED: dict[str, Callable[[ir.Operation], float]] = {
    "stablehlo.fft": _fft,
    "stablehlo.reduce": lambda op: _elements(op.operands[0]),
    "stablehlo.reduce_window": _window,
    "stablehlo.scatter": lambda op: _elements(op.operands[len(op.operands) - 1]),
}
