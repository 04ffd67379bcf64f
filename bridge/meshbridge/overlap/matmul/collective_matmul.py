"""`collective-matmul`: divides products and adjacent collectives into chunks that overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import ClassVar

from meshbridge.cost.overlap_costs import OverlapCosts
from meshbridge.cost.step import StepSchedule, schedule
from meshbridge.ir.mlir import MeshError, ir, walk_all
from meshbridge.ir.passes import Analyses, Pass, register
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.matmul.gathered_products import GatheredProducts, gathered_products
from meshbridge.overlap.matmul.ring_reductions import RingReduction, ring_scatters
from meshbridge.overlap.matmul.scattered_products import ScatteredProducts, scattered_products
from meshbridge.overlap.trial_rewrites import Trial, disjoint, keep_faster
from meshbridge.read.formats import copy_module

Divided = ScatteredProducts | RingReduction | GatheredProducts
"""Products and collectives to be divided."""


@register
@dataclass(frozen=True)
class CollectiveMatmul(Pass):
    """Divides gathers of a product's operand, and reductions of its result, into chunks that overlap with chunks of products.

    Input:   %0 = mesh.all_gather %x on @m mesh_axes = [0] gather_axis = 0 : tensor<2x8xf32> -> tensor<4x8xf32>
             %1 = stablehlo.dot_general %0, %w, contracting_dims = [1] x [0]
                  : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
    Output:  %left = mesh.all_gather %x[:, 0:4] ... : tensor<2x4xf32> -> tensor<4x4xf32>
             %right = mesh.all_gather %x[:, 4:8] ...
             %2 = stablehlo.dot_general %left, %w[0:4, :] ... : (tensor<4x4xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
             %3 = stablehlo.dot_general %right, %w[4:8, :] ...
             %1 = stablehlo.add %2, %3

    Input:   %0 = stablehlo.dot_general %x, %w ... : (tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>
             %1 = mesh.reduce_scatter %0 on @m mesh_axes = [0] scatter_axis = 0 : tensor<4x6xf32> -> tensor<2x6xf32>
    Output:  for the left half of the columns of %w, and with `offset = -1` for the right one, which are joined:
             %2 = stablehlo.dot_general (the rows of %x that the device before keeps), (the half of %w)
             %3 = mesh.shift %2 on @m mesh_axes = [0] shift_axis = 0 offset = 1 rotate
             %4 = stablehlo.dot_general (the rows of %x that this device keeps), (the half of %w)
             %5 = stablehlo.add %3, %4

    All-reduces are divided likewise, with an all-gather of the blocks after them. A reduce-scatter whose products are not divided
    becomes a ring of slices of the result, if enough independent computation can overlap: in a backward pass, few operations wait
    for gradients of weights.

    The divided dimension is one that the first product contracts; if shards are concatenated along it, each shard is divided.
    Other products of the same value in which it is a free or batch dimension compute slices of their results, which are
    concatenated. All-to-alls, permutes and shifts are divided like all-gathers. As many bytes are sent in more collectives;
    partial products are summed in the type of the result, which rounds more often. Collectives that do not divide evenly stay,
    and so do those of a slice, which is taken for a chunk.
    """

    name: ClassVar[str] = "collective-matmul"
    target: CompileTarget | None = None
    "The device whose predicted step is shortened; without one everything possible is divided."
    pieces: int = 4
    """The maximum number of chunks of a collective. Measured: a gathered product of 190 GFLOP on 8 v5e takes 1,876 us whole,
    1,534 with 2, 1,284 with 4 and 1,545 with 8, by the cycles of XLA:TPU and the time of bytes on links."""
    steps: int = 8
    "The largest group whose reduce-scatter becomes a ring, in as many steps as it has devices. Not measured."
    least: int = 128
    "The minimum size of a chunk along the divided dimension: a tile of a TPU."
    whole: bool = False
    """Whether divisions must also shorten the whole predicted step, besides their own gain.

    Measured on 64 v5p under the best options, by XLA:TPU: the divisions of a scanned MLP, none of which this keeps, take 2.6 %
    more cycles to expose 13.2 GB instead of 17.6; those of `llama4_fsdp_tp`, which it keeps, take 1 % less, and expose 2,073 MB
    instead of 2,274."""

    def run(self, module: ir.Module) -> bool:
        return self.run_with(module, {})

    def run_with(self, module: ir.Module, analyses: Analyses) -> bool:
        with module.context:
            divisions = self._chosen(module, analyses)
            if not divisions:
                return False
            if self.whole and self.target is not None:
                return keep_faster(module, self.target, [partial(self._divided, self.target, analyses)], analyses=analyses)
            for division in divisions:
                division.rewrite()
            return True

    def _divided(self, target: CompileTarget, analyses: Analyses, before: Trial) -> Iterator[Trial]:
        """A divided copy of a module, of which these are analyses."""
        copy = copy_module(before.module)
        copies = dict(zip(walk_all(before.module), walk_all(copy), strict=True))
        step = schedule(before.module, target, analyses=analyses).among(copies)
        for division in self._chosen(copy, {StepSchedule: step}):
            division.rewrite()
        yield Trial(copy)

    def _chosen(self, module: ir.Module, analyses: Analyses) -> list[Divided]:
        """The divisions to apply, which are disjoint, earlier candidates first: of each candidate the best way that shortens the
        step.

        Raises MeshError for a target without a device.
        """
        reduced = [*ring_scatters(module, self.steps)]
        products = [[product] for scatter in reduced if (product := scattered_products(scatter, self.least)) is not None]
        gathered = gathered_products(module, self.pieces, self.least)
        rings = [[RingReduction(scatter)] for scatter in reduced if not scatter.is_gathered]
        candidates: Sequence[Sequence[Divided]] = [*products, *rings, *gathered]
        if not candidates or self.target is None:
            return disjoint(divisions[0] for divisions in candidates)
        self.target.check_device()
        try:
            prices = OverlapCosts.of(module, self.target, analyses)
        except MeshError:  # no step can be predicted; the report says why
            return []
        best = []
        for divisions in candidates:
            if prices.covers(divisions[0].operations):
                gain, division = max(((each.gain(prices), each) for each in divisions), key=itemgetter(0))
                best += [division] if gain > 0 else []
        return disjoint(best)
