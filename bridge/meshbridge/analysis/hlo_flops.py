"""Floating-point operations of one device's dot products and convolutions, from its optimised HLO.

| written as | by the compiler for |
|---|---|
| `dot`, also in fusions | CPU, GPU |
| `convolution` | CPU, TPU: dot products as well, their batches and other dimensions as windows over padding or holes |
| custom calls of cuBLAS and cuDNN, oneDNN's on CPU | GPU, CPU |
| kernels of users, with or without an estimate | GPU, TPU |
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from meshbridge.analysis.hlo import Array, Computation, HloError, HloModule, Instruction
from meshbridge.analysis.hlo_executions import Executions
from meshbridge.analysis.hlo_schedule import MARKS
from meshbridge.analysis.kernel_flops import ATTENTION, attention_flops, estimated_flops


@dataclass(frozen=True)
class Flops:
    """Two for each multiply-add."""

    total: float
    widened: float
    "The flops of products of 16-bit floats with 32-bit results."
    uncounted: tuple[str, ...]
    "Custom calls that may compute products without a known number of flops."


def flops(module: HloModule) -> float:
    """The total of `count_flops`."""
    return count_flops(module).total


def count_flops(module: HloModule) -> Flops:
    """Loop bodies count by their trip count, and the most expensive branch counts. A window over padding counts like any other.

    Raises HloError for a product whose sizes it cannot read.
    """
    uncounted: dict[str, None] = {}

    def of(computation: Computation, op: Instruction) -> float:
        counted = kernel_flops(module, computation, op)
        if counted is None:
            uncounted[f"{op.name} ({op.attribute('custom_call_target')})"] = None
        return counted or 0.0

    total = widened = 0.0
    for computation, op, times in Executions(module).of(of):
        if counted := of(computation, op):
            total += times * counted
            widened += times * counted if _is_widened(computation, op) else 0.0
    return Flops(total, widened, tuple(uncounted))


def kernel_flops(module: HloModule, computation: Computation, op: Instruction) -> float | None:
    """FLOPs of one instruction, without the computations that it calls. None for a kernel without an estimate.

    Raises HloError for a product whose sizes it cannot read.
    """
    counter = _COUNTERS.get(op.opcode)
    return counter(module, computation, op) if counter else 0.0


def _is_widened(computation: Computation, op: Instruction) -> bool:
    """Whether it multiplies 16-bit floats into 32-bit ones. A kernel may read nothing."""
    return bool(op.operands) and op.arrays[0].element == "f32" and _operand(computation, op, 0).element in ("bf16", "f16")


_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_CALL_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([\d",]*)\]')
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")


def _operand(computation: Computation, op: Instruction, number: int) -> Array:
    return computation.instructions[op.operands[number]].arrays[0]


def _matched(pattern: re.Pattern[str], op: Instruction, what: str) -> re.Match[str]:
    match = pattern.search(op.attributes)
    if match is None:
        raise HloError(f"%{op.name} does not say {what}: {op.attributes[:200]!r}")
    return match


def _product(contracted: re.Pattern[str]) -> Callable[[HloModule, Computation, Instruction], float]:
    def count(_: HloModule, computation: Computation, op: Instruction) -> float:
        lhs_shape = _operand(computation, op, 0).shape
        dimensions = re.findall(r"\d+", _matched(contracted, op, "what it contracts").group(1))
        return 2.0 * prod(op.arrays[0].shape) * prod(lhs_shape[int(dimension)] for dimension in dimensions)

    return count


def _convolution(module: HloModule, computation: Computation, op: Instruction) -> float:
    labels = _matched(_LABELS, op, "its dim_labels")
    image, kernel = (_operand(computation, op, number).shape for number in (0, 1))
    spatial = sorted(set(labels.group(2)) - {"i", "o"}, key=int)
    taps = [
        _taps(op, int(number), image[labels.group(1).index(number)], op.arrays[0].shape[labels.group(3).index(number)])
        if module.tiled
        else kernel[labels.group(2).index(number)]
        for number in spatial
    ]
    return 2.0 * prod(op.arrays[0].shape) * kernel[labels.group(2).index("i")] * prod(taps)


def _taps(op: Instruction, number: int, image: int, result: int) -> float:
    """Elements under the window along one dimension. If each position has the same number of elements that are neither padding
    nor holes, that number: the TPU's compiler writes dimensions of dot products so. If not, all but the holes.
    """
    window = op.braced("window")

    def field(name: str, default: str) -> list[int]:
        match = re.search(rf"\b{name}=(\S+)", window)
        return [int(bound) for bound in (match.group(1).split("x")[number] if match else default).split("_")]

    (size,), (stride,), pad = field("size", "1"), field("stride", "1"), field("pad", "0_0")
    (holes,), (spread,) = field("lhs_dilate", "1"), field("rhs_dilate", "1")
    elements = _elements(size, stride, pad[0], holes, spread, image, result)
    return elements if elements is not None else size / holes


@lru_cache(maxsize=1 << 12)
def _elements(size: int, stride: int, pad: int, holes: int, spread: int, image: int, result: int) -> int | None:
    """The number of elements of the image under each position of a window; None if that differs."""
    counts = {_inside(position * stride - pad, size, holes, spread, (image - 1) * holes) for position in range(result)}
    return counts.pop() if len(counts) == 1 else None


def _inside(start: int, size: int, holes: int, spread: int, end: int) -> int:
    """How many of `size` positions, `spread` apart from `start` on, are multiples of `holes` between 0 and `end`."""
    if holes == 1:
        return max(0, min(size - 1, (end - start) // spread) - max(0, -(start // spread)) + 1)
    if spread == 1:
        return max(0, min(start + size - 1, end) // holes - -(-max(start, 0) // holes) + 1)
    return sum(0 <= position <= end and position % holes == 0 for position in range(start, start + size * spread, spread))


def _custom_call(module: HloModule, computation: Computation, op: Instruction) -> float | None:
    """None for a kernel without an estimate."""
    target = op.attribute("custom_call_target") or ""
    counter = next((count for prefix, count in _LIBRARY.items() if target.startswith(prefix)), None)
    if counter is not None:
        return counter(module, computation, op)
    if target in MARKS:
        return 0.0
    return estimated_flops(op.attributes)


def _library_convolution(of: str) -> Callable[[HloModule, Computation, Instruction], float]:
    """cuDNN's: labels and window are those of the forward convolution, `of` names operands and result by their roles in it."""

    def count(_: HloModule, computation: Computation, op: Instruction) -> float:
        kernel_labels = _matched(_LABELS, op, "its dim_labels").group(2)
        shapes = dict(
            zip(of, (_operand(computation, op, 0).shape, _operand(computation, op, 1).shape, op.arrays[0].shape), strict=True)
        )
        kernel = shapes["k"]
        return 2.0 * prod(shapes["y"]) * prod(kernel) / kernel[kernel_labels.index("o")]

    return count


def _library_attention(_: HloModule, computation: Computation, op: Instruction) -> float:
    target, head_size = op.attribute("custom_call_target") or "", _operand(computation, op, 0).shape[-1]
    if (flops_of_call := attention_flops(target, op.attributes, head_size)) is None:
        raise HloError(f"%{op.name} does not say the shape of its scores: {op.attributes[:200]!r}")
    return flops_of_call


_LIBRARY: dict[str, Callable[[HloModule, Computation, Instruction], float]] = {
    "__cublas$gemm": _product(_CALL_CONTRACTED),
    "__cublas$lt$matmul": _product(_CALL_CONTRACTED),
    "__onednn$matmul": _product(_CALL_CONTRACTED),
    "__cudnn$convForward": _library_convolution("xky"),
    "__cudnn$convBiasActivationForward": _library_convolution("xky"),
    "__cudnn$convBackwardInput": _library_convolution("ykx"),
    "__cudnn$convBackwardFilter": _library_convolution("xyk"),
    ATTENTION: _library_attention,
}
"""Custom calls of libraries, by the beginning of their targets: x is the convolved image, k the kernel, y the result."""

_COUNTERS: dict[str, Callable[[HloModule, Computation, Instruction], float | None]] = {
    "dot": _product(_CONTRACTED),
    "convolution": _convolution,
    "custom-call": _custom_call,
}
