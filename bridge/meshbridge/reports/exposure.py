"""How much of a program's communication is about an argument or a result: what gathers or reduces it, or what is computed of it
at once. It says what is worth trying first, no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from meshbridge.analysis.executions import executed
from meshbridge.cost.communication import communicating, wire_bytes_on
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.ir.builder import op_of
from meshbridge.ir.mlir import ir, main_function
from meshbridge.ir.uses import is_argument
from meshbridge.ops.elementwise import ELEMENTWISE

_LOOP = "stablehlo.while"
_MOVING = frozenset(
    f"stablehlo.{name}" for name in ("reshape", "transpose", "slice", "dynamic_slice", "pad", "convert", "concatenate", "reverse")
) | {"stablehlo.broadcast_in_dim", "stablehlo.dynamic_update_slice", "mesh.all_slice"}
"""Ops that hand their operands' elements on."""

_VALUES = 200
"""How many values are looked at for each argument and result. Not measured: a bound on time."""


@dataclass(frozen=True)
class Exposure:
    """By argument and by result of `main`, the wire bytes by collective of what is about it."""

    arguments: tuple[Mapping[ir.Operation, float], ...]
    results: tuple[Mapping[ir.Operation, float], ...]


def exposure(module: ir.Module) -> Exposure:
    """That of a partitioned program. Takes time in the numbers of its arguments and results."""
    meshes, main = declared_meshes(module.body), main_function(module)
    found = communicating(executed(module, weigh=wire_bytes_on(meshes)), meshes)
    sent = {op: collective.total_bytes for op, _, _, collective in found}
    block = main.regions[0].blocks[0]
    *_, returned = block.operations
    return Exposure(
        tuple(_of_argument(value, sent) for value in block.arguments),
        tuple(_of_result(value, sent) for value in returned.operands),
    )


def _of_argument(argument: ir.Value, sent: Mapping[ir.Operation, float]) -> dict[ir.Operation, float]:
    """What communicates the argument, or what one operation computes of it."""
    found: dict[ir.Operation, float] = {}
    waiting, seen = [(argument, False)], {argument}
    while waiting and len(seen) < _VALUES:
        value, is_computed = waiting.pop()
        for use in value.uses:
            op = use.owner.operation
            if op in sent:
                found[op] = sent[op]
                continue
            is_moved = op.name in _MOVING or op.name == _LOOP
            if is_computed and not is_moved:
                continue
            inside = [region.blocks[0].arguments[use.operand_number] for region in op.regions] if op.name == _LOOP else op.results
            further = [each for each in inside if each not in seen]
            seen.update(further)
            waiting += [(each, is_computed or not is_moved) for each in further]
    return found


def _of_result(result: ir.Value, sent: Mapping[ir.Operation, float]) -> dict[ir.Operation, float]:
    """What communicates that of which the result is computed element by element."""
    found: dict[ir.Operation, float] = {}
    waiting, seen = [result], {result}
    while waiting and len(seen) < _VALUES:
        for value in _sources(waiting.pop(), sent, found):
            if value not in seen:
                seen.add(value)
                waiting.append(value)
    return found


def _sources(value: ir.Value, sent: Mapping[ir.Operation, float], found: dict[ir.Operation, float]) -> Iterator[ir.Value]:
    if is_argument(value):
        return
    op = op_of(value)
    if op in sent:
        found[op] = sent[op]
    elif op.name == _LOOP:
        *_, yielded = op.regions[1].blocks[0].operations
        yield yielded.operands[ir.OpResult(value).result_number]
    elif op.name in _MOVING or op.name in ELEMENTWISE:
        yield from op.operands
