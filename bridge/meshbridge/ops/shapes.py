"""Ops that rearrange elements: broadcast, transpose, reshape."""

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
    """Every result dimension is a loop; an operand dimension shares it unless it is broadcast from size 1."""
    build = RuleBuilder()
    result = tuple(build.loop(size) for size in shape_of(op.results[0]))
    targets = integers(op.attributes["broadcast_dimensions"])
    operand = tuple(result[target] if size != 1 else () for size, target in zip(shape_of(op.operands[0]), targets, strict=True))
    return build.rule([operand], [result])


@sharding_rule_of(
    "stablehlo.transpose", traits=(Trait.PURE, Trait.MOVEMENT, Trait.SHAPING, Trait.NAN_PROPAGATING, Trait.FUSIBLE), linear=(0,)
)
def transpose(op: ir.Operation) -> ShardingRule:
    """One loop per dimension; the result has them permuted."""
    build = RuleBuilder()
    operand = tuple(build.loop(size) for size in shape_of(op.operands[0]))
    return build.rule([operand], [tuple(operand[dim] for dim in integers(op.attributes["permutation"]))])


@sharding_rule_of(
    "stablehlo.reshape", traits=(Trait.PURE, Trait.MOVEMENT, Trait.SHAPING, Trait.NAN_PROPAGATING, Trait.ALIASING), linear=(0,)
)
def reshape(op: ir.Operation) -> ShardingRule:
    """The loops are the common factors of both shapes: 32 -> 4x8 has loops 4 and 8, and the operand's dimension has both."""
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
        if prod(build.loops[factor].size for factor in loops) < size
    }
    return replace(build.rule(*map(list, zip(maps, strict=True))), coarse=tuple(sorted(coarse)))


def _factor(build: RuleBuilder, source: tuple[int, ...], target: tuple[int, ...]) -> tuple[Dims, Dims]:
    """Divides both shapes at their common products. A part that is minor to a boundary inside both dimensions is not sharded."""
    maps: tuple[list[list[int]], list[list[int]]] = ([[] for _ in source], [[] for _ in target])
    source_dim = target_dim = 0  # current dimensions, walked from the major end
    remaining = [source[0] if source else 1, target[0] if target else 1]
    blocked = [False, False]  # the dimension has a minor factor that does not divide
    while source_dim < len(source) and target_dim < len(target):
        if remaining[0] == 1 and source_dim + 1 <= len(source):
            source_dim, remaining[0], blocked[0] = (
                source_dim + 1,
                source[source_dim + 1] if source_dim + 1 < len(source) else 1,
                False,
            )
            continue
        if remaining[1] == 1:
            target_dim, remaining[1], blocked[1] = (
                target_dim + 1,
                target[target_dim + 1] if target_dim + 1 < len(target) else 1,
                False,
            )
            continue
        small = min(remaining)
        if remaining[0] % small or remaining[1] % small:
            # e.g. 6x4 -> 4x6: only the common divisor of the major parts can be split alike
            return _common_divisor(build, maps, (source_dim, target_dim), remaining, source, target)
        for loop in build.loop(small):
            maps[0][source_dim].append(loop)
            maps[1][target_dim].append(loop)
        remaining = [remaining[0] // small, remaining[1] // small]
    return _freeze(maps[0]), _freeze(maps[1])


def _common_divisor(
    build: RuleBuilder,
    maps: tuple[list[list[int]], list[list[int]]],
    at: tuple[int, int],
    remaining: list[int],
    source: tuple[int, ...],
    target: tuple[int, ...],
) -> tuple[Dims, Dims]:
    from math import gcd

    for loop in build.loop(gcd(*remaining)):
        maps[0][at[0]].append(loop)
        maps[1][at[1]].append(loop)
    # Dimensions up to the next common boundary have no further loops; factoring continues after it.
    for source_dim, target_dim in _boundaries(source, target):
        if source_dim > at[0] and target_dim > at[1]:
            tail = _factor(build, source[source_dim:], target[target_dim:])
            return _freeze(maps[0][:source_dim]) + tail[0], _freeze(maps[1][:target_dim]) + tail[1]
    return _freeze(maps[0]), _freeze(maps[1])


def _boundaries(source: tuple[int, ...], target: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Pairs of dimensions before which both shapes have equally many elements."""
    source_dim = target_dim = 0
    products = [1, 1]
    while source_dim < len(source) and target_dim < len(target):
        if products[0] == products[1] and source_dim and target_dim:
            yield source_dim, target_dim
        if products[0] <= products[1]:
            products[0] *= source[source_dim]
            source_dim += 1
        else:
            products[1] *= target[target_dim]
            target_dim += 1
    if products[0] == products[1] and source_dim and target_dim:
        yield source_dim, target_dim


def _freeze(maps: list[list[int]]) -> Dims:
    return tuple(tuple(loops) for loops in maps)


def shared_dims_rule(op: ir.Operation, is_shared: Callable[[int], bool]) -> ShardingRule:
    """A rule for tensors of one rank: dimensions for which `is_shared` are shared loops, the others have none."""
    build = RuleBuilder()
    shape = shape_of(op.results[0])
    dims = tuple(build.loop(size) if is_shared(dim) else () for dim, size in enumerate(shape))
    rank = len(shape)
    operands = [dims if len(shape_of(value)) == rank and rank else ((),) * len(shape_of(value)) for value in op.operands]
    return build.rule(operands, [dims] * len(op.results))
