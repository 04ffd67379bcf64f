"""Sums of gradients that are reduced over devices once in a step, not for each microbatch.

A carried value that only adds up products of split contracted dimensions, such as the gradient of a weight that is replicated
along a data axis, is kept as a term of the sum on each device. Its first reader after the loop reduces it. It takes no more
memory, as it is split along none of these axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from meshbridge.dialect import build
from meshbridge.dialect.attributes import integers
from meshbridge.dialect.ops import ShardingOp
from meshbridge.ir.builder import Builder, op_of
from meshbridge.ir.mlir import ir, stablehlo, walk
from meshbridge.ir.sharding import Axes
from meshbridge.ir.uses import defining_name, defining_op
from meshbridge.ops.linear import termwise_operands
from meshbridge.pipelines.loop import SHARD
from meshbridge.pipelines.placement import Placement


def keep_terms(placement: Placement) -> frozenset[int]:
    """Annotates such carried values as partial, in place; returns their numbers."""
    paths = {number: path for number in placement.owners if (path := _Sums(placement, number).path()) is not None}
    for number, path in paths.items():
        _annotate(placement, number, path)
    return frozenset(paths)


@dataclass(frozen=True)
class _Path:
    """The values from a contraction to the carried value that adds it up, and the axes along which devices have terms of it."""

    values: tuple[ir.Value, ...]
    axes: Axes


@dataclass(frozen=True, eq=False)
class _Sums:
    placement: Placement
    number: int

    def path(self) -> _Path | None:
        """The path of the carried value; None if it is no such sum."""
        placement, program = self.placement, self.placement.program
        loop = program.loop
        carried, result = loop.body.arguments[self.number], loop.op.results[self.number]
        owners = placement.owners[self.number]
        readers = placement.after.needed.get(result, set())
        if len(owners) > 1 or not readers <= {placement.chunks.group(owners[0])}:
            return None
        initial = loop.op.operands[self.number]
        total = self._original(program.yielded[self.number])
        add = defining_op(total)
        if defining_name(initial) != SHARD or len(list(initial.uses)) > 1 or add is None or add.name != "stablehlo.add":
            return None
        operands = [self._original(operand) for operand in add.operands]
        if operands.count(carried) != 1 or not all(map(self._has_one_reader, (carried, total))):
            return None
        return self._to_contraction(operands[1 - operands.index(carried)], (carried, total))

    def _to_contraction(self, value: ir.Value, values: tuple[ir.Value, ...]) -> _Path | None:
        while self._has_one_reader(value):
            op = defining_op(value)
            if op is None or op.block != self.placement.program.loop.body:
                return None
            values = (*values, value)
            axes = self._summed_axes(op)
            if axes:
                return _Path(values, axes) if all(self._is_free_of(axes, each) for each in values) else None
            if termwise_operands(op) != (0,):
                return None
            value = self._original(op.operands[0])
        return None

    def _summed_axes(self, op: ir.Operation) -> Axes | None:
        """The mesh axes that split what an op sums up; None for an op that sums up nothing."""
        if op.name == "stablehlo.dot_general":
            numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
            return self._axes_of(op.operands[0], numbers.lhs_contracting_dimensions)
        if op.name == "stablehlo.reduce" and len(op.results) == 1:
            names = {inner.name for inner in walk(op)} - {"stablehlo.reduce", "stablehlo.return"}
            return self._axes_of(op.operands[0], integers(op.attributes["dimensions"])) if names == {"stablehlo.add"} else None
        return None

    def _axes_of(self, operand: ir.Value, dims: Iterable[int]) -> Axes:
        if defining_name(operand) != SHARD:
            return ()
        split = ShardingOp(op_of(op_of(operand).operands[1])).value.split_axes
        return tuple(sorted(axis for dim in dims if dim < len(split) for axis in split[dim]))

    def _original(self, value: ir.Value) -> ir.Value:
        return self.placement.program.reads.original(value)

    def _is_free_of(self, axes: Axes, value: ir.Value) -> bool:
        """Whether a value is split along none of `axes`, and unreduced along no others."""
        annotation = self.placement.program.loop.shardings.get(value)
        if annotation is None:
            return False
        sharding = ShardingOp(op_of(annotation)).value
        return set(sharding.partial_axes) <= set(axes) and set(sharding.used_axes).isdisjoint(axes)

    def _has_one_reader(self, value: ir.Value) -> bool:
        uses = list(value.uses)
        while len(uses) == 1 and uses[0].owner.operation.name == SHARD:
            uses = list(uses[0].owner.operation.results[0].uses)
        return len(uses) == 1


def _annotate(placement: Placement, number: int, path: _Path) -> None:
    loop, reads = placement.program.loop, placement.program.reads
    first = loop.block.operations[0].operation

    def partial(sharding: ir.Value) -> ir.Value:
        whole = ShardingOp(op_of(sharding)).value
        return build.sharding(replace(whole, partial_axes=path.axes, partial_kind="sum"), at=Builder.before(first))

    for value in path.values:
        loop.shardings[value] = partial(loop.shardings[value])
        uses = list(value.uses)
        while len(uses) == 1 and (use := uses[0].owner.operation).name == SHARD:
            reads.reshard(use, partial(use.operands[1]))
            uses = list(use.results[0].uses)
    initial = op_of(loop.op.operands[number])
    reads.reshard(initial, partial(initial.operands[1]))
    result = loop.op.results[number]
    if result in loop.shardings:
        loop.shardings[result] = partial(loop.shardings[result])
