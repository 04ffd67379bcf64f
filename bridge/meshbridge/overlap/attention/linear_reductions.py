"""Reductions over one dimension of values that are linear in a given value, and the operations on the path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import in_program_order, ir
from meshbridge.ir.uses import LOOK_THROUGH, look_through
from meshbridge.ops.dimensions import BROADCAST, REDUCE, result_dim, varies_along
from meshbridge.ops.einsum import DOT, Einsum
from meshbridge.ops.linear import SCALE
from meshbridge.ops.traits import Trait, has, ops_with

SELECT = "stablehlo.select"


@dataclass(frozen=True)
class PathOp:
    """An operation on the path from the exponentials to a sum: it reads operand `side`, whose keys are along dimension `read`,
    and its result has them along `result_dim`."""

    op: ir.Operation
    side: int
    read: int
    result_dim: int

    @property
    def factor(self) -> ir.Value | None:
        """The operand that multiplies or divides, if it is the same for all keys."""
        if self.op.name not in SCALE:
            return None
        scale: ir.Value = self.op.operands[1 - self.side]
        return None if varies_along(scale, self.result_dim) else scale

    @property
    def mask(self) -> ir.Value | None:
        """The condition under which terms are kept; other terms are zero."""
        return self.op.operands[0] if self.op.name == SELECT else None


@dataclass(frozen=True)
class LinearReduction:
    """A sum over keys of a value that is linear in the exponentials: a `reduce`, or a product that contracts the keys."""

    op: ir.Operation
    side: int
    read: int
    "The dimension of keys of operand `side`."
    steps: tuple[PathOp, ...]

    @property
    def is_masked(self) -> bool:
        """True if some of the terms may be replaced by zeros on the path."""
        return any(step.mask is not None for step in self.steps)

    @property
    def other(self) -> tuple[ir.Value, int] | None:
        """The other operand of a product, and its dimension of keys."""
        if self.op.name != DOT:
            return None
        product = Einsum(self.op)
        along = product.dim(1 - self.side, product.loops[self.side][self.read])
        assert along is not None
        return self.op.operands[1 - self.side], along


def sources_of(sums: Iterable[LinearReduction]) -> Iterator[tuple[ir.Value, int]]:
    """The values that sums read key by key, with the dimension of keys."""
    for reduction in sums:
        yield reduction.op.operands[reduction.side], reduction.read
        if reduction.other is not None:
            yield reduction.other


_LINEAR = ops_with(Trait.SHAPING) | SCALE.keys() | {SELECT, "stablehlo.convert", "stablehlo.negate"}
"""Operations that can be linear in one operand."""


def may_be_reduced(value: ir.Value) -> bool:
    """False if `value` is read by an operation that `linear_reductions` refuses by its name, directly or on the way to a sum:
    nearly all values of an optimizer are."""
    worklist = [value]
    for _ in range(LOOK_THROUGH):
        if not worklist:
            break
        for use in worklist.pop().uses:
            op = use.owner.operation
            if op.name in _LINEAR:
                worklist.append(op.results[0])
            elif op.name not in (DOT, REDUCE):
                return False
    return True


def linear_reductions(exponential: ir.Operation, keys: int) -> tuple[LinearReduction, ...] | None:
    """The sums over keys that are the only readers of the exponentials, in program order; None if there are others."""
    reductions: dict[ir.Operation, LinearReduction] = {}
    visited: set[ir.Operation] = set()
    worklist: list[tuple[ir.Value, int, tuple[PathOp, ...]]] = [(exponential.results[0], keys, ())]
    while worklist:
        value, dim, steps = worklist.pop()
        for use in value.uses:
            op, side = use.owner.operation, use.operand_number
            if op in visited or op.block != exponential.block:
                return None
            visited.add(op)
            if adds_up(op, side, dim):
                reductions[op] = LinearReduction(op, side, dim, steps)
            elif (moved_dim := _linear(op, side, dim)) is not None:
                worklist.append((op.results[0], moved_dim, (*steps, PathOp(op, side, dim, moved_dim))))
            else:
                return None
    return tuple(reductions[op] for op in in_program_order(reductions))


def adds_up(op: ir.Operation, side: int, dim: int) -> bool:
    """True if `op` sums its operand `side` along `dim`, the dimension of keys, and along no other."""
    if op.name != DOT:
        return side == 0 and reduces(op, dim, "stablehlo.add") and is_splat(op.operands[1], 0)
    product = Einsum(op)
    return [contracted for contracted, loop in enumerate(product.loops[side]) if product.result_dim(loop) is None] == [dim]


def is_zero(value: ir.Value) -> bool:
    """True if every element is zero, perhaps converted from an integer."""
    value = look_through(value, ("stablehlo.convert", BROADCAST))
    return is_splat(value, 0)


def _linear(op: ir.Operation, side: int, dim: int) -> int | None:
    """The dimension of keys of the result of an operation that is linear in its operand `side`; None if it is not linear."""
    if op.name not in _LINEAR:
        return None
    if op.name == SELECT:
        if side != 1 or not is_zero(op.operands[2]):
            return None
    elif op.name == "stablehlo.convert":
        if not isinstance(element_of(op.results[0]), ir.FloatType):
            return None
    elif not has(op.name, Trait.SHAPING) and op.name != "stablehlo.negate" and side not in SCALE.get(op.name, ()):
        return None
    return result_dim(op, side, dim)


def lifted(builder: Builder, reduction: LinearReduction, first_step: int, value: ir.Value) -> ir.Value:
    """`value`, one number per query, reshaped from the operand of step number `first_step` to the sum."""
    for step in reduction.steps[first_step:]:
        if has(step.op.name, Trait.SHAPING):
            shape = shape_of(step.op.results[0])
            shape[step.result_dim] = 1
            value = builder.again(step.op, tensor(shape, element_of(value)), [value])
    shape = shape_of(value)
    value_dims = [dim for dim in range(len(shape)) if dim != reduction.read]
    value = builder.reshape(value, [shape[dim] for dim in value_dims])
    if reduction.other is None:
        return value
    product = Einsum(reduction.op)
    placed = [product.result_loops.index(product.loops[reduction.side][dim]) for dim in value_dims]
    order = sorted(range(len(value_dims)), key=placed.__getitem__)
    value = value if order == sorted(order) else builder.transpose(value, order)
    return builder.broadcast(value, shape_of(reduction.op.results[0]), sorted(placed))


def reduces(op: ir.Operation, dim: int, by: str) -> bool:
    """True if `op` reduces the elements along `dim` alone with the operation `by`."""
    if op.name != REDUCE or len(op.results) != 1 or list(integers(op.attributes["dimensions"])) != [dim]:
        return False
    body = op.regions[0].blocks[0]
    combiner, *end = (view.operation for view in body.operations)
    return combiner.name == by and len(end) == 1 and list(combiner.operands) in (list(body.arguments), list(body.arguments)[::-1])
