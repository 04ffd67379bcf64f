"""How the start indices of a gather or scatter address its operand, and index arithmetic for one device's shard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from meshbridge.dialect.attributes import integers
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.sharding import Axes
from meshbridge.ops.rule import shape_of
from meshbridge.ops.spmd import SpmdProgram, broadcast_scalar, compare, splat


@dataclass(frozen=True)
class Addressing:
    """The dimension numbers of a gather, or of a scatter read as its mirror image: updates are where a gather has its result."""

    sizes: tuple[int, ...]
    "Per operand dimension, how many of its elements one window covers."
    addressed: tuple[int, ...]
    "Per component of an index vector, the operand dimension that it speaks of."
    vector_dim: int
    "The dimension of the indices along which an index vector lies; their rank if vectors of one component are left implicit."
    batching: tuple[tuple[int, int], ...]
    "Pairs of an operand dimension and a dimension of the indices that walk along together."
    window: tuple[tuple[int, int], ...]
    "Pairs of an operand dimension and the dimension of the result (update) along which its part of the window lies."

    def batch_dims(self, rank: int) -> list[int]:
        """The dimensions of a result (update) of `rank` that walk along the indices', in order."""
        along_window = {dim for _, dim in self.window}
        return [dim for dim in range(rank) if dim not in along_window]

    def elementwise_along(self, dims: Collection[int], rank: int) -> Addressing:
        """The same for index vectors along the last dimension of the indices, and for windows of one element along `dims`, whose
        elements are then walked by batch dimensions, at their old places in the result of `rank`."""
        window = tuple((dim, along) for dim, along in self.window if dim not in dims)
        sizes = tuple(1 if dim in dims else size for dim, size in enumerate(self.sizes))
        finer = replace(self, window=window, sizes=sizes)
        old, new = self.batch_dims(rank), finer.batch_dims(rank)
        # A batch dimension of the indices has its number but for the vectors' dimension, which comes last from here on.
        numbers = [index_dim - (index_dim > self.vector_dim) for _, index_dim in self.batching]
        batching = tuple((dim, new.index(old[number])) for (dim, _), number in zip(self.batching, numbers, strict=True))
        return replace(finer, batching=batching, vector_dim=len(new))


def of_gather(op: ir.Operation) -> Addressing:
    """The addressing of a `stablehlo.gather`."""
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    sizes = integers(op.attributes["slice_sizes"])
    batching = tuple(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    outside = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    return Addressing(
        sizes,
        tuple(numbers.start_index_map),
        numbers.index_vector_dim,
        batching,
        _window(len(sizes), outside, numbers.offset_dims),
    )


def of_scatter(op: ir.Operation) -> Addressing:
    """The addressing of a `stablehlo.scatter`, of one operand or several, all of one shape."""
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    update, rank = shape_of(op.operands[len(op.operands) - 1]), len(shape_of(op.operands[0]))
    batching = tuple(zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
    outside = {*numbers.inserted_window_dims, *numbers.input_batching_dims}
    window = _window(rank, outside, numbers.update_window_dims)
    covered = {dim: update[along] for dim, along in window}
    sizes = tuple(covered.get(dim, 1) for dim in range(rank))
    return Addressing(sizes, tuple(numbers.scattered_dims_to_operand_dims), numbers.index_vector_dim, batching, window)


def _window(rank: int, outside: set[int], along: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(zip([dim for dim in range(rank) if dim not in outside], along, strict=True))


@dataclass(frozen=True)
class Shard:
    """The part of one operand dimension that a device holds: `length` of `whole` elements, split along `axes`. Windows on it
    cover `size` elements."""

    axes: Axes
    length: int
    whole: int
    size: int


class Indices:
    """Start indices as planes, one per component of the index vectors, that walk the batch dimensions (those of the indices
    without the vectors')."""

    def __init__(self, indices: ir.Value, addressing: Addressing) -> None:
        self.addressing = addressing
        self.type = _wide_enough(ir.RankedTensorType(indices.type).element_type)
        shape = list(shape_of(indices))
        rank, vector_dim = len(shape), addressing.vector_dim
        self.shape = [size for dim, size in enumerate(shape) if dim != vector_dim]
        "Sizes of the batch dimensions."
        if vector_dim == rank:
            shape.append(1)
            indices = stablehlo.reshape(ir.RankedTensorType.get(shape, ir.RankedTensorType(indices.type).element_type), indices)
        elif vector_dim != rank - 1:
            order = [dim for dim in range(rank) if dim != vector_dim] + [vector_dim]
            indices = stablehlo.transpose(indices, order)
        self.planes = [self._plane(indices, component) for component in range(len(addressing.addressed))]

    def _plane(self, indices: ir.Value, component: int) -> ir.Value:
        shape = self.shape
        plane = stablehlo.slice(indices, [0] * len(shape) + [component], [*shape, component + 1], [1] * (len(shape) + 1))
        element = ir.RankedTensorType(indices.type).element_type
        plane = stablehlo.reshape(ir.RankedTensorType.get(shape, element), plane)
        if ir.IntegerType(element).is_unsigned and ir.IntegerType(element).width == 64:
            plane = stablehlo.minimum(plane, splat(1 << 62, plane.type))  # what is that large is out of bounds anyhow
        return plane if element == self.type else stablehlo.convert(ir.RankedTensorType.get(shape, self.type), plane)

    def component(self, dim: int) -> int:
        """The component that speaks of operand dimension `dim`."""
        return self.addressing.addressed.index(dim)

    def clamp(self, shards: Mapping[int, Shard]) -> None:
        """Moves windows that reach outside the whole operand back into it, as gathers do."""
        for dim, shard in shards.items():
            plane = self.planes[self.component(dim)]
            last = splat(shard.whole - shard.size, plane.type)
            self.planes[self.component(dim)] = stablehlo.clamp(splat(0, plane.type), plane, last)

    def fits(self, shards: Mapping[int, Shard]) -> ir.Value:
        """Which windows lie inside the whole operand: those that do not are no part of a scatter."""
        tests = []
        for dim, shard in shards.items():
            plane = self.planes[self.component(dim)]
            tests.append(compare(plane, splat(0, plane.type), "GE"))
            tests.append(compare(plane, splat(shard.whole - shard.size, plane.type), "LE"))
        return reduce(stablehlo.and_, tests)

    def unfold(self, dim: int, size: int, place: int) -> None:
        """Addresses single elements along operand dimension `dim`, where windows cover `size`: a batch dimension more, number
        `place`, walks them."""
        self.shape.insert(place, size)
        kept = ir.DenseI64ArrayAttr.get([batch for batch in range(len(self.shape)) if batch != place])
        spread = ir.RankedTensorType.get(self.shape, self.type)
        self.planes = [stablehlo.broadcast_in_dim(spread, plane, kept) for plane in self.planes]
        component = self.component(dim)
        step = stablehlo.iota(spread, ir.IntegerAttr.get(_i64(), place))
        self.planes[component] = stablehlo.add(self.planes[component], step)

    def drop(self, kept: ir.Value, dim: int, size: int) -> None:
        """Points windows that are not `kept`, which cover `size` along operand dimension `dim`, before its beginning."""
        component = self.component(dim)
        plane = self.planes[component]
        self.planes[component] = stablehlo.select(kept, plane, splat(-size, plane.type))

    def shift(self, shards: Mapping[int, Shard], at: SpmdProgram) -> None:
        """Counts from where this device's shard begins."""
        for dim, shard in shards.items():
            component = self.component(dim)
            start = stablehlo.convert(ir.RankedTensorType.get([], self.type), at.offset(shard.axes, shard.length))
            self.planes[component] = stablehlo.subtract(self.planes[component], broadcast_scalar(start, tuple(self.shape)))

    def inside(self, shards: Mapping[int, Shard]) -> ir.Value:
        """Which of the shifted indices fall into this device's shard."""
        tests = []
        for dim, shard in shards.items():
            plane = self.planes[self.component(dim)]
            tests.append(compare(plane, splat(0, plane.type), "GE"))
            tests.append(compare(plane, splat(shard.length, plane.type), "LT"))
        return reduce(stablehlo.and_, tests)

    def joined(self) -> ir.Value:
        """The indices, vectors along the last dimension."""
        single = ir.RankedTensorType.get([*self.shape, 1], self.type)
        columns = [stablehlo.reshape(single, plane) for plane in self.planes]
        return columns[0] if len(columns) == 1 else stablehlo.concatenate(columns, ir.IntegerAttr.get(_i64(), len(self.shape)))


def _wide_enough(element: ir.Type) -> ir.IntegerType:
    """The signed type in which indices of type `element` are counted: shards may begin where a narrow type does not reach."""
    integer = ir.IntegerType(element)
    needs_64 = integer.width == 64 or (integer.width == 32 and integer.is_unsigned)
    return ir.IntegerType.get_signless(64 if needs_64 else 32)


def _i64() -> ir.Type:
    return ir.IntegerType.get_signless(64)
