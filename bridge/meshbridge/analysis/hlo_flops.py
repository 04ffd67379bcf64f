"""Floating-point operations of the dot products and convolutions that one device runs, from its optimised HLO."""

from __future__ import annotations

import re
from math import prod

from meshbridge.analysis.hlo import Computation, HloError, HloModule, Instruction
from meshbridge.analysis.hlo_executions import Executions

_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->\w+")


def flops(module: HloModule) -> float:
    """Two for each multiply-add, loop bodies as often as they run, of branches the most expensive one. A window over padding
    counts like any other."""
    return float(sum(times * _of(computation, op) for computation, op, times in Executions(module).of(_of)))


def _of(computation: Computation, op: Instruction) -> float:
    counter = _COUNTERS.get(op.opcode)
    return counter(computation, op) if counter else 0.0


def _dot(computation: Computation, op: Instruction) -> float:
    contracted = _CONTRACTED.search(op.attributes)
    if contracted is None:
        raise HloError(f"%{op.name} does not say what it contracts: {op.attributes[:200]!r}")
    left = computation.instructions[op.operands[0]].arrays[0].shape
    depth = prod(left[int(dimension)] for dimension in contracted.group(1).split(",") if dimension)
    return 2.0 * prod(op.arrays[0].shape) * depth


def _convolution(computation: Computation, op: Instruction) -> float:
    labels = _LABELS.search(op.attributes)
    if labels is None:
        raise HloError(f"%{op.name} has no dim_labels: {op.attributes[:200]!r}")
    kernel = computation.instructions[op.operands[1]].arrays[0].shape
    outputs = kernel[labels.group(1).index("o")]
    return 2.0 * prod(op.arrays[0].shape) * prod(kernel) / outputs


_COUNTERS = {"dot": _dot, "convolution": _convolution}
