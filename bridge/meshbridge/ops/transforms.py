"""Fourier transforms, on shards of the dimensions that they leave alone."""

from __future__ import annotations

from math import prod

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Emitter, shape_of
from meshbridge.ir.mlir import ir
from meshbridge.ops.option import Option
from meshbridge.ops.reductions import leading
from meshbridge.ops.rule import ShardingRule, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, default_lowering, spmd_lowering


@sharding_rule_of("stablehlo.fft")
def fft(op: ir.Operation) -> ShardingRule:
    """Dimensions that are not transformed pass through."""
    return leading(op, len(integers(op.attributes["fft_length"])))


@spmd_lowering("stablehlo.fft")
def local_fft(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """The transform of a shard in row-major order, whatever order its neighbours prefer.

    XLA on CPU lets a transform take on the order in memory that a collective beside it needs (an all-gather along a dimension
    wants that dimension outermost), and then refuses to run it. A tensor of one dimension has only one order.
    """
    operand, result = op.operands[0], op.results[0]
    with ir.InsertionPoint(op), op.location:
        op.operands[0] = at.adopt(_row_major(operand), at.global_shape(operand), at.shardings[operand])
    default_lowering(op, rule, option, at)
    users = [(use.owner, use.operand_number) for use in result.uses]
    with ir.InsertionPoint.after(op), op.location:
        ordered = at.adopt(_row_major(result), at.global_shape(result), at.shardings[result])
    for user, index in users:
        user.operands[index] = ordered


def _row_major(value: ir.Value) -> ir.Value:
    """`value` by way of one dimension."""
    shape = shape_of(value)
    if len(shape) < 2:
        return value
    emit = Emitter(ir.Location.current, ir.InsertionPoint.current)
    line = emit.reshape(value, [prod(shape)])
    return emit.reshape(emit.value("optimization_barrier", line.type, [line]), shape)
