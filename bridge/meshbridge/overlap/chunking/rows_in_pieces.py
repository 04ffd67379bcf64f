"""`rows-in-pieces`: computes what stands between collectives in pieces of rows, and sends one while it computes another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import ClassVar, cast

from meshbridge.cost.step import step_seconds
from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import MeshError, find, ir, walk_all
from meshbridge.ir.passes import Pass, register
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.chunking.region import OPENING, Segment, Segments
from meshbridge.overlap.chunking.schedule import rewrite
from meshbridge.overlap.costed import Trial, keep_faster
from meshbridge.read.formats import copy_module

KINDS = 8
"""How many kinds of segments are tried, those first that save most alone: each trial predicts a whole step."""


@register
@dataclass(frozen=True)
class RowsInPieces(Pass):
    """Has what stands between collectives work on rows piece by piece: a piece is gathered, multiplied and summed beside another.

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<4x8xf32> -> tensor<8x8xf32>
             %1 = stablehlo.dot_general %0, %w ... : (tensor<8x8xf32>, tensor<8x6xf32>) -> tensor<8x6xf32>
             %2 = stablehlo.tanh %1
             %3 = stablehlo.dot_general %2, %v ... : (tensor<8x6xf32>, tensor<6x8xf32>) -> tensor<8x8xf32>
             %4 = mesh.reduce_scatter %3 on @m mesh_axes = [0] scatter_axis = 0 : tensor<8x8xf32> -> tensor<4x8xf32>
    Output:  the same for %x[0:2, :] and for %x[2:4, :], each
             %0 = mesh.all_gather ... : tensor<2x8xf32> -> tensor<4x8xf32>
             %1 = stablehlo.dot_general ... : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
             %2 = stablehlo.tanh %1
             %3 = stablehlo.dot_general ... : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
             %4 = mesh.reduce_scatter ... : tensor<4x8xf32> -> tensor<2x8xf32>
             and %4 = stablehlo.concatenate of what both give

    A segment begins with all-gathers and all-to-alls, and holds what works on their rows as on any piece of them, by the sharding
    rules, up to reductions and all-to-alls of as many bytes, of which there has to be one. Rows are a dimension that some product
    does not contract; one that a collective gathers or scatters has pieces of each shard. What is read besides is sliced if it
    has something for each row. Where rows end, results are joined: a sum over rows, as of the gradients of weights, is added up
    over pieces in the type of the program, which rounds once more. As many bytes in more collectives.

    What does not divide evenly stays, and so does a segment of which something large is read outside. Whatever reads rows in
    another way reads them joined, and is outside.
    """

    name: ClassVar[str] = "rows-in-pieces"
    target: CompileTarget | None = None
    "The device whose predicted step is to become shorter; without one all that can be is divided."
    pieces: int = 2
    "Into how many pieces rows are divided."
    least: int = 128
    "Elements of a piece along a divided dimension that is one of the two minor ones: those of a tile of a TPU."

    def run(self, module: ir.Module) -> bool:
        with module.context, ir.Location.unknown(module.context):
            if self.target is None:
                chosen = _apart(ways[0] for ways in self._ways(module))
                rewrite(chosen)
                return bool(chosen)
            return self._divide_what_pays(module, self.target)

    def _ways(self, module: ir.Module) -> Iterator[list[Segment]]:
        """For each collective that a segment can begin with, the segments."""
        blocks: dict[ir.Block, Segments] = {}
        for op in find(module.operation, OPENING):
            if op.block not in blocks:
                blocks[op.block] = Segments(op.block, self.pieces)
            if ways := list(blocks[op.block].of(op, self.least)):
                yield ways

    def _divide_what_pays(self, module: ir.Module, target: CompileTarget) -> bool:
        """Divides each kind of segments with which the predicted step is shorter than without it. Raises MeshError for a target
        that is no device."""
        target.check_device()
        price = _Price(module, target)
        by_kind: dict[object, list[Segment]] = {}
        gains: dict[object, float] = defaultdict(float)
        try:
            for ways in self._ways(module):
                gain, way = max(((price.gain(way), way) for way in ways), key=itemgetter(0))
                if gain > 0:
                    by_kind.setdefault(way.kind, []).append(way)
                    gains[way.kind] += gain
        except MeshError:  # nothing says what pays; the report says what its prediction stumbles over
            return False
        most = sorted(gains, key=lambda kind: -gains[kind])[:KINDS]
        return bool(most) and keep_faster(module, target, [partial(_divided, module, by_kind[kind]) for kind in most])


def _divided(module: ir.Module, segments: Sequence[Segment], before: Trial) -> Iterator[Trial]:
    """A copy of `module` in which these segments are divided, and those divided before that share no operations with them."""
    divided = _apart([*segments, *cast("tuple[Segment, ...]", before.rewritten)])
    copy = copy_module(module)
    copies = dict(zip(walk_all(module), walk_all(copy), strict=True))
    rewrite(segment.among(copies) for segment in divided)
    yield Trial(copy, tuple(divided))


def _apart(segments: Iterable[Segment]) -> list[Segment]:
    """Those that divide nothing which one before them divides."""
    taken: set[ir.Operation] = set()
    found = []
    for each in segments:
        if taken.isdisjoint(each.ops):
            taken.update(each.ops)
            found.append(each)
    return found


@dataclass
class _Price:
    """What segments take by themselves on a machine."""

    module: ir.Module
    target: CompileTarget
    gains: dict[object, float] = field(default_factory=dict)

    def step(self, module: ir.Module) -> float:
        """The predicted step of a program."""
        return step_seconds(module, self.target)

    def gain(self, segment: Segment) -> float:
        """Seconds by which a segment is shorter in pieces, if nothing else runs beside it."""
        if segment.kind not in self.gains:
            whole, divided = (self.step(_alone(self.module, segment, in_pieces)) for in_pieces in (False, True))
            self.gains[segment.kind] = whole - divided
        return self.gains[segment.kind]


def _alone(module: ir.Module, segment: Segment, in_pieces: bool) -> ir.Module:
    """A program that computes nothing but a segment."""
    alone = ir.Module.create()
    for declared in mesh_ops(module.body):
        declared.operation.clone(ip=ir.InsertionPoint(alone.body))
    types = ir.FunctionType.get([value.type for value in segment.incoming], [value.type for value in segment.outgoing])
    attributes = {"sym_name": ir.StringAttr.get("main"), "function_type": ir.TypeAttr.get(types)}
    function = Builder(ir.Location.unknown(), ir.InsertionPoint(alone.body)).op("func.func", [], [], attributes, regions=1)
    block = function.regions[0].blocks.append(*types.inputs, arg_locs=[ir.Location.unknown()] * len(types.inputs))
    emit = Builder(ir.Location.unknown(), ir.InsertionPoint(block))
    given = dict(zip(segment.incoming, block.arguments, strict=True))
    made = segment.write(emit, given) if in_pieces else segment.again(emit, given)
    emit.op("func.return", [], [made[value] for value in segment.outgoing])
    return alone
