"""`rows-in-pieces`: computes segments between collectives in chunks, so that the communication of one overlaps with the
computation of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import ClassVar, cast

from meshbridge.cost.step import schedule
from meshbridge.dialect.module_mesh import mesh_ops
from meshbridge.ir.block_index import BlockIndex
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import MeshError, find, ir, walk_all
from meshbridge.ir.passes import Analyses, Pass, register
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.chunking.region import OPENING, Segment, Segments
from meshbridge.overlap.chunking.schedule import rewrite
from meshbridge.overlap.trial_rewrites import Trial, disjoint, keep_faster
from meshbridge.read.formats import copy_module

KINDS = 8
"""The number of kinds of segments that are tried, largest gains first: each trial predicts a whole step."""


@register
@dataclass(frozen=True)
class RowsInPieces(Pass):
    """Computes segments between collectives in chunks of rows, each of which is gathered, multiplied and reduced beside another.

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

    A segment starts at all-gathers and all-to-alls, contains the operations that work on chunks of their rows, by the sharding
    rules, and ends at reductions and all-to-alls of as many bytes, at least one. Rows are a dimension that some product does not
    contract; if a collective gathers or scatters it, a chunk has a part of each shard. Other operands are sliced if they have
    that dimension. At the end, results are concatenated; a sum over rows, such as the gradient of a weight, is summed over chunks
    in its own type, which rounds once more. As many bytes are sent in more collectives.

    A segment stays if it does not divide evenly, or if large intermediate results are read outside of it. Operations that cannot
    work on chunks read concatenated results.
    """

    name: ClassVar[str] = "rows-in-pieces"
    target: CompileTarget | None = None
    "The device whose predicted step is shortened; without one every possible segment is divided."
    pieces: int = 2
    "The number of chunks."
    least: int = 128
    "The minimum size of a chunk along one of the two minor dimensions: a tile of a TPU."

    def run(self, module: ir.Module) -> bool:
        return self.run_with(module, {})

    def run_with(self, module: ir.Module, analyses: Analyses) -> bool:
        with module.context, ir.Location.unknown(module.context):
            if self.target is None:
                chosen = disjoint(segments[0] for segments in self._candidates(module, analyses))
                rewrite(chosen)
                return bool(chosen)
            return self._divide_what_pays(module, self.target, analyses)

    def _candidates(self, module: ir.Module, analyses: Analyses) -> Iterator[list[Segment]]:
        """For each collective at which a segment can start, its segments."""
        for block in dict.fromkeys(op.block for op in find(module.operation, OPENING)):
            found = Segments(BlockIndex.of(block, analyses), self.pieces)
            for number in found.openings():
                if segments := list(found.of(number, self.least)):
                    yield segments

    def _divide_what_pays(self, module: ir.Module, target: CompileTarget, analyses: Analyses) -> bool:
        """Divides each kind of segments that shortens the predicted step. Raises MeshError for a target without a device."""
        target.check_device()
        price = _Price(module, target)
        by_kind: dict[object, list[Segment]] = {}
        gains: dict[object, float] = defaultdict(float)
        try:
            for segments in self._candidates(module, analyses):
                gain, segment = max(((price.gain(each), each) for each in segments), key=itemgetter(0))
                if gain > 0:
                    by_kind.setdefault(segment.kind, []).append(segment)
                    gains[segment.kind] += gain
        except MeshError:  # no step can be predicted; the report says why
            return False
        most = sorted(gains, key=lambda kind: -gains[kind])[:KINDS]
        divisions = [partial(_divided, module, by_kind[kind]) for kind in most]
        return bool(divisions) and keep_faster(module, target, divisions, analyses=analyses)


def _divided(module: ir.Module, segments: Sequence[Segment], before: Trial) -> Iterator[Trial]:
    """A copy of `module` with these segments divided, and earlier ones that share no operations with them."""
    divided = disjoint([*segments, *cast("tuple[Segment, ...]", before.rewritten)])
    copy = copy_module(module)
    copies = dict(zip(walk_all(module), walk_all(copy), strict=True))
    rewrite(segment.among(copies) for segment in divided)
    yield Trial(copy, tuple(divided))


@dataclass
class _Price:
    """The gain of dividing a single segment."""

    module: ir.Module
    target: CompileTarget
    gains: dict[object, float] = field(default_factory=dict)

    def step(self, module: ir.Module) -> float:
        """The predicted step of a program."""
        return schedule(module, self.target).seconds

    def gain(self, segment: Segment) -> float:
        """The seconds that dividing a segment saves if nothing else runs beside it."""
        if segment.kind not in self.gains:
            whole, divided = (self.step(_alone(self.module, segment, in_pieces)) for in_pieces in (False, True))
            self.gains[segment.kind] = whole - divided
        return self.gains[segment.kind]


def _alone(module: ir.Module, segment: Segment, in_pieces: bool) -> ir.Module:
    """A program that only computes a segment."""
    alone = ir.Module.create()
    for declared in mesh_ops(module.body):
        declared.operation.clone(ip=ir.InsertionPoint(alone.body))
    types = ir.FunctionType.get([value.type for value in segment.incoming], [value.type for value in segment.outgoing])
    attributes = {"sym_name": ir.StringAttr.get("main"), "function_type": ir.TypeAttr.get(types)}
    function = Builder(ir.Location.unknown(), ir.InsertionPoint(alone.body)).op("func.func", [], [], attributes, regions=1)
    block = function.regions[0].blocks.append(*types.inputs, arg_locs=[ir.Location.unknown()] * len(types.inputs))
    builder = Builder(ir.Location.unknown(), ir.InsertionPoint(block))
    arguments = dict(zip(segment.incoming, block.arguments, strict=True))
    results = segment.write(builder, arguments) if in_pieces else segment.again(builder, arguments)
    builder.op("func.return", [], [results[value] for value in segment.outgoing])
    return alone
