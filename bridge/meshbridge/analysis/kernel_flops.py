"""Floating-point operations of kernels, from their configurations: those of cuDNN's attention, and Pallas's estimates."""

from __future__ import annotations

import re
from math import prod

ATTENTION = "__cudnn$fmha"
"""The beginning of the targets of cuDNN's attention."""

_BACKWARD = "Backward"
_SCORES = re.compile(r'"intermediate_tensor_shape": ?\{.*?"dimensions": ?\[([\d", ]*)\]', re.DOTALL)
_COST = re.compile(r'"cost_estimate": ?\{[^}]*"flops": ?"?(\d+)')


def attention_flops(target: str, config: str, head_size: int) -> float | None:
    """The flops of the scores and of their products with values; gradients need the scores again and four products. Masks save
    nothing. None if the configuration does not have the shape of the scores."""
    if (scores := _SCORES.search(config)) is None:
        return None
    products = 5 if target.endswith(_BACKWARD) else 2
    return 2.0 * products * prod(map(int, re.findall(r"\d+", scores.group(1)))) * head_size


def estimated_flops(config: str) -> float | None:
    """The author's estimate of a kernel; None if there is none."""
    estimate = _COST.search(config)
    return float(estimate.group(1)) if estimate else None
