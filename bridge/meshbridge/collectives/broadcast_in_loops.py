"""`broadcast-in-loops`: broadcasts inside of loops, instead of keeping broadcast values in memory during the loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.hoist_collectives import carried_unchanged
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import find, ir, walk
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.uses import defining_op

_BROADCAST = "stablehlo.broadcast_in_dim"


@register
@dataclass(frozen=True)
class BroadcastInLoops(Pass):
    """Moves broadcasts that enlarge data into the loops that read them.

    Input:   %0 = stablehlo.broadcast_in_dim %mask, dims = [1, 2] : (tensor<4x4xi1>) -> tensor<8x4x4xi1>
             %1:2 = stablehlo.while(%a = %0, %b = %x) {
               %2 = stablehlo.select %a, %b, %zero : tensor<8x4x4xi1>, tensor<8x4x4xf32>
               stablehlo.return %a, %2
             }
    Output:  %0:2 = stablehlo.while(%a = …, %b = %x) {
               %1 = stablehlo.broadcast_in_dim %mask, dims = [1, 2] : (tensor<4x4xi1>) -> tensor<8x4x4xi1>
               %2 = stablehlo.select %1, %b, %zero : tensor<8x4x4xi1>, tensor<8x4x4xf32>
               stablehlo.return %a, %2
             }

    Compilers fuse broadcasts into their readers, but store them at the boundary of a loop: the causal mask of attention for all
    batches and heads, during the forward and the backward layers. Compilers drop loop-carried values that are not read.
    """

    name: ClassVar[str] = "broadcast-in-loops"

    def run(self, module: ir.Module) -> bool:
        with module.context:
            loops = find(module.operation, ["stablehlo.while"])
            changed = [_broadcast_in(loop, region.blocks[0]) for loop in loops for region in loop.regions]
        return any(changed)


def _broadcast_in(loop: ir.Operation, block: ir.Block) -> bool:
    """Repeats at the beginning of `block`, the condition or the body of `loop`, the outer broadcasts that it reads."""
    initial = carried_unchanged(loop, block)
    ops = [op for view in block.operations for op in walk(view.operation)]
    *_, end = block.operations
    inside = {result for op in ops for result in op.results}
    copies: dict[ir.Value, ir.Value] = {}
    builder = Builder(loop.location, ir.InsertionPoint.at_block_begin(block))
    for op in ops:
        for number, operand in enumerate(op.operands) if op != end.operation else ():
            value = initial.get(operand, operand)
            if value in inside or (source := _broadcast(value)) is None:
                continue
            if value not in copies:
                copies[value] = builder.again(source, value.type, list(source.operands))
            op.operands[number] = copies[value]
    return bool(copies)


def _broadcast(value: ir.Value) -> ir.Operation | None:
    """The broadcast that computes `value`, if it enlarges data."""
    op = defining_op(value)
    if op is None or op.name != _BROADCAST or not isinstance(value.type, ir.RankedTensorType):
        return None
    if not (value.type.has_static_shape and op.operands[0].type.has_static_shape):
        return None
    return op if tensor_bytes(value) > tensor_bytes(op.operands[0]) else None
