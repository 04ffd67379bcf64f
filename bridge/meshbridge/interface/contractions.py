"""Contractions: dot_general and convolution."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from meshbridge.interface.loops import Dims, LoopNest, NestBuilder, loops_of, shape_of
from meshbridge.mlir import ir, stablehlo


@loops_of("stablehlo.dot_general")
def dot_general(op: ir.Operation) -> LoopNest:
    """Batch, left and right dimensions are parallel, contracting ones a sum."""
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    shapes = [shape_of(value) for value in op.operands]
    batch = [list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)]
    contracting = [list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)]
    build = NestBuilder()
    maps: list[dict[int, tuple[int, ...]]] = [{}, {}]
    result: list[tuple[int, ...]] = []
    for left, right in zip(*batch, strict=True):
        maps[0][left] = maps[1][right] = build.loop(shapes[0][left])
        result.append(maps[0][left])
    for side in (0, 1):
        for dim, size in enumerate(shapes[side]):
            if dim not in batch[side] and dim not in contracting[side]:
                maps[side][dim] = build.loop(size)
                result.append(maps[side][dim])
    for left, right in zip(*contracting, strict=True):
        maps[0][left] = maps[1][right] = build.loop(shapes[0][left], "sum")
    operands = [tuple(maps[side][dim] for dim in range(len(shapes[side]))) for side in (0, 1)]
    return replace(build.nest(operands, [tuple(result)]), is_contraction=True)


@loops_of("stablehlo.convolution")
def convolution(op: ir.Operation) -> LoopNest:
    """Batch and output features are parallel, input features a sum; spatial dimensions stay whole."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel = (shape_of(value) for value in op.operands)
    result = shape_of(op.results[0])
    build = NestBuilder()
    maps: list[list[tuple[int, ...]]] = [[()] * len(image), [()] * len(kernel), [()] * len(result)]
    feature_groups, batch_groups = (ir.IntegerAttr(op.attributes[f"{name}_group_count"]).value for name in ("feature", "batch"))
    if batch_groups == 1:
        loop = build.loop(image[numbers.input_batch_dimension])
        maps[0][numbers.input_batch_dimension] = maps[2][numbers.output_batch_dimension] = loop
    if feature_groups == 1 and batch_groups == 1:
        loop = build.loop(kernel[numbers.kernel_output_feature_dimension])
        maps[1][numbers.kernel_output_feature_dimension] = maps[2][numbers.output_feature_dimension] = loop
        loop = build.loop(image[numbers.input_feature_dimension], "sum")
        maps[0][numbers.input_feature_dimension] = maps[1][numbers.kernel_input_feature_dimension] = loop
    dims: list[Dims] = [tuple(entries) for entries in maps]
    multiply_adds = prod(result) * prod(kernel) // kernel[numbers.kernel_output_feature_dimension]
    walked = prod(loop.size for loop in build.loops)
    return replace(build.nest(dims[:2], dims[2:]), is_contraction=True, work=max(1, multiply_adds // walked))
