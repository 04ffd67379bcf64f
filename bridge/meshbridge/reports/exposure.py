"""How much of a program's communication is due to an argument or a result: collectives of it, or of values computed directly from
it. The figure only orders what is tried first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from meshbridge.analysis.executions import executed
from meshbridge.cost.communication import communicating, wire_bytes_on
from meshbridge.decide.dimension_classes import MOVING
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.ir.builder import op_of
from meshbridge.ir.mlir import ir, main_function
from meshbridge.ir.uses import LOOK_THROUGH, is_argument
from meshbridge.ops.elementwise import ELEMENTWISE

_LOOP = "stablehlo.while"


@dataclass(frozen=True)
class Exposure:
    """For each argument and result of `main`: its collectives and their wire bytes."""

    arguments: tuple[Mapping[ir.Operation, float], ...]
    results: tuple[Mapping[ir.Operation, float], ...]


def exposure(module: ir.Module) -> Exposure:
    """The exposure of a partitioned program, in time linear in its arguments and results."""
    meshes, main = declared_meshes(module.body), main_function(module)
    collectives = communicating(executed(module, weigh=wire_bytes_on(meshes)), meshes)
    wire_bytes = {op: collective.total_bytes for op, _, _, collective in collectives}
    block = main.regions[0].blocks[0]
    *_, returned = block.operations
    return Exposure(
        tuple(_of_argument(value, wire_bytes) for value in block.arguments),
        tuple(_of_result(value, wire_bytes) for value in returned.operands),
    )


def _of_argument(argument: ir.Value, wire_bytes: Mapping[ir.Operation, float]) -> dict[ir.Operation, float]:
    """The collectives of the argument, and of what one operation computes from it."""
    exposed: dict[ir.Operation, float] = {}
    worklist, visited = [(argument, False)], {argument}
    while worklist and len(visited) < LOOK_THROUGH:
        value, is_computed = worklist.pop()
        for use in value.uses:
            op = use.owner.operation
            if op in wire_bytes:
                exposed[op] = wire_bytes[op]
                continue
            is_moved = op.name in MOVING or op.name == _LOOP
            if is_computed and not is_moved:
                continue
            inside = [region.blocks[0].arguments[use.operand_number] for region in op.regions] if op.name == _LOOP else op.results
            unvisited = [value for value in inside if value not in visited]
            visited.update(unvisited)
            worklist += [(value, is_computed or not is_moved) for value in unvisited]
    return exposed


def _of_result(result: ir.Value, wire_bytes: Mapping[ir.Operation, float]) -> dict[ir.Operation, float]:
    """The collectives from which the result is computed elementwise."""
    exposed: dict[ir.Operation, float] = {}
    worklist, visited = [result], {result}
    while worklist and len(visited) < LOOK_THROUGH:
        for value in _sources(worklist.pop(), wire_bytes, exposed):
            if value not in visited:
                visited.add(value)
                worklist.append(value)
    return exposed


def _sources(value: ir.Value, wire_bytes: Mapping[ir.Operation, float], exposed: dict[ir.Operation, float]) -> Iterator[ir.Value]:
    if is_argument(value):
        return
    op = op_of(value)
    if op in wire_bytes:
        exposed[op] = wire_bytes[op]
    elif op.name == _LOOP:
        *_, yielded = op.regions[1].blocks[0].operations
        yield yielded.operands[ir.OpResult(value).result_number]
    elif op.name in MOVING or op.name in ELEMENTWISE:
        yield from op.operands
