"""cuDNN's attention, as `jax.nn.dot_product_attention(implementation="cudnn")` calls it, sharded by batch and by heads.

    %0:2 = stablehlo.custom_call @__cudnn$fmhaSoftmax(%q, %k, %v) {backend_config = "{… dimensions: [8, 4, 256, 256] …}"}
        : (tensor<8x256x4x64xbf16>, …) -> (tensor<8x4x256x64xbf16>, tensor<0xui8>)
    loops: parallel along 8 sequences and 4 heads

The configuration names these dimensions of queries, keys and values. It repeats the sizes that one device computes, so the
lowering updates it.
"""

from __future__ import annotations

import json
from typing import Any

from meshbridge.ir.mlir import call_target, ir, is_custom_call
from meshbridge.ops.rule import shape_of
from meshbridge.ops.sharding_rules import Rule

FORWARD = frozenset(("__cudnn$fmhaSoftmax", "__cudnn$fmhaScaleBiasSoftmax"))
"""Supported targets. Dropout would draw the same numbers on every device, and 8-bit variants return a maximum over all elements:
those have no rule."""

_BACKWARD = "Backward"
_CONFIG, _ATTENTION, _SIZES = "backend_config", "cudnn_fmha_backend_config", "intermediate_tensor_shape"

_IN_FORWARD = ("bmm1_dot_dimension_numbers", "lhs_batch_dimensions")
_IN_BACKWARD = ("bmm1_grad_gemm1_dot_dimension_numbers", "rhs_batch_dimensions")
"""The entries of the configuration that give the batch and head dimensions of queries."""


def is_attention(op: ir.Operation) -> bool:
    """True if `op` calls a supported attention of cuDNN with a configuration as JAX writes it."""
    if not is_custom_call(op) or call_target(op).removesuffix(_BACKWARD) not in FORWARD:
        return False
    try:
        config = _read(op)[_ATTENTION]
        return _head_dim(op, config) in (1, 2) and len(config[_SIZES]["dimensions"]) == 4 == len(shape_of(op.operands[_QUERY]))
    except (ValueError, KeyError, TypeError, IndexError):  # a configuration that JAX has not written
        return False


def attention_rule(op: ir.Operation) -> Rule | None:
    """The rule of a call for which `is_attention` holds; None if one row packs several sequences, if keys are paged, or if the
    gradient of a bias is a sum over sequences or heads."""
    config = _read(op)[_ATTENTION]
    if int(config.get("max_seg_per_batch", 1)) > 1 or config.get("is_paged_attention", False):
        return None
    tensors = _Tensors(op, _head_dim(op, config))
    operands = [tensors.operand(number) for number in range(len(op.operands))]
    results = [tensors.result(number) for number in range(len(op.results))]
    if tensors.is_backward and len(results) > _GRADIENT_OF_BIAS + 1 and results[_GRADIENT_OF_BIAS][:2] != results[0][:2]:
        return None
    return Rule(operands, results)


_QUERY, _KEY, _VALUE, _GRADIENT_OF_BIAS = range(4)


class _Tensors:
    """The factors of a call's operands and results: one for the batch, one for heads, and one for each dimension that is
    gathered. Query heads that share a key head stay on one device."""

    def __init__(self, op: ir.Operation, head: int) -> None:
        self.op = op
        self.head = head
        self.is_backward = call_target(op).endswith(_BACKWARD)
        self.bias = (5 if self.is_backward else 3) if "Bias" in call_target(op) else None
        self.batch, self.heads = shape_of(op.operands[_QUERY])[0], shape_of(op.operands[_QUERY])[head]
        self.key_heads = shape_of(op.operands[_KEY])[head]

    def operand(self, number: int) -> list[tuple[str, ...]]:
        """Operands: queries, keys, values, softmax statistics (rank 3), a bias, sequence lengths (rank 1)."""
        value, name = self.op.operands[number], f"operand{number}"
        if number == self.bias:
            return self._of_bias(value, name)
        return self._factors(value, name, self.head, is_key=number in (_KEY, _VALUE))

    def result(self, number: int) -> list[tuple[str, ...]]:
        """Results: heads come before sequence positions. The last result is scratch space."""
        value, name = self.op.results[number], f"result{number}"
        if number == len(self.op.results) - 1:
            return [(name,)]
        if self.is_backward and number == _GRADIENT_OF_BIAS:
            return self._of_bias(value, name)
        return self._factors(value, name, 1, is_key=self.is_backward and number in (_KEY, _VALUE))

    def _factors(self, value: ir.Value, name: str, head: int, *, is_key: bool) -> list[tuple[str, ...]]:
        factors: list[tuple[str, ...]] = [("batch",), *((f"{name}_{dim}",) for dim in range(1, len(shape_of(value))))]
        if len(factors) > 1:
            factors[head if len(factors) == 4 else 1] = self._heads(name, is_key)
        return factors

    def _of_bias(self, value: ir.Value, name: str) -> list[tuple[str, ...]]:
        """The factors of a bias, which may be broadcast over sequences or heads."""
        shape = shape_of(value)
        sequences = ("batch",) if shape[0] == self.batch else (f"{name}_0",)
        heads = self._heads(name, is_key=False) if shape[1] == self.heads else (f"{name}_1",)
        return [sequences, heads, (f"{name}_2",), (f"{name}_3",)]

    def _heads(self, name: str, is_key: bool) -> tuple[str, ...]:
        return ("heads",) if is_key or self.heads == self.key_heads else ("heads", f"{name}_group")


def resize(op: ir.Operation) -> None:
    """Writes the operands' batch size and number of heads into the configuration of a call for which `is_attention` holds."""
    config = _read(op)
    head = _head_dim(op, config[_ATTENTION])
    query = shape_of(op.operands[_QUERY])
    config[_ATTENTION][_SIZES]["dimensions"][:2] = [str(query[0]), str(query[head])]
    op.attributes[_CONFIG] = ir.StringAttr.get(json.dumps(config), context=op.context)


def _head_dim(op: ir.Operation, config: Any) -> int:
    """The dimension of queries that holds heads."""
    product, side = _IN_BACKWARD if call_target(op).endswith(_BACKWARD) else _IN_FORWARD
    return int(config[product][side][1])


def _read(op: ir.Operation) -> Any:
    return json.loads(ir.StringAttr(op.attributes[_CONFIG]).value)
