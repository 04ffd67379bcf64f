"""Gather and scatter: embedding look-ups, take_along_axis, and their gradients."""

from __future__ import annotations

from meshbridge.dialect.attributes import integers, integers_attr
from meshbridge.interface.local import Localizer, broadcast_scalar, compare, default_form, local_form, splat
from meshbridge.interface.loops import Dims, LoopNest, NestBuilder, loops_of, shape_of, unsplittable
from meshbridge.interface.option import Option, tensor_split
from meshbridge.interface.reductions import body_kind, once_per_group
from meshbridge.mlir import ir, stablehlo
from meshbridge.sharding import Axes


def _index_maps(
    build: NestBuilder, shape: tuple[int, ...], vector_dim: int, batching: dict[int, tuple[int, ...]], kind: str
) -> Dims:
    """Maps of the start indices: a loop per dimension but the index vector's; `batching` ones share the operand's loop."""
    return tuple(
        () if dim == vector_dim else batching[dim] if dim in batching else build.loop(size, kind)
        for dim, size in enumerate(shape)
    )


@loops_of("stablehlo.gather")
def gather(op: ir.Operation) -> LoopNest:
    """Result batch dimensions follow the indices; window dimensions taken whole pass through.

    An indexed dimension of which single elements are taken is a sum: each shard looks up what it holds and adds zero elsewhere.
    """
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    operand_shape, index_shape, result_shape = shape_of(op.operands[0]), shape_of(op.operands[1]), shape_of(op.results[0])
    sizes = integers(op.attributes["slice_sizes"])
    offset_dims, collapsed = list(numbers.offset_dims), list(numbers.collapsed_slice_dims)
    operand_batch, index_batch = list(numbers.operand_batching_dims), list(numbers.start_indices_batching_dims)
    indexed = set(numbers.start_index_map)

    build = NestBuilder()
    operand: list[tuple[int, ...]] = [()] * len(operand_shape)
    result: list[tuple[int, ...]] = [()] * len(result_shape)
    for dim in operand_batch:
        operand[dim] = build.loop(operand_shape[dim])
    shared = {index_dim: operand[dim] for dim, index_dim in zip(operand_batch, index_batch, strict=True)}
    indices = _index_maps(build, index_shape, numbers.index_vector_dim, shared, "")
    batch_dims = [dim for dim in range(len(result_shape)) if dim not in offset_dims]
    walked = [entry for dim, entry in enumerate(indices) if dim != numbers.index_vector_dim]
    for dim, entry in zip(batch_dims, walked, strict=True):
        result[dim] = entry
    window = [dim for dim in range(len(operand_shape)) if dim not in collapsed and dim not in operand_batch]
    for dim, result_dim in zip(window, offset_dims, strict=True):
        if sizes[dim] == operand_shape[dim]:
            operand[dim] = result[result_dim] = build.loop(operand_shape[dim])
    # Bits have no sum: one shard holds the element, the others hold false.
    joined = "bitwise_or" if str(ir.RankedTensorType(op.results[0].type).element_type) == "i1" else "sum"
    for dim in collapsed:
        if dim in indexed:
            operand[dim] = build.loop(operand_shape[dim], joined)
    return build.nest([tuple(operand), indices], [tuple(result)])


@loops_of("stablehlo.scatter")
def scatter(op: ir.Operation) -> LoopNest:
    """Window dimensions covered whole pass through; an indexed dimension is parallel (each shard applies the updates that fall
    into it); the updates' own dimensions are reductions of the body's kind, so sharded updates leave a partial result."""
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    count = len(op.results)
    if count != 1:
        return LoopNest((), unsplittable(op.operands), unsplittable(op.results))
    operand_shape, index_shape, update_shape = (shape_of(value) for value in op.operands)
    window_dims, inserted = list(numbers.update_window_dims), list(numbers.inserted_window_dims)
    operand_batch, index_batch = list(numbers.input_batching_dims), list(numbers.scatter_indices_batching_dims)
    indexed = set(numbers.scattered_dims_to_operand_dims)
    kind = body_kind(op)

    build = NestBuilder()
    operand: list[tuple[int, ...]] = [()] * len(operand_shape)
    update: list[tuple[int, ...]] = [()] * len(update_shape)
    for dim in operand_batch:
        operand[dim] = build.loop(operand_shape[dim])
    shared = {index_dim: operand[dim] for dim, index_dim in zip(operand_batch, index_batch, strict=True)}
    if kind:
        indices = _index_maps(build, index_shape, numbers.index_vector_dim, shared, kind)
    else:  # e.g. replace: the order of updates matters, so they stay together
        indices = tuple(shared.get(dim, ()) for dim in range(len(index_shape)))
    scatter_dims = [dim for dim in range(len(update_shape)) if dim not in window_dims]
    walked = [entry for dim, entry in enumerate(indices) if dim != numbers.index_vector_dim]
    for dim, entry in zip(scatter_dims, walked, strict=True):
        update[dim] = entry
    window = [dim for dim in range(len(operand_shape)) if dim not in inserted and dim not in operand_batch]
    for dim, update_dim in zip(window, window_dims, strict=True):
        if update_shape[update_dim] == operand_shape[dim]:
            operand[dim] = update[update_dim] = build.loop(operand_shape[dim])
    for dim in inserted:
        if dim in indexed:
            operand[dim] = build.loop(operand_shape[dim])
    return build.nest([tuple(operand), indices, tuple(update)], [tuple(operand)])


def _shifted_indices(
    indices: ir.Value, vector_dim: int, shifts: dict[int, tuple[Axes, int]], clamp_to: dict[int, int], at: Localizer
) -> tuple[ir.Value, dict[int, ir.Value]]:
    """Start indices relative to this device's shard.

    `shifts` maps components of the index vector to (axes, shard size); `clamp_to` gives a component's last valid global index
    where the op clamps. Returns the new indices and, per component, its own shifted plane (without the vector dimension).
    """
    shape = list(ir.RankedTensorType(indices.type).shape)
    element = ir.RankedTensorType(indices.type).element_type
    if vector_dim == len(shape):  # an implicit index vector of one component
        indices = stablehlo.reshape(ir.RankedTensorType.get([*shape, 1], element), indices)
    count = 1 if vector_dim == len(shape) else shape[vector_dim]
    full = list(ir.RankedTensorType(indices.type).shape)
    planes: list[ir.Value] = []
    shifted: dict[int, ir.Value] = {}
    for component in range(count):
        plane = _component(indices, full, vector_dim, component)
        if component in shifts:
            axes, size = shifts[component]
            if component in clamp_to:
                low, high = splat(0, plane.type), splat(clamp_to[component], plane.type)
                plane = stablehlo.clamp(low, plane, high)
            start = stablehlo.convert(ir.RankedTensorType.get([], element), at.offset(axes, size))
            plane = stablehlo.subtract(plane, broadcast_scalar(start, tuple(ir.RankedTensorType(plane.type).shape)))
            shifted[component] = plane
        planes.append(plane)
    joined = (
        planes[0]
        if count == 1
        else stablehlo.concatenate(planes, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), vector_dim))
    )
    if vector_dim == len(shape):
        joined = stablehlo.reshape(ir.RankedTensorType.get(shape, element), joined)
    return joined, shifted


def _component(indices: ir.Value, shape: list[int], vector_dim: int, component: int) -> ir.Value:
    if shape[vector_dim] == 1:
        return indices
    low, high = [0] * len(shape), list(shape)
    low[vector_dim], high[vector_dim] = component, component + 1
    return stablehlo.slice(indices, low, high, [1] * len(shape))


@local_form("stablehlo.gather")
def local_gather(op: ir.Operation, nest: LoopNest, option: Option, at: Localizer) -> None:
    """Looks up in the shard. Along an indexed split dimension an element that another shard holds reads as zero: a
    partial sum."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = integers(op.attributes["slice_sizes"])
    local = ir.RankedTensorType(op.operands[0].type).shape
    split = tensor_split(nest.operands[0], option)
    start_map = list(numbers.start_index_map)
    collapsed = set(numbers.collapsed_slice_dims)
    shifts = {start_map.index(dim): (axes, local[dim]) for dim, axes in enumerate(split) if axes and dim in collapsed}
    op.attributes["slice_sizes"] = integers_attr(map(min, sizes, local))
    if not shifts:
        default_form(op, nest, option, at)
        return
    whole = at.global_shape(op.operands[0])
    with ir.InsertionPoint(op), op.location:
        last = {component: whole[start_map[component]] - 1 for component in shifts}
        indices, planes = _shifted_indices(op.operands[1], numbers.index_vector_dim, shifts, last, at)
        op.operands[1] = indices
        inside = _inside(planes, shifts)
    default_form(op, nest, option, at)
    _mask_result(op, inside, numbers, at)


def _inside(planes: dict[int, ir.Value], shifts: dict[int, tuple[Axes, int]]) -> ir.Value:
    """Which indices fall into this device's shard, in the shape of one index component."""
    tests = []
    for component, plane in planes.items():
        tests.append(compare(plane, splat(0, plane.type), "GE"))
        tests.append(compare(plane, splat(shifts[component][1], plane.type), "LT"))
    joined = tests[0]
    for test in tests[1:]:
        joined = stablehlo.and_(joined, test)
    return joined


def _mask_result(op: ir.Operation, inside: ir.Value, numbers: stablehlo.GatherDimensionNumbers, at: Localizer) -> None:
    """Puts zeros where the index lies in another shard."""
    result = op.results[0]
    tensor = ir.RankedTensorType(result.type)
    i1 = ir.IntegerType.get_signless(1)
    offset_dims = list(numbers.offset_dims)
    batch_dims = [dim for dim in range(tensor.rank) if dim not in offset_dims]
    with ir.InsertionPoint.after(op), op.location:
        flat = stablehlo.reshape(ir.RankedTensorType.get([tensor.shape[dim] for dim in batch_dims], i1), inside)
        mask = stablehlo.broadcast_in_dim(ir.RankedTensorType.get(tensor.shape, i1), flat, ir.DenseI64ArrayAttr.get(batch_dims))
        masked = stablehlo.select(mask, result, splat(0, tensor))
    shape, sharding = at.global_shape(result), at.shardings[result]
    result.replace_all_uses_except(masked, masked.owner.operation)
    at.adopt(masked, shape, sharding)


@local_form("stablehlo.scatter")
def local_scatter(op: ir.Operation, nest: LoopNest, option: Option, at: Localizer) -> None:
    """Applies the updates that fall into the shard (StableHLO skips those out of bounds). With split updates every device applies
    its own; the operand then enters on one device of each group and the result is partial."""
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    local = ir.RankedTensorType(op.operands[0].type).shape
    split = tensor_split(nest.operands[0], option)
    start_map = list(numbers.scattered_dims_to_operand_dims)
    inserted = set(numbers.inserted_window_dims)
    shifts = {start_map.index(dim): (axes, local[dim]) for dim, axes in enumerate(split) if axes and dim in inserted}
    reduced = [(loop.reduction, axes) for loop, axes in zip(nest.loops, option, strict=True) if loop.reduction and axes]
    with ir.InsertionPoint(op), op.location:
        if shifts:
            op.operands[1] = _shifted_indices(op.operands[1], numbers.index_vector_dim, shifts, {}, at)[0]
        if reduced:
            axes = tuple(sorted(axis for _, taken in reduced for axis in taken))
            op.operands[0] = once_per_group(op.operands[0], reduced[0][0], axes, at)
    default_form(op, nest, option, at)
