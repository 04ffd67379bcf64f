"""Contractions: dot_general."""

from __future__ import annotations

from dataclasses import replace

from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.traits import Trait


@sharding_rule_of("stablehlo.dot_general", traits=(Trait.PURE, Trait.CONTRACTION, Trait.NAN_PROPAGATING), multilinear=(0, 1))
def dot_general(op: ir.Operation) -> ShardingRule:
    """Batch, left and right dimensions are parallel, contracting ones a sum."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    shapes = [shape_of(value) for value in op.operands]
    batch = [list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)]
    contracting = [list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)]
    build = RuleBuilder()
    maps: list[dict[int, tuple[int, ...]]] = [{}, {}]
    result: list[tuple[int, ...]] = []
    for lhs, rhs in zip(*batch, strict=True):
        maps[0][lhs] = maps[1][rhs] = build.loop(shapes[0][lhs])
        result.append(maps[0][lhs])
    for side in (0, 1):
        for dim, size in enumerate(shapes[side]):
            if dim not in batch[side] and dim not in contracting[side]:
                maps[side][dim] = build.loop(size)
                result.append(maps[side][dim])
    for lhs, rhs in zip(*contracting, strict=True):
        maps[0][lhs] = maps[1][rhs] = build.loop(shapes[0][lhs], "sum")
    operands = [tuple(maps[side][dim] for dim in range(len(shapes[side]))) for side in (0, 1)]
    return replace(build.rule(operands, [tuple(result)]), is_contraction=True)
