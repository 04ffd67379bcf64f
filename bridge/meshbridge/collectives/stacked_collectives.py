"""Moves collectives of the rows that a loop stacks after the loop, where one collective communicates the whole stack.

    %0:2 = while(%i, %stack = zeros : 8x2x4) {            %0:2 = while(%i, %stack = zeros : 8x4x4) {
      %1 = mesh.reduce_scatter %x : 4x4 -> 2x4
      %2 = reshape %1 : 2x4 -> 1x2x4                        %1 = reshape %x : 4x4 -> 1x4x4
      %3 = dynamic_update_slice %stack, %2, %i, 0, 0        %2 = dynamic_update_slice %stack, %1, %i, 0, 0
      return %i_plus_one, %3                                return %i_plus_one, %2
    }                                                     }
                                                          %3 = mesh.reduce_scatter %0#1 : 8x4x4 -> 8x2x4

This sends as many bytes, and the stack may be larger meanwhile. It pays if an outer loop sums the stacks, as it sums gradients of
layers over microbatches: the collective then leaves that loop, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshbridge.analysis.known_values import is_splat
from meshbridge.analysis.trip_count import counted_loop, trip_count
from meshbridge.collectives.loop_accumulation import accumulating_op, is_yielded, kind_of, source_of
from meshbridge.collectives.rewriter import CONSTANTS, DIM_ATTRIBUTES, ELEMENTWISE, MeshRewriter
from meshbridge.cost.held import HeldPrice, Sent
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder, op_of, tensor
from meshbridge.ir.elements import element_bytes, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.uses import defining_name, defining_op
from meshbridge.ops.linear import fills_rows, is_reshape, is_widening

_COUNTING = ELEMENTWISE | CONSTANTS
"""Ops that compute indices."""


@dataclass(frozen=True)
class _Stack:
    """A loop-carried stack, into which the loop writes results of `collective` row by row."""

    loop: ir.Operation
    number: int
    write: ir.Operation
    collective: ir.Operation
    rearranged: tuple[ir.Operation, ...]
    """The ops that rearrange the collective's result before it is written, in order."""

    @property
    def rows(self) -> int:
        return shape_of(self.loop.results[self.number].type)[0]

    @property
    def type(self) -> ir.RankedTensorType:
        """The type of the stack before it is communicated."""
        return self.stacked(self.collective.operands[0].type)

    def stacked(self, type_: ir.Type) -> ir.RankedTensorType:
        """The type of a stack of rows of that type."""
        return tensor([self.rows, *shape_of(type_)], element_of(type_))


def move_stacked_collectives(loop: ir.Operation, rewriter: MeshRewriter, price: HeldPrice) -> None:
    """Moves collectives of the rows of stacks after `loop`, if an outer loop sums the stacks, and if communicating their sum
    saves what the larger stacks cost."""
    for number in range(len(loop.results)):
        stack = loop.results[number]
        if not isinstance(stack.type, ir.RankedTensorType):
            continue
        stored, summed = type_bytes(stack.type), _sum_of(stack, rewriter)
        while summed is not None and (candidate := _stack(loop, number, rewriter)) is not None:
            if not _is_paid(candidate, stored, summed, price, rewriter):
                break
            _move_after_loop(candidate, rewriter)


def _is_paid(stack: _Stack, stored: float, summed: ir.Value, price: HeldPrice, rewriter: MeshRewriter) -> bool:
    """Whether communicating the sum of stacks once, after both loops, saves what it costs to hold it, and the stack: before this
    pass a stack takes `stored` bytes. Without a price the stack alone counts, which is bounded."""
    sent, count = Sent.by(stack.collective, rewriter.meshes), trip_count(stack.loop.block.owner.operation)
    widening = element_bytes(str(element_of(summed.type))) / element_bytes(str(element_of(stack.type)))
    growth = (type_bytes(stack.type) - stored) * (1 + widening if price.byte else 1)
    before = sent.times(None if count is None else count * stack.rows)
    return price.is_paid(growth, before, Sent(sent.wire_bytes * stack.rows * widening, 1))


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
    if not collective.block == write.block == loop.regions[1].blocks[0] or not is_yielded(write.results[0], number, rewriter):
        return None
    counted = counted_loop(loop)
    if counted is None or not _follows(write.operands[2], loop.regions[1].blocks[0].arguments[counted.counter]):
        return None
    is_linear = kind_of(collective, "stablehlo.add", element_of(collective.operands[0].type), rewriter) == "sum"
    return _Stack(loop, number, write, collective, rearranged) if is_linear else None


def _follows(index: ir.Value, counter: ir.Value) -> bool:
    """True if an index is computed only from the counter of a loop, and is therefore the same on all devices."""
    worklist = [index]
    while worklist:
        value = worklist.pop()
        if value == counter:
            continue
        if defining_name(value) not in _COUNTING:
            return False
        worklist += op_of(value).operands
    return True


def _sum_of(stack: ir.Value, rewriter: MeshRewriter) -> ir.Value | None:
    """The value in which an enclosing loop sums `stack`; None if it does not, or uses the stack in another way."""
    outer = op_of(stack).block.owner.operation
    if outer.name != "stablehlo.while":
        return None
    for number in range(len(outer.results)):
        join = accumulating_op(outer, number, rewriter)
        if join is not None and source_of(join.other, rewriter)[0] == stack:
            return join.other if rewriter.uses(stack) == 1 else None
    return None


def _move_after_loop(stacked: _Stack, rewriter: MeshRewriter) -> None:
    loop, number, type_ = stacked.loop, stacked.number, stacked.type
    result, whole = loop.results[number], loop.results[number].type
    loop.operands[number] = Builder.before(loop).splat(type_, 0)
    for region in loop.regions:
        region.blocks[0].arguments[number].set_type(type_)
    result.set_type(type_)
    in_loop, (stack, _, index, *_) = Builder.before(stacked.write), stacked.write.operands
    row = in_loop.reshape(stacked.collective.operands[0], [1, *shape_of(type_)[1:]])
    starts = [index, *[in_loop.splat(index.type, 0)] * (len(shape_of(type_)) - 1)]
    rewriter.replace(stacked.write, in_loop.dynamic_paste(stack, row, starts))
    after_loop = Builder(stacked.collective.location, ir.InsertionPoint.after(loop))
    communicated = value = _of_rows(after_loop, stacked.collective, result)
    for op in stacked.rearranged:
        value = _of_rows(after_loop, op, value)
    value = after_loop.reshape(value, shape_of(whole))
    result.replace_all_uses_except(value, op_of(communicated))
    rewriter.adopt(communicated)


def _of_rows(builder: Builder, op: ir.Operation, stack: ir.Value) -> ir.Value:
    """Applies `op` to every row of a stack."""
    shape = [shape_of(stack.type)[0], *shape_of(op.results[0].type)]
    if is_reshape(op):
        return builder.reshape(stack, shape)
    attributes = dict(op.attributes.items())
    if op.name == "stablehlo.transpose":
        return builder.transpose(stack, [0, *[1 + dim for dim in integers(attributes["permutation"])]])
    for name in attributes.keys() & {*DIM_ATTRIBUTES, "slice_axis"}:
        attributes[name] = ir.IntegerAttr.get(attributes[name].type, 1 + ir.IntegerAttr(attributes[name]).value)
    return builder.value(op.name, tensor(shape, element_of(stack.type)), [stack], attributes)
