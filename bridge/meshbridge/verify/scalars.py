"""Scalars, `index` among them, of programs for one device: `arith` on integers, and tensors made of scalars."""

from __future__ import annotations

import numpy as np

from meshbridge.ir.mlir import OpError, ir
from meshbridge.verify.elementwise import INTEGER, apply_binary, wrap
from meshbridge.verify.field import Array
from meshbridge.verify.machine import Evaluator, align, dtype_of, element_of, evaluates, index, integer, shape_of

_BINARY = {
    "addi": "add", "subi": "subtract", "muli": "multiply", "divsi": "divide", "remsi": "remainder", "minsi": "minimum",
    "maxsi": "maximum", "andi": "and", "ori": "or", "xori": "xor", "addf": "add", "subf": "subtract", "mulf": "multiply",
    "divf": "divide",
}  # fmt: skip
"""Ops of `arith` to those of StableHLO that compute the same, on all but one bit."""

_BITWISE = ("arith.andi", "arith.ori", "arith.xori")

_COMPARED = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
"""The predicates of `arith.cmpi` up to the unsigned ones."""


@evaluates(*(f"arith.{name}" for name in _BINARY))
def binary(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Two scalars combined; the arithmetic of one bit, which is modulo 2, has no evaluation here."""
    left, right = operands
    element = element_of(op.results[0])
    name = _BINARY[op.name.partition(".")[2]]
    if left.dtype == np.bool_ and op.name not in _BITWISE:
        raise OpError(op, "computes with i1 as with a number, which has no exact evaluation")
    assert left.dtype.kind == "f" or name in INTEGER
    found = apply_binary(machine.field, name, left, right, element)
    assert found is not None
    return [found]


@evaluates("arith.cmpi")
def compare(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Whether two signed integers compare as the predicate says."""
    predicate = integer(op, "predicate")
    if predicate >= len(_COMPARED):
        raise OpError(op, "compares unsigned, which has no exact evaluation")
    left, right = operands
    return [np.asarray(_COMPARED[predicate](left, right))]


@evaluates("arith.select")
def select(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The second operand where the first holds, else the third."""
    return [np.where(*align(*operands))]


@evaluates("arith.index_cast", "arith.extsi", "arith.trunci")
def cast(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The same signed integer in another width. Raises OpError for one bit, which is -1."""
    element = element_of(op.results[0])
    if operands[0].dtype == np.bool_ or dtype_of(element) == np.bool_:
        raise OpError(op, "computes with i1 as with a number, which has no exact evaluation")
    return [wrap(operands[0].astype(dtype_of(element)), element)]


@evaluates("tensor.extract")
def extract(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """One element, which each device may choose for itself."""
    source, *indices = align(*operands)
    return [source[index(np.arange(source.shape[0]), *indices)]]


@evaluates("tensor.from_elements")
def from_elements(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A tensor of the operands, in row-major order."""
    values = align(*operands)
    return [np.stack(values, axis=1).reshape(values[0].shape[0], *shape_of(op.results[0]))]


@evaluates("tensor.splat")
def splat(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """A tensor of one number."""
    shape = shape_of(op.results[0])
    return [np.broadcast_to(operands[0].reshape(-1, *(1 for _ in shape)), (operands[0].shape[0], *shape))]
