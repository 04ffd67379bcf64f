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
from meshbridge.overlap.attention.block_trace import BlockWriter, Place, producer
from meshbridge.overlap.attention.linear_reductions import LinearReduction, lifted, linear_reductions

_CONVERT = "stablehlo.convert"
_REDUCTIONS = {AllReduceOp.OPERATION_NAME: AllReduceOp, ReduceScatterOp.OPERATION_NAME: ReduceScatterOp}
_ON_THE_WAY = ops_with(Trait.ELEMENTWISE, Trait.SHAPING)
_MOST = 16
"""How many operations are looked at between the sums over devices and what they scale. Not measured: a bound on time."""


@register
@dataclass(frozen=True)
class DelayScaling(Pass):
    """Divides by a sum over devices, or scales by what is computed of one, behind the reduction of what is scaled.

    Input:   %0 = stablehlo.reduce(%e init: 0) applies stablehlo.add across dimensions = [1] : tensor<4x8xf32> -> tensor<4xf32>
             %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<4xf32> -> tensor<4xf32>
             %2 = stablehlo.divide %e, (%1, broadcast along dimension 1) : tensor<4x8xf32>
             %3 = stablehlo.dot_general %2, %v, contracting_dims = [1] x [0] : tensor<4x16xf32>
             %4 = mesh.all_reduce %3 on @m mesh_axes = [0] : tensor<4x16xf32> -> tensor<4x16xf32>
    Output:  %0 and %1 as before
             %3 = stablehlo.dot_general %e, %v, contracting_dims = [1] x [0] : tensor<4x16xf32>
             %2 = mesh.all_reduce %3 on @m mesh_axes = [0] : tensor<4x16xf32> -> tensor<4x16xf32>
             %4 = stablehlo.divide %2, (%1, broadcast along dimension 1) : tensor<4x16xf32>

    So does attention over keys that are sharded along the sequence, and a normalisation before a product that contracts what it
    normalises. Neither reduction waits for the other, and compilers make one of them where they have one element type: what is
    summed in a narrower one is widened where that sends no more than could be received while a collective starts. Where the
    product is reduce-scattered, so is the other sum. Between what is scaled and the product may stand what is linear: views,
    conversions, masks, further factors. The scaling is done in the element type in which the program did it.

    The scaled value stays where something else reads it, where its element type holds smaller numbers than float32, which the sum
    may not fit into, and where the factor may be a number that scales a sum in another way than its terms
    (`ops/number_classes.py`): a divisor of zero, and NaN where a mask may leave no terms.
    """

    name: ClassVar[str] = "delay-scaling"
    target: CompileTarget | None = None
    "The device on which launches are spared; without one they are worth any bytes."

    def run(self, module: ir.Module) -> bool:
        with module.context:
            meshes, changed = declared_meshes(module.body), False
            for op in find(module.operation, SCALE):
                found = _scaling(op, meshes)
                if found is not None and (widen := self._widens(found)) is not None:
                    found.delay(widen=widen)
                    changed = True
        if changed:
            Simplify().run(module)
        return changed

    def _widens(self, found: _Scaling) -> bool | None:
        """Whether to reduce all in one element type, so that it can be done at once; None where it pays neither so nor otherwise.
        Raises MeshError for a target that is no device."""
        if self.target is None:
            return found.widening < inf
        machine = self.target.device
        # XLA:TPU combines all-reduces. Of two reduce-scatters it makes an all-reduce of one that has few rows, beside the other.
        combines = machine.platform != "tpu" or not found.scatters
        if combines and found.widening <= machine.link.launch_bytes:
            return True
        return False if "all_reduce" in machine.async_collectives else None


@dataclass(frozen=True)
class _Reduced:
    """A sum over one dimension that is added up over devices too."""

    sum: LinearReduction
    views: tuple[ir.Operation, ...]
    "What rearranges or converts it before."
    op: ir.Operation
    "The reduction over devices."
    dims: tuple[int | None, ...]
    "Of the sum, and then of each view, the dimension along which it is scattered; None where it is not."

    @property
    def dim(self) -> int | None:
        """That of the sum."""
        return self.dims[0]

    @property
    def pieces(self) -> int:
        """In how many it is scattered."""
        sizes = (prod(shape_of(value)) for value in (self.op.operands[0], self.op.results[0]))
        return next(sizes) // next(sizes)

    @property
    def element(self) -> ir.Type:
        """In which it is added up over devices."""
        return element_of(self.op.results[0])


@dataclass(frozen=True)
class _Scale:
    """What scales, and the sums over devices that it is computed of."""

    value: ir.Value
    sums: tuple[ir.Operation, ...]
    path: frozenset[ir.Operation]
    "The operations in between."

    @property
    def element(self) -> ir.Type:
        """In which the sums are added up over devices."""
        return element_of(self.sums[0].results[0])

    def is_for(self, reader: ir.Operation) -> bool:
        """Whether the sums are there for `reader` alone."""
        inside = {*self.path, reader}
        return all(use.owner.operation in inside for op in (*self.sums, *self.path) for use in op.results[0].uses)


@dataclass(frozen=True)
class _Scaling:
    """An operation that scales what is summed up over devices, by what is computed of sums over the same devices."""

    op: ir.Operation
    side: int
    "Which operand is scaled."
    dim: int
    "Along which it is summed."
    factor: _Scale
    reduced: tuple[_Reduced, ...]
    mesh: Mesh
    axes: tuple[int, ...]

    @property
    def scatters(self) -> bool:
        """Whether any of the reductions scatters."""
        return any(each.dim is not None for each in self.reduced)

    @property
    def widening(self) -> float:
        """How many more bytes a device sends if all is reduced in the element type of the factor's sums; infinite where that is
        the narrower one."""
        return sum(self._widening(each) for each in self.reduced)

    def _widening(self, each: _Reduced) -> float:
        ((_, _, _, sent),) = communicating([(each.op, 1)], {self.mesh.name: self.mesh})
        times = element_bytes(str(self.factor.element)) / element_bytes(str(each.element))
        return sent.wire_bytes * (times - 1) if times >= 1 else inf

    def delay(self, *, widen: bool) -> None:
        """Scales behind the reductions; what nothing reads any more is left behind."""
        scattered = all(each.dim is not None for each in self.reduced) and self.factor.is_for(self.op)
        self.op.results[0].replace_all_uses_with(self.op.operands[self.side])
        parts: dict[Place, ir.Value] | None = {} if scattered else None
        for each in self.reduced:
            emit = Builder.before(each.op)
            one = BlockWriter(emit, self.op.block, 0, 1, {}).of(self.factor.value, self.dim)
            factor = lifted(emit, each.sum, 0, one)
            if each.dim is not None:
                factor = self._piece(emit, factor, each.dim, parts)
            total = self._reduce(
                emit, emit.convert(each.sum.op.results[0], self.factor.element if widen else each.element), each.dim
            )
            total = emit.convert(total, element_of(factor))
            scaled = emit.elementwise(self.op.name.removeprefix("stablehlo."), total, factor)
            each.op.results[0].replace_all_uses_with(_viewed(emit, each, scaled))

    def _reduce(self, emit: Builder, value: ir.Value, dim: int | None) -> ir.Value:
        if dim is None:
            return build.all_reduce(value, self.mesh, mesh_axes=self.axes, at=emit)
        return build.reduce_scatter(value, self.mesh, mesh_axes=self.axes, scatter_axis=dim, at=emit)

    def _piece(self, emit: Builder, factor: ir.Value, dim: int, parts: dict[Place, ir.Value] | None) -> ir.Value:
        """This device's piece of `factor` along `dim`. With `parts`, the scattered sums that are there already, the sums that it
        is computed of are scattered where that gives such a piece."""
        if parts is None:
            return build.all_slice(factor, self.mesh, mesh_axes=self.axes, slice_axis=dim, at=emit)
        count = self.mesh.group_size(self.axes)
        for op in self.factor.sums:
            for along in _dims_read(factor, dim, op.results[0]):
                if (op.results[0], along) not in parts:
                    parts[op.results[0], along] = self._reduce(emit, op.operands[0], along)
        size = shape_of(factor)[dim] // count
        index = build.all_slice(emit.iota([count], 0), self.mesh, mesh_axes=self.axes, slice_axis=0, at=emit)
        start = emit.multiply(emit.reshape(index, []), size)
        return BlockWriter(emit, self.op.block, start, size, parts).of(factor, dim)


def _viewed(emit: Builder, reduced: _Reduced, value: ir.Value) -> ir.Value:
    """`value`, a sum or this device's piece of it, as the reduced views show it."""
    value = emit.convert(value, element_of(reduced.sum.op.results[0]))
    for op, dim in zip(reduced.views, reduced.dims[1:], strict=True):
        shape = shape_of(op.results[0])
        if dim is not None:
            shape[dim] //= reduced.pieces
        value = emit.again(op, tensor(shape, element_of(op.results[0])), [value])
    return emit.convert(value, reduced.element)


def _dims_read(value: ir.Value, dim: int, source: ir.Value) -> set[int]:
    """The dimensions of `source` along which its blocks are read for blocks of `value` along `dim`."""
    found, waiting = set[int](), [(value, dim)]
    while waiting:
        value, dim = waiting.pop()
        if value == source:
            found.add(dim)
        elif not is_argument(value):
            along = operand_dims(op_of(value), dim) or ()
            waiting += [(operand, each) for operand, each in zip(op_of(value).operands, along, strict=False) if each is not None]
    return found


def _scaling(op: ir.Operation, meshes: Mapping[str, Mesh]) -> _Scaling | None:
    """What `op` scales, if all that reads it is summed up over devices, without waiting otherwise for what it is scaled by."""
    for side in SCALE[op.name]:
        factor = _factor(op.operands[1 - side], op.block)
        if factor is None or not _is_wide(op.results[0]):
            continue
        for dim, size in enumerate(shape_of(op.results[0])):
            sums = linear_reductions(op, dim) if size != 1 and not varies_along(factor.value, dim) else None
            reduced = [_reduced(each, meshes) for each in sums or ()]
            found = tuple(each for each in reduced if each is not None)
            if not found or len(found) != len(reduced) or not _are_over_alike((*factor.sums, *(each.op for each in found))):
                continue
            if not scales_exactly(op, factor.value, masked=any(each.sum.is_masked for each in found)):
                continue
            late = forward_slice(factor.sums, found[-1].op, {op})
            if not any(each.op in late for each in found):
                view = CollectiveOpView(found[0].op)
                return _Scaling(op, side, dim, factor, found, meshes[view.mesh], tuple(view.mesh_axes))
    return None


def _factor(value: ir.Value, home: ir.Block) -> _Scale | None:
    """`value`, if it is computed element by element of sums over devices, all in the block `home`."""
    sums: dict[ir.Operation, None] = {}
    path: dict[ir.Operation, None] = {}
    left = [value]
    while left:
        op = producer(left.pop(), home)
        if op is None or op in path or op in sums:
            continue
        if op.name == AllReduceOp.OPERATION_NAME:
            sums[op] = None
        elif op.name in _ON_THE_WAY and len(path) < _MOST:
            path[op] = None
            left += op.operands
    if not sums or any(not _adds(op) for op in sums):
        return None
    return _Scale(value, tuple(sums), frozenset(path))


def _reduced(each: LinearReduction, meshes: Mapping[str, Mesh]) -> _Reduced | None:
    """The sum and its reduction over devices, if nothing else reads it."""
    views: list[ir.Operation] = []
    value = each.op.results[0]
    while len(uses := list(value.uses)) == 1:
        op = uses[0].owner.operation
        if op.block != each.op.block or not _is_wide(value):
            return None
        if op.name in _REDUCTIONS:
            if not _adds(op) or DYNAMIC in meshes[CollectiveOpView(op).mesh].shape:
                return None
            if op.name == AllReduceOp.OPERATION_NAME:
                return _Reduced(each, tuple(views), op, (None,) * (len(views) + 1))
            view = ReduceScatterOp(op)
            dims = _scattered(views, view.scatter_axis, meshes[view.mesh].group_size(view.mesh_axes))
            return None if dims is None else _Reduced(each, tuple(views), op, dims)
        if op.name not in (RESHAPE, TRANSPOSE, _CONVERT):
            return None
        views.append(op)
        value = op.results[0]
    return None


def _scattered(views: Sequence[ir.Operation], dim: int, count: int) -> tuple[int, ...] | None:
    """The dimension of what the views show, and then of each view, whose `count` pieces are those of the last along `dim`."""
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
    """Whether a reduction over devices adds up, in the element type that it is given."""
    view = _REDUCTIONS[op.name](op)
    return view.reduction == "sum" and keeps_type(view)


def _are_over_alike(ops: Iterable[ir.Operation]) -> bool:
    """Whether reductions are over the same axes of one mesh."""
    return len({(CollectiveOpView(op).mesh, frozenset(CollectiveOpView(op).mesh_axes)) for op in ops}) == 1


def _is_wide(value: ir.Value) -> bool:
    """Whether `value` has floats of no smaller a range than float32, and a known shape."""
    type_ = value.type
    return (
        isinstance(type_, ir.RankedTensorType)
        and type_.has_static_shape
        and isinstance(type_.element_type, (ir.BF16Type, ir.F32Type, ir.F64Type))
    )
