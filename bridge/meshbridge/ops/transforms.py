"""Ops on the last dimensions of a tensor, Fourier transforms and decompositions of matrices: the dimensions before those may be
sharded."""

from __future__ import annotations

from math import prod

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder
from meshbridge.ir.mlir import ir
from meshbridge.ops.option import Option
from meshbridge.ops.rule import Dims, RuleBuilder, ShardingRule, rank_of, shape_of, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, replicated_lowering, spmd_lowering
from meshbridge.ops.traits import Trait, declare


def leading(op: ir.Operation, count: int) -> ShardingRule:
    """All but the last `count` dimensions of every tensor pass through."""
    build = RuleBuilder()
    shape = shape_of(op.operands[0])
    batch = tuple(build.loop(size) for size in shape[: len(shape) - count])

    def dims(value: ir.Value) -> Dims:
        return batch + ((),) * (rank_of(value) - len(batch))

    return build.rule([dims(value) for value in op.operands], [dims(value) for value in op.results])


@sharding_rule_of("stablehlo.cholesky", "stablehlo.triangular_solve", traits=(Trait.PURE,))
def matrix_decomposition(op: ir.Operation) -> ShardingRule:
    """Batch dimensions pass through; the two dimensions of the matrices are replicated."""
    return leading(op, 2)


declare("stablehlo.triangular_solve", traits=(), multilinear=(1,))


@sharding_rule_of("stablehlo.fft", traits=(Trait.PURE,), linear=(0,))
def fft(op: ir.Operation) -> ShardingRule:
    """Dimensions that are not transformed pass through."""
    return leading(op, len(integers(op.attributes["fft_length"])))


@replicated_lowering("stablehlo.fft")
@spmd_lowering("stablehlo.fft")
def local_fft(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """The transform of a shard in row-major order, whatever order its neighbours prefer.

    XLA on CPU lets a transform take on the order in memory that a collective beside it needs (an all-gather along a dimension
    wants that dimension outermost), and then refuses to run it. A tensor of one dimension has only one order.
    """
    operand = op.operands[0]
    op.operands[0] = at.adopt(_row_major(operand, at.emit), at.global_shape(operand), at.held[operand].sharding)
    default_lowering(op, rule, option, at)
    at.amend(op.results[0], lambda result: _row_major(result, at.emit))


def _row_major(value: ir.Value, emit: Builder) -> ir.Value:
    """`value` by way of one dimension."""
    shape = shape_of(value)
    return emit.reshape(emit.barrier(emit.reshape(value, [prod(shape)])), shape) if len(shape) > 1 else value
