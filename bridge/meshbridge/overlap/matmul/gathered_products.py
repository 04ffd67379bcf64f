"""Products of gathered values: gathers chunks, and multiplies each as it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from meshbridge.collectives.rewriter import collective_dims
from meshbridge.cost.overlap_costs import OverlapCosts
from meshbridge.dialect.ops import AllGatherOp
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import find, in_program_order, ir
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ops.einsum import DOT, Einsum, LoopDivision, is_divided
from meshbridge.ops.traits import Trait, ops_with

_MOVING = ops_with(Trait.COLLECTIVE, dialect="mesh") - ops_with(Trait.REDUCING, Trait.ROOTED)
"""Collectives that move shards of one value, and every slice of it in the same way."""


@dataclass(frozen=True)
class ReadingProduct:
    """A product that reads the gathered value as operand number `side`."""

    product: Einsum
    side: int


@dataclass(frozen=True)
class GatheredProducts:
    """A collective whose result only products read, and its division along dimension `dim` into `pieces`."""

    collective: ir.Operation
    readers: tuple[ReadingProduct, ...]
    dim: int
    pieces: int

    @property
    def value(self) -> ir.Value:
        """The gathered value."""
        value: ir.Value = self.collective.results[0]
        return value

    @property
    def operations(self) -> tuple[ir.Operation, ...]:
        """The divided products."""
        return tuple(reader.product.op for reader in self.readers)

    @cached_property
    def division(self) -> LoopDivision:
        """The division of the result. If shards are concatenated along the divided dimension, each shard is divided."""
        shard = shape_of(self.collective.operands[0])[self.dim]
        return LoopDivision(self.pieces, shape_of(self.value)[self.dim] // shard)

    def gain(self, prices: OverlapCosts) -> float:
        """Predicted seconds by which the step becomes shorter."""
        earliest = min(self.operations, key=prices.start)
        beside = [reader for reader in self.readers if prices.follows(reader.product.op, earliest)]
        copying = sum(
            prices.addition_seconds(value, self.pieces - 1) if summed else prices.concatenation_seconds(value)
            for value, summed in ((reader.product.op.results[0], self._summed(reader)) for reader in self.readers)
        )
        copying += prices.concatenation_seconds(self.collective.operands[0])  # collectives do not read slices in place
        launches = (self.pieces - 1) * len(self.readers) * prices.kernel_launch
        hiding = sum(prices.seconds(reader.product.op) for reader in beside)
        return prices.gain_of_chunked_collective(self.collective, earliest, hiding, self.pieces) - copying - launches

    def _summed(self, reader: ReadingProduct) -> bool:
        """True if the product contracts the divided dimension, so that partial products are summed."""
        return reader.product.result_dim(reader.product.loops[reader.side][self.dim]) is None

    def rewrite(self) -> None:
        """Writes the chunks of the collective and of the products."""
        collective = self.collective
        builder = Builder.before(collective)
        shape = shape_of(self.value)
        shape[self.dim] //= self.pieces
        of_shard = LoopDivision(self.pieces)
        chunks = [
            builder.again(
                collective,
                tensor(shape, element_of(self.value)),
                [of_shard.take(builder, collective.operands[0], self.dim, number)],
            )
            for number in range(self.pieces)
        ]
        for reader in self.readers:
            op = reader.product.op
            op.results[0].replace_all_uses_with(self._product(Builder.before(op), reader, chunks))
            op.erase()
        collective.erase()

    def _product(self, builder: Builder, reader: ReadingProduct, chunks: list[ir.Value]) -> ir.Value:
        product, other_side = reader.product, 1 - reader.side
        loop = product.loops[reader.side][self.dim]
        along, into = product.dim(other_side, loop), product.result_dim(loop)
        parts: list[ir.Value] = []
        for number, piece in enumerate(chunks):
            operand = product.op.operands[other_side]
            if along is not None:
                operand = self.division.take(builder, operand, along, number)
            part = product.of(builder, [piece, operand] if reader.side == 0 else [operand, piece])
            parts = [builder.add(parts[0], part)] if into is None and parts else [*parts, part]
        return parts[0] if into is None else self.division.join(builder, parts, into)


def gathered_products(module: ir.Module, most: int, least: int) -> Iterator[list[GatheredProducts]]:
    """For each collective that can be divided, its possible divisions into at most `most` chunks, each of at least `least`
    elements along the divided dimension, best first without costs."""
    for collective in find(module.operation, _MOVING):
        sizes = (*shape_of(collective.operands[0]), *shape_of(collective.results[0]))
        if DYNAMIC in sizes or is_divided(collective.operands[0]):
            continue
        readers = _readers(collective)
        if readers and (divisions := [*_divisions(collective, readers, most, least)]):
            yield divisions


def _readers(collective: ir.Operation) -> tuple[ReadingProduct, ...]:
    """The products that read the result of a collective; none if there are other readers, or readers in other blocks."""
    readers: dict[ir.Operation, ReadingProduct] = {}
    for use in collective.results[0].uses:
        op = use.owner.operation
        if op.name != DOT or op.block != collective.block or op in readers:
            return ()
        readers[op] = ReadingProduct(Einsum(op), use.operand_number)
    return tuple(readers[op] for op in in_program_order(readers))


def _divisions(
    collective: ir.Operation, readers: tuple[ReadingProduct, ...], most: int, least: int
) -> Iterator[GatheredProducts]:
    """The divisions along dimensions that the first product contracts, first those that the collective does not change."""
    shard, touched = shape_of(collective.operands[0]), collective_dims(collective)
    refused = set() if collective.name == AllGatherOp.OPERATION_NAME else set(touched)
    first_reader = readers[0]
    dims = [
        dim
        for dim in range(len(shard))
        if first_reader.product.result_dim(first_reader.product.loops[first_reader.side][dim]) is None
    ]
    for dim in sorted(set(dims) - refused, key=lambda dim: (dim in touched, -shard[dim])):
        for pieces in range(most, 1, -1):
            if shard[dim] % pieces == 0 and shard[dim] // pieces >= least:
                yield GatheredProducts(collective, readers, dim, pieces)
