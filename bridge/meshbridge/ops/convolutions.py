"""Convolutions: batch, features, groups and space can be sharded. Along space, neighbours exchange halos.

A spatial dimension is sharded by the larger of result and kernel. By the result: each device convolves the elements under its
windows. By the kernel (the gradient of a kernel, whose kernel is the cotangent): each device applies its part of the kernel, and
the results are summed. Parts of a kernel are equal, without padding, because padding multiplies elements of the image, and zero
times infinity is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from meshbridge.ir.builder import element_of, integer, tensor
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ops.affine_access import AffineAccess
from meshbridge.ops.option import Option, tensor_split
from meshbridge.ops.rule import Dims, RuleBuilder, ShardingRule, shape_of, sharding_rule_of, unsplittable
from meshbridge.ops.spmd import SpmdProgram, default_lowering, replicated_lowering, spmd_lowering
from meshbridge.ops.traits import Trait
from meshbridge.ops.window_attributes import WindowDim, set_window_dims, window_dims
from meshbridge.ops.window_exchange import read_padded_window


@dataclass(frozen=True)
class _Space:
    """One spatial dimension: its numbers and sizes in image, kernel and result, and its window."""

    dims: tuple[int, int, int]
    sizes: tuple[int, int, int]
    window: WindowDim
    is_reversed: bool

    @property
    def by_kernel(self) -> bool:
        """True if the kernel is sharded, not the result."""
        return self.sizes[1] > self.sizes[2]

    @property
    def access(self) -> AffineAccess:
        """The accesses to the image, by element of the result or of the kernel."""
        (image, kernel, result), window = self.sizes, self.window
        if not self.by_kernel:
            return window.access(image, result)
        covered = (result - 1) * window.stride + 1
        if self.is_reversed:
            return AffineAccess(kernel, image, -window.spread, window.low - (kernel - 1) * window.spread, covered, window.base)
        return AffineAccess(kernel, image, window.spread, window.low, covered, window.base)


def _spaces(op: ir.Operation, image: tuple[int, ...], kernel: tuple[int, ...], result: tuple[int, ...]) -> list[_Space]:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    along = (numbers.input_spatial_dimensions, numbers.kernel_spatial_dimensions, numbers.output_spatial_dimensions)
    reversals: Any = op.attributes["window_reversal"] if "window_reversal" in op.attributes else [False] * len(along[0])
    windows = window_dims(op, [kernel[dim] for dim in along[1]])
    return [
        _Space(dims, (image[dims[0]], kernel[dims[1]], result[dims[2]]), window, bool(is_reversed))
        for dims, window, is_reversed in zip(zip(*along, strict=True), windows, reversals, strict=True)
    ]


def _group_counts(op: ir.Operation) -> tuple[int, int]:
    """The numbers of feature groups and of batch groups, one of which is 1."""
    features, batch = (ir.IntegerAttr(op.attributes[f"{name}_group_count"]).value for name in ("feature", "batch"))
    return features, batch


@sharding_rule_of("stablehlo.convolution", traits=(Trait.PURE, Trait.CONTRACTION), multilinear=(0, 1))
def convolution(op: ir.Operation) -> ShardingRule:
    """Batch, output features and groups are parallel, input features a sum. Space is parallel along the result or a sum along the
    kernel, whichever is larger."""
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    image, kernel, result = (shape_of(value) for value in (*op.operands, op.results[0]))
    if 0 in (*image, *kernel, *result):
        return ShardingRule((), unsplittable(op.operands), unsplittable(op.results))
    feature_groups, batch_groups = _group_counts(op)
    build = RuleBuilder()
    maps: list[list[tuple[int, ...]]] = [[()] * len(shape) for shape in (image, kernel, result)]
    group = build.loop(feature_groups * batch_groups)
    batch = build.loop(image[numbers.input_batch_dimension] // batch_groups)
    outputs = build.loop(kernel[numbers.kernel_output_feature_dimension] // (feature_groups * batch_groups))
    inputs = build.loop(kernel[numbers.kernel_input_feature_dimension], "sum")
    maps[0][numbers.input_batch_dimension] = group + batch if batch_groups > 1 else batch
    maps[0][numbers.input_feature_dimension] = group + inputs if feature_groups > 1 else inputs
    maps[1][numbers.kernel_input_feature_dimension] = inputs
    maps[1][numbers.kernel_output_feature_dimension] = group + outputs
    maps[2][numbers.output_batch_dimension] = batch
    maps[2][numbers.output_feature_dimension] = group + outputs
    kernel_loops: list[int] = []
    for space in _spaces(op, image, kernel, result):
        if space.sizes[0] > 1:  # a single element is on every device
            loop = build.loop(space.access.size, "sum" if space.by_kernel else "")
            side = 1 if space.by_kernel else 2
            maps[0][space.dims[0]] = maps[side][space.dims[side]] = loop
            build.exchange(loop, op, 0, space.dims[0], space.access)
            kernel_loops += loop if space.by_kernel else ()
    dims: list[Dims] = [tuple(entries) for entries in maps]
    multiply_adds = prod(result) * prod(kernel) // kernel[numbers.kernel_output_feature_dimension]
    iterations = prod(loop.size for loop in build.loops)
    work = max(1, multiply_adds // iterations)
    return replace(build.rule(dims[:2], dims[2:]), is_contraction=True, work=work, coarse=tuple(kernel_loops))


@replicated_lowering("stablehlo.convolution")
@spmd_lowering("stablehlo.convolution")
def local_convolution(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Convolves the elements that the shard's windows cover, with zeros outside the global image and kernel."""
    image = op.operands[0]
    spaces = _spaces(op, at.global_shape(image), at.global_shape(op.operands[1]), at.global_shape(op.results[0]))
    splits = [tensor_split(dims, option) for dims in rule.operands]
    windows = [space.window for space in spaces]
    zero = at.builder.splat(tensor([], element_of(image)), 0)
    for index, (space, window) in enumerate(zip(spaces, windows, strict=True)):
        axes, dim = splits[0][space.dims[0]], space.dims[0]
        if not axes:
            if window.base == 1 and min(window.low, window.high) < 0 < max(window.low, window.high):
                # XLA on CPU miscompiles negative padding on one side with positive padding on the other.
                image = at.builder.pad_along(image, dim, zero, min(window.low, 0), min(window.high, 0))
                windows[index] = replace(window, low=max(window.low, 0), high=max(window.high, 0))
            continue
        places = read_padded_window(image, dim, axes, space.access, zero, at)
        image = places.value
        windows[index] = replace(window, low=places.low, high=places.high, base=places.dilation)
    op.operands[0] = image
    set_window_dims(op, windows)
    _shrink_groups(op, rule, option, at)
    default_lowering(op, rule, option, at)


def _shrink_groups(op: ir.Operation, rule: ShardingRule, option: Option, at: SpmdProgram) -> None:
    """Divides the groups, which are the first loop if there are several, among the devices."""
    if not option:
        return
    for name, groups in zip(("feature", "batch"), _group_counts(op), strict=True):
        if groups > 1:
            local_groups = -(-groups // at.mesh.group_size(option[0]))  # the last device may convolve padding
            op.attributes[f"{name}_group_count"] = integer(local_groups)
