"""`all-gather-move-down`: computes on shards and gathers the results (the RFC)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives import min_cut, shard_ops
from meshbridge.collectives.fold_collectives import is_shard, piece_of_gathered
from meshbridge.collectives.gather_region import GatherRegion, ShardableOp
from meshbridge.collectives.rewriter import MeshRewriter, PatternPass, on, resize_uniform
from meshbridge.dialect import build
from meshbridge.dialect.ops import AllGatherOp, AllSliceOp
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import is_bytewise, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ir.uses import LOOK_THROUGH
from meshbridge.ops.reductions import body_kind


@register
@dataclass(frozen=True)
class AllGatherMoveDown(PatternPass):
    """Moves all-gathers below operations that can work on shards, if the gathered data does not grow.

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2x8xbf16> -> tensor<4x8xbf16>
             %1 = stablehlo.convert %0 : (tensor<4x8xbf16>) -> tensor<4x8xf32>
             %2 = stablehlo.tanh %1 : tensor<4x8xf32>
             %3 = stablehlo.convert %2 : (tensor<4x8xf32>) -> tensor<4x8xbf16>
    Output:  %0 = stablehlo.convert %x : (tensor<2x8xbf16>) -> tensor<2x8xf32>
             %1 = stablehlo.tanh %0 : tensor<2x8xf32>
             %2 = stablehlo.convert %1 : (tensor<2x8xf32>) -> tensor<2x8xbf16>
             %3 = mesh.all_gather %2 on @m mesh_axes = [0] gather_axis = 0 : tensor<2x8xbf16> -> tensor<4x8xbf16>

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2x3xf32> -> tensor<4x3xf32>
             %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0]
    Output:  %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
             %1 = mesh.all_reduce %0 on @m mesh_axes = [0] : tensor<3xf32> -> tensor<3xf32>

    Such operations are elementwise ones, `transpose`, `reshape` that keeps shards together, `broadcast_in_dim`, `reduce`, and
    `slice` along other dimensions, or with a stride that takes equally much of every shard. Their operands are all gathered
    alike, computed by other such operations, or replicated over the group. A minimum cut selects the operations that work on
    shards, so that the least data is communicated after them. A slice that takes a shard again costs nothing.
    """

    name: ClassVar[str] = "all-gather-move-down"


def move_down(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the all-gather `op`, and others, below the operations that can work on their shards."""
    return _move(GatherRegion.after(AllGatherOp(op), None, rewriter))


def move_below(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the all-gathers that `op` reads below it, and below later operations."""
    gathers = [gather for value in op.operands if (gather := rewriter.collective(value, AllGatherOp, op))]
    return any(_move(GatherRegion.after(gathers[0], op, rewriter, most)) for most in (LOOK_THROUGH, 1))


def _move(region: GatherRegion) -> bool:
    """Computes on shards if neither bytes nor collectives increase."""
    if not region.steps:
        return False
    initial = sum((_cost(value, region) for value in region.gathers), _Cost())
    for order in _ORDERS:
        candidate = _cut(region, order)
        if candidate.steps and candidate.cost.bits <= initial.bits and candidate.cost.count <= initial.count:
            _rewrite(region, candidate)
            return True
    return False


@dataclass(frozen=True)
class _Cost:
    """The cost of gathering values that are computed on shards."""

    bits: int = 0
    count: int = 0

    def __add__(self, addend: _Cost) -> _Cost:
        return _Cost(self.bits + addend.bits, self.count + addend.count)


_MANY = 2**64
"""More than any weight."""

_ORDERS: tuple[Callable[[_Cost], int], ...] = (
    lambda cost: _MANY * (_MANY * cost.bits + cost.count),
    lambda cost: _MANY * (_MANY * cost.count + cost.bits),
)
"""Minimize bytes, then collectives; if that takes more collectives, the other way round."""


def _cost(value: ir.Value, region: GatherRegion) -> _Cost:
    """The cost of a gather of `value`, or of an all-reduce, which sends twice as much."""
    bits = int(8 * type_bytes(value.type))
    return _Cost(bits if value in region.dims else 2 * bits, 1)


def _cost_of_slice(piece: AllSliceOp, dim: int, region: GatherRegion) -> _Cost:
    """The cost of a slice of a value that is not gathered."""
    return _Cost() if is_shard(piece, region.axes, dim) else _Cost(int(8 * type_bytes(piece.operation.results[0].type)), 1)


@dataclass(frozen=True)
class _Cut:
    """The operations computed on shards, and the values communicated after them."""

    steps: list[ShardableOp]
    gathered: set[ir.Value]
    cost: _Cost


def _cut(region: GatherRegion, order: Callable[[_Cost], int]) -> _Cut:
    """The minimum cut in that order. Of equal cuts, as many steps as possible compute on shards, and as few as possible only
    rearrange.

    A value on the source side is computed on shards, as are operands of gathers; `(value,)` is there if it is not gathered.
    """
    graph, costs, slices = min_cut.FlowNetwork(), dict[ir.Value, _Cost](), dict[ir.Value, _Cost]()
    for value, step in region.steps.items():
        tail, head, weight = (
            (value, min_cut.SINK, 1) if step.op.name in shard_ops.REARRANGING else (min_cut.SOURCE, value, 2 * LOOK_THROUGH)
        )
        graph.add(tail, head, weight)
    for value in (*region.gathers, *region.steps):
        node, computed, costs[value] = (value,), value in region.steps, _cost(value, region)
        packed = computed and not is_bytewise(value.type)  # collectives pack elements in different ways
        graph.add(value if computed else min_cut.SOURCE, node, min_cut.UNCUT if packed else order(costs[value]))
        if value not in region.dims:
            graph.add(node, min_cut.SINK, min_cut.UNCUT)
            continue
        readers, dim = region.readers(value), region.dims[value]
        for reader in readers.steps:
            graph.add(node, reader.result, min_cut.UNCUT)
            if computed:
                graph.add(reader.result, value, min_cut.UNCUT)
        slices[value] = sum((_cost_of_slice(piece, dim, region) for piece in readers.slices), _Cost())
        needed = readers.others or not (readers.steps or readers.slices)  # an unread value gains nothing
        graph.add(node, min_cut.SINK, min_cut.UNCUT if needed or (packed and slices[value].count) else order(slices[value]))
    ours = graph.source_side()
    had = [value for value in costs if value in region.gathers or value in ours]
    gathered = {value for value in had if (value,) not in ours}
    cost = sum((costs[value] if value in gathered else slices[value] for value in had), _Cost())
    return _Cut([step for value, step in region.steps.items() if value in ours], gathered, cost)


def _rewrite(region: GatherRegion, min_cut: _Cut) -> None:
    """Computes the steps of `min_cut` on shards, and communicates the results that are needed."""
    rewriter = region.rewriter
    for step in min_cut.steps:
        shard_ops.resize_to_shard(step.op, step.operand_dim, step.result_dim, region.count)
    results = dict.fromkeys(step.result for step in min_cut.steps)
    readers = {value: region.readers(value) for value in (*region.gathers, *results)}
    for step in min_cut.steps:
        if step.result in min_cut.gathered:
            on_shards = [reader.op for reader in readers[step.result].steps if reader.result in results]
            rewriter.replace_after(step.op, step.location, _full_result_builder(step, region), on_shards)
    for value, reading in readers.items():
        shard, dim = region.gathers[value].input if value in region.gathers else value, region.dims.get(value, 0)
        for piece in reading.slices:
            if value not in min_cut.gathered or is_shard(piece, region.axes, dim):
                rewriter.replace(piece.operation, piece_of_gathered(piece, shard, region.axes, dim, rewriter))
    for step in min_cut.steps:
        _feed_shards(step, region)
    region.look_above()


def _full_result_builder(step: ShardableOp, region: GatherRegion) -> Callable[[ir.Value], ir.Value]:
    """Builds the full result of `step` from its result on shards."""
    mesh, axes, dim = region.mesh, region.axes, step.result_dim
    if dim is not None:
        return lambda shard: build.all_gather(shard, mesh, mesh_axes=axes, gather_axis=dim)
    kind = body_kind(step.op)
    assert kind is not None
    return lambda part: build.all_reduce(part, mesh, mesh_axes=axes, reduction=kind)


def _feed_shards(step: ShardableOp, region: GatherRegion) -> None:
    """Replaces operands of `step` by shards: operands of gathers, smaller constants or broadcasts, and slices of replicated
    values. Scalars stay."""
    for number, value in enumerate(step.op.operands):
        if region.dims.get(value) != step.operand_dim:
            region.rewriter.set_operand(step.op, number, _shrunk(value, step, region))
        elif value in region.gathers:
            region.rewriter.set_operand(step.op, number, region.gathers[value].input)


def _shrunk(value: ir.Value, step: ShardableOp, region: GatherRegion) -> ir.Value:
    builder = Builder.before(step.op)
    if (make := resize_uniform(value, step.operand_dim, divide=region.count)) is not None:
        return make(builder)
    return build.all_slice(value, region.mesh, mesh_axes=region.axes, slice_axis=step.operand_dim, at=builder)


AllGatherMoveDown.patterns = (on(AllGatherOp, move_down),)
