"""Scalars, `index` included, in programs for one device: `arith` on integers, and tensors of scalars."""

from __future__ import annotations

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verification.elementwise import INTEGER, apply_binary, wrap
from meshbridge.verification.field import Array
from meshbridge.verification.machine import Evaluator, align, dtype_of, element_of, evaluates, index, integer, shape_of

_BINARY = {
    "addi": "add", "subi": "subtract", "muli": "multiply", "divsi": "divide", "remsi": "remainder", "minsi": "minimum",
    "maxsi": "maximum", "andi": "and", "ori": "or", "xori": "xor", "addf": "add", "subf": "subtract", "mulf": "multiply",
    "divf": "divide",
}  # fmt: skip
"""The StableHLO op that computes the same as an `arith` op, on more than one bit."""

_BITWISE = ("arith.andi", "arith.ori", "arith.xori")

_COMPARED = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
"""The predicates of `arith.cmpi` up to the unsigned ones."""


@evaluates(*(f"arith.{name}" for name in _BINARY))
def binary(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Combines two scalars. Arithmetic on one bit, which is modulo 2, has no evaluation here."""
    lhs, rhs = operands
    element = element_of(op.results[0])
    name = _BINARY[op.name.partition(".")[2]]
    if lhs.dtype == np.bool_ and op.name not in _BITWISE:
        raise OpError(op, "computes with i1 as with a number, which has no exact evaluation")
    assert lhs.dtype.kind == "f" or name in INTEGER
    result = apply_binary(machine.field, name, lhs, rhs, element)
    assert result is not None
    return [result]


@evaluates("arith.cmpi")
def compare(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Compares two signed integers by the predicate."""
    predicate = integer(op, "predicate")
    if predicate >= len(_COMPARED):
        raise OpError(op, "compares unsigned, which has no exact evaluation")
    lhs, rhs = operands
    return [np.asarray(_COMPARED[predicate](lhs, rhs))]


@evaluates("arith.select")
def select(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The second operand where the first holds, the third elsewhere."""
    return [np.where(*align(*operands))]


@evaluates("arith.index_cast", "arith.extsi", "arith.trunci")
def cast(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The same signed integer in another width. Raises OpError for one bit, which means -1."""
    element = element_of(op.results[0])
    if operands[0].dtype == np.bool_ or dtype_of(element) == np.bool_:
        raise OpError(op, "computes with i1 as with a number, which has no exact evaluation")
    return [wrap(operands[0].astype(dtype_of(element)), element)]


@evaluates("tensor.extract")
def extract(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """One element; each device may choose its own."""
    source, *indices = align(*operands)
    return [source[index(np.arange(source.shape[0]), *indices)]]


@evaluates("tensor.from_elements")
def from_elements(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A tensor of the operands, in row-major order."""
    values = align(*operands)
    return [np.stack(values, axis=1).reshape(values[0].shape[0], *shape_of(op.results[0]))]


@evaluates("tensor.splat")
def splat(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A tensor of one repeated number."""
    shape = shape_of(op.results[0])
    return [np.broadcast_to(operands[0].reshape(-1, *(1 for _ in shape)), (operands[0].shape[0], *shape))]
