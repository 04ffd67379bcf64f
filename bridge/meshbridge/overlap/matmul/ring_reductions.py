"""Reduce-scatters as rings of permutes: the sums of blocks travel while the device computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from meshbridge.cost.overlap_costs import OverlapCosts
from meshbridge.dialect import build
from meshbridge.dialect.module_mesh import declared_meshes
from meshbridge.dialect.ops import AllReduceOp, ReduceScatterOp
from meshbridge.ir.builder import Builder, element_of, shape_of
from meshbridge.ir.mlir import find, ir
from meshbridge.ir.sharding import DYNAMIC, Mesh
from meshbridge.ir.uses import forward_slice

Cut = Mapping[int, tuple["ir.Value | int", int]]
"""By dimension of a value, the start and the size of a slice."""

Part = Callable[[Builder, ir.Value, Cut], ir.Value]
"""Computes a slice of the reduced value."""


_MOST_DEPENDENT = 256
"""The maximum number of operations that depend on a reduce-scatter whose ring overlaps with others, to bound the time. Not
measured. Few depend on the gradient of a weight: those of its update."""


class _RingDirection(NamedTuple):
    """The direction of a ring, and the block to which a device adds in the first step, relative to its own."""

    offset: int
    first_block: int


@dataclass(frozen=True)
class Scatter:
    """A reduce-scatter that sums along one axis of a mesh, or an all-reduce, which adds an all-gather."""

    op: ir.Operation
    mesh: Mesh
    axis: int
    dim: int
    "The dimension of the blocks."

    @property
    def count(self) -> int:
        """The number of blocks."""
        return self.mesh.shape[self.axis]

    @property
    def is_gathered(self) -> bool:
        """True if each device gets all blocks."""
        return self.op.name == AllReduceOp.OPERATION_NAME

    @property
    def partial(self) -> ir.Value:
        """The reduced value."""
        value: ir.Value = self.op.operands[0]
        return value

    @property
    def block(self) -> list[int]:
        """The shape of a block."""
        shape = shape_of(self.partial)
        shape[self.dim] //= self.count
        return shape

    def halves(self, least: int) -> list[int]:
        """The dimensions of a block of which half, at least `least` elements, can travel each way."""
        return [dim for dim, size in enumerate(self.block) if dim != self.dim and not size % 2 and size // 2 >= least]

    def write_ring(self, halved: int | None, part: Part) -> None:
        """Replaces the collective by the steps of a ring: half of a block along dimension `halved` travels each way, or all of it
        one way. Devices add a `part` of the reduced value to the received sum."""
        builder = Builder.before(self.op)
        own = build.group_index(self.mesh, mesh_axes=[self.axis], at=builder)
        directions = (_RingDirection(1, self.count - 1), _RingDirection(-1, 1))
        if halved is None:
            total = self._sum(builder, own, directions[0], {}, part)
        else:
            half = self.block[halved] // 2
            sums = [
                self._sum(builder, own, direction, {halved: (number * half, half)}, part)
                for number, direction in enumerate(directions)
            ]
            total = builder.concatenate(sums, halved)
        if self.is_gathered:
            total = build.all_gather(total, self.mesh, mesh_axes=[self.axis], gather_axis=self.dim, at=builder)
        self.op.results[0].replace_all_uses_with(total)
        self.op.erase()

    def _sum(self, builder: Builder, own: ir.Value, direction: _RingDirection, wanted: Cut, part: Part) -> ir.Value:
        """The sum of this device's block, of which the slice `wanted` travels one way."""
        rows = self.block[self.dim]
        total: ir.Value | None = None
        for step in range(self.count):
            number = builder.elementwise(
                "remainder", builder.add(own, (direction.first_block - direction.offset * step) % self.count), self.count
            )
            term = part(builder, self.partial, {self.dim: (builder.multiply(number, rows), rows), **wanted})
            if total is None:
                total = term
                continue
            total = builder.add(
                build.shift(
                    total,
                    self.mesh,
                    mesh_axes=[self.axis],
                    shift_axis=self.axis,
                    offset=direction.offset,
                    rotate=True,
                    at=builder,
                ),
                term,
            )
        assert total is not None
        return total


@dataclass(frozen=True)
class RingReduction:
    """A reduce-scatter whose ring overlaps with any other computation."""

    scatter: Scatter

    @property
    def operations(self) -> tuple[ir.Operation, ...]:
        """The collective."""
        return (self.scatter.op,)

    @property
    def halved(self) -> int | None:
        """The dimension of which half travels each way; with two devices there is one way."""
        return next(iter(self.scatter.halves(1)), None) if self.scatter.count > 2 else None

    def gain(self, prices: OverlapCosts) -> float:
        """Predicted seconds by which the step becomes shorter."""
        op, count = self.scatter.op, self.scatter.count
        dependent = forward_slice([op], limit=_MOST_DEPENDENT)
        if len(dependent) > _MOST_DEPENDENT:
            return 0.0
        directions = 1 if self.halved is None else 2
        adding = (3 * (count - 1) + 1) * prices.memory_seconds(
            self.scatter.partial
        ) / count + directions * count * prices.kernel_launch
        return prices.gain_of_overlapped_reduction(op, count, directions, dependent) - adding

    def rewrite(self) -> None:
        """Writes the steps."""
        self.scatter.write_ring(self.halved, _part)


def _part(builder: Builder, value: ir.Value, wanted: Cut) -> ir.Value:
    for dim, (start, size) in wanted.items():
        value = (
            builder.slice(value, dim, start, size) if isinstance(start, int) else builder.dynamic_slice(value, dim, start, size)
        )
    return value


def ring_scatters(module: ir.Module, most: int) -> Iterator[Scatter]:
    """The sums along one axis of at most `most` devices, of static shapes and without conversion. Of an all-reduce, the first
    dimension that divides evenly has the blocks."""
    meshes = declared_meshes(module.body)
    for op in find(module.operation, [ReduceScatterOp.OPERATION_NAME, AllReduceOp.OPERATION_NAME]):
        view = ReduceScatterOp(op) if op.name == ReduceScatterOp.OPERATION_NAME else AllReduceOp(op)
        mesh, shape = meshes[view.mesh], shape_of(op.operands[0])
        axes = [axis for axis in view.mesh_axes if mesh.shape[axis] != 1]
        if view.reduction != "sum" or element_of(op.operands[0]) != element_of(op.results[0]) or len(axes) != 1:
            continue
        count = mesh.shape[axes[0]]
        if DYNAMIC in (*shape, *mesh.shape) or count > most:
            continue
        even = (dim for dim, size in enumerate(shape) if size % count == 0)
        dim = view.scatter_axis if isinstance(view, ReduceScatterOp) else next(even, None)
        if dim is not None:
            yield Scatter(op, mesh, axes[0], dim)
