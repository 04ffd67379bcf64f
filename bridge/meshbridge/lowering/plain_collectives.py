"""Simplifies collectives for compilers other than XLA: one operand, real numbers of whole bytes, exchanges along one dimension.

StableHLO also allows several operands, booleans, complex numbers, and an `all_to_all` that splits one dimension and concatenates
along another. Ops around the collective express these. Only collectives of several operands are divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from meshbridge.ir.builder import Builder, element_of, integer, shape_of, tensor
from meshbridge.ir.mlir import ir
from meshbridge.ops.traits import Trait, has, ops_with

_EXCHANGE = "stablehlo.all_to_all"

COLLECTIVES = ops_with(Trait.COLLECTIVE, dialect="stablehlo")
"""The ops that `simplify` accepts."""

_BYTE_COMBINERS = dict.fromkeys(("or", "add", "maximum"), "maximum") | dict.fromkeys(("and", "multiply", "minimum"), "minimum")
"""By an op on booleans: the op that does the same on bytes of 0 and 1."""


def simplify(op: ir.Operation) -> None:
    """Replaces one of COLLECTIVES by plain collectives.

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
    """Rebuilds a collective on one operand at a time."""

    op: ir.Operation
    builder: Builder

    @cached_property
    def combiner(self) -> str:
        """The only StableHLO op of the body; empty if there is no body, or if it has several ops."""
        ops = list(self.op.regions[0].blocks[0].operations) if has(self.op.name, Trait.REDUCING) else []
        return str(ops[0].operation.name).removeprefix("stablehlo.") if len(ops) == 2 else ""

    def simplified(self, operand: ir.Value, shape: list[int]) -> ir.Value:
        """The result of the collective on `operand`, of that shape."""
        element = element_of(operand)
        if isinstance(element, ir.IntegerType) and element.width == 1 and self._passes_on(*_BYTE_COMBINERS):
            return self._on_booleans(operand, shape)
        if isinstance(element, ir.ComplexType) and self._passes_on("add"):
            return self._on_complex(operand, shape)
        return self._exchange(operand, shape) if self.op.name == _EXCHANGE else self._clone(operand, shape)

    def _passes_on(self, *combiners: str) -> bool:
        """True if the collective leaves elements unchanged, or combines them by one of `combiners`."""
        return not has(self.op.name, Trait.REDUCING) or self.combiner in combiners

    def _on_booleans(self, operand: ir.Value, shape: list[int]) -> ir.Value:
        as_bytes = self.builder.convert(operand, ir.IntegerType.get_signless(8))
        return self.builder.compare("NE", self._communicate(as_bytes, shape, _BYTE_COMBINERS.get(self.combiner, "")), 0)

    def _on_complex(self, operand: ir.Value, shape: list[int]) -> ir.Value:
        """Sends the real and imaginary parts side by side, in one more dimension."""
        part_type = tensor(shape_of(operand), ir.ComplexType(element_of(operand)).element_type)
        parts = [self.builder.value(name, part_type, [operand]) for name in ("real", "imag")]
        sides = [self.builder.reshape(part, [*part_type.shape, 1]) for part in parts]
        both_parts = self._communicate(self.builder.concatenate(sides, part_type.rank), [*shape, 2])
        of_result = [self.builder.reshape(self.builder.slice(both_parts, len(shape), side, 1), shape) for side in (0, 1)]
        return self.builder.value("complex", tensor(shape, element_of(operand)), of_result)

    def _communicate(self, operand: ir.Value, shape: list[int], combiner: str = "") -> ir.Value:
        return self._exchange(operand, shape) if self.op.name == _EXCHANGE else self._clone(operand, shape, combiner)

    def _exchange(self, operand: ir.Value, shape: list[int]) -> ir.Value:
        """Exchanges the pieces of `operand` along a leading dimension that numbers them."""
        split, concat, count = (
            ir.IntegerAttr(self.op.attributes[name]).value for name in ("split_dimension", "concat_dimension", "split_count")
        )
        if split == concat:
            return self._clone(operand, shape)
        whole, rank = shape_of(operand), len(shape)
        pieces = self.builder.reshape(operand, [*whole[:split], count, whole[split] // count, *whole[split + 1 :]])
        numbered = self.builder.transpose(pieces, [split, *(dim for dim in range(rank + 1) if dim != split)])
        received = self._clone(numbered, shape_of(numbered), split_dimension=integer(0), concat_dimension=integer(0))
        permutation = [*range(1, concat + 1), 0, *range(concat + 1, rank + 1)]
        return self.builder.reshape(self.builder.transpose(received, permutation), shape)

    def _clone(self, operand: ir.Value, shape: list[int], combiner: str = "", **changed: ir.Attribute) -> ir.Value:
        """The same collective on another operand, with some attributes `changed`, or with another `combiner`."""
        type_, attrs = tensor(shape, element_of(operand)), dict(self.op.attributes.items()) | changed
        if combiner or self.combiner:
            return self.builder.combining(self.op.name, type_, [operand], attrs, combiner or self.combiner)
        clone = self.builder.op(self.op.name, type_, [operand], attrs, regions=len(self.op.regions))
        for region, copy in zip(self.op.regions, clone.regions, strict=True):
            _copy_body(region.blocks[0], copy)
        value: ir.Value = clone.results[0]
        return value


def _copy_body(block: ir.Block, region: ir.Region) -> None:
    """Copies a body whose ops have no regions."""
    arguments = list(block.arguments)
    copy = region.blocks.append(
        *(argument.type for argument in arguments), arg_locs=[argument.location for argument in arguments]
    )
    values: dict[ir.Value, ir.Value] = dict(zip(arguments, copy.arguments, strict=True))
    for view in block.operations:
        cloned = view.operation.clone(ip=ir.InsertionPoint(copy)).operation
        for number, operand in enumerate(view.operation.operands):
            cloned.operands[number] = values.get(operand, operand)
        values.update(zip(view.operation.results, cloned.results, strict=True))
