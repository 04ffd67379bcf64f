"""`delay-scaling`: moves scaling after an all-reduce so that the two reductions can be combined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import ClassVar

from meshbridge.collectives.canonicalize import Simplify
from meshbridge.collectives.commuting_ops import keeps_type
from meshbridge.cost.communication import communicating
from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import AllReduceOp, CollectiveOpView, ReduceScatterOp
from meshbridge.ir.builder import Builder, element_of, op_of, shape_of, tensor
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.mlir import find, ir
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.ir.uses import forward_slice, is_argument
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.ops.dimensions import RESHAPE, TRANSPOSE, operand_dims, reshaped_dim, varies_along
from meshbridge.ops.linear import SCALE
from meshbridge.ops.number_classes import scales_exactly
from meshbridge.ops.traits import Trait, ops_with
from meshbridge.overlap.attention.block_trace import BlockWriter, ValueDim, producer
from meshbridge.overlap.attention.linear_reductions import LinearReduction, lifted, linear_reductions, may_be_reduced

_CONVERT = "stablehlo.convert"
_REDUCTIONS = {AllReduceOp.OPERATION_NAME: AllReduceOp, ReduceScatterOp.OPERATION_NAME: ReduceScatterOp}
_ON_THE_WAY = ops_with(Trait.ELEMENTWISE, Trait.SHAPING)
_MOST = 16
"""The number of operations between the sums over devices and the scaling, to bound the time. Not measured."""


@register
@dataclass(frozen=True)
class DelayScaling(Pass):
    """Moves divisions by a sum over devices, and other scaling by values computed from one, after the reduction of the scaled
    value.

    Input:   %0 = stablehlo.reduce(%e init: 0) applies stablehlo.add across dimensions = [1] : tensor<4x8xf32> -> tensor<4xf32>
             %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.divide %e, (%1, broadcast along dimension 1) : tensor<4x8xf32>
             %3 = stablehlo.dot_general %2, %v, contracting_dims = [1] x [0] : tensor<4x16xf32>
             %4 = mesh.all_reduce %3 on @m mesh_axes = [0] : tensor<4x16xf32> -> tensor<4x16xf32>
    Output:  %0 and %1 as before
             %3 = stablehlo.dot_general %e, %v, contracting_dims = [1] x [0] : tensor<4x16xf32>
             %2 = mesh.all_reduce %3 on @m mesh_axes = [0] : tensor<4x16xf32> -> tensor<4x16xf32>
             %4 = stablehlo.divide %2, (%1, broadcast along dimension 1) : tensor<4x16xf32>

    This applies to attention over keys that are sharded along the sequence, and to a normalization before a product that
    contracts the normalized dimension. The reductions become independent, and compilers combine them if they have one element
    type: a narrower sum is widened if that sends no more than can be received while a collective starts. If the product is
    reduce-scattered, so is the other sum. Linear operations may be between the scaling and the product: views, conversions,
    masks, further factors. The scaling keeps its element type.

    The scaling stays if its result has other readers; if its element type has a smaller range than float32, into which the sum
    may not fit; and if the factor may be a number that scales a sum differently from its terms (`ops/number_classes.py`): a
    divisor of zero, or NaN if a mask may leave no terms.
    """

    name: ClassVar[str] = "delay-scaling"
    target: CompileTarget | None = None
    "The device that saves launches; without one they are worth any bytes."

    def run(self, module: ir.Module) -> bool:
        with module.context:
            meshes, changed = declared_meshes(module.body), False
            for op in find(module.operation, SCALE):
                scaling = _scaling(op, meshes)
                if scaling is not None and (widen := self._widens(scaling)) is not None:
                    scaling.delay(widen=widen)
                    changed = True
        if changed:
            Simplify().run(module)
        return changed

    def _widens(self, scaling: _Scaling) -> bool | None:
        """Whether to reduce everything in one element type, so that the reductions can be combined; None if delaying does not
        pay. Raises MeshError for a target without a device."""
        if self.target is None:
            return scaling.widening < inf
        machine = self.target.device
        # XLA:TPU combines all-reduces. Of two reduce-scatters, it turns one with few rows into a separate all-reduce.
        combines = machine.platform != "tpu" or not scaling.scatters
        if combines and scaling.widening <= machine.link.launch_bytes:
            return True
        return False if "all_reduce" in machine.async_collectives else None


@dataclass(frozen=True)
class _ReducedSum:
    """A sum over one dimension that is also summed over devices."""

    sum: LinearReduction
    views: tuple[ir.Operation, ...]
    "The views and conversions between both."
    op: ir.Operation
    "The reduction over devices."
    dims: tuple[int | None, ...]
    "For the sum and each view, the dimension along which it is scattered; None if it is not."

    @property
    def dim(self) -> int | None:
        """The scattered dimension of the sum."""
        return self.dims[0]

    @property
    def pieces(self) -> int:
        """The number of pieces into which it is scattered."""
        sizes = (prod(shape_of(value)) for value in (self.op.operands[0], self.op.results[0]))
        return next(sizes) // next(sizes)

    @property
    def element(self) -> ir.Type:
        """The element type of the reduction over devices."""
        return element_of(self.op.results[0])


@dataclass(frozen=True)
class _ScaleFactor:
    """A scale, and the sums over devices from which it is computed."""

    value: ir.Value
    sums: tuple[ir.Operation, ...]
    path: frozenset[ir.Operation]
    "The operations in between."

    @property
    def element(self) -> ir.Type:
        """The element type of the sums over devices."""
        return element_of(self.sums[0].results[0])

    def is_for(self, reader: ir.Operation) -> bool:
        """True if the sums have no other reader than `reader`."""
        inside = {*self.path, reader}
        return all(use.owner.operation in inside for op in (*self.sums, *self.path) for use in op.results[0].uses)


@dataclass(frozen=True)
class _Scaling:
    """An operation that scales terms of a sum over devices by a value computed from sums over the same devices."""

    op: ir.Operation
    side: int
    "The number of the scaled operand."
    dim: int
    "The summed dimension."
    factor: _ScaleFactor
    reduced: tuple[_ReducedSum, ...]
    mesh: Mesh
    axes: tuple[int, ...]

    @property
    def scatters(self) -> bool:
        """True if any of the reductions is a reduce-scatter."""
        return any(reduced.dim is not None for reduced in self.reduced)

    @property
    def widening(self) -> float:
        """The additional bytes that a device sends if everything is reduced in the element type of the factor's sums; infinite if
        that is the narrower one."""
        return sum(self._widening(reduced) for reduced in self.reduced)

    def _widening(self, reduced: _ReducedSum) -> float:
        ((_, _, _, collective),) = communicating([(reduced.op, 1)], {self.mesh.name: self.mesh})
        times = element_bytes(str(self.factor.element)) / element_bytes(str(reduced.element))
        return collective.wire_bytes * (times - 1) if times >= 1 else inf

    def delay(self, *, widen: bool) -> None:
        """Scales after the reductions; leaves dead operations behind."""
        scattered = all(reduced.dim is not None for reduced in self.reduced) and self.factor.is_for(self.op)
        self.op.results[0].replace_all_uses_with(self.op.operands[self.side])
        parts: dict[ValueDim, ir.Value] | None = {} if scattered else None
        for reduced in self.reduced:
            builder = Builder.before(reduced.op)
            row = BlockWriter(builder, self.op.block, 0, 1, {}).of(self.factor.value, self.dim)
            factor = lifted(builder, reduced.sum, 0, row)
            if reduced.dim is not None:
                factor = self._piece(builder, factor, reduced.dim, parts)
            total = self._reduce(
                builder,
                builder.convert(reduced.sum.op.results[0], self.factor.element if widen else reduced.element),
                reduced.dim,
            )
            total = builder.convert(total, element_of(factor))
            scaled = builder.elementwise(self.op.name.removeprefix("stablehlo."), total, factor)
            reduced.op.results[0].replace_all_uses_with(_viewed(builder, reduced, scaled))

    def _reduce(self, builder: Builder, value: ir.Value, dim: int | None) -> ir.Value:
        if dim is None:
            return build.all_reduce(value, self.mesh, mesh_axes=self.axes, at=builder)
        return build.reduce_scatter(value, self.mesh, mesh_axes=self.axes, scatter_axis=dim, at=builder)

    def _piece(self, builder: Builder, factor: ir.Value, dim: int, parts: dict[ValueDim, ir.Value] | None) -> ir.Value:
        """This device's slice of `factor` along `dim`. With `parts`, the scattered sums that exist already, it is computed from
        scattered sums."""
        if parts is None:
            return build.all_slice(factor, self.mesh, mesh_axes=self.axes, slice_axis=dim, at=builder)
        for op in self.factor.sums:
            for along in _dims_read(factor, dim, op.results[0]):
                if (op.results[0], along) not in parts:
                    parts[op.results[0], along] = self._reduce(builder, op.operands[0], along)
        size = shape_of(factor)[dim] // self.mesh.group_size(self.axes)
        start = builder.multiply(build.group_index(self.mesh, mesh_axes=self.axes, at=builder), size)
        return BlockWriter(builder, self.op.block, start, size, parts).of(factor, dim)


def _viewed(builder: Builder, reduced: _ReducedSum, value: ir.Value) -> ir.Value:
    """`value`, a sum or this device's slice of it, after the views."""
    value = builder.convert(value, element_of(reduced.sum.op.results[0]))
    for op, dim in zip(reduced.views, reduced.dims[1:], strict=True):
        shape = shape_of(op.results[0])
        if dim is not None:
            shape[dim] //= reduced.pieces
        value = builder.again(op, tensor(shape, element_of(op.results[0])), [value])
    return builder.convert(value, reduced.element)


def _dims_read(value: ir.Value, dim: int, source: ir.Value) -> set[int]:
    """The dimensions of `source` whose blocks are read for blocks of `value` along `dim`."""
    dims, worklist = set[int](), [(value, dim)]
    while worklist:
        value, dim = worklist.pop()
        if value == source:
            dims.add(dim)
        elif not is_argument(value):
            along = operand_dims(op_of(value), dim) or ()
            worklist += [(value, dim) for value, dim in zip(op_of(value).operands, along, strict=False) if dim is not None]
    return dims


def _scaling(op: ir.Operation, meshes: Mapping[str, Mesh]) -> _Scaling | None:
    """The scaling by `op`, if its result is only summed over devices, and the sums do not depend on the scale in another way."""
    if not _is_wide(op.results[0]) or not may_be_reduced(op.results[0]):
        return None
    for side in SCALE[op.name]:
        factor = _factor(op.operands[1 - side], op.block)
        if factor is None:
            continue
        for dim, size in enumerate(shape_of(op.results[0])):
            sums = linear_reductions(op, dim) if size != 1 and not varies_along(factor.value, dim) else None
            reduced = [_reduced(reduced_sum, meshes) for reduced_sum in sums or ()]
            complete = tuple(reduced_sum for reduced_sum in reduced if reduced_sum is not None)
            if not complete or len(complete) != len(reduced):
                continue
            if not _are_over_alike((*factor.sums, *(reduced_sum.op for reduced_sum in complete))):
                continue
            if not scales_exactly(op, factor.value, masked=any(reduced_sum.sum.is_masked for reduced_sum in complete)):
                continue
            late = forward_slice(factor.sums, complete[-1].op, {op})
            if not any(reduced_sum.op in late for reduced_sum in complete):
                view = CollectiveOpView(complete[0].op)
                return _Scaling(op, side, dim, factor, complete, meshes[view.mesh], tuple(view.mesh_axes))
    return None


def _factor(value: ir.Value, home: ir.Block) -> _ScaleFactor | None:
    """`value`, if it is computed elementwise from sums over devices in the block `home`."""
    sums: dict[ir.Operation, None] = {}
    path: dict[ir.Operation, None] = {}
    worklist = [value]
    while worklist:
        op = producer(worklist.pop(), home)
        if op is None or op in path or op in sums:
            continue
        if op.name == AllReduceOp.OPERATION_NAME:
            sums[op] = None
        elif op.name in _ON_THE_WAY and len(path) < _MOST:
            path[op] = None
            worklist += op.operands
    if not sums or any(not _adds(op) for op in sums):
        return None
    return _ScaleFactor(value, tuple(sums), frozenset(path))


def _reduced(reduction: LinearReduction, meshes: Mapping[str, Mesh]) -> _ReducedSum | None:
    """The sum and its reduction over devices, if nothing else reads it."""
    views: list[ir.Operation] = []
    value = reduction.op.results[0]
    while len(uses := list(value.uses)) == 1:
        op = uses[0].owner.operation
        if op.block != reduction.op.block or not _is_wide(value):
            return None
        if op.name in _REDUCTIONS:
            if not _adds(op) or DYNAMIC in meshes[CollectiveOpView(op).mesh].shape:
                return None
            if op.name == AllReduceOp.OPERATION_NAME:
                return _ReducedSum(reduction, tuple(views), op, (None,) * (len(views) + 1))
            view = ReduceScatterOp(op)
            dims = _scattered(views, view.scatter_axis, meshes[view.mesh].group_size(view.mesh_axes))
            return None if dims is None else _ReducedSum(reduction, tuple(views), op, dims)
        if op.name not in (RESHAPE, TRANSPOSE, _CONVERT):
            return None
        views.append(op)
        value = op.results[0]
    return None


def _scattered(views: Sequence[ir.Operation], dim: int, count: int) -> tuple[int, ...] | None:
    """For the viewed value and each view, the dimension whose `count` pieces become those of the last view along `dim`."""
    dims = [dim]
    for op in reversed(views):
        if op.name == TRANSPOSE:
            dim = integers(op.attributes["permutation"])[dim]
        elif op.name == RESHAPE:
            shown = reshaped_dim(shape_of(op.results[0]), shape_of(op.operands[0]), dim, count)
            if shown is None:
                return None
            dim = shown
        dims.append(dim)
    return tuple(reversed(dims))


def _adds(op: ir.Operation) -> bool:
    """True if a reduction over devices is a sum in its operand's element type."""
    view = _REDUCTIONS[op.name](op)
    return view.reduction == "sum" and keeps_type(view)


def _are_over_alike(ops: Iterable[ir.Operation]) -> bool:
    """True if reductions are over the same axes of one mesh."""
    return len({(CollectiveOpView(op).mesh, frozenset(CollectiveOpView(op).mesh_axes)) for op in ops}) == 1


def _is_wide(value: ir.Value) -> bool:
    """True if `value` has a known shape and floats with at least the range of float32."""
    type_ = value.type
    return (
        isinstance(type_, ir.RankedTensorType)
        and type_.has_static_shape
        and isinstance(type_.element_type, (ir.BF16Type, ir.F32Type, ir.F64Type))
    )
