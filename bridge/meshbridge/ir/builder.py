"""Creates StableHLO operations at one insertion point; the result types follow from the operands.

Only what the lowerings need, through `Operation.create`: a generated builder costs ten times as much per operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshbridge.ir.mlir import ir

Shape = Sequence[int]


def tensor(shape: Shape, element: ir.Type) -> ir.RankedTensorType:
    """The static tensor type of `shape` and `element`."""
    return ir.RankedTensorType.get(list(shape), element, loc=ir.Location.unknown())


def shape_of(value: ir.Value) -> list[int]:
    """The static shape of a tensor value."""
    return list(ir.RankedTensorType(value.type).shape)


def element_of(value: ir.Value) -> ir.Type:
    """The element type of a tensor value."""
    return ir.RankedTensorType(value.type).element_type


def dense(array: np.ndarray[Any, Any]) -> ir.Attribute:
    """`dense<…>` with the array's shape and signless element type."""
    return ir.DenseElementsAttr.get(np.ascontiguousarray(array).data)


def integers(values: Sequence[int]) -> ir.Attribute:
    """`array<i64: …>`."""
    return ir.DenseI64ArrayAttr.get(list(values))


def integer(value: int) -> ir.Attribute:
    """`value : i64`."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


@dataclass(frozen=True)
class Emitter:
    """Where new operations go and the source location that they carry."""

    loc: ir.Location
    ip: ir.InsertionPoint

    def op(
        self,
        name: str,
        result: ir.Type,
        operands: Sequence[ir.Value],
        attrs: dict[str, ir.Attribute] | None = None,
        regions: int = 0,
    ) -> ir.Operation:
        """One StableHLO operation with one result."""
        return ir.Operation.create(
            f"stablehlo.{name}", [result], operands, attrs or {}, regions=regions, loc=self.loc, ip=self.ip
        )

    def value(
        self, name: str, result: ir.Type, operands: Sequence[ir.Value], attrs: dict[str, ir.Attribute] | None = None
    ) -> ir.Value:
        """The result of one StableHLO operation."""
        created: ir.Value = self.op(name, result, operands, attrs).results[0]
        return created

    def elementwise(self, name: str, *operands: ir.Value) -> ir.Value:
        """An operation whose result has the type of its operands."""
        return self.value(name, operands[0].type, operands)

    def constant(self, type_: ir.Type, attr: ir.Attribute) -> ir.Value:
        """A constant of that type; `attr` are its elements."""
        return self.value("constant", type_, [], {"value": attr})

    def table(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """A constant of 32-bit integers."""
        return self.constant(tensor(array.shape, ir.IntegerType.get_signless(32)), dense(array.astype(np.int32)))

    def scalar(self, value: int) -> ir.Value:
        """A constant `tensor<i32>`."""
        element = ir.IntegerType.get_signless(32)
        type_ = tensor([], element)
        return self.constant(type_, ir.DenseElementsAttr.get_splat(type_, ir.IntegerAttr.get(element, value)))

    def compare(self, direction: str, left: ir.Value, right: ir.Value) -> ir.Value:
        """Signed integer comparison, `direction` as StableHLO spells it: LT, GE, EQ, …"""
        result = tensor(shape_of(left), ir.IntegerType.get_signless(1))
        attr = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
        return self.value("compare", result, [left, right], {"comparison_direction": attr})

    def select(self, condition: ir.Value, on_true: ir.Value, on_false: ir.Value) -> ir.Value:
        """`condition` is a scalar or has the operands' shape."""
        return self.value("select", on_true.type, [condition, on_true, on_false])

    def convert(self, value: ir.Value, element: ir.Type) -> ir.Value:
        """`value` with element type `element`; itself where it has that already."""
        if element_of(value) == element:
            return value
        return self.value("convert", tensor(shape_of(value), element), [value])

    def reshape(self, value: ir.Value, shape: Shape) -> ir.Value:
        """`value` with another shape; itself where it has that already."""
        if shape_of(value) == list(shape):
            return value
        return self.value("reshape", tensor(shape, element_of(value)), [value])

    def broadcast(self, value: ir.Value, shape: Shape) -> ir.Value:
        """A scalar in every place of `shape`."""
        if not shape:
            return value
        attrs = {"broadcast_dimensions": integers([])}
        return self.value("broadcast_in_dim", tensor(shape, element_of(value)), [value], attrs)

    def slice(self, value: ir.Value, dim: int, start: int, size: int) -> ir.Value:
        """`size` entries of dimension `dim` from `start` on; `value` itself where that is all."""
        shape = shape_of(value)
        if size == shape[dim]:
            return value
        starts, limits = [0] * len(shape), list(shape)
        starts[dim], limits[dim], shape[dim] = start, start + size, size
        attrs = {"start_indices": integers(starts), "limit_indices": integers(limits), "strides": integers([1] * len(shape))}
        return self.value("slice", tensor(shape, element_of(value)), [value], attrs)

    def dynamic_slice(self, value: ir.Value, dim: int, start: ir.Value, size: int) -> ir.Value:
        """`size` entries of dimension `dim` from the run-time index `start : tensor<i32>` on."""
        shape = shape_of(value)
        shape[dim] = size
        zero = self.scalar(0) if len(shape) > 1 else start
        starts = [start if each == dim else zero for each in range(len(shape))]
        return self.value("dynamic_slice", tensor(shape, element_of(value)), [value, *starts], {"slice_sizes": integers(shape)})

    def iota(self, shape: Shape, dim: int) -> ir.Value:
        """Each place's index along `dim`, as i32."""
        return self.value("iota", tensor(shape, ir.IntegerType.get_signless(32)), [], {"iota_dimension": integer(dim)})

    def add(self, left: ir.Value, right: int) -> ir.Value:
        """`left + right`; `left` itself where `right` is 0."""
        return self.elementwise("add", left, self.scalar(right)) if right else left

    def multiply(self, left: ir.Value, right: int) -> ir.Value:
        """`left * right`; `left` itself where `right` is 1."""
        return left if right == 1 else self.elementwise("multiply", left, self.scalar(right))

    def pad_end(self, value: ir.Value, size: int) -> ir.Value:
        """A rank-1 tensor with zeros appended up to `size`; `value` itself where it has that size."""
        (length,) = shape_of(value)
        if length == size:
            return value
        low, high, interior = "edge_padding_low", "edge_padding_high", "interior_padding"
        attrs = {low: integers([0]), high: integers([size - length]), interior: integers([0])}
        zero = self.splat(tensor([], element_of(value)), 0)
        return self.value("pad", tensor([size], element_of(value)), [value, zero], attrs)

    def splat(self, type_: ir.RankedTensorType, number: int) -> ir.Value:
        """`number` in every place of a tensor of numbers of any kind."""
        element = type_.element_type
        if isinstance(element, ir.ComplexType):  # the bindings cannot hold a constant of complex numbers
            part = tensor(type_.shape, element.element_type)
            return self.value("complex", type_, [self.splat(part, number), self.splat(part, 0)])
        if isinstance(element, ir.IntegerType):
            text = str(bool(number)).lower() if element.width == 1 else str(number)
        else:
            text = f"{number}.0"
        return self.constant(type_, ir.Attribute.parse(f"dense<{text}> : {type_}"))

    def concatenate(self, values: Sequence[ir.Value], dim: int) -> ir.Value:
        """`values` one after the other along `dim`; a single one is itself."""
        if len(values) == 1:
            return values[0]
        shape = shape_of(values[0])
        shape[dim] = sum(shape_of(value)[dim] for value in values)
        return self.value("concatenate", tensor(shape, element_of(values[0])), values, {"dimension": integer(dim)})
