"""Splits complex constants into two real ones, and copies cheap values for each use."""

from __future__ import annotations

import re

import numpy as np

from meshbridge.ir.mlir import SHARDING_GROUP, ir, stablehlo
from meshbridge.legalize.table import Legalizer, replaces, rewrites


def _is_complex(op: ir.Operation) -> bool:
    kind = op.results[0].type
    return isinstance(kind, ir.RankedTensorType) and isinstance(kind.element_type, ir.ComplexType)


@replaces("stablehlo.constant", where=_is_complex)
def complex_constants(op: ir.Operation) -> list[ir.Value]:
    """Builds a complex constant from two real ones: the bindings cannot read complex `dense` attributes in Python.

    Input:   %c = stablehlo.constant dense<(0.0, 1.0)> : tensor<8xcomplex<f32>>
    Output:  %re = stablehlo.constant dense<0.0> : tensor<8xf32>
             %im = stablehlo.constant dense<1.0> : tensor<8xf32>
             %c = stablehlo.complex %re, %im : tensor<8xcomplex<f32>>
    """
    return [stablehlo.complex(*(stablehlo.constant(part) for part in _parts(op)))]


_VALUE = re.compile(r"value = (dense<.*>) : tensor<")
_BYTES = re.compile(r'dense<"0x([0-9A-Fa-f]*)">')
_PAIR = re.compile(r"\(([^,()]*),([^,()]*)\)")


def _parts(op: ir.Operation) -> list[ir.Attribute]:
    """The real and the imaginary parts of a complex constant, as `dense` attributes."""
    tensor = ir.RankedTensorType(op.results[0].type)
    element = ir.ComplexType(tensor.element_type).element_type
    part = ir.RankedTensorType.get(list(tensor.shape), element)
    printed = _VALUE.search(str(op.get_asm(print_generic_op_form=True)))
    assert printed is not None, "a constant prints its value"
    text = printed.group(1)
    if in_bytes := _BYTES.fullmatch(text):  # as large constants print
        numbers = np.frombuffer(bytes.fromhex(in_bytes.group(1)), f"f{ir.FloatType(element).width // 8}")
        texts = [f'dense<"0x{numbers[offset::2].tobytes().hex().upper()}">' for offset in (0, 1)]
    else:
        texts = [_PAIR.sub(group, text) for group in (r"\1", r"\2")]
    return [ir.Attribute.parse(f"{text} : {part}") for text in texts]


def _is_shared(op: ir.Operation) -> bool:
    """True if a cheap op has several readers."""
    uses = iter(op.results[0].uses)
    return next(uses, None) is not None and next(uses, None) is not None and _is_free(op) and len(_readers(op)) > 1


def _readers(op: ir.Operation) -> list[ir.OpOperand]:
    """The uses of a value, without its memberships in sharding groups."""
    return [use for use in op.results[0].uses if use.owner.operation.name != SHARDING_GROUP]


def _is_free(op: ir.Operation) -> bool:
    if op.name == "stablehlo.constant":
        value = op.attributes["value"]
        return ir.RankedTensorType(op.results[0].type).rank > 0 and isinstance(value, ir.DenseElementsAttr) and value.is_splat
    if op.name == "stablehlo.broadcast_in_dim":
        return ir.RankedTensorType(op.operands[0].type).rank == 0
    return op.name == "stablehlo.iota"


@rewrites("stablehlo.constant", "stablehlo.broadcast_in_dim", "stablehlo.iota", where=_is_shared)
def split_constants(op: ir.Operation, rewriter: Legalizer) -> bool:
    """Gives every use of a splat constant, an iota or a broadcast scalar its own copy, which can be sharded independently.

    Input:   %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
             "use"(%0), "use"(%0)
    Output:  %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
             %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
             "use"(%0), "use"(%1)

    A value whose uses need different shardings would be resharded. Each copy is in the sharding groups of the value.
    """
    memberships = [owner for use in op.results[0].uses if (owner := use.owner.operation).name == SHARDING_GROUP]
    for use in _readers(op)[1:]:
        copy = op.clone().operation
        use.owner.operation.operands[use.operand_number] = copy.results[0]
        for membership in memberships:
            membership.clone(ip=ir.InsertionPoint(membership)).operation.operands[0] = copy.results[0]
    return True
