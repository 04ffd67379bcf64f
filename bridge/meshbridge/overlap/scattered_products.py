"""Products whose partial results are reduce-scattered: each block of the result is computed while the sum of another travels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from meshbridge.cost.divided import Prices
from meshbridge.dialect import build
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import ReduceScatterOp
from meshbridge.ir.builder import Builder, element_of, op_of, shape_of
from meshbridge.ir.mlir import find, ir
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.overlap.einsum import DOT, Einsum

Cut = Mapping[int, tuple["ir.Value | int", int]]
"""By a dimension of the result, from where on it is wanted, and how much of it."""


class _Way(NamedTuple):
    """In which direction sums travel, and the number of the block that a device adds to in the first step, less its own."""

    offset: int
    first: int


@dataclass(frozen=True)
class ScatteredProducts:
    """A reduce-scatter of a product, or of a sum of products, along one axis of a mesh."""

    scatter: ir.Operation
    mesh: Mesh
    axis: int
    halved: int
    "The dimension of the result of which one half travels each way."

    @property
    def count(self) -> int:
        """How many blocks the result has."""
        return self.mesh.shape[self.axis]

    @property
    def dim(self) -> int:
        """Along which the blocks stand."""
        return ReduceScatterOp(self.scatter).scatter_axis

    @cached_property
    def products(self) -> tuple[Einsum, ...]:
        """Those that are added up."""
        return tuple(Einsum(op) for op in _summands(self.scatter.operands[0]) or ())

    @property
    def operations(self) -> tuple[ir.Operation, ...]:
        """The products that are divided."""
        return tuple(product.op for product in self.products)

    def gain(self, prices: Prices) -> float:
        """Predicted seconds by which the step becomes shorter."""
        computing = sum(prices.seconds(product.op) for product in self.products)
        block = prices.memory(self.scatter.results[0])
        read = sum(self._read(product, side, prices) for product in self.products for side in (0, 1))
        step = max(computing / self.count, read + block)
        # Two halves in each step, of which all but the first are added to what has come: two are read and one is written.
        launches = 2 * (len(self.products) + 1) * self.count * prices.kernel_launch
        adding = (3 * (self.count - 1) + 2) * block + launches
        made = sum(map(prices.making, dict.fromkeys(value for op in self.operations for value in op.operands)))
        copied = sum(map(prices.copying, dict.fromkeys(self._cut_along_last())))
        return prices.scattered_in_steps(self.scatter, computing, step, self.count) - adding - made - copied

    def _cut_along_last(self) -> Iterator[ir.Value]:
        """The operands of which blocks are taken along their last dimension."""
        for product in self.products:
            for side, operand in enumerate(product.op.operands):
                if product.dim(side, product.result_loops[self.dim]) == len(shape_of(operand)) - 1:
                    yield operand

    def _read(self, product: Einsum, side: int, prices: Prices) -> float:
        """Seconds in which both halves of a step read an operand: a block of it where it has blocks, once where it has halves."""
        blocks, halves = (product.result_loops[dim] in product.loops[side] for dim in (self.dim, self.halved))
        return prices.memory(product.op.operands[side]) * (1 if halves else 2) / (self.count if blocks else 1)

    def rewrite(self) -> None:
        """Writes the steps, and drops what they replace."""
        emit = Builder.before(self.scatter)
        at = emit.reshape(
            build.all_slice(emit.iota([self.count], 0), self.mesh, mesh_axes=[self.axis], slice_axis=0, at=emit), []
        )
        half = shape_of(self.scatter.results[0])[self.halved] // 2
        ways = (_Way(1, self.count - 1), _Way(-1, 1))
        sums = [self._travel(emit, at, way, number * half, half) for number, way in enumerate(ways)]
        self.scatter.results[0].replace_all_uses_with(emit.concatenate(sums, self.halved))
        partial = self.scatter.operands[0]
        self.scatter.erase()
        _erase_unread(partial)

    def _travel(self, emit: Builder, own: ir.Value, way: _Way, start: int, size: int) -> ir.Value:
        """The sum of this device's block, of which the part of the halved dimension from `start` on travels one way."""
        rows = shape_of(self.scatter.results[0])[self.dim]
        total: ir.Value | None = None
        for step in range(self.count):
            number = emit.elementwise("remainder", emit.add(own, (way.first - way.offset * step) % self.count), self.count)
            part = _cut(
                emit, self.scatter.operands[0], {self.dim: (emit.multiply(number, rows), rows), self.halved: (start, size)}
            )
            if total is None:
                total = part
                continue
            total = emit.add(
                build.shift(
                    total, self.mesh, mesh_axes=[self.axis], shift_axis=self.axis, offset=way.offset, rotate=True, at=emit
                ),
                part,
            )
        assert total is not None
        return total


def _cut(emit: Builder, value: ir.Value, wanted: Cut) -> ir.Value:
    """A part of a product, or of a sum of products."""
    op = op_of(value)
    if op.name != DOT:
        return emit.add(*(_cut(emit, operand, wanted) for operand in op.operands))
    product = Einsum(op)
    operands = list(op.operands)
    for dim, (start, size) in wanted.items():
        loop = product.result_loops[dim]
        for side, operand in enumerate(operands):
            along = product.dim(side, loop)
            if along is None:
                continue
            if isinstance(start, int):
                operands[side] = emit.slice(operand, along, start, size)
            else:
                operands[side] = emit.dynamic_slice(operand, along, start, size)
    return product.of(emit, operands)


def _erase_unread(value: ir.Value) -> None:
    op = op_of(value)
    operands = list(op.operands) if op.name != DOT else []
    op.erase()
    for operand in operands:
        _erase_unread(operand)


def _summands(value: ir.Value) -> tuple[ir.Operation, ...] | None:
    """The products that are added up to `value`, each read once; None where there is something else."""
    owner = value.owner
    if isinstance(owner, ir.Block) or len(list(value.uses)) != 1:
        return None
    op = owner.operation
    if op.name == DOT:
        return (op,)
    if op.name != "stablehlo.add":
        return None
    left, right = map(_summands, op.operands)
    return None if left is None or right is None else left + right


def scattered_products(module: ir.Module, most: int, least: int) -> Iterator[ScatteredProducts]:
    """Those along axes of at most so many devices, with halves of at least `least` elements."""
    meshes = declared_meshes(module.body)
    for scatter in find(module.operation, [ReduceScatterOp.OPERATION_NAME]):
        view = ReduceScatterOp(scatter)
        mesh = meshes[view.mesh]
        axes = [axis for axis in view.mesh_axes if mesh.shape[axis] != 1]
        partial, result = scatter.operands[0], scatter.results[0]
        products = _summands(partial)
        if products is None or view.reduction != "sum" or element_of(partial) != element_of(result):
            continue
        sizes = (*shape_of(partial), *mesh.shape, *(size for op in products for each in op.operands for size in shape_of(each)))
        if len(axes) != 1 or DYNAMIC in sizes or mesh.shape[axes[0]] > most or any(op.block != scatter.block for op in products):
            continue
        halved = [
            dim for dim, size in enumerate(shape_of(result)) if dim != view.scatter_axis and not size % 2 and size // 2 >= least
        ]
        if halved:
            yield ScatteredProducts(scatter, mesh, axes[0], halved[-1])
