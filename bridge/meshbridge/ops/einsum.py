"""A product as an einsum: which of its loops run along which dimensions, and the same product on a part of a loop."""

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
class Division:
    """`pieces` parts of equal size of a loop, of which each has a share of every one of `outer` stretches."""

    pieces: int
    outer: int = 1

    def take(self, emit: Builder, value: ir.Value, dim: int, number: int) -> ir.Value:
        """The part of that number of `value` along `dim`."""
        shape = shape_of(value)
        size = shape[dim] // (self.outer * self.pieces)
        if self.outer == 1:
            return emit.slice(value, dim, number * size, size)
        parts = emit.reshape(value, [*shape[:dim], self.outer, self.pieces, size, *shape[dim + 1 :]])
        return emit.reshape(emit.slice(parts, dim + 1, number, 1), [*shape[:dim], self.outer * size, *shape[dim + 1 :]])

    def join(self, emit: Builder, parts: Sequence[ir.Value], dim: int) -> ir.Value:
        """The value of which these are the parts."""
        shape = shape_of(parts[0])
        apart = [*shape[:dim], self.outer, 1, shape[dim] // self.outer, *shape[dim + 1 :]]
        if self.outer == 1:
            return emit.concatenate(parts, dim)
        joined = emit.concatenate([emit.reshape(part, apart) for part in parts], dim + 1)
        return emit.reshape(joined, [*shape[:dim], shape[dim] * self.pieces, *shape[dim + 1 :]])


def is_piece(value: ir.Value) -> bool:
    """Whether `value` is a part of another one, as what is divided already."""
    return defining_name(look_through(value, ("stablehlo.reshape",))) == "stablehlo.slice"


@dataclass(frozen=True)
class Einsum:
    """A `dot_general`, by its loops: batch ones run along both operands and the result, free ones along one operand and the
    result, contracted ones along both operands."""

    op: ir.Operation

    @cached_property
    def loops(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The loop along each dimension of both operands."""
        sides = [self._shared(side) for side in (0, 1)]
        new = count(len(sides[0]))
        left, right = (
            tuple(shared[dim] if dim in shared else next(new) for dim in range(len(shape_of(operand))))
            for shared, operand in zip(sides, self.op.operands, strict=True)
        )
        return left, right

    @cached_property
    def result_loops(self) -> tuple[int, ...]:
        """The loop along each dimension of the result: batch ones, then free ones."""
        batch = range(len(self._numbers.lhs_batching_dimensions))
        shared = range(len(self._shared(0)))
        return (*batch, *(loop for side in self.loops for loop in side if loop not in shared))

    @cached_property
    def _numbers(self) -> stablehlo.DotDimensionNumbers:
        return stablehlo.DotDimensionNumbers(self.op.attributes["dot_dimension_numbers"])

    def _shared(self, side: int) -> dict[int, int]:
        """The loops that run along both operands, by the dimensions of one: batch ones first."""
        numbers = self._numbers
        batch = (numbers.lhs_batching_dimensions, numbers.rhs_batching_dimensions)[side]
        contracted = (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions)[side]
        return {dim: loop for loop, dim in enumerate([*batch, *contracted])}

    def dim(self, side: int, loop: int) -> int | None:
        """The dimension of an operand along which a loop runs."""
        return self.loops[side].index(loop) if loop in self.loops[side] else None

    def result_dim(self, loop: int) -> int | None:
        """The dimension of the result along which a loop runs; None for a contracted one."""
        return self.result_loops.index(loop) if loop in self.result_loops else None

    def of(self, emit: Builder, operands: Sequence[ir.Value]) -> ir.Value:
        """The same product of other operands."""
        sizes: dict[int, int] = {}
        for value, loops in zip(operands, self.loops, strict=True):
            sizes |= dict(zip(loops, shape_of(value), strict=True))
        shape = [sizes[loop] for loop in self.result_loops]
        return emit.again(self.op, tensor(shape, element_of(self.op.results[0])), operands)
