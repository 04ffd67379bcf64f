"""Products whose partial results are reduce-scattered: computes one block while the sum of another travels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from meshbridge.cost.overlap_costs import OverlapCosts
from meshbridge.ir.builder import Builder, op_of, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ir.uses import defining_op, erase_dead, has_one_use
from meshbridge.ops.einsum import DOT, Einsum
from meshbridge.overlap.matmul.ring_reductions import Cut, Scatter


@dataclass(frozen=True)
class ScatteredProducts:
    """A reduce-scatter or all-reduce of a product, or of a sum of products, along one axis of a mesh."""

    scatter: Scatter
    halved: int
    "The dimension of the result of which one half travels each way."

    @cached_property
    def products(self) -> tuple[Einsum, ...]:
        """The summed products."""
        return tuple(Einsum(op) for op in _summands(self.scatter.partial) or ())

    @property
    def operations(self) -> tuple[ir.Operation, ...]:
        """The collective and the products."""
        return (self.scatter.op, *(product.op for product in self.products))

    def gain(self, prices: OverlapCosts) -> float:
        """Predicted seconds by which the step becomes shorter."""
        count = self.scatter.count
        computing = sum(prices.seconds(product.op) for product in self.products)
        block = prices.memory_seconds(self.scatter.partial) / count
        read = sum(self._read(product, side, prices) for product in self.products for side in (0, 1))
        step = max(computing / count, read + block)
        # Each step adds two halves to received ones, except the first: two are read and one is written.
        launches = 2 * (len(self.products) + 1) * count * prices.kernel_launch
        adding = (3 * (count - 1) + 2) * block + launches
        operands = dict.fromkeys(value for product in self.products for value in product.op.operands)
        materialized = sum(map(prices.materialization_seconds, operands))
        copied = sum(map(prices.relayout_seconds, dict.fromkeys(self._cut_along_last())))
        return prices.gain_of_stepwise_reduction(self.scatter.op, computing, step, count) - adding - materialized - copied

    def _cut_along_last(self) -> Iterator[ir.Value]:
        """The operands of which blocks are taken along their last dimension."""
        for product in self.products:
            for side, operand in enumerate(product.op.operands):
                if product.dim(side, product.result_loops[self.scatter.dim]) == len(shape_of(operand)) - 1:
                    yield operand

    def _read(self, product: Einsum, side: int, prices: OverlapCosts) -> float:
        """Seconds in which both halves of a step read an operand: a block of it if it has blocks, once if it has halves."""
        blocks, halves = (product.result_loops[dim] in product.loops[side] for dim in (self.scatter.dim, self.halved))
        return prices.memory_seconds(product.op.operands[side]) * (1 if halves else 2) / (self.scatter.count if blocks else 1)

    def rewrite(self) -> None:
        """Replaces the collective and the products by the steps of a ring."""
        replaced = [*_sums(self.scatter.partial)]
        self.scatter.write_ring(self.halved, _cut)
        erase_dead(reversed(replaced))


def _cut(builder: Builder, value: ir.Value, wanted: Cut) -> ir.Value:
    """A part of a product, or of a sum of products."""
    op = op_of(value)
    if op.name != DOT:
        return builder.add(*(_cut(builder, operand, wanted) for operand in op.operands))
    product = Einsum(op)
    operands = list(op.operands)
    for dim, (start, size) in wanted.items():
        loop = product.result_loops[dim]
        for side, operand in enumerate(operands):
            along = product.dim(side, loop)
            if along is None:
                continue
            if isinstance(start, int):
                operands[side] = builder.slice(operand, along, start, size)
            else:
                operands[side] = builder.dynamic_slice(operand, along, start, size)
    return product.of(builder, operands)


def _sums(value: ir.Value) -> Iterator[ir.Operation]:
    """The operations that compute a product, or a sum of products, the last one first."""
    op = op_of(value)
    yield op
    for operand in op.operands if op.name != DOT else ():
        yield from _sums(operand)


def _summands(value: ir.Value) -> tuple[ir.Operation, ...] | None:
    """The products whose sum is `value`, each with one reader; None if there is another summand."""
    op = defining_op(value)
    if op is None or not has_one_use(value):
        return None
    if op.name == DOT:
        return (op,)
    if op.name != "stablehlo.add":
        return None
    lhs, rhs = map(_summands, op.operands)
    return None if lhs is None or rhs is None else lhs + rhs


def scattered_products(scatter: Scatter, least: int) -> ScatteredProducts | None:
    """The products of a reduce-scatter, with halves of at least `least` elements; None if it reduces other values."""
    products = _summands(scatter.partial)
    if products is None or any(op.block != scatter.op.block for op in products):
        return None
    halved = scatter.halves(least)
    if not halved or any(DYNAMIC in shape_of(operand) for op in products for operand in op.operands):
        return None
    return ScatteredProducts(scatter, halved[-1])
