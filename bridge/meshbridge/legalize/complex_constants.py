"""Takes complex constants apart: the bindings cannot hand a complex `dense` attribute to Python, so its text is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.passes import RewritePass, register


@register
@dataclass(frozen=True)
class ComplexConstants(RewritePass):
    """Makes each complex constant out of two real ones.

    Input:   %c = stablehlo.constant dense<(0.0, 1.0)> : tensor<8xcomplex<f32>>
    Output:  %re = stablehlo.constant dense<0.0> : tensor<8xf32>
             %im = stablehlo.constant dense<1.0> : tensor<8xf32>
             %c = stablehlo.complex %re, %im : tensor<8xcomplex<f32>>
    """

    name: ClassVar[str] = "complex-constants"
    rewrites: ClassVar[frozenset[str]] = frozenset({"stablehlo.constant"})

    def rewrite(self, module: ir.Module, ops: list[ir.Operation]) -> bool:
        found = [op for op in ops if _is_complex(op.results[0].type)]
        for op in found:
            with ir.InsertionPoint(op), op.location:
                parts = [stablehlo.constant(part) for part in _parts(op)]
                op.results[0].replace_all_uses_with(stablehlo.complex(*parts))
            op.erase()
        return bool(found)


def _is_complex(of: ir.Type) -> bool:
    return isinstance(of, ir.RankedTensorType) and isinstance(ir.RankedTensorType(of).element_type, ir.ComplexType)


_VALUE = re.compile(r"value = (dense<.*>) : tensor<")
_BYTES = re.compile(r'dense<"0x([0-9A-Fa-f]*)">')
_PAIR = re.compile(r"\(([^,()]*),([^,()]*)\)")


def _parts(op: ir.Operation) -> list[ir.Attribute]:
    """The real and the imaginary parts of a complex constant, as `dense` attributes."""
    tensor = ir.RankedTensorType(op.results[0].type)
    element = ir.ComplexType(tensor.element_type).element_type
    part = ir.RankedTensorType.get(list(tensor.shape), element)
    found = _VALUE.search(str(op.get_asm(print_generic_op_form=True)))
    assert found is not None, "a constant prints its value"
    text = found.group(1)
    if in_bytes := _BYTES.fullmatch(text):  # as large constants print
        numbers = np.frombuffer(bytes.fromhex(in_bytes.group(1)), f"f{ir.FloatType(element).width // 8}")
        texts = [f'dense<"0x{numbers[offset::2].tobytes().hex().upper()}">' for offset in (0, 1)]
    else:
        texts = [_PAIR.sub(group, text) for group in (r"\1", r"\2")]
    return [ir.Attribute.parse(f"{text} : {part}") for text in texts]
