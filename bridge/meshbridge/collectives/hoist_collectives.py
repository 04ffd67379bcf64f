"""`hoist-collectives`: communicates loop-invariant values once, before the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.analysis.trip_count import trip_count
from meshbridge.cost.held import LARGEST_GROWTH, HeldPrice, Sent
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, ir, walk_all
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import Mesh
from meshbridge.ir.uses import LOOK_THROUGH, block_of, defining_op, unchanged_numbers
from meshbridge.machines.compile_target import CompileTarget
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
    growth: int = LARGEST_GROWTH
    "Bytes by which the result of a collective may exceed its operand: this memory is held while the loop runs."
    target: CompileTarget | None = None
    "The device whose price of held bytes counts (`cost/held.py`); without one `growth` alone does."

    def run(self, module: ir.Module) -> bool:
        with module.context:
            loops = [op for op in walk_all(module) if op.name == "stablehlo.while"]
            return hoist(loops, declared_meshes(module.body), HeldPrice.of(self.target, self.growth))


_COLLECTIVES = ops_with(Trait.COLLECTIVE, dialect="mesh")

LOCAL = ops_with(Trait.FUSIBLE, Trait.FREE, Trait.ALIASING)
"""Operations that move along with a collective that needs them: they run on one device and take hardly any time."""


def hoist(loops: list[ir.Operation], meshes: Mapping[str, Mesh], price: HeldPrice) -> bool:
    """Moves collectives out of `loops`, which are listed outer ones first; returns whether the program changed."""
    changed = False
    for loop in reversed(loops):  # inner ones first: their collectives may leave the outer loops too
        for region in loop.regions:
            changed |= _hoist(loop, region.blocks[0], meshes, price)
    return changed


def _hoist(loop: ir.Operation, block: ir.Block, meshes: Mapping[str, Mesh], price: HeldPrice) -> bool:
    """Moves collectives out of `block`, the condition or the body of `loop`."""
    changed = False
    initial = carried_unchanged(loop, block)
    varying: set[ir.Value] = {argument for argument in block.arguments if argument not in initial}
    pending: dict[ir.Value, ir.Operation] = {}
    for view in list(block.operations):
        op = view.operation
        invariant = not any(operand in varying for operand in op.operands)
        if invariant and op.name in _COLLECTIVES and _is_paid(op, loop, meshes, price):
            _move_out(op, loop, initial, pending)
            changed = True
        elif invariant and op.name in _MOVABLE:
            pending.update((result, op) for result in op.results)
        else:
            varying.update(op.results)
    return changed


def _is_paid(op: ir.Operation, loop: ir.Operation, meshes: Mapping[str, Mesh], price: HeldPrice) -> bool:
    """Whether communicating once, before the loop, saves what it costs to hold the bytes by which the result is larger than the
    operand."""
    sent = Sent.by(op, meshes)
    return price.is_paid(tensor_bytes(op.results[0]) - tensor_bytes(op.operands[0]), sent.times(trip_count(loop)), sent)


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
