"""Floating-point operations of kernels, as their configurations say: those of cuDNN's attention, and estimates of Pallas."""

from __future__ import annotations

import re
from math import prod

ATTENTION = "__cudnn$fmha"
"""How the targets of cuDNN's attention start."""

_BACKWARD = "Backward"
_SCORES = re.compile(r'"intermediate_tensor_shape": ?\{.*?"dimensions": ?\[([\d", ]*)\]', re.DOTALL)
_COST = re.compile(r'"cost_estimate": ?\{[^}]*"flops": ?"?(\d+)')


def attention_flops(target: str, config: str, head_size: int) -> float | None:
    """Scores and their sums of values; their gradients need the scores again and four products. Masks save nothing. None where
    the configuration does not say the shape of the scores."""
    if (scores := _SCORES.search(config)) is None:
        return None
    products = 5 if target.endswith(_BACKWARD) else 2
    return 2.0 * products * prod(map(int, re.findall(r"\d+", scores.group(1)))) * head_size


def estimated_flops(config: str) -> float | None:
    """What a kernel's author says that it computes; None where nobody does."""
    estimate = _COST.search(config)
    return float(estimate.group(1)) if estimate else None
