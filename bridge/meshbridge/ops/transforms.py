"""Fourier transforms and matrix decompositions: the dimensions before those that they transform may be sharded."""

from __future__ import annotations

from math import prod

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.ops.option import Option
from meshbridge.ops.rule import Dims, RuleBuilder, ShardingRule, rank_of, shape_of, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, replicated_lowering, spmd_lowering
from meshbridge.ops.traits import Trait, declare


def batch_dims_rule(op: ir.Operation, count: int) -> ShardingRule:
    """A rule in which every dimension of every tensor except the last `count` passes through."""
    build = RuleBuilder()
    shape = shape_of(op.operands[0])
    batch = tuple(build.loop(size) for size in shape[: len(shape) - count])

    def dims(value: ir.Value) -> Dims:
        return batch + ((),) * (rank_of(value) - len(batch))

    return build.rule([dims(value) for value in op.operands], [dims(value) for value in op.results])


@sharding_rule_of("stablehlo.cholesky", "stablehlo.triangular_solve", traits=(Trait.PURE,))
def matrix_decomposition(op: ir.Operation) -> ShardingRule:
    """Batch dimensions pass through; the two dimensions of the matrices are replicated."""
    return batch_dims_rule(op, 2)


declare("stablehlo.triangular_solve", traits=(), multilinear=(1,))


@sharding_rule_of("stablehlo.fft", traits=(Trait.PURE,), linear=(0,))
def fft(op: ir.Operation) -> ShardingRule:
    """Dimensions that are not transformed pass through."""
    return batch_dims_rule(op, len(integers(op.attributes["fft_length"])))


@replicated_lowering("stablehlo.fft")
@spmd_lowering("stablehlo.fft")
def local_fft(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Transforms a shard in row-major order.

    XLA on CPU may give a transform the memory order of an adjacent collective (an all-gather makes its dimension outermost), and
    then refuses to run it. A tensor of one dimension has only one order.
    """
    operand = op.operands[0]
    op.operands[0] = at.register(_row_major(operand, at.builder), at.global_shape(operand), at.shards[operand].sharding)
    default_lowering(op, rule, option, at)
    at.replace_uses(op.results[0], lambda result: _row_major(result, at.builder))


def _row_major(value: ir.Value, builder: Builder) -> ir.Value:
    """`value`, reshaped to one dimension and back around a barrier."""
    shape = shape_of(value)
    return builder.reshape(builder.barrier(builder.reshape(value, [prod(shape)])), shape) if len(shape) > 1 else value
