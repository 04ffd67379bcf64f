"""`update-whole`: what is written over an argument is computed whole of a gathered term, rather than gathered itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from meshbridge.backends.xla_tpu import ALIASED_GATHER_COPIES
from meshbridge.collectives.rewriter import ELEMENTWISE, MeshRewriter, in_size
from meshbridge.cost.memory import donated_results
from meshbridge.dialect.ops import AllGatherOp, AllSliceOp
from meshbridge.dialect.signature import group_size, shape_of
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.elements import resized, tensor_bytes, type_bytes
from meshbridge.ir.mlir import ir, main_function
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import defining_name, defining_op

MOST = 16
"""Operations that follow the gathered term, which every device then computes on the whole. Not measured: to receive an element of
a float takes as long as a thousand multiply-adds."""


@register
@dataclass(frozen=True)
class UpdateWhole(Pass):
    """Gathers the one term that devices have parts of, where what follows is written over an argument that they have whole.

    Input:   %0 = mesh.all_slice %w on @m mesh_axes = [0] slice_axis = 0 : tensor<4xf32> -> tensor<2xf32>
             %1 = stablehlo.subtract %0, %step : tensor<2xf32>
             %2 = mesh.all_gather %1 on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             return %2, in the buffer of %w
    Output:  %0 = mesh.all_gather %step on @m mesh_axes = [0] gather_axis = 0 : tensor<2xf32> -> tensor<4xf32>
             %2 = stablehlo.subtract %w, %0 : tensor<4xf32>

    As many bytes are sent. Elements are computed as before, by every device, which reads and writes less than the compiler copies
    where a gather is written over an argument (ALIASED_GATHER_COPIES). It is for machines with `aliased_gather_copy_bytes`.
    """

    name: ClassVar[str] = "update-whole"
    least: float = 0.0
    "Bytes of the smallest result that this is done for."

    def run(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            found = [update for gather in _written_over(module, self.least) if (update := _update(gather, rewriter))]
            for update in found:
                update.rewrite()
        return bool(found)


def _written_over(module: ir.Module, least: float) -> Iterator[ir.Operation]:
    """The all-gathers of at least so many bytes whose results take the buffers of arguments, each once."""
    function = main_function(module)
    *_, returned = function.regions[0].blocks[0].operations
    for value in dict.fromkeys(returned.operands[number] for number in donated_results(function)):
        if defining_name(value) == AllGatherOp.OPERATION_NAME and tensor_bytes(value) >= least:
            yield op_of(value)


@dataclass
class _Update:
    """How an all-gather's operand is computed of one term of which devices have parts, and of others that they have whole."""

    gather: ir.Operation
    rewriter: MeshRewriter
    term: ir.Value
    steps: list[ir.Operation] = field(default_factory=list)
    "What is computed of the term, the last operation first."
    whole: dict[ir.Value, Callable[[Builder], ir.Value]] = field(default_factory=dict)
    "The other operands, each with what makes it in the gathered size."
    read: int = 0
    "How many of them are read from memory."

    @property
    def count(self) -> int:
        """How many devices have a part."""
        view = AllGatherOp(self.gather)
        return group_size(self.rewriter.meshes[view.mesh], view.mesh_axes)

    @property
    def pays(self) -> bool:
        """Whether less is read and written than the compiler copies."""
        return (self.read + 2) * (1 - 1 / self.count) < 2 * ALIASED_GATHER_COPIES

    def further(self) -> _Update | None:
        """The same with one operation more behind the term, if that has one operand of which devices have parts."""
        made = defining_op(self.term)
        if made is None or made.name not in ELEMENTWISE or made.block != self.gather.block or len(self.steps) == MOST:
            return None
        if any(shape_of(operand.type) not in ((), shape_of(self.term.type)) for operand in made.operands):
            return None
        makers = {operand: self._whole(operand) for operand in made.operands}
        terms = [operand for operand, make in makers.items() if make is None]
        if len(terms) != 1 or shape_of(terms[0].type) != shape_of(self.term.type):
            return None
        whole = {operand: make for operand, make in makers.items() if make is not None}
        read = self.read + sum(self._slice(operand) is not None for operand in whole)
        return _Update(self.gather, self.rewriter, terms[0], [*self.steps, made], self.whole | whole, read)

    def _whole(self, value: ir.Value) -> Callable[[Builder], ir.Value] | None:
        """What makes `value` in the gathered size; None where devices have parts of it."""
        gather = AllGatherOp(self.gather)
        if (sliced := self._slice(value)) is not None:
            return lambda emit: sliced
        if not self.rewriter.is_replicated(value, gather.mesh, gather.mesh_axes):
            return None
        return in_size(value, gather.gather_axis, multiply=self.count)

    def _slice(self, value: ir.Value) -> ir.Value | None:
        """What `value` is this device's part of, if all devices have it."""
        gather, made = AllGatherOp(self.gather), defining_op(value)
        if made is None or made.name != AllSliceOp.OPERATION_NAME:
            return None
        view = AllSliceOp(made)
        alike = (view.mesh, view.mesh_axes, view.slice_axis) == (gather.mesh, gather.mesh_axes, gather.gather_axis)
        is_replicated = alike and self.rewriter.is_replicated(made.operands[0], gather.mesh, gather.mesh_axes)
        return made.operands[0] if is_replicated else None

    def rewrite(self) -> None:
        """Computes the whole in front of the gather, and drops that."""
        emit, dim = Builder.before(self.gather), AllGatherOp(self.gather).gather_axis
        values = {value: make(emit) for value, make in self.whole.items()}
        wide = resized(ir.RankedTensorType(self.term.type), dim, multiply=self.count)
        values[self.term] = emit.again(self.gather, wide, [self.term])
        for made in reversed(self.steps):
            (result,) = made.results
            wide = resized(ir.RankedTensorType(result.type), dim, multiply=self.count)
            values[result] = emit.again(made, wide, [values[operand] for operand in made.operands])
        self.rewriter.replace(self.gather, values[self.gather.operands[0]])


def _update(gather: ir.Operation, rewriter: MeshRewriter) -> _Update | None:
    """From the term farthest from the gather that is no larger than what is gathered now; None where nothing follows it."""
    mesh, result = rewriter.meshes[AllGatherOp(gather).mesh], gather.results[0].type
    if DYNAMIC in (*mesh.shape, *shape_of(result)):
        return None
    found, tried = None, _Update(gather, rewriter, gather.operands[0]).further()
    while tried is not None and tried.pays:
        if type_bytes(tried.term.type) <= type_bytes(gather.operands[0].type):
            found = tried
        tried = tried.further()
    return found
