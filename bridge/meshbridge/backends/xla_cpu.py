"""XLA:CPU: it runs collectives in another order on each device, and writes two-bit elements past the end of a gathered result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from operator import or_
from typing import ClassVar

from meshbridge.backends import quirk
from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import REGION_OPS, ir, terminator_operands, walk
from meshbridge.ir.passes import Pass, register

JAXLIB = "jaxlib 0.10.2"

_GROUPS = ("replica_groups", "source_target_pairs")
"""Attributes of collectives: who takes part."""


@register
@quirk(JAXLIB, test="tests/backends/test_xla_cpu.py")
@dataclass(frozen=True)
class OrderCollectives(Pass):
    """Makes collectives wait for the loops and branches of collectives before them, and these for the collectives before them.

    Input:   %0 = stablehlo.while(%x = %a) { … stablehlo.all_reduce … }
             %1 = "stablehlo.all_reduce"(%b) : (tensor<8xi32>) -> tensor<8xi32>
    Output:  %0 = stablehlo.while(%x = %a) { … stablehlo.all_reduce … }
             %2 = stablehlo.broadcast_in_dim (an element of %0), dims = []
             %3 = stablehlo.minimum %b, %2
             %4 = stablehlo.maximum %b, %3                                         // equals %b, which XLA does not simplify
             %1 = "stablehlo.all_reduce"(%4) : (tensor<8xi32>) -> tensor<8xi32>

    XLA:CPU lets a collective wait for a loop only if it reads a result of the loop. Otherwise it may run during the loop's second
    iteration on one device, and after the last one on another. Different collectives of the same devices then meet: they
    overwrite memory, or deadlock if they have different channels. Elements other than integers are tied as bits.

    Values that a loop passes through or does not read add no dependency. Collectives without elements are left alone."""

    name: ClassVar[str] = "order-collectives"

    def run(self, module: ir.Module) -> None:
        with module.context, ir.Location.unknown(module.context):
            for view in module.body.operations:
                for block in _blocks(view.operation):
                    _order(block)


def _blocks(op: ir.Operation) -> Iterator[ir.Block]:
    for region in op.regions:
        yield from region.blocks


def _order(block: ir.Block) -> bool:
    """Orders the operations of `block`, from the inside out; returns True if any of them communicates."""
    operations = [view.operation for view in block.operations]
    kinds = [_communicates(op) for op in operations]
    if "nested" in kinds and sum(kind is not None for kind in kinds) > 1:
        order = _CollectiveOrder()
        for op, kind in zip(operations, kinds, strict=True):
            order.add(op, kind)
    return any(kinds)


def _communicates(op: ir.Operation) -> str | None:
    """Returns "itself" for a collective, "nested" for an op with one in its regions, which are ordered; else None."""
    if any(groups in op.attributes for groups in _GROUPS):
        return "itself"
    if op.name not in REGION_OPS:
        return None
    ordered = [_order(block) for block in _blocks(op)]  # no early exit: every block is to be ordered
    return "nested" if any(ordered) else None


@dataclass
class _CollectiveOrder:
    """The communicating operations of one block so far, and which of them each value depends on."""

    communicating: list[ir.Operation] = field(default_factory=list)
    "The collectives, and the loops and branches of collectives."
    nested: int | None = None
    "The number of the last loop or branch, which depends on all before it."
    dependencies: dict[ir.Value, int] = field(default_factory=dict)
    "The numbers of the communicating operations that each value depends on, as bits."

    def add(self, op: ir.Operation, kind: str | None) -> None:
        """Records `op`; if it communicates, makes it depend on those that it has to wait for."""
        dependencies = self._union(_reads(op))
        if kind is None:
            self._record(op, dependencies)
            return
        number = len(self.communicating)
        for earlier in self._awaited(kind):
            if not dependencies >> earlier & 1 and _add_dependency(op, self.communicating[earlier]):
                dependencies |= 1 << earlier
        if kind == "nested":
            self.nested = number
        self.communicating.append(op)
        self._record(op, dependencies | 1 << number)

    def _awaited(self, kind: str) -> Sequence[int]:
        """The numbers of the operations that one of this kind waits for, without those that others of them wait for."""
        if kind == "nested":
            return range(self.nested or 0, len(self.communicating))
        return () if self.nested is None else (self.nested,)

    def _union(self, values: Iterable[ir.Value]) -> int:
        return reduce(or_, (self.dependencies.get(value, 0) for value in values), 0)

    def _record(self, op: ir.Operation, dependencies: int) -> None:
        for number, result in enumerate(op.results):
            self.dependencies[result] = self._union([op.operands[number]]) if _passes_through(op, number) else dependencies


def _reads(op: ir.Operation) -> list[ir.Value]:
    """The values that `op` computes with."""
    if not len(op.regions):
        return list(op.operands)
    operands = [op.operands[number] for number in _carried(op)] if op.name == "stablehlo.while" else list(op.operands)
    return [*operands, *(value for inner in walk(op) if inner != op for value in inner.operands)]


def _carried(loop: ir.Operation) -> list[int]:
    """The numbers of the loop values that the condition or the body of `loop` reads, other than to pass them through."""
    return [
        number
        for number in range(len(loop.operands))
        if any(
            use.owner.operation.name != "stablehlo.return" or use.operand_number != number
            for block in _blocks(loop)
            for use in block.arguments[number].uses
        )
    ]


def _passes_through(op: ir.Operation, number: int) -> bool:
    """True if `op` is a loop that passes operand `number` through unchanged."""
    if op.name != "stablehlo.while":
        return False
    body = op.regions[1].blocks[0]
    return bool(terminator_operands(body)[number] == body.arguments[number])


def _add_dependency(op: ir.Operation, earlier: ir.Operation) -> bool:
    """Makes one operand of `op` depend on a result of `earlier`; False if either has no elements."""
    numbers = _carried(op) if op.name == "stablehlo.while" else range(len(op.operands))
    operands = sorted(
        (number for number in numbers if _has_elements(op.operands[number])), key=lambda n: _tie_cost(op.operands[n])
    )
    results = [
        value for number, value in enumerate(earlier.results) if _has_elements(value) and not _passes_through(earlier, number)
    ]
    if not operands or not results:
        return False
    builder, value = Builder.before(op), op.operands[operands[0]]
    op.operands[operands[0]] = _tied(builder, value, min(results, key=_tie_cost))
    return True


def _has_elements(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and prod(shape_of(value)) > 0


def _tie_cost(value: ir.Value) -> tuple[bool, int]:
    """Small values first and counters last: XLA reads trip counts from the initial values of counters."""
    counts = isinstance(element_of(value), ir.IntegerType) and not shape_of(value)
    return counts, prod(shape_of(value))


def _tied(builder: Builder, value: ir.Value, other: ir.Value) -> ir.Value:
    """`value`, made to depend on an element of `other`: max(x, min(x, y)) is x for all integers."""
    element = element_of(value)
    if isinstance(element, ir.ComplexType):
        parts = [builder.value(name, tensor(shape_of(value), element.element_type), [value]) for name in ("real", "imag")]
        return builder.value("complex", value.type, [_tied(builder, parts[0], other), parts[1]])
    bits = _bits(builder, value)
    kind = element_of(bits)
    number = builder.value("convert", tensor([], kind), [_bits(builder, _first_element(builder, other))])
    everywhere = builder.like(bits, number)
    lower, upper = ("and", "or") if ir.IntegerType(kind).width == 1 else ("minimum", "maximum")
    tied = builder.value(upper, bits.type, [bits, builder.value(lower, bits.type, [bits, everywhere])])
    return tied if kind == element else builder.value("bitcast_convert", value.type, [tied])


def _first_element(builder: Builder, value: ir.Value) -> ir.Value:
    """The first element, a scalar of real numbers."""
    shape, element = shape_of(value), element_of(value)
    value = builder.reshape(builder.cut(value, [0] * len(shape), [1] * len(shape)), []) if shape else value
    if isinstance(element, ir.ComplexType):
        value = builder.value("real", tensor([], element.element_type), [value])
    return value


def _bits(builder: Builder, value: ir.Value) -> ir.Value:
    """`value` as integers: the bits of other numbers."""
    element = element_of(value)
    if isinstance(element, ir.IntegerType):
        return value
    bits = ir.IntegerType.get_signless(ir.FloatType(element).width)
    return builder.value("bitcast_convert", tensor(shape_of(value), bits), [value])


@quirk(JAXLIB, test="tests/backends/test_xla_cpu_two_bits.py")
def send_two_bits_as_bytes(collective: ir.Operation) -> None:
    """Converts two-bit operands of a collective to bytes, and its results back: XLA:CPU gathers packed elements wrongly, and
    writes past the end of the result. Elements of four bits arrive."""
    for index, operand in enumerate(collective.operands):
        if has_two_bits(operand):
            collective.operands[index] = Builder.before(collective).convert(operand, _byte(operand))
    for result in collective.results:
        if has_two_bits(result):
            packed = element_of(result)
            result.set_type(tensor(shape_of(result), _byte(result)))
            back = Builder.after(collective).op("convert", tensor(shape_of(result), packed), [result])
            result.replace_all_uses_except(back.results[0], back)


def has_two_bits(value: ir.Value) -> bool:
    """True if the elements of `value` have two bits."""
    element = element_of(value) if isinstance(value.type, ir.RankedTensorType) else None
    return isinstance(element, ir.IntegerType) and element.width == 2


def _byte(value: ir.Value) -> ir.Type:
    unsigned = ir.IntegerType(element_of(value)).is_unsigned
    return ir.IntegerType.get_unsigned(8) if unsigned else ir.IntegerType.get_signless(8)
