"""Calls of cuDNN's attention: a sequence of the batch and a head of keys of a result depend on that sequence and head alone."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from meshbridge.ir.mlir import ir
from meshbridge.verification.field import Array
from meshbridge.verification.machine import shape_of

ATTENTION = re.compile(r"__cudnn\$fmha(ScaleBias)?Softmax(Backward)?")
"""Targets that draw no random numbers and have no result of all elements."""


def by_heads(op: ir.Operation, target: str, operands: list[Array]) -> tuple[str, list[Array], list[tuple[int, ...]]] | None:
    """The call without the number of sequences and heads, its operands by sequence and head of keys, and the shapes of its
    results in that order. None if a result mixes sequences or heads, or if these cannot be told apart."""
    is_backward = target.endswith("Backward")
    product, side = ("bmm1_grad_gemm1", "rhs") if is_backward else ("bmm1", "lhs")
    try:
        config: Any = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
        settings = config["cudnn_fmha_backend_config"]
        head = int(settings[f"{product}_dot_dimension_numbers"][f"{side}_batch_dimensions"][1])
        settings["intermediate_tensor_shape"]["dimensions"] = settings["intermediate_tensor_shape"]["dimensions"][2:]
    except (ValueError, KeyError, TypeError, IndexError):  # a configuration that somebody else has written
        return None
    if int(settings.get("max_seg_per_batch", 1)) > 1 or settings.get("is_paged_attention", False):
        return None
    batch, heads, keys = operands[0].shape[1], operands[0].shape[1 + head], operands[1].shape[1 + head]
    bias = (5 if is_backward else 3) if "Bias" in target else None
    shapes = []
    for result in op.results:
        shape = tuple(shape_of(result))
        if len(shape) > 1 and (shape[0] != batch or shape[1] not in (heads, keys)):
            return None
        shapes.append((batch, keys, *((shape[1] // keys, *shape[2:]) if len(shape) > 1 else (0,))))

    def ordered(number: int, value: Array) -> Array:
        if value.ndim == 2:  # a length for each sequence
            return np.broadcast_to(value[:, :, None, None], (*value.shape[:2], keys, 1))
        value = np.moveaxis(value, 1 + head if value.ndim == 5 and number != bias else 2, 2)
        if number == bias:
            value = np.broadcast_to(value, (len(value), batch, heads, *value.shape[3:]))
        return value.reshape(*value.shape[:2], keys, value.shape[2] // keys, *value.shape[3:])

    return json.dumps(config), [ordered(*pair) for pair in enumerate(operands)], shapes
