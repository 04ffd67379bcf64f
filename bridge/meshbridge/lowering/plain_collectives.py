"""Collectives as compilers other than XLA read them: of one operand each, of real numbers of whole bytes, and exchanges along one
dimension.

StableHLO allows more: several operands, booleans, complex numbers, an `all_to_all` that splits one dimension and joins another.
Ops around the collective do that. No collective is added or taken away, but for those of several operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshbridge.ir.builder import Builder, element_of, integer, shape_of, tensor
from meshbridge.ir.mlir import ir

_REDUCING = frozenset(("stablehlo.all_reduce", "stablehlo.reduce_scatter"))
_EXCHANGE = "stablehlo.all_to_all"

COLLECTIVES = frozenset(
    (*_REDUCING, _EXCHANGE, *(f"stablehlo.{name}" for name in ("all_gather", "collective_broadcast", "collective_permute")))
)
"""The ops that `simplify` takes."""

_OF_BYTES = dict.fromkeys(("or", "add", "maximum"), "maximum") | dict.fromkeys(("and", "multiply", "minimum"), "minimum")
"""What combines bytes of 0 and 1 as an op of StableHLO combines booleans."""


def simplify(op: ir.Operation) -> None:
    """Replaces a collective of COLLECTIVES by plain ones, in its place.

    Input:   %1 = "stablehlo.all_to_all"(%0) <{split_dimension = 1, concat_dimension = 0, split_count = 4, …}>
               : (tensor<2x8xi1>) -> tensor<8x2xi1>
    Output:  %1 = "stablehlo.all_to_all"(%0) <{split_dimension = 0, concat_dimension = 0, split_count = 4, …}>
               : (tensor<4x2x2xi8>) -> tensor<4x2x2xi8>, conversions, reshapes and transposes around it
    """
    collective = _PlainCollective(op, Builder.before(op))
    for result, operand in zip(op.results, op.operands, strict=True):
        result.replace_all_uses_with(collective.simplified(operand, shape_of(result)))
    op.erase()


@dataclass(frozen=True)
class _PlainCollective:
    """A collective that is written anew, in its place, on one operand at a time."""

    op: ir.Operation
    emit: Builder

    @cached_property
    def combiner(self) -> str:
        """The StableHLO op that alone is the body; empty where there is no body, or another one."""
        ops = list(self.op.regions[0].blocks[0].operations) if self.op.name in _REDUCING else []
        return str(ops[0].operation.name).removeprefix("stablehlo.") if len(ops) == 2 else ""

    def simplified(self, operand: ir.Value, shape: list[int]) -> ir.Value:
        """The result, which has that shape, of `operand`."""
        element = element_of(operand)
        if isinstance(element, ir.IntegerType) and element.width == 1 and self._passes_on(*_OF_BYTES):
            return self._of_booleans(operand, shape)
        if isinstance(element, ir.ComplexType) and self._passes_on("add"):
            return self._of_complex(operand, shape)
        return self._along_one(operand, shape) if self.op.name == _EXCHANGE else self._again(operand, shape)

    def _passes_on(self, *combiners: str) -> bool:
        """Whether elements are left as they are, or combined by one of `combiners`."""
        return self.op.name not in _REDUCING or self.combiner in combiners

    def _of_booleans(self, operand: ir.Value, shape: list[int]) -> ir.Value:
        as_bytes = self.emit.convert(operand, ir.IntegerType.get_signless(8))
        return self.emit.compare("NE", self._moved(as_bytes, shape, _OF_BYTES.get(self.combiner, "")), 0)

    def _of_complex(self, operand: ir.Value, shape: list[int]) -> ir.Value:
        """Its real and imaginary parts, side by side in one more dimension."""
        part = tensor(shape_of(operand), ir.ComplexType(element_of(operand)).element_type)
        parts = [self.emit.value(name, part, [operand]) for name in ("real", "imag")]
        sides = [self.emit.reshape(each, [*part.shape, 1]) for each in parts]
        moved = self._moved(self.emit.concatenate(sides, part.rank), [*shape, 2])
        of_result = [self.emit.reshape(self.emit.slice(moved, len(shape), side, 1), shape) for side in (0, 1)]
        return self.emit.value("complex", tensor(shape, element_of(operand)), of_result)

    def _moved(self, operand: ir.Value, shape: list[int], combiner: str = "") -> ir.Value:
        return self._along_one(operand, shape) if self.op.name == _EXCHANGE else self._again(operand, shape, combiner)

    def _along_one(self, operand: ir.Value, shape: list[int]) -> ir.Value:
        """An exchange of the pieces of `operand`, numbered by a dimension of their own in front of all others."""
        split, joined, count = (
            ir.IntegerAttr(self.op.attributes[name]).value for name in ("split_dimension", "concat_dimension", "split_count")
        )
        if split == joined:
            return self._again(operand, shape)
        whole, rank = shape_of(operand), len(shape)
        pieces = self.emit.reshape(operand, [*whole[:split], count, whole[split] // count, *whole[split + 1 :]])
        numbered = self.emit.transpose(pieces, [split, *(dim for dim in range(rank + 1) if dim != split)])
        received = self._again(numbered, shape_of(numbered), split_dimension=integer(0), concat_dimension=integer(0))
        behind = [*range(1, joined + 1), 0, *range(joined + 1, rank + 1)]
        return self.emit.reshape(self.emit.transpose(received, behind), shape)

    def _again(self, operand: ir.Value, shape: list[int], combiner: str = "", **changed: ir.Attribute) -> ir.Value:
        """The same collective of another operand, with some attributes `changed`, or with another `combiner`."""
        type_, attrs = tensor(shape, element_of(operand)), dict(self.op.attributes.items()) | changed
        if combiner or self.combiner:
            return self.emit.combining(self.op.name, type_, [operand], attrs, combiner or self.combiner)
        made = self.emit.op(self.op.name, type_, [operand], attrs, regions=len(self.op.regions))
        for region, copy in zip(self.op.regions, made.regions, strict=True):
            _copy_body(region.blocks[0], copy)
        value: ir.Value = made.results[0]
        return value


def _copy_body(block: ir.Block, region: ir.Region) -> None:
    """Copies a body whose ops have no regions."""
    arguments = list(block.arguments)
    copy = region.blocks.append(*(each.type for each in arguments), arg_locs=[each.location for each in arguments])
    values: dict[ir.Value, ir.Value] = dict(zip(arguments, copy.arguments, strict=True))
    for view in block.operations:
        cloned = view.operation.clone(ip=ir.InsertionPoint(copy)).operation
        for number, operand in enumerate(view.operation.operands):
            cloned.operands[number] = values.get(operand, operand)
        values.update(zip(view.operation.results, cloned.results, strict=True))
