"""Ops that create tensors: constants, iota, random bits and numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshbridge.ir.builder import dense, element_of
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Sharding
from meshbridge.ops.option import Option, result_sharding
from meshbridge.ops.rule import RuleBuilder, ShardingRule, shape_of, sharding_rule_of
from meshbridge.ops.spmd import SpmdProgram, replicated_lowering, spmd_lowering
from meshbridge.ops.traits import Trait, declare


@sharding_rule_of("stablehlo.constant", "arith.constant", "stablehlo.iota", "tensor.empty", traits=(Trait.PURE,))
def creation(op: ir.Operation) -> ShardingRule:
    """One parallel loop per dimension of the result; the SPMD lowering slices or offsets the values."""
    build = RuleBuilder()
    dims = tuple(build.loop(size) for size in shape_of(op.results[0]))
    return build.rule([() for _ in op.operands], [dims])


@spmd_lowering("stablehlo.constant", "arith.constant")
def local_constant(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Gives a splat the shard's shape; replicates any other constant, to be sliced."""
    result = op.results[0]
    wanted = result_sharding(rule, option, 0, at.mesh)
    value = op.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        at.define(result, wanted)
        op.attributes["value"] = ir.DenseElementsAttr.get_splat(result.type, value.get_splat_value())
    else:
        at.define(result, Sharding(at.mesh.name, ((),) * len(wanted.split_axes)))


@spmd_lowering("stablehlo.iota")
def local_iota(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Adds the shard's offset to a local iota."""
    result = op.results[0]
    wanted = result_sharding(rule, option, 0, at.mesh)
    dim = ir.IntegerAttr(op.attributes["iota_dimension"]).value
    at.define(result, wanted)
    if axes := wanted.split_axes[dim]:
        start = at.builder.convert(at.offset(axes, shape_of(result)[dim]), element_of(result))
        at.replace_uses(result, lambda counted: at.builder.add(counted, start))


declare("stablehlo.constant", "arith.constant", traits=(Trait.CONSTANT,))
declare("stablehlo.constant", "stablehlo.iota", traits=(Trait.FREE,))


@sharding_rule_of("stablehlo.rng_bit_generator", traits=(Trait.PURE,))
def random_bits(op: ir.Operation) -> ShardingRule:
    """One parallel loop per dimension of the bits; the states are replicated."""
    build = RuleBuilder()
    bits = tuple(build.loop(size) for size in shape_of(op.results[1]))
    return build.rule([((),)], [((),), bits])


@spmd_lowering("stablehlo.rng_bit_generator")
def local_random_bits(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Generates all bits on every device, which keeps its shard: their order depends on algorithm, backend and global shape."""
    for result in op.results:
        at.define(result, Sharding(at.mesh.name, ((),) * len(shape_of(result))))


@sharding_rule_of("stablehlo.rng", traits=())
def random_numbers(op: ir.Operation) -> ShardingRule:
    """One parallel loop per dimension of the result; bounds and shape are replicated."""
    build = RuleBuilder()
    return build.rule([(), (), ((),)], [tuple(build.loop(size) for size in shape_of(op.results[0]))])


@replicated_lowering("stablehlo.rng")
@spmd_lowering("stablehlo.rng")
def local_random_numbers(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Draws on each device. Devices draw different numbers, so where several hold one shard, the first draws it, and a sum gives
    it to the others."""
    result = op.results[0]
    wanted = result_sharding(rule, option, 0, at.mesh)
    at.define(result, wanted)
    copies = tuple(
        axis for axis, size in enumerate(at.mesh.shape) if size > 1 and axis not in wanted.used_axes and axis not in at.manual
    )
    op.operands[2] = at.builder.constant(op.operands[2].type, dense(np.array(shape_of(result), np.int64)))
    if copies:
        partial = replace(wanted, partial_axes=copies)
        at.replace_uses(result, lambda drawn: at.builder.select(at.is_first(copies), drawn, 0), partial)
