"""Ops that run regions and functions: while, case, if, calls, composites."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshbridge.ir.mlir import OpError, ir, walk
from meshbridge.verification.elementwise import spread
from meshbridge.verification.field import Array
from meshbridge.verification.machine import Attributed, Evaluator, align, boolean, evaluates, integer, integers

COMMUNICATING = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter"),
        *("recv", "send"),
    )
)
"""Ops in which devices wait for each other."""


@dataclass(frozen=True)
class Composed:
    """The attributes of a composite, for the op that it is named after."""

    attributes: ir.DictAttr


def _refuse_communication(op: ir.Operation, text: str) -> None:
    """Raises OpError if devices that take different branches would wait for each other."""
    for below in walk(op):
        if below.name in COMMUNICATING:
            raise OpError(op, f"{text} on some devices than on others, and communicates by '{below.name}' inside")


def _chosen(mask: Array, left: Array, right: Array) -> Array:
    return np.where(spread(mask, max(left.ndim, right.ndim) - 1), left, right)


@evaluates("stablehlo.while")
def while_(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Runs while the condition holds. Devices for which it no longer holds keep their values."""
    carried = list(operands)
    for _ in range(machine.iteration_limit):
        going = machine.run(op, 0, carried)[0]
        if not going.any():
            return carried
        changed = machine.run(op, 1, carried)
        if not going.all():
            _refuse_communication(op, "iterates more often")
            changed = [_chosen(going, *values) for values in zip(changed, carried, strict=True)]
        carried = changed
    raise OpError(op, f"has not ended after {machine.iteration_limit} iterations")


@evaluates("mhlo.fusion")
def fusion(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The result of its region: XLA has fused several ops into one."""
    return machine.run(op, 0, operands)


@evaluates("stablehlo.case")
def case(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The branch with the number of the index; the last one for an index out of range."""
    last_branch = len(op.regions) - 1
    index = operands[0]
    return _branches(machine, op, np.where((index < 0) | (index > last_branch), last_branch, index))


@evaluates("stablehlo.if")
def if_(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The first region where the predicate holds, else the second."""
    return _branches(machine, op, np.where(operands[0], 0, 1))


def _branches(machine: Evaluator, op: ir.Operation, index: Array) -> list[Array]:
    branches = [int(branch) for branch in np.unique(index)]
    results = machine.run(op, branches[0], [])
    if len(branches) > 1:
        _refuse_communication(op, "takes another branch")
    for branch in branches[1:]:
        branch_results = machine.run(op, branch, [])
        results = [_chosen(index == branch, *values) for values in zip(branch_results, results, strict=True)]
    return results


@evaluates("chlo.scan")
def scan(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """Runs the region on one slice of each input after the other, with the carried values, and stacks the output slices."""
    return _scan(machine, op, operands, op)


def _scan(machine: Evaluator, op: ir.Operation, operands: list[Array], attributed: Attributed) -> list[Array]:
    """`attributed` has the attributes of the scan, `op` its region."""
    input_count, output_count = integers(attributed, "operandSegmentSizes")[0], integers(attributed, "resultSegmentSizes")[0]
    inputs, carried = operands[:input_count], operands[input_count:]
    axis = integer(attributed, "dimension") + 1
    length = inputs[0].shape[axis] if inputs else integer(attributed, "scan_dim_size")
    order = range(length)[::-1] if boolean(attributed, "is_reverse") else range(length)
    outputs: dict[int, list[Array]] = {}
    for place in order:
        results = machine.run(op, 0, [*(np.take(x, place, axis) for x in inputs), *carried])
        outputs[place], carried = results[:output_count], results[output_count:]
    stacked = [np.stack(align(*(outputs[place][number] for place in range(length))), axis) for number in range(output_count)]
    return [*stacked, *carried]


@evaluates("func.call")
def call(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The results of a function."""
    return machine.call(op, ir.FlatSymbolRefAttr(op.attributes["callee"]).value, operands)


@evaluates("stablehlo.composite")
def composite(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The results of its decomposition; for a scan those of the op, since its decomposition may lack the direction."""
    if ir.StringAttr(op.attributes["name"]).value == "chlo.scan" and len(op.regions):
        return _scan(machine, op, operands, Composed(ir.DictAttr(op.attributes["composite_attributes"])))
    return machine.call(op, ir.FlatSymbolRefAttr(op.attributes["decomposition"]).value, operands)


@evaluates("sdy.named_computation")
def named_computation(machine: Evaluator, op: ir.Operation, operands: list[Array]) -> list[Array]:
    """The results of its body."""
    return machine.run(op, 0, operands)
