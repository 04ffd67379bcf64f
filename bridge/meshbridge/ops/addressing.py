"""How the start indices of a gather or scatter address its operand, and index arithmetic for one device's shard."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshbridge.dialect.attributes import integers
from meshbridge.ir.builder import Builder, element_of
from meshbridge.ir.mlir import ir, stablehlo
from meshbridge.ir.sharding import Axes
from meshbridge.ops.rule import shape_of
from meshbridge.ops.spmd import SpmdProgram


@dataclass(frozen=True)
class Addressing:
    """The dimension numbers of a gather, or of a scatter read as its mirror image: updates are where a gather has its result."""

    sizes: tuple[int, ...]
    "Per operand dimension, how many of its elements one window covers."
    addressed: tuple[int, ...]
    "Per component of an index vector, the operand dimension that it speaks of."
    vector_dim: int
    "The dimension of the indices of which an index vector is made; their rank if vectors of one component are left implicit."
    batching: tuple[tuple[int, int], ...]
    "Pairs of an operand dimension and a dimension of the indices that belong together."
    window: tuple[tuple[int, int], ...]
    "Pairs of an operand dimension and the dimension of the result (update) that has its part of the window."

    def batch_dims(self, rank: int) -> list[int]:
        """The dimensions of a result (update) of `rank` that belong to the indices', in order."""
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

    def write_to(self, op: ir.Operation) -> None:
        """Gives a gather or scatter these dimension numbers."""
        name, kind, _ = _NUMBERS[op.name]
        along, batching = [along for _, along in self.window], [dim for dim, _ in self.batching]
        outside = sorted({*range(len(self.sizes))} - {dim for dim, _ in (*self.window, *self.batching)})
        index_batching = [index_dim for _, index_dim in self.batching]
        op.attributes[name] = kind.get(along, outside, batching, index_batching, list(self.addressed), self.vector_dim)


_NUMBERS: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "stablehlo.gather": (
        "dimension_numbers",
        stablehlo.GatherDimensionNumbers,
        ("offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map"),
    ),
    "stablehlo.scatter": (
        "scatter_dimension_numbers",
        stablehlo.ScatterDimensionNumbers,
        (
            "update_window_dims",
            "inserted_window_dims",
            "input_batching_dims",
            "scatter_indices_batching_dims",
            "scattered_dims_to_operand_dims",
        ),
    ),
}
"""By op, the attribute of the dimension numbers, its kind, and what it calls the numbers but for the vectors' dimension."""


def addressing_of(op: ir.Operation) -> Addressing:
    """The addressing of a `stablehlo.gather`, or of a scatter of one operand or several, all of one shape."""
    name, kind, fields = _NUMBERS[op.name]
    numbers = kind(op.attributes[name])
    along, outside, batching, index_batching, addressed = (tuple(getattr(numbers, field)) for field in fields)
    kept = [dim for dim in range(len(shape_of(op.operands[0]))) if dim not in (*outside, *batching)]
    window = tuple(zip(kept, along, strict=True))
    if op.name == "stablehlo.gather":
        sizes = integers(op.attributes["slice_sizes"])
    else:
        update, places = shape_of(op.operands[len(op.operands) - 1]), dict(window)
        sizes = tuple(update[places[dim]] if dim in places else 1 for dim in range(len(shape_of(op.operands[0]))))
    pairs = tuple(zip(batching, index_batching, strict=True))
    return Addressing(sizes, addressed, numbers.index_vector_dim, pairs, window)


@dataclass(frozen=True)
class DimShard:
    """The part of one operand dimension that a device holds: `length` of `whole` elements, split along `axes`. Windows on it
    cover `size` elements."""

    axes: Axes
    length: int
    whole: int
    size: int


class Indices:
    """Start indices as planes, one per component of the index vectors, that walk the batch dimensions (those of the indices
    without the vectors')."""

    def __init__(self, indices: ir.Value, addressing: Addressing, emit: Builder) -> None:
        self.addressing = addressing
        self.emit = emit
        self.type = _wide_enough(element_of(indices))
        shape = list(shape_of(indices))
        rank, vector_dim = len(shape), addressing.vector_dim
        self.shape = [size for dim, size in enumerate(shape) if dim != vector_dim]
        "Sizes of the batch dimensions."
        if vector_dim == rank:
            indices = emit.reshape(indices, [*shape, 1])
        elif vector_dim != rank - 1:
            order = [dim for dim in range(rank) if dim != vector_dim] + [vector_dim]
            indices = emit.transpose(indices, order)
        self.planes = [self._plane(indices, component) for component in range(len(addressing.addressed))]

    def _plane(self, indices: ir.Value, component: int) -> ir.Value:
        plane = self.emit.reshape(self.emit.slice(indices, len(self.shape), component, 1), self.shape)
        element = ir.IntegerType(element_of(indices))
        if element.is_unsigned and element.width == 64:
            plane = self.emit.elementwise("minimum", plane, 1 << 62)  # what is that large is out of bounds anyhow
        return self.emit.convert(plane, self.type)

    def component(self, dim: int) -> int:
        """The component that speaks of operand dimension `dim`."""
        return self.addressing.addressed.index(dim)

    def clamp(self, shards: Mapping[int, DimShard]) -> None:
        """Clamps windows that reach outside the global operand into it, as gathers do."""
        for dim, shard in shards.items():
            component = self.component(dim)
            self.planes[component] = self.emit.clamp(0, self.planes[component], shard.whole - shard.size)

    def fits(self, shards: Mapping[int, DimShard]) -> ir.Value:
        """Which windows are inside the global operand: those that do not are no part of a scatter."""
        return self._below({dim: shard.whole - shard.size + 1 for dim, shard in shards.items()})

    def _below(self, limits: Mapping[int, int]) -> ir.Value:
        """Which index vectors are within `limits` by operand dimension."""
        return self.emit.all_of(self.emit.within(self.planes[self.component(dim)], limit) for dim, limit in limits.items())

    def unfold(self, dim: int, size: int, place: int) -> None:
        """Addresses single elements along operand dimension `dim`, where windows cover `size`: a batch dimension more, number
        `place`, walks them."""
        self.shape.insert(place, size)
        kept = [batch for batch in range(len(self.shape)) if batch != place]
        self.planes = [self.emit.broadcast(plane, self.shape, kept) for plane in self.planes]
        component = self.component(dim)
        self.planes[component] = self.emit.add(self.planes[component], self.emit.iota(self.shape, place, self.type))

    def drop(self, kept: ir.Value, dim: int, size: int) -> None:
        """Points windows that are not `kept`, which cover `size` along operand dimension `dim`, before its beginning."""
        component = self.component(dim)
        self.planes[component] = self.emit.select(kept, self.planes[component], -size)

    def shift(self, shards: Mapping[int, DimShard], at: SpmdProgram) -> None:
        """Counts from where this device's shard begins."""
        for dim, shard in shards.items():
            component = self.component(dim)
            start = self.emit.convert(at.offset(shard.axes, shard.length), self.type)
            self.planes[component] = self.emit.subtract(self.planes[component], start)

    def inside(self, shards: Mapping[int, DimShard]) -> ir.Value:
        """Which of the shifted indices fall into this device's shard."""
        return self._below({dim: shard.length for dim, shard in shards.items()})

    def joined(self) -> ir.Value:
        """The indices, vectors along the last dimension."""
        return self.emit.concatenate([self.emit.reshape(plane, [*self.shape, 1]) for plane in self.planes], len(self.shape))


def _wide_enough(element: ir.Type) -> ir.IntegerType:
    """The signed type in which indices of type `element` are counted: shards may begin where a narrow type does not reach."""
    integer = ir.IntegerType(element)
    needs_64 = integer.width == 64 or (integer.width == 32 and integer.is_unsigned)
    return ir.IntegerType.get_signless(64 if needs_64 else 32)
