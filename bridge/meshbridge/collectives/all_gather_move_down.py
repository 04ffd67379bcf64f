"""`all-gather-move-down`: compute on shards, gather what comes out (the RFC)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from meshbridge.collectives import cuts, shard_steps
from meshbridge.collectives.fold_collectives import is_shard, piece_of_gathered
from meshbridge.collectives.gather_region import MOST, Region, ShardableOp
from meshbridge.collectives.rewriter import MeshRewriter, PatternPass, in_size, on
from meshbridge.dialect import build
from meshbridge.dialect.ops import AllGatherOp, AllSliceOp
from meshbridge.ir.builder import Builder
from meshbridge.ir.elements import is_bytewise, type_bytes
from meshbridge.ir.mlir import ir
from meshbridge.ir.passes import register
from meshbridge.ops.reductions import body_kind


@register
@dataclass(frozen=True)
class AllGatherMoveDown(PatternPass):
    """Moves all-gathers below operations that work on shards as well, if what is gathered then is not larger.

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

    Such operations are the elementwise ones, `transpose`, `reshape` that keeps shards together, `broadcast_in_dim`, `reduce`, and
    `slice` along other dimensions, or with a stride that takes as much of every shard. All their operands are gathered alike, are
    computed by other such operations, or are the same on every device of a group. Of these, as many work on shards as let what is
    communicated behind them be least, whatever lies between. Slices that take the shards again cost nothing.
    """

    name: ClassVar[str] = "all-gather-move-down"


def move_down(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the all-gather `op`, and others, below what works on their shards."""
    return _move(Region.behind(AllGatherOp(op), None, rewriter))


def move_below(op: ir.Operation, rewriter: MeshRewriter) -> bool:
    """Moves the all-gathers that `op` reads below it, and below what follows."""
    gathers = [gather for value in op.operands if (gather := rewriter.collective(value, AllGatherOp, op))]
    return any(_move(Region.behind(gathers[0], op, rewriter, most)) for most in (MOST, 1))


def _move(region: Region) -> bool:
    """Computes on shards what is to be: bytes and collectives do not become more."""
    if not region.steps:
        return False
    before = sum((_cost(value, region) for value in region.gathers), _Cost())
    for order in _ORDERS:
        cut = _cut(region, order)
        if cut.steps and cut.cost.bits <= before.bits and cut.cost.count <= before.count:
            _rewrite(region, cut)
            return True
    return False


@dataclass(frozen=True)
class _Cost:
    """What it takes to have all of values of which devices have shards."""

    bits: int = 0
    count: int = 0

    def __add__(self, other: _Cost) -> _Cost:
        return _Cost(self.bits + other.bits, self.count + other.count)


_MANY = 2**64
"""More than there are of anything that is weighed."""

_ORDERS: tuple[Callable[[_Cost], int], ...] = (
    lambda cost: _MANY * (_MANY * cost.bits + cost.count),
    lambda cost: _MANY * (_MANY * cost.count + cost.bits),
)
"""What is to be least, and then what else: bytes, unless more collectives are needed for that."""


def _cost(value: ir.Value, region: Region) -> _Cost:
    """That of a gather of `value`, or of an all-reduce, which moves twice as much."""
    bits = int(8 * type_bytes(value.type))
    return _Cost(bits if value in region.dims else 2 * bits, 1)


def _cost_of_slice(piece: AllSliceOp, dim: int, region: Region) -> _Cost:
    """That of what a slice takes of a value that is not gathered otherwise."""
    return _Cost() if is_shard(piece, region.axes, dim) else _Cost(int(8 * type_bytes(piece.operation.results[0].type)), 1)


@dataclass(frozen=True)
class _Cut:
    """What is computed on shards, and what is communicated behind it."""

    steps: list[ShardableOp]
    gathered: set[ir.Value]
    cost: _Cost


def _cut(region: Region, order: Callable[[_Cost], int]) -> _Cut:
    """The cut of which the cost is least in that order. As many steps as possible compute something on shards, and as few only
    arrange it anew as lie before those.

    A value with the source is had in shards, as gathers' results are; `(value,)` is with the source if it is not gathered.
    """
    graph, costs, slices = cuts.FlowNetwork(), dict[ir.Value, _Cost](), dict[ir.Value, _Cost]()
    for value, step in region.steps.items():
        tail, head, weight = (value, cuts.SINK, 1) if step.op.name in shard_steps.IDLE else (cuts.SOURCE, value, 2 * MOST)
        graph.add(tail, head, weight)
    for value in (*region.gathers, *region.steps):
        node, computed, costs[value] = (value,), value in region.steps, _cost(value, region)
        packed = computed and not is_bytewise(value.type)  # collectives pack elements in different ways
        graph.add(value if computed else cuts.SOURCE, node, cuts.UNCUT if packed else order(costs[value]))
        if value not in region.dims:
            graph.add(node, cuts.SINK, cuts.UNCUT)
            continue
        readers, dim = region.readers(value), region.dims[value]
        for reader in readers.steps:
            graph.add(node, reader.result, cuts.UNCUT)
            if computed:
                graph.add(reader.result, value, cuts.UNCUT)
        slices[value] = sum((_cost_of_slice(piece, dim, region) for piece in readers.slices), _Cost())
        needed = readers.others or not (readers.steps or readers.slices)  # nothing is gained by what nobody reads
        graph.add(node, cuts.SINK, cuts.UNCUT if needed or (packed and slices[value].count) else order(slices[value]))
    ours = graph.source_side()
    had = [value for value in costs if value in region.gathers or value in ours]
    gathered = {value for value in had if (value,) not in ours}
    cost = sum((costs[value] if value in gathered else slices[value] for value in had), _Cost())
    return _Cut([step for value, step in region.steps.items() if value in ours], gathered, cost)


def _rewrite(region: Region, cut: _Cut) -> None:
    """Takes the steps of `cut` on shards, and communicates what is needed of their results."""
    rewriter = region.rewriter
    for step in cut.steps:
        shard_steps.shrink(step.op, step.before, step.behind, region.count)
    results = dict.fromkeys(step.result for step in cut.steps)
    readers = {value: region.readers(value) for value in (*region.gathers, *results)}
    for step in cut.steps:
        if step.result in cut.gathered:
            kept = [reader.op for reader in readers[step.result].steps if reader.result in results]
            rewriter.put_after(step.op, step.location, _putting_together(step, region), kept)
    for value, reading in readers.items():
        shard, dim = region.gathers[value].input if value in region.gathers else value, region.dims.get(value, 0)
        for piece in reading.slices:
            if value not in cut.gathered or is_shard(piece, region.axes, dim):
                rewriter.replace(piece.operation, piece_of_gathered(piece, shard, region.axes, dim, rewriter))
    for step in cut.steps:
        _feed_shards(step, region)
    region.look_above()


def _putting_together(step: ShardableOp, region: Region) -> Callable[[ir.Value], ir.Value]:
    """What makes all of the result of `step` of what that gives on shards."""
    mesh, axes, dim = region.mesh, region.axes, step.behind
    if dim is not None:
        return lambda shard: build.all_gather(shard, mesh, mesh_axes=axes, gather_axis=dim)
    kind = body_kind(step.op)
    assert kind is not None
    return lambda part: build.all_reduce(part, mesh, mesh_axes=axes, reduction=kind)


def _feed_shards(step: ShardableOp, region: Region) -> None:
    """Gives `step` shards of what it reads: those that were gathered, and of what all devices of a group have alike a smaller
    constant or broadcast, or a slice. Scalars stay."""
    for number, value in enumerate(step.op.operands):
        if region.dims.get(value) != step.before:
            region.rewriter.feed(step.op, number, _shrunk(value, step, region))
        elif value in region.gathers:
            region.rewriter.feed(step.op, number, region.gathers[value].input)


def _shrunk(value: ir.Value, step: ShardableOp, region: Region) -> ir.Value:
    emit = Builder.before(step.op)
    if (make := in_size(value, step.before, divide=region.count)) is not None:
        return make(emit)
    return build.all_slice(value, region.mesh, mesh_axes=region.axes, slice_axis=step.before, at=emit)


AllGatherMoveDown.patterns = (on(AllGatherOp, move_down),)
