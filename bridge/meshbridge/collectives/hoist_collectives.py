"""`hoist-collectives`: communicates loop-invariant values once, before the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, ir, walk_all
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.uses import LOOK_THROUGH, block_of, defining_op, unchanged_numbers
from meshbridge.ops.traits import Trait, ops_with


@register
@dataclass(frozen=True)
class HoistCollectives(Pass):
    """Moves collectives of loop-invariant operands out of `stablehlo.while`, with the operations that compute only their
    operands.

    Input:   %0:2 = stablehlo.while(%a = %w, %b = %x) {
               %1 = mesh.all_gather %a on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
               %2 = stablehlo.add %b, %1
               stablehlo.return %a, %2
             }
    Output:  %1 = mesh.all_gather %w on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             %0:2 = stablehlo.while(%a = %w, %b = %x) {
               %2 = stablehlo.add %b, %1
               stablehlo.return %a, %2
             }

    An operand is invariant if it is defined outside of the loop, or carried unchanged. Collectives in a branch stay, because the
    branch may never run. The result lives as long as the loop runs.
    """

    name: ClassVar[str] = "hoist-collectives"
    growth: int = 2**28
    """Bytes by which the result of a collective may exceed its operand: this memory is held while the loop runs. A bound on
    memory, not a measurement."""

    def run(self, module: ir.Module) -> bool:
        with module.context:
            return hoist([op for op in walk_all(module) if op.name == "stablehlo.while"], self.growth)


_COLLECTIVES = ops_with(Trait.COLLECTIVE, dialect="mesh")

LOCAL = ops_with(Trait.FUSIBLE, Trait.FREE, Trait.ALIASING)
"""Operations that move along with a collective that needs them: they run on one device and take hardly any time."""


def hoist(loops: list[ir.Operation], growth: int) -> bool:
    """Moves collectives out of `loops`, which are listed outer ones first; returns whether the program changed."""
    changed = False
    for loop in reversed(loops):  # inner ones first: their collectives may leave the outer loops too
        for region in loop.regions:
            changed |= _hoist(loop, region.blocks[0], growth)
    return changed


def _hoist(loop: ir.Operation, block: ir.Block, growth: int) -> bool:
    """Moves collectives out of `block`, the condition or the body of `loop`."""
    changed = False
    initial = carried_unchanged(loop, block)
    varying: set[ir.Value] = {argument for argument in block.arguments if argument not in initial}
    pending: dict[ir.Value, ir.Operation] = {}
    for view in list(block.operations):
        op = view.operation
        invariant = not any(operand in varying for operand in op.operands)
        if invariant and op.name in _COLLECTIVES and _growth(op) <= growth:
            _move_out(op, loop, initial, pending)
            changed = True
        elif invariant and op.name in _MOVABLE:
            pending.update((result, op) for result in op.results)
        else:
            varying.update(op.results)
    return changed


def _growth(op: ir.Operation) -> float:
    """Bytes by which the result is larger than the operand."""
    return tensor_bytes(op.results[0]) - tensor_bytes(op.operands[0])


def carried_unchanged(loop: ir.Operation, block: ir.Block) -> dict[ir.Value, ir.Value]:
    """The arguments of `block` that every iteration passes on unchanged, with their initial values."""
    return {block.arguments[number]: loop.operands[number] for number in unchanged_numbers(loop)}


_MOVABLE = LOCAL - {BARRIER}
"""A barrier keeps the computation of its operands in the loop."""

_LEAVING = _MOVABLE | _COLLECTIVES


def is_invariant(value: ir.Value, block: ir.Block) -> bool:
    """True if `block` belongs to a loop, and `value` can be computed before it."""
    loop = block.owner.operation
    if loop.name != "stablehlo.while":
        return False
    unchanged = set(unchanged_numbers(loop))
    worklist, visited = [value], {value}
    while worklist:
        op = defining_op(needed := worklist.pop())
        if block_of(needed) != block:
            continue
        if op is None:
            if ir.BlockArgument(needed).arg_number not in unchanged:
                return False
        else:
            if op.name not in _LEAVING or len(visited) > LOOK_THROUGH:
                return False
            worklist.extend(unvisited := set(op.operands) - visited)
            visited |= unvisited
    return True


def _move_out(
    op: ir.Operation, loop: ir.Operation, initial: dict[ir.Value, ir.Value], pending: dict[ir.Value, ir.Operation]
) -> None:
    """Moves `op` before `loop`, after the pending operations that it needs."""
    for number, operand in enumerate(op.operands):
        if operand in initial:
            op.operands[number] = initial[operand]
        elif (needed := pending.pop(operand, None)) is not None:
            _move_out(needed, loop, initial, pending)
    op.move_before(loop)
