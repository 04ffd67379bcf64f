"""Creates StableHLO operations at one insertion point; the result types follow from the operands.

Operations are created by `Operation.create`: a generated builder takes ten times as long per operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from meshbridge.ir.mlir import MeshError, ir, location_text

MAX_POSITIONS = 1 << 31
"""Positions are tensor<i32>, so dimensions with computed positions have at most this many elements."""

Shape = Sequence[int]
Number = int | float
Operand = ir.Value | Number
"""A tensor, or a number that is broadcast to a tensor."""


class TooLargeError(MeshError):
    """A position, or the size of a dimension, that does not fit 32 bits."""


def tensor(shape: Shape, element: ir.Type) -> ir.RankedTensorType:
    """The static tensor type of `shape` and `element`."""
    return ir.RankedTensorType.get(list(shape), element, loc=ir.Location.unknown())


def shape_of(value: ir.Value) -> list[int]:
    """The static shape of a tensor value."""
    return list(ir.RankedTensorType(value.type).shape)


def element_of(value: ir.Value) -> ir.Type:
    """The element type of a tensor value."""
    return ir.RankedTensorType(value.type).element_type


def op_of(value: ir.Value) -> ir.Operation:
    """The operation that defines `value`."""
    owner = value.owner
    assert not isinstance(owner, ir.Block), "an argument of a block"
    return owner.operation


def dense(array: np.ndarray[Any, Any]) -> ir.Attribute:
    """`dense<…>` with the array's shape and signless element type."""
    return ir.DenseElementsAttr.get(np.ascontiguousarray(array).data)


def integers(values: Sequence[int]) -> ir.Attribute:
    """`array<i64: …>`."""
    return ir.DenseI64ArrayAttr.get(list(values))


def integer(value: int) -> ir.Attribute:
    """`value : i64`."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def scalar_attr(number: Number, element: ir.Type) -> ir.Attribute:
    """`number` as an attribute of element type `element`, integers or floats."""
    if isinstance(element, ir.IntegerType | ir.IndexType):
        value = int(number)
        return ir.IntegerAttr.get(element, value - (1 << 64) if value >= 1 << 63 else value)  # the bindings take signed integers
    return ir.FloatAttr.get(element, float(number), loc=ir.Location.unknown(element.context))


@dataclass(frozen=True)
class Builder:
    """The insertion point of new operations, and their source location."""

    loc: ir.Location
    ip: ir.InsertionPoint

    @staticmethod
    def before(op: ir.Operation) -> Builder:
        """Inserts before `op`, at its source location."""
        return Builder(op.location, ir.InsertionPoint(op))

    @staticmethod
    def after(op: ir.Operation) -> Builder:
        """Inserts after `op`, at its source location."""
        return Builder(op.location, ir.InsertionPoint.after(op))

    @staticmethod
    def current() -> Builder:
        """Inserts at the insertion point and location of the current context managers."""
        return Builder(ir.Location.current, ir.InsertionPoint.current)

    def op(
        self,
        name: str,
        results: ir.Type | Sequence[ir.Type],
        operands: Sequence[ir.Value],
        attrs: dict[str, ir.Attribute] | None = None,
        regions: int = 0,
    ) -> ir.Operation:
        """Creates an operation, of StableHLO if `name` has no dialect."""
        full = name if "." in name else f"stablehlo.{name}"
        types = [results] if isinstance(results, ir.Type) else list(results)
        return self.create(full, types, operands, attrs or {}, regions)

    def create(
        self,
        name: str,
        types: Sequence[ir.Type],
        operands: Sequence[ir.Value],
        attributes: dict[str, ir.Attribute],
        regions: int = 0,
    ) -> ir.Operation:
        """Creates an operation by its full name; all other methods call this one."""
        return ir.Operation.create(name, types, operands, attributes, regions=regions, loc=self.loc, ip=self.ip)

    def value(
        self, name: str, result: ir.Type, operands: Sequence[ir.Value], attrs: dict[str, ir.Attribute] | None = None
    ) -> ir.Value:
        """Creates an operation with one result and returns that."""
        created: ir.Value = self.op(name, result, operands, attrs).results[0]
        return created

    def again(self, op: ir.Operation, result: ir.Type, operands: Sequence[ir.Value]) -> ir.Value:
        """The result of `op` on other operands, with its attributes and source location."""
        return Builder(op.location, self.ip).value(op.name, result, operands, dict(op.attributes.items()))

    def like(self, of: ir.Value, operand: Operand) -> ir.Value:
        """`operand` in the shape of `of`: broadcasts numbers and scalars; numbers also get its element type."""
        if not isinstance(operand, ir.Value):
            return self.splat(of.type, operand)
        shape = shape_of(of)
        return self.broadcast(operand, shape) if shape and not shape_of(operand) else operand

    def elementwise(self, name: str, first: ir.Value, *operands: Operand) -> ir.Value:
        """An operation whose result and operands have one type; `operands` may be numbers or scalars."""
        return self.value(name, first.type, [first, *(self.like(first, operand) for operand in operands)])

    def constant(self, type_: ir.Type, attr: ir.Attribute) -> ir.Value:
        """A constant of that type with elements `attr`."""
        return self.value("constant", type_, [], {"value": attr})

    def table(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant of 32-bit integers. Raises TooLargeError for larger ones."""
        if array.size and not -MAX_POSITIONS <= array.min() <= array.max() < MAX_POSITIONS:
            raise self.too_large(max(-array.min(), array.max()))
        return self.constant(tensor(array.shape, ir.IntegerType.get_signless(32)), dense(array.astype(np.int32)))

    def scalar(self, value: int) -> ir.Value:
        """A constant `tensor<i32>`."""
        return self.splat(tensor([], ir.IntegerType.get_signless(32)), value)

    def splat(self, type_: ir.Type, number: Number) -> ir.Value:
        """A tensor filled with `number`, of any numeric element type."""
        shaped = ir.RankedTensorType(type_)
        element = shaped.element_type
        if not -MAX_POSITIONS <= number < MAX_POSITIONS and str(element) == "i32":
            raise self.too_large(number)
        if isinstance(element, ir.ComplexType):  # the bindings cannot hold a constant of complex numbers
            part = tensor(shaped.shape, element.element_type)
            return self.value("complex", type_, [self.splat(part, number), self.splat(part, 0)])
        return self.constant(type_, ir.DenseElementsAttr.get_splat(shaped, scalar_attr(number, element)))

    def iota(self, shape: Shape, dim: int, element: ir.Type | None = None) -> ir.Value:
        """The index along `dim` of each element, as i32 by default."""
        type_ = tensor(shape, element or ir.IntegerType.get_signless(32))
        return self.value("iota", type_, [], {"iota_dimension": integer(dim)})

    def count_from(self, start: ir.Value, size: int) -> ir.Value:
        """`start : tensor<i32>` and the `size - 1` numbers after it."""
        return self.add(self.iota([size], 0), start)

    def compare(self, direction: str, left: ir.Value, right: Operand) -> ir.Value:
        """Elementwise comparison, `direction` as StableHLO spells it: LT, GE, EQ, …"""
        result = tensor(shape_of(left), ir.IntegerType.get_signless(1))
        attr = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
        return self.value("compare", result, [left, self.like(left, right)], {"comparison_direction": attr})

    def is_finite(self, value: ir.Value) -> ir.Value:
        """Whether each element is finite."""
        return self.value("is_finite", tensor(shape_of(value), ir.IntegerType.get_signless(1)), [value])

    def within(self, index: ir.Value, size: int) -> ir.Value:
        """Whether each entry of `index` is from 0 to `size - 1`."""
        return self.elementwise("and", self.compare("GE", index, 0), self.compare("LT", index, size))

    def all_of(self, masks: Iterable[ir.Value]) -> ir.Value:
        """The conjunction of one or more masks."""
        return reduce(partial(self.elementwise, "and"), masks)

    def select(self, condition: ir.Value, on_true: ir.Value, on_false: Operand) -> ir.Value:
        """`condition` is a scalar or has the operands' shape."""
        return self.value("select", on_true.type, [condition, on_true, self.like(on_true, on_false)])

    def select_along(self, dim: int, condition: ir.Value, on_true: ir.Value, on_false: Operand) -> ir.Value:
        """`condition` has one dimension, and selects all elements at the same index of `dim`."""
        return self.select(self.broadcast(condition, shape_of(on_true), [dim]), on_true, on_false)

    def convert(self, value: ir.Value, element: ir.Type) -> ir.Value:
        """`value` with element type `element`; unchanged if it already has that type."""
        if element_of(value) == element:
            return value
        return self.value("convert", tensor(shape_of(value), element), [value])

    def reshape(self, value: ir.Value, shape: Shape) -> ir.Value:
        """`value` with another shape; unchanged if it already has that shape."""
        if shape_of(value) == list(shape):
            return value
        return self.value("reshape", tensor(shape, element_of(value)), [value])

    def transpose(self, value: ir.Value, permutation: Sequence[int]) -> ir.Value:
        """`value` with its dimensions in the order `permutation`."""
        shape = shape_of(value)
        result = tensor([shape[dim] for dim in permutation], element_of(value))
        return self.value("transpose", result, [value], {"permutation": integers(permutation)})

    def rearrange(self, value: ir.Value, parts: Shape, order: Sequence[int], shape: Shape) -> ir.Value:
        """`value` reshaped to `parts`, transposed to that `order`, and reshaped to `shape`."""
        if [*order] == sorted(order):
            return self.reshape(value, shape)
        return self.reshape(self.transpose(self.reshape(value, parts), order), shape)

    def broadcast(self, value: ir.Value, shape: Shape, dims: Sequence[int] = ()) -> ir.Value:
        """`value` broadcast to `shape`, in which its dimensions are `dims`; returns `value` if `shape` is a scalar's."""
        if not shape:
            return value
        attrs = {"broadcast_dimensions": integers(dims)}
        return self.value("broadcast_in_dim", tensor(shape, element_of(value)), [value], attrs)

    def cut(self, value: ir.Value, starts: Shape, limits: Shape, strides: Shape | None = None) -> ir.Value:
        """Every `strides[d]`-th entry of each dimension from `starts[d]` to before `limits[d]`."""
        steps = strides or [1] * len(starts)
        shape = [-((low - high) // step) for low, high, step in zip(starts, limits, steps, strict=True)]
        attrs = {"start_indices": integers(starts), "limit_indices": integers(limits), "strides": integers(steps)}
        return self.value("slice", tensor(shape, element_of(value)), [value], attrs)

    def corner(self, value: ir.Value) -> ir.Value:
        """The first element, as a scalar."""
        rank = len(shape_of(value))
        return self.reshape(self.cut(value, [0] * rank, [1] * rank), [])

    def slice(self, value: ir.Value, dim: int, start: int, size: int, stride: int = 1) -> ir.Value:
        """`size` entries of dimension `dim` from `start`; `value` itself if these are all."""
        shape = shape_of(value)
        if size == shape[dim]:
            return value
        starts, limits, strides = [0] * len(shape), shape, [1] * len(shape)
        starts[dim], limits[dim], strides[dim] = start, start + (size - 1) * stride + 1, stride
        return self.cut(value, starts, limits, strides)

    def dynamic_cut(self, value: ir.Value, starts: Sequence[ir.Value], sizes: Shape) -> ir.Value:
        """`sizes` entries from the run-time indices `starts`, scalars of one integer type."""
        return self.value("dynamic_slice", tensor(sizes, element_of(value)), [value, *starts], {"slice_sizes": integers(sizes)})

    def dynamic_slice(self, value: ir.Value, dim: int, start: ir.Value, size: int) -> ir.Value:
        """`size` entries of dimension `dim` from the run-time index `start : tensor<i32>`."""
        shape = shape_of(value)
        shape[dim] = size
        return self.dynamic_cut(value, self._starts(dim, start, len(shape)), shape)

    def entry(self, table: ir.Value, index: ir.Value) -> ir.Value:
        """Entry `index : tensor<i32>` of a one-dimensional tensor, as a scalar."""
        return self.reshape(self.dynamic_slice(table, 0, index, 1), [])

    def dynamic_update(self, value: ir.Value, piece: ir.Value, dim: int, start: ir.Value) -> ir.Value:
        """`value` overwritten with `piece` from index `start : tensor<i32>` of dimension `dim`."""
        return self.dynamic_paste(value, piece, self._starts(dim, start, len(shape_of(value))))

    def dynamic_paste(self, value: ir.Value, piece: ir.Value, starts: Sequence[ir.Value]) -> ir.Value:
        """`value` overwritten with `piece` from the run-time indices `starts`."""
        return self.value("dynamic_update_slice", value.type, [value, piece, *starts])

    def _starts(self, dim: int, start: ir.Value, rank: int) -> list[ir.Value]:
        zero = self.scalar(0) if rank > 1 else start
        return [start if index == dim else zero for index in range(rank)]

    def add(self, left: ir.Value, right: Operand) -> ir.Value:
        """`left + right`; `left` itself if `right` is 0."""
        return left if isinstance(right, int) and right == 0 else self.elementwise("add", left, right)

    def subtract(self, left: ir.Value, right: Operand) -> ir.Value:
        """`left - right`."""
        return self.elementwise("subtract", left, right)

    def too_large(self, number: Number) -> TooLargeError:
        """The error for a number that is too large for a position."""
        message = f"needs positions up to {number} in a sharded dimension, expected less than 2^31: they have 32 bits"
        hint = "make two dimensions of it, of which the outer one is sharded"
        return TooLargeError(f"{location_text(self.loc)}: error: {message}\n  hint: {hint}")

    def beginning(self, number: ir.Value, count: int, size: int) -> ir.Value:
        """The first position of piece `number`, of `count` pieces with `size` elements each: tensor<i32>.

        Raises TooLargeError if positions need more bits.
        """
        if count * size > MAX_POSITIONS:
            raise self.too_large(count * size)
        return self.multiply(number, size)

    def multiply(self, left: ir.Value, right: Operand) -> ir.Value:
        """`left * right`; `left` itself if `right` is 1."""
        return left if isinstance(right, int) and right == 1 else self.elementwise("multiply", left, right)

    def clamp(self, low: Operand, value: ir.Value, high: Operand) -> ir.Value:
        """`value`, limited to the range from `low` to `high`."""
        return self.value("clamp", value.type, [self.like(value, low), value, self.like(value, high)])

    def pad(self, value: ir.Value, fill: Operand, low: Shape, high: Shape, interior: Shape | None = None) -> ir.Value:
        """`value` padded with the scalar `fill` on the edges (negative: cropped) and between its elements."""
        between = interior or [0] * len(low)
        sizes = zip(low, shape_of(value), high, between, strict=True)
        shape = [before + size + max(size - 1, 0) * inner + after for before, size, after, inner in sizes]
        scalar = fill if isinstance(fill, ir.Value) else self.splat(tensor([], element_of(value)), fill)
        attrs = {"edge_padding_low": integers(low), "edge_padding_high": integers(high), "interior_padding": integers(between)}
        return self.value("pad", tensor(shape, element_of(value)), [value, scalar], attrs)

    def pad_along(self, value: ir.Value, dim: int, fill: Operand, low: int, high: int, interior: int = 0) -> ir.Value:
        """Pads one dimension; `value` itself if nothing is added."""
        if not (low or high or interior):
            return value
        edges = [[size if index == dim else 0 for index in range(len(shape_of(value)))] for size in (low, high, interior)]
        return self.pad(value, fill, *edges)

    def concatenate(self, values: Sequence[ir.Value], dim: int) -> ir.Value:
        """`values` concatenated along `dim`; a single one is returned unchanged."""
        if len(values) == 1:
            return values[0]
        shape = shape_of(values[0])
        shape[dim] = sum(shape_of(value)[dim] for value in values)
        return self.value("concatenate", tensor(shape, element_of(values[0])), values, {"dimension": integer(dim)})

    def barrier(self, value: ir.Value) -> ir.Value:
        """`value` after an optimization barrier: XLA optimizes its producer and its users separately."""
        return self.value("optimization_barrier", value.type, [value])

    def reduce(self, value: ir.Value, initial: Operand, dims: Sequence[int], combiner: str) -> ir.Value:
        """Reduces the elements along `dims` with the StableHLO operation `combiner`, beginning with `initial`."""
        element = element_of(value)
        start = initial if isinstance(initial, ir.Value) else self.splat(tensor([], element), initial)
        result = tensor([size for dim, size in enumerate(shape_of(value)) if dim not in dims], element)
        return self.combining("reduce", result, [value, start], {"dimensions": integers(sorted(dims))}, combiner)

    def combining(
        self, name: str, result: ir.Type, operands: Sequence[ir.Value], attrs: dict[str, ir.Attribute], combiner: str
    ) -> ir.Value:
        """An operation whose body combines two scalars with the StableHLO operation `combiner`."""
        op = self.op(name, result, operands, attrs, regions=1)
        scalar = tensor([], element_of(operands[0]))
        block = op.regions[0].blocks.append(scalar, scalar, arg_locs=[self.loc] * 2)
        inside = Builder(self.loc, ir.InsertionPoint(block))
        inside.op("return", [], [inside.value(combiner, scalar, list(block.arguments))])
        value: ir.Value = op.results[0]
        return value
