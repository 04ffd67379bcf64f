"""Ops that make tensors out of nothing, or out of a state: constants, iota, random bits and numbers."""

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
    """A splat is made in the shard's shape; other constants are replicated and sliced."""
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
    """Counts from where the shard begins: the local iota plus the shard's offset."""
    result = op.results[0]
    wanted = result_sharding(rule, option, 0, at.mesh)
    dim = ir.IntegerAttr(op.attributes["iota_dimension"]).value
    at.define(result, wanted)
    if axes := wanted.split_axes[dim]:
        start = at.emit.convert(at.offset(axes, shape_of(result)[dim]), element_of(result))
        at.amend(result, lambda counted: at.emit.add(counted, start))


declare("stablehlo.constant", "arith.constant", traits=(Trait.CONSTANT,))
declare("stablehlo.constant", "stablehlo.iota", traits=(Trait.FREE,))


@sharding_rule_of("stablehlo.rng_bit_generator", traits=(Trait.PURE,))
def random_bits(op: ir.Operation) -> ShardingRule:
    """One parallel loop per dimension of the bits; the state before and after is replicated."""
    build = RuleBuilder()
    bits = tuple(build.loop(size) for size in shape_of(op.results[1]))
    return build.rule([((),)], [((),), bits])


@spmd_lowering("stablehlo.rng_bit_generator")
def local_random_bits(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Which bit comes from which count of the state depends on the algorithm, the backend and the global shape: each device makes
    all of them and keeps its shard, so that they are the bits of the program before."""
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
    """Every device draws other numbers, and different shards should differ. Copies of one shard must not: where devices would
    hold the same, only the first of them adds its own to a sum."""
    result = op.results[0]
    wanted = result_sharding(rule, option, 0, at.mesh)
    at.define(result, wanted)
    copies = tuple(
        axis for axis, size in enumerate(at.mesh.shape) if size > 1 and axis not in wanted.used_axes and axis not in at.manual
    )
    op.operands[2] = at.emit.constant(op.operands[2].type, dense(np.array(shape_of(result), np.int64)))
    if copies:
        partial = replace(wanted, partial_axes=copies)
        at.amend(result, lambda drawn: at.emit.select(at.is_first(copies), drawn, 0), partial)
