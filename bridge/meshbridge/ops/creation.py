"""Ops that make tensors out of nothing, or out of a state: constants, iota, random bits and numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshbridge.ir.builder import dense
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.sharding import Sharding
from meshbridge.ops.local import Localizer, broadcast_scalar, local_form, splat
from meshbridge.ops.loops import LoopNest, NestBuilder, loops_of, shape_of
from meshbridge.ops.option import Option, result_sharding


@loops_of("stablehlo.constant", "arith.constant", "stablehlo.iota", "tensor.empty")
def creation(op: ir.Operation) -> LoopNest:
    """One parallel loop per dimension of the result; the local form slices or offsets the values."""
    build = NestBuilder()
    dims = tuple(build.loop(size) for size in shape_of(op.results[0]))
    return build.nest([() for _ in op.operands], [dims])


@local_form("stablehlo.constant", "arith.constant")
def local_constant(op: ir.Operation, nest: LoopNest, option: Option, at: Localizer) -> None:
    """A splat is made in the shard's shape; other constants are whole on every device and sliced."""
    result = op.results[0]
    wanted = result_sharding(nest, option, 0, at.mesh)
    value = op.attributes["value"]
    if not any(wanted.split_axes):
        at.define(result, wanted)
    elif isinstance(value, ir.DenseElementsAttr) and value.is_splat:
        tensor = at.local_type(result, wanted.split_axes)
        op.attributes["value"] = ir.DenseElementsAttr.get_splat(tensor, value.get_splat_value())
        at.define(result, wanted)
    else:
        at.define(result, Sharding(at.mesh.name, ((),) * len(wanted.split_axes)))


@local_form("stablehlo.iota")
def local_iota(op: ir.Operation, nest: LoopNest, option: Option, at: Localizer) -> None:
    """Counts from where the shard begins: the local iota plus the shard's offset."""
    result = op.results[0]
    wanted = result_sharding(nest, option, 0, at.mesh)
    axes = wanted.split_axes[ir.IntegerAttr(op.attributes["iota_dimension"]).value]
    at.define(result, wanted)
    if not axes:
        return
    tensor = ir.RankedTensorType(result.type)
    dimension = ir.IntegerAttr(op.attributes["iota_dimension"]).value
    with ir.InsertionPoint.after(op), op.location:
        start = stablehlo.convert(ir.RankedTensorType.get([], tensor.element_type), at.offset(axes, tensor.shape[dimension]))
        shifted = stablehlo.add(result, broadcast_scalar(start, tuple(tensor.shape)))
    shape = at.global_shape(result)
    result.replace_all_uses_except(shifted, shifted.owner.operation)
    at.adopt(shifted, shape, wanted)


@loops_of("stablehlo.rng_bit_generator")
def random_bits(op: ir.Operation) -> LoopNest:
    """One parallel loop per dimension of the bits; the state before and after is whole on every device."""
    build = NestBuilder()
    bits = tuple(build.loop(size) for size in shape_of(op.results[1]))
    return build.nest([((),)], [((),), bits])


@local_form("stablehlo.rng_bit_generator")
def local_random_bits(op: ir.Operation, nest: LoopNest, option: Option, at: Localizer) -> None:
    """Which bit comes from which count of the state depends on the algorithm, the backend and the whole shape: each device makes
    all of them and keeps its shard, so that they are the bits of the program before."""
    for result in op.results:
        at.define(result, Sharding(at.mesh.name, ((),) * len(shape_of(result))))


@loops_of("stablehlo.rng")
def random_numbers(op: ir.Operation) -> LoopNest:
    """One parallel loop per dimension of the result; bounds and shape are whole on every device."""
    build = NestBuilder()
    return build.nest([(), (), ((),)], [tuple(build.loop(size) for size in shape_of(op.results[0]))])


@local_form("stablehlo.rng")
def local_random_numbers(op: ir.Operation, nest: LoopNest, option: Option, at: Localizer) -> None:
    """Every device draws other numbers, and different shards should differ. Copies of one shard must not: where devices would
    hold the same, only the first of them adds its own to a sum."""
    result = op.results[0]
    wanted = result_sharding(nest, option, 0, at.mesh)
    at.define(result, wanted)
    tensor = ir.RankedTensorType(result.type)
    copies = tuple(
        axis for axis, size in enumerate(at.mesh.shape) if size > 1 and axis not in wanted.used_axes and axis not in at.manual
    )
    with op.location:
        with ir.InsertionPoint(op):
            op.operands[2] = stablehlo.constant(dense(np.array(tensor.shape, np.int64)))
        if not copies:
            return
        with ir.InsertionPoint.after(op):
            drawn = stablehlo.select(at.is_first(copies), result, splat(0, tensor))
    result.replace_all_uses_except(drawn, drawn.owner.operation)
    at.adopt(drawn, at.global_shape(result), replace(wanted, partial_axes=copies))
