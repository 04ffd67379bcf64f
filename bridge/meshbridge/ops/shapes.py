"""Ops that only rename where elements stand: broadcast, transpose, reshape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

from meshbridge.dialect.attributes import integers
from meshbridge.ir.mlir import ir
from meshbridge.ops.rule import Dims, RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.traits import Trait


@sharding_rule_of(
    "stablehlo.broadcast_in_dim",
    traits=(Trait.PURE, Trait.MOVEMENT, Trait.SHAPING, Trait.NAN_PROPAGATING, Trait.FREE),
    linear=(0,),
)
def broadcast_in_dim(op: ir.Operation) -> ShardingRule:
    """Every result dimension is a loop; an operand dimension shares it unless it is stretched from size 1."""
    build = RuleBuilder()
    result = tuple(build.loop(size) for size in shape_of(op.results[0]))
    targets = integers(op.attributes["broadcast_dimensions"])
    operand = tuple(result[target] if size != 1 else () for size, target in zip(shape_of(op.operands[0]), targets, strict=True))
    return build.rule([operand], [result])


@sharding_rule_of(
    "stablehlo.transpose", traits=(Trait.PURE, Trait.MOVEMENT, Trait.SHAPING, Trait.NAN_PROPAGATING, Trait.FUSIBLE), linear=(0,)
)
def transpose(op: ir.Operation) -> ShardingRule:
    """A loop per dimension; the result has them permuted."""
    build = RuleBuilder()
    operand = tuple(build.loop(size) for size in shape_of(op.operands[0]))
    return build.rule([operand], [tuple(operand[dim] for dim in integers(op.attributes["permutation"]))])


@sharding_rule_of(
    "stablehlo.reshape", traits=(Trait.PURE, Trait.MOVEMENT, Trait.SHAPING, Trait.NAN_PROPAGATING, Trait.ALIASING), linear=(0,)
)
def reshape(op: ir.Operation) -> ShardingRule:
    """Loops are the common factors of both shapes: 32 -> 4x8 has loops 4 and 8, and the operand's dimension has both."""
    build = RuleBuilder()
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    if 0 in source:
        return build.rule([((),) * len(source)], [((),) * len(target)])
    maps = _factor(build, source, target)
    coarse = {
        loop
        for shape, dims in zip((source, target), maps, strict=True)
        for size, loops in zip(shape, dims, strict=True)
        for loop in loops
        if prod(build.loops[each].size for each in loops) < size
    }
    return replace(build.rule(*map(list, zip(maps, strict=True))), coarse=tuple(sorted(coarse)))


def _factor(build: RuleBuilder, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[Dims, Dims]:
    """Divides both shapes at the products that they share; where one is inside both dimensions, the minor rest is not sharded."""
    maps: tuple[list[list[int]], list[list[int]]] = ([[] for _ in source], [[] for _ in target])
    left = right = 0  # the dimensions in work, minor last; both walked from the major end
    rest = [source[0] if source else 1, target[0] if target else 1]
    blocked = [False, False]  # a minor factor that does not divide has been met in this dimension
    while left < len(source) and right < len(target):
        if rest[0] == 1 and left + 1 <= len(source):
            left, rest[0], blocked[0] = left + 1, source[left + 1] if left + 1 < len(source) else 1, False
            continue
        if rest[1] == 1:
            right, rest[1], blocked[1] = right + 1, target[right + 1] if right + 1 < len(target) else 1, False
            continue
        small = min(rest)
        if rest[0] % small or rest[1] % small:
            # e.g. 6x4 -> 4x6: only the common divisor of the major parts can be split alike
            return _common_divisor(build, maps, (left, right), rest, source, target)
        for loop in build.loop(small):
            maps[0][left].append(loop)
            maps[1][right].append(loop)
        rest = [rest[0] // small, rest[1] // small]
    return _freeze(maps[0]), _freeze(maps[1])


def _common_divisor(
    build: RuleBuilder,
    maps: tuple[list[list[int]], list[list[int]]],
    at: tuple[int, int],
    rest: list[int],
    source: tuple[int, ...],
    target: tuple[int, ...],
) -> tuple[Dims, Dims]:
    from math import gcd

    for loop in build.loop(gcd(*rest)):
        maps[0][at[0]].append(loop)
        maps[1][at[1]].append(loop)
    # What is minor to the misfit up to the next common boundary cannot be split; after it, factoring starts afresh.
    for left, right in _boundaries(source, target):
        if left > at[0] and right > at[1]:
            tail = _factor(build, source[left:], target[right:])
            return _freeze(maps[0][:left]) + tail[0], _freeze(maps[1][:right]) + tail[1]
    return _freeze(maps[0]), _freeze(maps[1])


def _boundaries(source: tuple[int, ...], target: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Pairs of dimensions before which both shapes have seen equally many elements."""
    left = right = 0
    products = [1, 1]
    while left < len(source) and right < len(target):
        if products[0] == products[1] and left and right:
            yield left, right
        if products[0] <= products[1]:
            products[0] *= source[left]
            left += 1
        else:
            products[1] *= target[right]
            right += 1
    if products[0] == products[1] and left and right:
        yield left, right


def _freeze(maps: list[list[int]]) -> Dims:
    return tuple(tuple(loops) for loops in maps)


def passing(op: ir.Operation, passes: Callable[[int], bool]) -> ShardingRule:
    """All tensors of one rank; dimensions for which `passes` are shared loops, the others have none."""
    build = RuleBuilder()
    shape = shape_of(op.results[0])
    dims = tuple(build.loop(size) if passes(dim) else () for dim, size in enumerate(shape))
    rank = len(shape)
    operands = [dims if len(shape_of(value)) == rank and rank else ((),) * len(shape_of(value)) for value in op.operands]
    return build.rule(operands, [dims] * len(op.results))
