"""`ring-matmul`: multiply shard by shard as they come around, instead of gathering all of them first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives.rewriter import MeshPattern, MeshRewriter
from meshbridge.dialect import build
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.dialect.signature import element_of, shape_of
from meshbridge.ir.builder import Builder, tensor
from meshbridge.ir.elements import type_bytes
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.passes import Pass, register
from meshbridge.ir.rewrite import rewriting
from meshbridge.ir.sharding import DYNAMIC, Mesh


@register
@dataclass(frozen=True)
class RingMatmul(Pass):
    """Replaces an all-gather that one `dot_general` reads by a ring: shards travel on while each is multiplied.

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2x3xf32> -> tensor<8x3xf32>
             %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]
                  : (tensor<8x3xf32>, tensor<3x5xf32>) -> tensor<8x5xf32>
    Output:  %own = position of this device along axis 0
             %0:4 = stablehlo.while(%i = 0, %block = %own, %shard = %x, %sum = zeros) {
               cond: %i < 3
               body: %next = mesh.shift %shard on @m mesh_axes = [0] shift_axis = 0 offset = 1 rotate
                     %part = stablehlo.dot_general %shard, %w : (tensor<2x3xf32>, tensor<3x5xf32>) -> tensor<2x5xf32>
                     %placed = stablehlo.dynamic_update_slice %sum, %part, %block * 2, 0
                     return %i + 1, (%block + 3) mod 4, %next, %placed
             }
             %1 = %0#3 with the part of the last shard, which needs no further shift

    As many bytes as the all-gather, in as many messages as there are other devices; one shard more is held, not all of them, and
    a backend that overlaps communication hides it behind the multiplications. A gathered dimension that the product contracts
    adds up parts instead of placing them (narrow floats in f32); one that it batches over slices the other operand too. Of a
    group along several axes the ring follows the first; along the others shards are gathered beforehand.
    """

    name: ClassVar[str] = "ring-matmul"
    bytes: int = 0
    "Smallest gathered operand, in bytes, that becomes a ring."

    def run(self, module: ir.Module) -> bool:
        with rewriting(MeshRewriter, module) as rewriter:
            return turn_into_rings(rewriter, self.bytes)


def turn_into_rings(rewriter: MeshRewriter, least: int) -> bool:
    """Replaces the all-gathers of at least that many bytes that a `dot_general` alone reads; says whether there was any."""

    def rewrite(op: ir.Operation, rewriter: MeshRewriter) -> bool:
        return _rewrite(op, least, rewriter)

    return rewriter.apply((MeshPattern((AllGatherOp.OPERATION_NAME,), rewrite, frozenset(("stablehlo.dot_general",))),))


@dataclass(frozen=True)
class _Ring:
    """A product whose operand number `side` comes around in `count` shards, split along its dimension `dim`."""

    dot: ir.Operation
    side: int
    gather: AllGatherOp
    mesh: Mesh
    axes: tuple[int, ...]
    """Of the group, those with more than one device. The ring follows the first."""

    @property
    def dim(self) -> int:
        return self.gather.gather_axis

    @property
    def count(self) -> int:
        return self.mesh.shape[self.axes[0]]

    @property
    def size(self) -> int:
        """Of a shard along `dim`, once the other axes are gathered."""
        return int(shape_of(self.dot.operands[self.side].type)[self.dim]) // self.count

    @property
    def other(self) -> ir.Value:
        value: ir.Value = self.dot.operands[1 - self.side]
        return value


def _rewrite(op: ir.Operation, least: int, rewriter: MeshRewriter) -> bool:
    for side, operand in enumerate(op.operands):
        gather = rewriter.collective(operand, AllGatherOp, op)
        if gather is None or rewriter.uses(operand) != 1 or "algorithm" in op.attributes:
            continue
        mesh, types = rewriter.meshes[gather.mesh], [value.type for value in (*op.operands, op.results[0])]
        if DYNAMIC in (*mesh.shape, *(size for type_ in types for size in shape_of(type_))):
            continue
        axes = tuple(axis for axis in gather.mesh_axes if mesh.shape[axis] > 1)
        if axes and type_bytes(operand.type) >= least and not isinstance(element_of(types[2]), ir.ComplexType):
            _turn(_Ring(op, side, gather, mesh, axes), rewriter)
            return True
    return False


def _turn(ring: _Ring, rewriter: MeshRewriter) -> None:
    """Writes the loop before the product and lets the users of the product use what comes out of it."""
    op, location = ring.dot, ring.gather.operation.location
    emit = Builder.before(op)
    placing = _Placing.of(ring)
    shard = ring.gather.input
    if rest := ring.axes[1:]:
        shard = build.all_gather(shard, ring.mesh, mesh_axes=rest, gather_axis=ring.dim, at=Builder(location, emit.ip))
        rewriter.adopt(shard)
    start = [emit.scalar(0), _own_number(ring, emit), shard, emit.splat(placing.total, 0)]
    loop = emit.op("while", [value.type for value in start], start, regions=2)
    _write_condition(loop, ring.count - 1)
    _write_body(loop, ring, placing, location)
    _, block, last, total = loop.results
    whole = placing.add(emit, total, last, block)
    rewriter.replace(op, emit.convert(whole, element_of(op.results[0].type)))
    rewriter.loops.append(loop)


def _own_number(ring: _Ring, emit: Builder) -> ir.Value:
    """This device's number along the ring, `tensor<i32>`."""
    own = build.all_slice(emit.iota([ring.count], 0), ring.mesh, mesh_axes=ring.axes[:1], slice_axis=0, at=emit)
    return emit.reshape(own, [])


def _block(loop: ir.Operation, region: int) -> tuple[Builder, list[ir.Value]]:
    types = [value.type for value in loop.results]
    block = loop.regions[region].blocks.append(*types, arg_locs=[loop.location] * len(types))
    return Builder(loop.location, ir.InsertionPoint(block)), list(block.arguments)


def _write_condition(loop: ir.Operation, trips: int) -> None:
    emit, (trip, *_) = _block(loop, 0)
    emit.op("return", [], [emit.compare("LT", trip, trips)])


def _write_body(loop: ir.Operation, ring: _Ring, placing: _Placing, location: ir.Location) -> None:
    """The shift stands first, so that what multiplies meanwhile can hide it."""
    emit, (trip, block, shard, total) = _block(loop, 1)
    axis = ring.axes[0]
    at = Builder(location, emit.ip)
    following = build.shift(shard, ring.mesh, mesh_axes=(axis,), shift_axis=axis, offset=1, rotate=True, at=at)
    total = placing.add(emit, total, shard, block)
    # Shards are sent one device on, so the next one to come was one device further back.
    back = emit.elementwise("remainder", emit.add(block, ring.count - 1), ring.count)
    emit.op("return", [], [emit.add(trip, 1), back, following, total])


@dataclass(frozen=True)
class _Placing:
    """Where the part that one shard gives belongs in the product."""

    ring: _Ring
    total: ir.RankedTensorType
    """The type in which parts come together."""
    across: int | None
    """The dimension of the other operand that goes with the gathered one; None where it is the shard's own."""
    into: int | None
    """The dimension of the product that the gathered one becomes; None where parts add up."""

    @staticmethod
    def of(ring: _Ring) -> _Placing:
        numbers = stablehlo.DotDimensionNumbers(ring.dot.attributes["dot_dimension_numbers"])
        batching = (list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions))
        contracting = (list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions))
        result = ir.RankedTensorType(ring.dot.results[0].type)
        mine, others = ring.side, 1 - ring.side
        if ring.dim in contracting[mine]:
            narrow = isinstance(result.element_type, ir.BF16Type | ir.F16Type)
            total = tensor(result.shape, ir.F32Type.get(result.context)) if narrow else result
            return _Placing(ring, total, contracting[others][contracting[mine].index(ring.dim)], None)
        if ring.dim in batching[mine]:
            place = batching[mine].index(ring.dim)
            return _Placing(ring, result, batching[others][place], place)
        free = [_free(shape_of(ring.dot.operands[side].type), batching[side], contracting[side]) for side in (0, 1)]
        before = len(batching[0]) + (len(free[0]) if mine == 1 else 0)
        return _Placing(ring, result, None, before + free[mine].index(ring.dim))

    def add(self, emit: Builder, total: ir.Value, shard: ir.Value, block: ir.Value) -> ir.Value:
        """`total` with the part that `shard`, number `block` of all, gives."""
        ring, begin = self.ring, emit.multiply(block, self.ring.size)
        other = ring.other if self.across is None else emit.dynamic_slice(ring.other, self.across, begin, ring.size)
        shape = list(self.total.shape)
        if self.into is not None:
            shape[self.into] = ring.size
        operands = [shard, other] if ring.side == 0 else [other, shard]
        part = emit.again(ring.dot, tensor(shape, self.total.element_type), operands)
        if self.into is None:
            return emit.add(total, part)
        return emit.dynamic_update(total, part, self.into, begin)


def _free(shape: Sequence[int], *taken: list[int]) -> list[int]:
    return [dim for dim in range(len(shape)) if not any(dim in dims for dims in taken)]
