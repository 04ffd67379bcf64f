"""Collectives of what a loop puts on a stack: of the whole stack, behind the loop.

    %0:2 = while(%i, %stack = zeros : 8x2x4) {            %0:2 = while(%i, %stack = zeros : 8x4x4) {
      %1 = mesh.reduce_scatter %x : 4x4 -> 2x4
      %2 = reshape %1 : 2x4 -> 1x2x4                        %1 = reshape %x : 4x4 -> 1x4x4
      %3 = dynamic_update_slice %stack, %2, %i, 0, 0        %2 = dynamic_update_slice %stack, %1, %i, 0, 0
      return %i_plus_one, %3                                return %i_plus_one, %2
    }                                                     }
                                                          %3 = mesh.reduce_scatter %0#1 : 8x4x4 -> 8x2x4

That sends as many bytes, and the stack may be larger meanwhile. It pays where an outer loop adds the stacks up, as gradients of
layers are over microbatches: the collective then leaves that loop, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.analysis.known_values import is_splat
from meshbridge.analysis.trip_count import counted_loop
from meshbridge.collectives.accumulations import is_handed_on, joining, kind_of, source_of
from meshbridge.collectives.rewriter import CONSTANTS, ELEMENTWISE, PIECES, MeshRewriter
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder, op_of, tensor
from meshbridge.ir.elements import type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_name, defining_op
from meshbridge.ops.linear import fills_rows, is_reshape, is_widening

_COUNTING = ELEMENTWISE | CONSTANTS
"""What indices are computed by."""


@dataclass(frozen=True)
class _Stack:
    """A value that a loop carries, and into which it writes one row after the other, of what `collective` gives."""

    loop: ir.Operation
    number: int
    write: ir.Operation
    collective: ir.Operation
    rearranged: tuple[ir.Operation, ...]
    """What rearranges what the collective gives before it is written, in order."""

    @property
    def rows(self) -> int:
        return shape_of(self.loop.results[self.number].type)[0]

    @property
    def type(self) -> ir.RankedTensorType:
        """Of the stack of what is communicated."""
        return self.stacked(self.collective.operands[0].type)

    def stacked(self, type_: ir.Type) -> ir.RankedTensorType:
        """The type of a stack of rows of that type."""
        return tensor([self.rows, *shape_of(type_)], element_of(type_))


def communicate_stacks(loop: ir.Operation, rewriter: MeshRewriter, growth: int) -> None:
    """Moves collectives of the rows of stacks behind `loop` where what is around it adds the stacks up."""
    for number in range(len(loop.results)):
        stack = loop.results[number]
        if not isinstance(stack.type, ir.RankedTensorType):
            continue
        most = type_bytes(stack.type) + growth
        if _is_added_up(stack, rewriter):
            while (found := _stack(loop, number, rewriter)) is not None and type_bytes(found.type) <= most:
                _move_behind(found, rewriter)


def _stack(loop: ir.Operation, number: int, rewriter: MeshRewriter) -> _Stack | None:
    tested, carried = (region.blocks[0].arguments[number] for region in loop.regions)
    users = rewriter.users(carried)
    if len(users) != 1 or rewriter.uses(tested) or not fills_rows(users[0], carried) or not is_splat(loop.operands[number], 0):
        return None
    write = users[0]
    value, rearranged = source_of(write.operands[1], rewriter)
    collective = defining_op(value)
    if collective is None or rewriter.uses(value) != 1 or any(map(is_widening, rearranged)):
        return None
    if not collective.block == write.block == loop.regions[1].blocks[0] or not is_handed_on(write.results[0], number, rewriter):
        return None
    counted = counted_loop(loop)
    if counted is None or not _follows(write.operands[2], loop.regions[1].blocks[0].arguments[counted.counter]):
        return None
    is_linear = kind_of(collective, "stablehlo.add", element_of(collective.operands[0].type), rewriter) == "sum"
    return _Stack(loop, number, write, collective, rearranged) if is_linear else None


def _follows(index: ir.Value, counter: ir.Value) -> bool:
    """Whether an index is computed from the counter of a loop alone, and so is the same on all devices."""
    waiting = [index]
    while waiting:
        value = waiting.pop()
        if value == counter:
            continue
        if defining_name(value) not in _COUNTING:
            return False
        waiting += op_of(value).operands
    return True


def _is_added_up(stack: ir.Value, rewriter: MeshRewriter) -> bool:
    """Whether a loop around adds `stack` up, and makes no other use of it."""
    outer = op_of(stack).block.owner.operation
    if outer.name != "stablehlo.while":
        return False
    for number in range(len(outer.results)):
        join = joining(outer, number, rewriter)
        if join is not None and source_of(join.other, rewriter)[0] == stack:
            return rewriter.uses(stack) == 1
    return False


def _move_behind(found: _Stack, rewriter: MeshRewriter) -> None:
    loop, number, type_ = found.loop, found.number, found.type
    result, whole = loop.results[number], loop.results[number].type
    loop.operands[number] = Builder.before(loop).splat(type_, 0)
    for region in loop.regions:
        region.blocks[0].arguments[number].set_type(type_)
    result.set_type(type_)
    inside, (stack, _, index, *_) = Builder.before(found.write), found.write.operands
    row = inside.reshape(found.collective.operands[0], [1, *shape_of(type_)[1:]])
    starts = [index, *[inside.splat(index.type, 0)] * (len(shape_of(type_)) - 1)]
    rewriter.replace(found.write, inside.dynamic_paste(stack, row, starts))
    behind = Builder(found.collective.location, ir.InsertionPoint.after(loop))
    moved = value = _of_rows(behind, found.collective, result)
    for op in found.rearranged:
        value = _of_rows(behind, op, value)
    value = behind.reshape(value, shape_of(whole))
    result.replace_all_uses_except(value, op_of(moved))
    rewriter.adopt(moved)


def _of_rows(emit: Builder, op: ir.Operation, stack: ir.Value) -> ir.Value:
    """What `op` gives of every row of a stack."""
    shape = [shape_of(stack.type)[0], *shape_of(op.results[0].type)]
    if is_reshape(op):
        return emit.reshape(stack, shape)
    said = dict(op.attributes.items())
    if op.name == "stablehlo.transpose":
        return emit.transpose(stack, [0, *[1 + dim for dim in integers(said["permutation"])]])
    for name in said.keys() & {*PIECES, "slice_axis"}:
        said[name] = ir.IntegerAttr.get(said[name].type, 1 + ir.IntegerAttr(said[name]).value)
    return emit.value(op.name, tensor(shape, element_of(stack.type)), [stack], said)
