"""How start indices of a gather or scatter address the operand, and index arithmetic for one device's shard."""

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
    """The dimension numbers of a gather, or of a scatter, whose updates correspond to the result of a gather."""

    sizes: tuple[int, ...]
    "Per operand dimension, the elements that one window covers."
    addressed: tuple[int, ...]
    "Per component of an index vector, the operand dimension that it indexes."
    vector_dim: int
    "The dimension of the indices that holds the index vectors; their rank if one-component vectors are implicit."
    batching: tuple[tuple[int, int], ...]
    "Pairs of an operand dimension and the corresponding batch dimension of the indices."
    window: tuple[tuple[int, int], ...]
    "Pairs of an operand dimension and the dimension of the result (update) that has its part of the window."

    def batch_dims(self, rank: int) -> list[int]:
        """The dimensions of a result (update) of `rank` that correspond to dimensions of the indices, in order."""
        along_window = {dim for _, dim in self.window}
        return [dim for dim in range(rank) if dim not in along_window]

    def elementwise_along(self, dims: Collection[int], rank: int) -> Addressing:
        """The same accesses with windows of one element along `dims`: batch dimensions iterate over these elements, at the
        positions of the window dimensions in the result of `rank`. Index vectors are along the last dimension of the indices."""
        window = tuple((dim, along) for dim, along in self.window if dim not in dims)
        sizes = tuple(1 if dim in dims else size for dim, size in enumerate(self.sizes))
        finer = replace(self, window=window, sizes=sizes)
        batch_dims, new_batch_dims = self.batch_dims(rank), finer.batch_dims(rank)
        # Removing the vectors' dimension, which becomes the last one, shifts the dimensions after it.
        numbers = [index_dim - (index_dim > self.vector_dim) for _, index_dim in self.batching]
        batching = tuple(
            (dim, new_batch_dims.index(batch_dims[number])) for (dim, _), number in zip(self.batching, numbers, strict=True)
        )
        return replace(finer, batching=batching, vector_dim=len(new_batch_dims))

    def write_to(self, op: ir.Operation) -> None:
        """Sets these dimension numbers on a gather or scatter."""
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
"""By op: the attribute of the dimension numbers, its class, and its fields except `index_vector_dim`."""


def addressing_of(op: ir.Operation) -> Addressing:
    """The addressing of a `stablehlo.gather`, or of a `stablehlo.scatter`, whose operands all have one shape."""
    name, kind, fields = _NUMBERS[op.name]
    numbers = kind(op.attributes[name])
    along, outside, batching, index_batching, addressed = (tuple(getattr(numbers, field)) for field in fields)
    window_dims = [dim for dim in range(len(shape_of(op.operands[0]))) if dim not in (*outside, *batching)]
    window = tuple(zip(window_dims, along, strict=True))
    if op.name == "stablehlo.gather":
        sizes = integers(op.attributes["slice_sizes"])
    else:
        update, update_dims = shape_of(op.operands[len(op.operands) - 1]), dict(window)
        sizes = tuple(update[update_dims[dim]] if dim in update_dims else 1 for dim in range(len(shape_of(op.operands[0]))))
    pairs = tuple(zip(batching, index_batching, strict=True))
    return Addressing(sizes, addressed, numbers.index_vector_dim, pairs, window)


@dataclass(frozen=True)
class DimShard:
    """A device's shard of one operand dimension: `length` of `global_size` elements, split along `axes`. A window covers
    `size` of them."""

    axes: Axes
    length: int
    global_size: int
    size: int


class Indices:
    """Start indices as one tensor per component of the index vectors, in the shape of the batch dimensions."""

    def __init__(self, indices: ir.Value, addressing: Addressing, builder: Builder) -> None:
        self.addressing = addressing
        self.builder = builder
        self.type = _wide_enough(element_of(indices))
        shape = list(shape_of(indices))
        rank, vector_dim = len(shape), addressing.vector_dim
        self.shape = [size for dim, size in enumerate(shape) if dim != vector_dim]
        "Sizes of the batch dimensions."
        if vector_dim == rank:
            indices = builder.reshape(indices, [*shape, 1])
        elif vector_dim != rank - 1:
            order = [dim for dim in range(rank) if dim != vector_dim] + [vector_dim]
            indices = builder.transpose(indices, order)
        self.planes = [self._plane(indices, component) for component in range(len(addressing.addressed))]

    def _plane(self, indices: ir.Value, component: int) -> ir.Value:
        plane = self.builder.reshape(self.builder.slice(indices, len(self.shape), component, 1), self.shape)
        element = ir.IntegerType(element_of(indices))
        if element.is_unsigned and element.width == 64:
            plane = self.builder.elementwise("minimum", plane, 1 << 62)  # larger ones are out of bounds anyway
        return self.builder.convert(plane, self.type)

    def component(self, dim: int) -> int:
        """The component that indexes operand dimension `dim`."""
        return self.addressing.addressed.index(dim)

    def clamp(self, shards: Mapping[int, DimShard]) -> None:
        """Clamps windows into the global operand, as gathers do."""
        for dim, shard in shards.items():
            component = self.component(dim)
            self.planes[component] = self.builder.clamp(0, self.planes[component], shard.global_size - shard.size)

    def fits(self, shards: Mapping[int, DimShard]) -> ir.Value:
        """Which windows lie inside the global operand: a scatter skips the others."""
        return self._below({dim: shard.global_size - shard.size + 1 for dim, shard in shards.items()})

    def _below(self, limits: Mapping[int, int]) -> ir.Value:
        """Which index vectors are below `limits`, given by operand dimension."""
        return self.builder.all_of(self.builder.within(self.planes[self.component(dim)], limit) for dim, limit in limits.items())

    def unfold(self, dim: int, size: int, position: int) -> None:
        """Replaces windows of `size` elements along operand dimension `dim` by single elements, with a new batch dimension
        `position`."""
        self.shape.insert(position, size)
        old_batch_dims = [batch for batch in range(len(self.shape)) if batch != position]
        self.planes = [self.builder.broadcast(plane, self.shape, old_batch_dims) for plane in self.planes]
        component = self.component(dim)
        self.planes[component] = self.builder.add(self.planes[component], self.builder.iota(self.shape, position, self.type))

    def drop(self, is_valid: ir.Value, dim: int, size: int) -> None:
        """Moves windows before the beginning of operand dimension `dim`, which they cover with `size` elements, unless
        `is_valid`."""
        component = self.component(dim)
        self.planes[component] = self.builder.select(is_valid, self.planes[component], -size)

    def shift(self, shards: Mapping[int, DimShard], at: SpmdProgram) -> None:
        """Makes the indices relative to the beginning of this device's shard."""
        for dim, shard in shards.items():
            component = self.component(dim)
            start = self.builder.convert(at.offset(shard.axes, shard.length), self.type)
            self.planes[component] = self.builder.subtract(self.planes[component], start)

    def inside(self, shards: Mapping[int, DimShard]) -> ir.Value:
        """Which of the shifted indices fall into this device's shard."""
        return self._below({dim: shard.length for dim, shard in shards.items()})

    def joined(self) -> ir.Value:
        """The indices as one tensor, with vectors along the last dimension."""
        return self.builder.concatenate([self.builder.reshape(plane, [*self.shape, 1]) for plane in self.planes], len(self.shape))


def _wide_enough(element: ir.Type) -> ir.IntegerType:
    """The signed type for index arithmetic: offsets of shards may not fit into a narrow `element` type."""
    integer = ir.IntegerType(element)
    needs_64 = integer.width == 64 or (integer.width == 32 and integer.is_unsigned)
    return ir.IntegerType.get_signless(64 if needs_64 else 32)
