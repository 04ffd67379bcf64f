"""`collective-matmul`: divides products and the collectives beside them into pieces, so that one runs while the other does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import ClassVar

from meshbridge.cost.overlap_costs import OverlapCosts
from meshbridge.ir.mlir import MeshError, ir
from meshbridge.ir.passes import Pass, register
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.overlap.costed import Trial, keep_faster
from meshbridge.overlap.matmul.gathered_products import GatheredProducts, gathered_products
from meshbridge.overlap.matmul.scattered_products import ScatteredProducts, scattered_products
from meshbridge.overlap.matmul.travelling_sums import TravellingSums, scatters
from meshbridge.read.formats import copy_module

Divided = ScatteredProducts | TravellingSums | GatheredProducts
"""What is divided."""


@register
@dataclass(frozen=True)
class CollectiveMatmul(Pass):
    """Gathers what a product reads in pieces, and sums what it leaves partial block by block, beside its parts or beside others.

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

    So is an all-reduce, whose blocks are gathered behind. A reduce-scatter whose products are not divided goes around in the same
    way, with parts of the whole result, if enough is computed that does not wait for it: little in a backward pass waits for the
    gradients of weights.

    What is divided is a dimension that the first product contracts, of shards where the shards are put together along it.
    Other products of the same value that have it as a free or batch dimension give parts of their results, which are joined.
    All-to-alls, permutes and shifts are divided as all-gathers are. As many bytes in more collectives; partial products are added
    up in the type of the result, which rounds more often. What does not divide evenly stays, and what is a slice: it is taken
    for a piece.
    """

    name: ClassVar[str] = "collective-matmul"
    target: CompileTarget | None = None
    "The device whose predicted step is to become shorter; without one all that can be is divided."
    pieces: int = 4
    """Into how many pieces a collective is divided at the most. Measured: a gathered product of 190 GFLOP on 8 v5e takes 1,876 us
    whole, 1,534 with 2, 1,284 with 4 and 1,545 with 8, by the cycles of XLA:TPU and the time of bytes on links."""
    steps: int = 8
    "The largest group whose reduce-scatter is taken apart, in as many steps as it has devices. Not measured."
    least: int = 128
    "Elements of a piece along the divided dimension: those of a tile of a TPU."
    whole: bool = False
    """Whether nothing is divided unless the whole predicted step becomes shorter, beside what each division is to save by itself.

    Measured on 64 v5p under the best options, by XLA:TPU: the divisions of a scanned MLP, of which this keeps none, take 2.6 %
    more cycles to expose 13.2 GB instead of 17.6; those of `llama4_fsdp_tp`, which it keeps, 1 % less, and expose 2,073 MB
    instead of 2,274."""

    def run(self, module: ir.Module) -> bool:
        with module.context:
            if not self.whole or self.target is None:
                return self._divide(module)
            return keep_faster(module, self.target, [self._divided])

    def _divided(self, before: Trial) -> Iterator[Trial]:
        copy = copy_module(before.module)
        if self._divide(copy):
            yield Trial(copy)

    def _divide(self, module: ir.Module) -> bool:
        """Divides what is to save time by itself; whether there is anything. Raises MeshError for a target that is no device."""
        reduced = [*scatters(module, self.steps)]
        products = [[found] for scatter in reduced if (found := scattered_products(scatter, self.least)) is not None]
        gathered = gathered_products(module, self.pieces, self.least)
        whole = [[TravellingSums(scatter)] for scatter in reduced if not scatter.is_gathered]
        chosen = self._chosen(module, [*products, *whole, *gathered])
        for each in chosen:
            each.rewrite()
        return bool(chosen)

    def _chosen(self, module: ir.Module, candidates: Sequence[Sequence[Divided]]) -> list[Divided]:
        """What is to be divided, nothing twice, the first candidates first: the best way of each that makes the step shorter.

        Raises MeshError for a target that is no device.
        """
        if not candidates or self.target is None:
            return _apart(ways[0] for ways in candidates)
        self.target.check_device()
        try:
            prices = OverlapCosts.of(module, self.target)
        except MeshError:  # nothing says what pays; the report says what its prediction stumbles over
            return []
        best = []
        for ways in candidates:
            if prices.covers(ways[0].operations):
                gain, way = max(((way.gain(prices), way) for way in ways), key=itemgetter(0))
                best += [way] if gain > 0 else []
        return _apart(best)


def _apart(chosen: Iterable[Divided]) -> list[Divided]:
    """Those that divide nothing which one before them divides."""
    taken: set[ir.Operation] = set()
    found: list[Divided] = []
    for each in chosen:
        if taken.isdisjoint(each.operations):
            taken.update(each.operations)
            found.append(each)
    return found
