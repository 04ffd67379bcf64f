"""What a program computes: floating-point operations of its contractions, and elements that its other arithmetic makes.

Counted from the operations as they stand: on global shapes for the program, on shapes of shards for one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import log2, prod

import numpy as np

from meshbridge.analysis.executions import Execution
from meshbridge.analysis.kernel_flops import ATTENTION, attention_flops, estimated_flops
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import element_of
from meshbridge.ir.locations import is_repeated
from meshbridge.ir.mlir import CUSTOM_CALL, call_target, ir, is_custom_call, stablehlo
from meshbridge.ir.registry import Registry
from meshbridge.ops.traits import Trait, has


@dataclass(frozen=True)
class OpWork:
    """`contractions`: two operations for each multiply-add of dot products and convolutions, a window over padding included, and
    what kernels say that they compute.
    `elements`: one for each element that an elementwise operation makes or a reduction reads; 5 n log2 n for an FFT of n.
    """

    contractions: float = 0.0
    elements: float = 0.0

    def __add__(self, other: OpWork) -> OpWork:
        return OpWork(self.contractions + other.contractions, self.elements + other.elements)

    def __sub__(self, other: OpWork) -> OpWork:
        return OpWork(self.contractions - other.contractions, self.elements - other.elements)

    def __truediv__(self, devices: int) -> OpWork:
        return OpWork(self.contractions / devices, self.elements / devices)


_CONTRACTIONS: Registry[str, Callable[[ir.Operation], float]] = Registry("count of FLOPs")
"""By op, its `contractions`."""

_COUNTED: Registry[str, Callable[[ir.Operation], float]] = Registry("count of elements")
"""By op that is not elementwise, its `elements`."""


def work(executed: Iterable[Execution]) -> OpWork:
    """The work of all operations together, each as often as it runs."""
    contractions = elements = 0.0
    for op, times in executed:
        if (contract := _CONTRACTIONS.get(op.name)) is not None:
            contractions += times * contract(op)
        elif has(op.name, Trait.ELEMENTWISE):
            elements += times * _elements(op.results[0])
        elif (count := _COUNTED.get(op.name)) is not None:
            elements += times * count(op)
    return OpWork(contractions, elements)


def products(executed: Iterable[Execution], *, once: bool = False) -> dict[str, float]:
    """The `contractions` of `work`, by the MLIR element type of the operands; if `once`, without those that are computed again to
    save memory."""
    found: dict[str, float] = {}
    for op, times in executed:
        contract = _CONTRACTIONS.get(op.name)
        if contract is not None and not (once and is_repeated(op)) and (count := contract(op)):
            kind = _multiplied(op)
            found[kind] = found.get(kind, 0.0) + times * count
    return found


def _multiplied(op: ir.Operation) -> str:
    """The element type of what is multiplied. A kernel may read numbers of rows and the like before its tensors."""
    kinds = [str(element_of(operand)) for operand in op.operands if isinstance(operand.type, ir.RankedTensorType)]
    return next((kind for kind in kinds if op.name != CUSTOM_CALL or kind.startswith(("f", "bf"))), kinds[0] if kinds else "f32")


def amount(executed: Sequence[Execution]) -> float:
    """One figure for the work of operations: by that the most expensive branch is chosen."""
    done = work(executed)
    return done.contractions + done.elements


def _shape(value: ir.Value) -> list[int]:
    """Sizes that only a run knows count as 0."""
    return [max(size, 0) for size in ir.RankedTensorType(value.type).shape]


def _elements(value: ir.Value) -> float:
    return float(prod(_shape(value))) if isinstance(value.type, ir.RankedTensorType) else 1.0


@_CONTRACTIONS.register("stablehlo.dot_general")
def _dot_general(op: ir.Operation) -> float:
    """A multiplication and an addition for each element of the result and of what is contracted."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    left = _shape(op.operands[0])
    return 2.0 * _elements(op.results[0]) * prod(left[dim] for dim in numbers.lhs_contracting_dimensions)


@_CONTRACTIONS.register("stablehlo.dot")
def _dot(op: ir.Operation) -> float:
    """The same: the last dimension of the left operand is contracted."""
    return 2.0 * _elements(op.results[0]) * _shape(op.operands[0])[-1]


@_CONTRACTIONS.register("stablehlo.convolution")
def _convolution(op: ir.Operation) -> float:
    """The same: each element of the result reads a window of all input features."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    kernel = _shape(op.operands[1])
    return 2.0 * _elements(op.results[0]) * prod(kernel) / max(kernel[numbers.kernel_output_feature_dimension], 1)


@_COUNTED.register("stablehlo.fft")
def _fft(op: ir.Operation) -> float:
    """Those of the radix-2 algorithm."""
    length = prod(integers(op.attributes["fft_length"]))
    return 5.0 * max(map(_elements, (op.operands[0], op.results[0]))) * log2(max(length, 1))


@_COUNTED.register("stablehlo.reduce")
def _reduce(op: ir.Operation) -> float:
    """One for each element that is reduced."""
    return _elements(op.operands[0])


@_COUNTED.register("stablehlo.reduce_window")
def _window(op: ir.Operation) -> float:
    """One for each element of each window."""
    return _elements(op.results[0]) * float(np.prod(integers(op.attributes["window_dimensions"])))


@_COUNTED.register("stablehlo.scatter")
def _scatter(op: ir.Operation) -> float:
    """One for each element of the updates."""
    return _elements(op.operands[len(op.operands) - 1])


@_CONTRACTIONS.register(CUSTOM_CALL)
def _custom_call(op: ir.Operation) -> float:
    """Nothing for a kernel that does not say what it computes."""
    config = op.attributes.get("backend_config", None)
    if not is_custom_call(op) or not isinstance(config, ir.StringAttr):
        return 0.0
    if (target := call_target(op)).startswith(ATTENTION):
        return attention_flops(target, config.value, _shape(op.operands[0])[-1]) or 0.0
    return estimated_flops(config.value) or 0.0
