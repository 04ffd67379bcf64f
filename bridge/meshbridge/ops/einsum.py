"""A product as an einsum: the loop along each dimension, and the same product on a part of a loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count

from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.uses import defining_name, look_through

DOT = "stablehlo.dot_general"


@dataclass(frozen=True)
class LoopDivision:
    """Divides a loop into `blocks` of equal size, each of which takes an equal share of every one of `outer` segments."""

    blocks: int
    outer: int = 1

    def take(self, builder: Builder, value: ir.Value, dim: int, number: int) -> ir.Value:
        """Block `number` of `value` along `dim`."""
        shape = shape_of(value)
        size = shape[dim] // (self.outer * self.blocks)
        if self.outer == 1:
            return builder.slice(value, dim, number * size, size)
        parts = builder.reshape(value, [*shape[:dim], self.outer, self.blocks, size, *shape[dim + 1 :]])
        return builder.reshape(builder.slice(parts, dim + 1, number, 1), [*shape[:dim], self.outer * size, *shape[dim + 1 :]])

    def join(self, builder: Builder, parts: Sequence[ir.Value], dim: int) -> ir.Value:
        """The value that consists of these blocks."""
        shape = shape_of(parts[0])
        shape_apart = [*shape[:dim], self.outer, 1, shape[dim] // self.outer, *shape[dim + 1 :]]
        if self.outer == 1:
            return builder.concatenate(parts, dim)
        blocked = builder.concatenate([builder.reshape(part, shape_apart) for part in parts], dim + 1)
        return builder.reshape(blocked, [*shape[:dim], shape[dim] * self.blocks, *shape[dim + 1 :]])


def is_divided(value: ir.Value) -> bool:
    """True if `value` is a slice, perhaps reshaped: it has been divided already."""
    return defining_name(look_through(value, ("stablehlo.reshape",))) == "stablehlo.slice"


@dataclass(frozen=True)
class Einsum:
    """A `dot_general` by its loops: batch loops run along operands and result, free loops along one operand and the result,
    contracted loops along both operands."""

    op: ir.Operation

    @cached_property
    def loops(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The loop along each dimension of both operands."""
        sides = [self._shared(side) for side in (0, 1)]
        free_loops = count(len(sides[0]))
        lhs, rhs = (
            tuple(shared[dim] if dim in shared else next(free_loops) for dim in range(len(shape_of(operand))))
            for shared, operand in zip(sides, self.op.operands, strict=True)
        )
        return lhs, rhs

    @cached_property
    def result_loops(self) -> tuple[int, ...]:
        """The loop along each dimension of the result: batch loops, then free loops."""
        batch = range(len(self._numbers.lhs_batching_dimensions))
        shared = range(len(self._shared(0)))
        return (*batch, *(loop for side in self.loops for loop in side if loop not in shared))

    @cached_property
    def _numbers(self) -> stablehlo.DotDimensionNumbers:
        return stablehlo.DotDimensionNumbers(self.op.attributes["dot_dimension_numbers"])

    def _shared(self, side: int) -> dict[int, int]:
        """The batch and contracted loops, by dimension of one operand; batch loops first."""
        numbers = self._numbers
        batch = (numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions)[side]
        contracted = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)[side]
        return {dim: loop for loop, dim in enumerate([*batch, *contracted])}

    def dim(self, side: int, loop: int) -> int | None:
        """The dimension of an operand that a loop runs along; None if there is none."""
        return self.loops[side].index(loop) if loop in self.loops[side] else None

    def result_dim(self, loop: int) -> int | None:
        """The dimension of the result that a loop runs along; None for a contracted one."""
        return self.result_loops.index(loop) if loop in self.result_loops else None

    def of(self, builder: Builder, operands: Sequence[ir.Value]) -> ir.Value:
        """The same product of other operands."""
        sizes: dict[int, int] = {}
        for value, loops in zip(operands, self.loops, strict=True):
            sizes |= dict(zip(loops, shape_of(value), strict=True))
        shape = [sizes[loop] for loop in self.result_loops]
        return builder.again(self.op, tensor(shape, element_of(self.op.results[0])), operands)
