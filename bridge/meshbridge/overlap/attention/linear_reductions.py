"""Reductions over one dimension of values that are linear in a given value, and the operations on the path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from meshbridge.analysis.known_values import is_splat
from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import in_program_order, ir
from meshbridge.ir.uses import look_through
from meshbridge.ops.dimensions import BROADCAST, REDUCE, result_dim, varies_along
from meshbridge.ops.einsum import DOT, Einsum
from meshbridge.ops.linear import SCALE
from meshbridge.ops.traits import Trait, has

SELECT = "stablehlo.select"


@dataclass(frozen=True)
class PathOp:
    """An operation on the way from the exponentials to a sum, which reads its operand `side` along dimension `read`, and gives
    dimension `made` of its result."""

    op: ir.Operation
    side: int
    read: int
    made: int

    @property
    def factor(self) -> ir.Value | None:
        """What multiplies or divides, and is the same for all keys."""
        if self.op.name not in SCALE:
            return None
        other: ir.Value = self.op.operands[1 - self.side]
        return None if varies_along(other, self.made) else other

    @property
    def mask(self) -> ir.Value | None:
        """Where the terms are kept; elsewhere they are zero."""
        return self.op.operands[0] if self.op.name == SELECT else None


@dataclass(frozen=True)
class LinearReduction:
    """A sum over keys of what is linear in the exponentials: a `reduce`, or a product that contracts the keys."""

    op: ir.Operation
    side: int
    read: int
    "The dimension of the operand `side` that runs over keys."
    steps: tuple[PathOp, ...]

    @property
    def is_masked(self) -> bool:
        """Whether some of the terms may be replaced by zeros on the way."""
        return any(step.mask is not None for step in self.steps)

    @property
    def other(self) -> tuple[ir.Value, int] | None:
        """The other operand of a product, and its dimension that runs over keys."""
        if self.op.name != DOT:
            return None
        product = Einsum(self.op)
        along = product.dim(1 - self.side, product.loops[self.side][self.read])
        assert along is not None
        return self.op.operands[1 - self.side], along


def sources_of(sums: Iterable[LinearReduction]) -> Iterator[tuple[ir.Value, int]]:
    """What sums read key by key, and the dimension that runs over keys."""
    for each in sums:
        yield each.op.operands[each.side], each.read
        if each.other is not None:
            yield each.other


def linear_reductions(exponential: ir.Operation, keys: int) -> tuple[LinearReduction, ...] | None:
    """The sums over keys that alone read the exponentials, in program order; None where something else does."""
    found: dict[ir.Operation, LinearReduction] = {}
    seen: set[ir.Operation] = set()
    waiting: list[tuple[ir.Value, int, tuple[PathOp, ...]]] = [(exponential.results[0], keys, ())]
    while waiting:
        value, dim, steps = waiting.pop()
        for use in value.uses:
            op, side = use.owner.operation, use.operand_number
            if op in seen or op.block != exponential.block:
                return None
            seen.add(op)
            if adds_up(op, side, dim):
                found[op] = LinearReduction(op, side, dim, steps)
            elif (made := _linear(op, side, dim)) is not None:
                waiting.append((op.results[0], made, (*steps, PathOp(op, side, dim, made))))
            else:
                return None
    return tuple(found[op] for op in in_program_order(found))


def adds_up(op: ir.Operation, side: int, dim: int) -> bool:
    """Whether `op` adds up its operand `side` along `dim`, which runs over keys, and contracts nothing else of it."""
    if op.name != DOT:
        return side == 0 and reduces(op, dim, "stablehlo.add") and is_splat(op.operands[1], 0)
    product = Einsum(op)
    return [each for each, loop in enumerate(product.loops[side]) if product.result_dim(loop) is None] == [dim]


def is_zero(value: ir.Value) -> bool:
    """Whether every element is zero, perhaps an integer that is converted."""
    value = look_through(value, ("stablehlo.convert", BROADCAST))
    return is_splat(value, 0)


def _linear(op: ir.Operation, side: int, dim: int) -> int | None:
    """The dimension of the result that runs over keys, of an operation that is linear in its operand `side`."""
    if op.name == SELECT:
        if side != 1 or not is_zero(op.operands[2]):
            return None
    elif op.name == "stablehlo.convert":
        if not isinstance(element_of(op.results[0]), ir.FloatType):
            return None
    elif not has(op.name, Trait.SHAPING) and op.name != "stablehlo.negate" and side not in SCALE.get(op.name, ()):
        return None
    return result_dim(op, side, dim)


def lifted(emit: Builder, each: LinearReduction, first: int, value: ir.Value) -> ir.Value:
    """`value`, one number for each query, from the shape of what step number `first` reads to that of the sum."""
    for step in each.steps[first:]:
        if has(step.op.name, Trait.SHAPING):
            shape = shape_of(step.op.results[0])
            shape[step.made] = 1
            value = emit.again(step.op, tensor(shape, element_of(value)), [value])
    shape = shape_of(value)
    kept = [dim for dim in range(len(shape)) if dim != each.read]
    value = emit.reshape(value, [shape[dim] for dim in kept])
    if each.other is None:
        return value
    product = Einsum(each.op)
    placed = [product.result_loops.index(product.loops[each.side][dim]) for dim in kept]
    order = sorted(range(len(kept)), key=placed.__getitem__)
    value = value if order == sorted(order) else emit.transpose(value, order)
    return emit.broadcast(value, shape_of(each.op.results[0]), sorted(placed))


def reduces(op: ir.Operation, dim: int, by: str) -> bool:
    """Whether `op` joins the elements along `dim` alone by the operation `by`."""
    if op.name != REDUCE or len(op.results) != 1 or list(integers(op.attributes["dimensions"])) != [dim]:
        return False
    body = op.regions[0].blocks[0]
    first, *rest = (view.operation for view in body.operations)
    return first.name == by and len(rest) == 1 and list(first.operands) in (list(body.arguments), list(body.arguments)[::-1])
