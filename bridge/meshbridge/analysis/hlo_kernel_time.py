"""Time of single kernels of a GPU, for computations that XLA's scheduler does not time: loops and branches without collectives.

XLA writes the estimate that its scheduler uses into fusions and calls of libraries, if the module is compiled with `COST_OPTION`.
A roofline prices what has no such estimate: copies, sorts, scatters, and other calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from meshbridge.analysis.hlo import Computation, HloModule, Instruction
from meshbridge.analysis.hlo_flops import kernel_flops

COST_OPTION = "xla_gpu_collect_cost_model_stats"
"""XLA's option that writes estimates into instructions. It changes nothing else."""

Roofline = Callable[[float, str, float], float]
"""Microseconds of a kernel: of its FLOPs, the HLO element type of its operands, and the bytes that it reads and writes."""

_ESTIMATE = re.compile(r'"exec_time_us":([\d.e+-]+)[^}]*"name":"sol"')
"""An instruction has estimates of several models. The scheduler's is the speed-of-light one."""

_FREE = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "add-dependency", "opt-barrier",
    "optimization-barrier", "partition-id", "replica-id", "while", "conditional", "call", "async-update", "async-done",
    "copy-done",
})  # fmt: skip
"""Opcodes that run no kernel: they name values, or run computations that count by themselves."""


def kernel_time(module: HloModule, computation: Computation, op: Instruction, roofline: Roofline) -> float | None:
    """Microseconds of one instruction of a computation that is not inlined; None if nothing is known of its kernel."""
    if op.opcode in _FREE:
        return 0.0
    if estimate := _ESTIMATE.search(op.attributes):
        return float(estimate.group(1))
    if op.opcode == "fusion" or (flops := kernel_flops(module, computation, op)) is None:
        return None
    read = [computation.instructions[name] for name in op.operands if name in computation.instructions]
    element = next((array.element for operand in read for array in operand.arrays), "")
    return roofline(flops, element, op.bytes + sum(operand.bytes for operand in read))
