"""The computation of a program: floating-point operations of contractions, and elements of other arithmetic.

Counted from the operations: on global shapes for the program, on shapes of shards for one device.
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
from meshbridge.ir.locations import is_rematerialized
from meshbridge.ir.mlir import CUSTOM_CALL, call_target, ir, is_custom_call, stablehlo
from meshbridge.ir.registry import Registry
from meshbridge.ops.traits import Trait, has


@dataclass(frozen=True)
class OpWork:
    """`contractions`: two operations per multiply-add of dot products and convolutions, windows over padding included, and the
    estimates that kernels carry. `elements`: one per element that an elementwise operation writes or a reduction reads; 5 n log2
    n for an FFT of n."""

    contractions: float = 0.0
    elements: float = 0.0

    def __add__(self, addend: OpWork) -> OpWork:
        return OpWork(self.contractions + addend.contractions, self.elements + addend.elements)

    def __sub__(self, subtrahend: OpWork) -> OpWork:
        return OpWork(self.contractions - subtrahend.contractions, self.elements - subtrahend.elements)

    def __truediv__(self, devices: int) -> OpWork:
        return OpWork(self.contractions / devices, self.elements / devices)


_CONTRACTIONS: Registry[str, Callable[[ir.Operation], float]] = Registry("count of FLOPs")
"""By op, its `contractions`."""

_COUNTED: Registry[str, Callable[[ir.Operation], float]] = Registry("count of elements")
"""By op that is not elementwise, its `elements`."""


def work(executed: Iterable[Execution]) -> OpWork:
    """The work of all operations, each times its executions."""
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
    """The `contractions` of `work` by the MLIR element type of the operands; if `once`, without rematerialized ones."""
    totals: dict[str, float] = {}
    for op, times in executed:
        contract = _CONTRACTIONS.get(op.name)
        if contract is not None and not (once and is_rematerialized(op)) and (count := contract(op)):
            kind = _multiplied(op)
            totals[kind] = totals.get(kind, 0.0) + times * count
    return totals


def _multiplied(op: ir.Operation) -> str:
    """The element type of the multiplied operands. A kernel may have integer operands before its tensors."""
    kinds = [str(element_of(operand)) for operand in op.operands if isinstance(operand.type, ir.RankedTensorType)]
    return next((kind for kind in kinds if op.name != CUSTOM_CALL or kind.startswith(("f", "bf"))), kinds[0] if kinds else "f32")


def amount(executed: Sequence[Execution]) -> float:
    """The work of operations as one number, to find the most expensive branch."""
    done = work(executed)
    return done.contractions + done.elements


def _shape(value: ir.Value) -> list[int]:
    """The shape, with 0 for unknown sizes."""
    return [max(size, 0) for size in ir.RankedTensorType(value.type).shape]


def _elements(value: ir.Value) -> float:
    return float(prod(_shape(value))) if isinstance(value.type, ir.RankedTensorType) else 1.0


@_CONTRACTIONS.register("stablehlo.dot_general")
def _dot_general(op: ir.Operation) -> float:
    """A multiplication and an addition per element of the result and of the contracted dimensions."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    lhs = _shape(op.operands[0])
    return 2.0 * _elements(op.results[0]) * prod(lhs[dim] for dim in numbers.lhs_contracting_dimensions)


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
    """Operations of the radix-2 algorithm."""
    length = prod(integers(op.attributes["fft_length"]))
    return 5.0 * max(map(_elements, (op.operands[0], op.results[0]))) * log2(max(length, 1))


@_COUNTED.register("stablehlo.reduce")
def _reduce(op: ir.Operation) -> float:
    """One per reduced element."""
    return _elements(op.operands[0])


@_COUNTED.register("stablehlo.reduce_window")
def _window(op: ir.Operation) -> float:
    """One per element of each window."""
    return _elements(op.results[0]) * float(np.prod(integers(op.attributes["window_dimensions"])))


@_COUNTED.register("stablehlo.scatter")
def _scatter(op: ir.Operation) -> float:
    """One per element of the updates."""
    return _elements(op.operands[len(op.operands) - 1])


@_CONTRACTIONS.register(CUSTOM_CALL)
def _custom_call(op: ir.Operation) -> float:
    """The estimate that a kernel carries; 0 if it carries none."""
    config = op.attributes.get("backend_config", None)
    if not is_custom_call(op) or not isinstance(config, ir.StringAttr):
        return 0.0
    if (target := call_target(op)).startswith(ATTENTION):
        return attention_flops(target, config.value, _shape(op.operands[0])[-1]) or 0.0
    return estimated_flops(config.value) or 0.0
