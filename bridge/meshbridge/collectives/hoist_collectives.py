"""`hoist-collectives`: what every trip of a loop would communicate anew is communicated once, before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import BARRIER, ir, terminator, walk_all
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.uses import block_of, defining_op
from meshbridge.ops.traits import Trait, ops_with


@register
@dataclass(frozen=True)
class HoistCollectives(Pass):
    """Moves collectives of loop-invariant operands out of `stablehlo.while`, with what they alone are computed from.

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

    An operand is invariant if it stands outside of the loop, or is carried unchanged. Collectives within a branch stay: the
    branch may never be taken. The result lives as long as the loop runs.
    """

    name: ClassVar[str] = "hoist-collectives"
    growth: int = 2**28
    """Bytes by which what a collective gives may exceed what it is given: so much more memory is held while the loop runs. A
    bound on memory, not a measurement."""

    def run(self, module: ir.Module) -> bool:
        with module.context:
            return hoist([op for op in walk_all(module) if op.name == "stablehlo.while"], self.growth)


_COLLECTIVES = ops_with(Trait.COLLECTIVE, dialect="mesh")

LOCAL = ops_with(Trait.FUSIBLE, Trait.FREE, Trait.ALIASING)
"""What moves along if a collective is computed from it: each result is computed on one device, in hardly any time."""


def hoist(loops: list[ir.Operation], growth: int) -> bool:
    """Moves collectives out of `loops`, of which outer ones come first; returns whether there was any to move."""
    moved = False
    for loop in reversed(loops):  # inner ones first: what they give up may leave the outer ones too
        for region in loop.regions:
            moved |= _hoist(loop, region.blocks[0], growth)
    return moved


def _hoist(loop: ir.Operation, block: ir.Block, growth: int) -> bool:
    """Moves what it can out of `block`, the condition or the body of `loop`."""
    moved = False
    initial = carried_unchanged(loop, block)
    varying: set[ir.Value] = {argument for argument in block.arguments if argument not in initial}
    waiting: dict[ir.Value, ir.Operation] = {}
    for view in list(block.operations):
        op = view.operation
        invariant = not any(operand in varying for operand in op.operands)
        if invariant and op.name in _COLLECTIVES and _growth(op) <= growth:
            _move_out(op, loop, initial, waiting)
            moved = True
        elif invariant and op.name in _MOVABLE:
            waiting.update((result, op) for result in op.results)
        else:
            varying.update(op.results)
    return moved


def _growth(op: ir.Operation) -> float:
    """Bytes by which the result is larger than the operand."""
    return tensor_bytes(op.results[0]) - tensor_bytes(op.operands[0])


def carried_unchanged(loop: ir.Operation, block: ir.Block) -> dict[ir.Value, ir.Value]:
    """The arguments of `block` that every trip hands on as they are, and what they start as."""
    body = loop.regions[1].blocks[0]
    yielded = list(list(body.operations)[-1].operands)
    columns = zip(block.arguments, body.arguments, yielded, loop.operands, strict=True)
    return {argument: start for argument, inside, handed_on, start in columns if inside == handed_on}


_MOVABLE = LOCAL - {BARRIER}
"""A barrier keeps within the loop what it is computed from."""

_LEAVING = _MOVABLE | _COLLECTIVES

_MOST = 32
"""How many values `is_invariant` looks at. Not measured: a bound on time."""


def is_invariant(value: ir.Value, block: ir.Block) -> bool:
    """Whether `block` belongs to a loop, and `value` can be had before it."""
    loop = block.owner.operation
    if loop.name != "stablehlo.while" or (last := terminator(body := loop.regions[1].blocks[0])) is None:
        return False
    waiting, seen = [value], {value}
    while waiting:
        op = defining_op(needed := waiting.pop())
        if block_of(needed) != block:
            continue
        if op is None:
            number = ir.BlockArgument(needed).arg_number
            if last.operands[number] != body.arguments[number]:
                return False
        else:
            if op.name not in _LEAVING or len(seen) > _MOST:
                return False
            waiting.extend(new := set(op.operands) - seen)
            seen |= new
    return True


def _move_out(
    op: ir.Operation, loop: ir.Operation, initial: dict[ir.Value, ir.Value], waiting: dict[ir.Value, ir.Operation]
) -> None:
    """Moves `op` before `loop`, after those that it needs among the operations that wait."""
    for number, operand in enumerate(op.operands):
        if operand in initial:
            op.operands[number] = initial[operand]
        elif (needed := waiting.pop(operand, None)) is not None:
            _move_out(needed, loop, initial, waiting)
    op.move_before(loop)
