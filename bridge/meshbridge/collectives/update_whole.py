"""`update-whole`: computes the result that overwrites an argument from a gathered term, instead of gathering the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from meshbridge.backends.xla_tpu import ALIASED_GATHER_COPIES
from meshbridge.collectives.rewriter import ELEMENTWISE, MeshRewriter, resize_uniform
from meshbridge.cost.memory import donated_results
from meshbridge.dialect.ops import AllGatherOp, AllSliceOp
from meshbridge.dialect.signature import group_size, shape_of
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import resized, tensor_bytes, type_bytes
from meshbridge.ir.mlir import ir, main_function, terminator_operands
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import defining_name, defining_op

MOST = 16
"""The number of operations after the gathered term, which every device then computes on the whole. Not measured: receiving a
float takes as long as a thousand multiply-adds."""


@register
@dataclass(frozen=True)
class UpdateWhole(Pass):
    """Gathers the only sharded term, if the following operations overwrite a replicated argument.

    Input:   %0 = mesh.all_slice %w on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %1 = stablehlo.subtract %0, %step : tensor<2xf32>
             %2 = mesh.all_gather %1 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             return %2, in the buffer of %w
    Output:  %0 = mesh.all_gather %step on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             %2 = stablehlo.subtract %w, %0 : tensor<4xf32>

    As many bytes are sent. Every device computes all elements, and reads and writes less than the compiler copies if a gather
    overwrites an argument (ALIASED_GATHER_COPIES). It is for machines with `aliased_gather_copy_bytes`.
    """

    name: ClassVar[str] = "update-whole"
    least: float = 0.0
    "Bytes of the smallest result that this is done for."

    def run(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            updates = [update for gather in _written_over(module, self.least) if (update := _update(gather, rewriter))]
            for update in updates:
                update.rewrite()
        return bool(updates)


def _written_over(module: ir.Module, least: float) -> Iterator[ir.Operation]:
    """The all-gathers of at least that many bytes whose results take the buffers of arguments, each once."""
    function = main_function(module)
    returned = terminator_operands(function.regions[0].blocks[0])
    for value in dict.fromkeys(returned[number] for number in donated_results(function)):
        if defining_name(value) == AllGatherOp.OPERATION_NAME and tensor_bytes(value) >= least:
            yield op_of(value)


@dataclass
class _Update:
    """The computation of an all-gather's operand from one sharded term and from replicated operands."""

    gather: ir.Operation
    rewriter: MeshRewriter
    term: ir.Value
    steps: list[ir.Operation] = field(default_factory=list)
    "The operations on the term, the last one first."
    replicated: dict[ir.Value, Callable[[Builder], ir.Value]] = field(default_factory=dict)
    "Builders of the other operands in the gathered size."
    read: int = 0
    "The number of those that are read from memory."

    @property
    def count(self) -> int:
        """The number of devices that the gather spans."""
        view = AllGatherOp(self.gather)
        return group_size(self.rewriter.meshes[view.mesh], view.mesh_axes)

    @property
    def pays(self) -> bool:
        """True if less is read and written than the compiler copies."""
        return (self.read + 2) * (1 - 1 / self.count) < 2 * ALIASED_GATHER_COPIES

    def extended(self) -> _Update | None:
        """The update that starts one operation earlier, if that has one sharded operand."""
        op = defining_op(self.term)
        if op is None or op.name not in ELEMENTWISE or op.block != self.gather.block or len(self.steps) == MOST:
            return None
        if any(shape_of(operand.type) not in ((), shape_of(self.term.type)) for operand in op.operands):
            return None
        makers = {operand: self._enlarged(operand) for operand in op.operands}
        terms = [operand for operand, make in makers.items() if make is None]
        if len(terms) != 1 or shape_of(terms[0].type) != shape_of(self.term.type):
            return None
        replicated = {operand: make for operand, make in makers.items() if make is not None}
        read = self.read + sum(self._slice(operand) is not None for operand in replicated)
        return _Update(self.gather, self.rewriter, terms[0], [*self.steps, op], self.replicated | replicated, read)

    def _enlarged(self, value: ir.Value) -> Callable[[Builder], ir.Value] | None:
        """A builder of `value` in the gathered size; None if it is sharded."""
        gather = AllGatherOp(self.gather)
        if (sliced := self._slice(value)) is not None:
            return lambda builder: sliced
        if not self.rewriter.is_replicated(value, gather.mesh, gather.mesh_axes):
            return None
        return resize_uniform(value, gather.gather_axis, multiply=self.count)

    def _slice(self, value: ir.Value) -> ir.Value | None:
        """The replicated value of which `value` is this device's slice."""
        gather, op = AllGatherOp(self.gather), defining_op(value)
        if op is None or op.name != AllSliceOp.OPERATION_NAME:
            return None
        view = AllSliceOp(op)
        alike = (view.mesh, view.mesh_axes, view.slice_axis) == (gather.mesh, gather.mesh_axes, gather.gather_axis)
        is_replicated = alike and self.rewriter.is_replicated(op.operands[0], gather.mesh, gather.mesh_axes)
        return op.operands[0] if is_replicated else None

    def rewrite(self) -> None:
        """Computes the gathered value before the gather, and drops that."""
        builder, dim = Builder.before(self.gather), AllGatherOp(self.gather).gather_axis
        values = {value: make(builder) for value, make in self.replicated.items()}
        gathered_type = resized(ir.RankedTensorType(self.term.type), dim, multiply=self.count)
        values[self.term] = builder.again(self.gather, gathered_type, [self.term])
        for op in reversed(self.steps):
            (result,) = op.results
            gathered_type = resized(ir.RankedTensorType(result.type), dim, multiply=self.count)
            values[result] = builder.again(op, gathered_type, [values[operand] for operand in op.operands])
        self.rewriter.replace(self.gather, values[self.gather.operands[0]])


def _update(gather: ir.Operation, rewriter: MeshRewriter) -> _Update | None:
    """The update from the earliest term that is no larger than the gather's operand; None if no operation follows it."""
    mesh, result = rewriter.meshes[AllGatherOp(gather).mesh], gather.results[0].type
    if DYNAMIC in (*mesh.shape, *shape_of(result)):
        return None
    best, candidate = None, _Update(gather, rewriter, gather.operands[0]).extended()
    while candidate is not None and candidate.pays:
        if type_bytes(candidate.term.type) <= type_bytes(gather.operands[0].type):
            best = candidate
        candidate = candidate.extended()
    return best
