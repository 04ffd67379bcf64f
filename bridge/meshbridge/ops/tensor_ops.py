"""Ops of the `tensor` dialect that create, slice and retype tensors. Tensors of unknown sizes are replicated."""

from __future__ import annotations

from collections.abc import Sequence

from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import DYNAMIC
from meshbridge.ops.option import Option
from meshbridge.ops.rule import Dims, RuleBuilder, ShardingRule, opaque, shape_of, sharding_rule_of
from meshbridge.ops.shapes import shared_dims_rule
from meshbridge.ops.spmd import SpmdProgram, default_lowering, spmd_lowering
from meshbridge.ops.traits import Trait


def _is_static(op: ir.Operation) -> bool:
    """True if the sizes of all tensors of `op` are known."""
    return not any(DYNAMIC in shape_of(value) for value in (*op.operands, *op.results))


@sharding_rule_of("tensor.splat", "tensor.cast", traits=(Trait.PURE, Trait.MOVEMENT), linear=(0,))
def splat_or_cast(op: ir.Operation) -> ShardingRule:
    """One parallel loop per dimension, shared by operand and result; the scalar of a splat is on every device."""
    return shared_dims_rule(op, lambda dim: True) if _is_static(op) else opaque(op)


@sharding_rule_of("tensor.extract_slice", traits=(Trait.PURE, Trait.MOVEMENT, Trait.SLICING), linear=(0,))
def extract_slice(op: ir.Operation) -> ShardingRule:
    """Dimensions taken entirely pass through, also if the result drops dimensions sliced to size 1."""
    if not _is_static(op):
        return opaque(op)
    build = RuleBuilder()
    source, sizes = shape_of(op.operands[0]), integers(op.attributes["static_sizes"])
    operand: Dims = tuple(build.loop(size) if size == slice_size else () for size, slice_size in zip(source, sizes, strict=True))
    result = tuple(operand[dim] for dim in _kept(sizes, shape_of(op.results[0])))
    return build.rule([operand] + [()] * (len(op.operands) - 1), [result])


def _kept(sizes: Sequence[int], result: Sequence[int]) -> list[int]:
    """The dimensions of a slice of `sizes` that its result keeps; of several of size 1, none of which is split, the first."""
    kept_dims: list[int] = []
    for dim, size in enumerate(sizes):
        if len(kept_dims) < len(result) and size == result[len(kept_dims)]:
            kept_dims.append(dim)
    return kept_dims


@spmd_lowering("tensor.extract_slice")
def local_extract_slice(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Makes the slice take all of the shard along sharded dimensions."""
    local = zip(rule.operands[0], integers(op.attributes["static_sizes"]), shape_of(op.operands[0]), strict=True)
    op.attributes["static_sizes"] = integers_attr(shard_size if loops else slice_size for loops, slice_size, shard_size in local)
    default_lowering(op, rule, option, at)
