"""`order-collectives`: collectives beside loops of collectives in one order, for XLA:CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from meshbridge.ir.builder import Builder, element_of, shape_of, tensor
from meshbridge.ir.mlir import REGION_OPS, ir, terminator, walk
from meshbridge.ir.passes import Pass, register

COLLECTIVES = frozenset(
    f"stablehlo.{name}"
    for name in ("all_gather", "all_reduce", "all_to_all", "collective_broadcast", "collective_permute", "reduce_scatter")
)


@register
@dataclass(frozen=True)
class OrderCollectives(Pass):
    """Lets each collective that stands behind a loop or branch of collectives, and depends on none of its results, depend on one;
    and so each such loop or branch on the collectives before it.

    Input:   %0 = stablehlo.while(%x = %a) { … stablehlo.all_reduce … }
             %1 = "stablehlo.all_reduce"(%b) : (tensor<8xi32>) -> tensor<8xi32>
    Output:  %0 = stablehlo.while(%x = %a) { … stablehlo.all_reduce … }
             %2 = stablehlo.broadcast_in_dim (an element of %0), dims = []
             %3 = stablehlo.minimum %b, %2
             %4 = stablehlo.maximum %b, %3                                         // %b, which no simplifier of XLA's finds out
             %1 = "stablehlo.all_reduce"(%4) : (tensor<8xi32>) -> tensor<8xi32>

    XLA:CPU has a collective wait for a loop only where it reads what the loop writes. On one device it may then run beside the
    loop's second trip, on another behind the last: collectives of the same devices meet that are not the same, which overwrites
    memory, or (where they have channels of their own) all threads wait. Elements of other types than integers are joined as bits.

    What a loop hands on as it is, and what it does not read, does not count. Collectives without elements stay as they are."""

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
    """Orders what stands in `block`, from the inside out; whether anything there communicates."""
    operations = [view.operation for view in block.operations]
    kinds = [_communicates(op) for op in operations]
    if "nested" in kinds and sum(kind is not None for kind in kinds) > 1:
        order = _OrderedBlock()
        for op, kind in zip(operations, kinds, strict=True):
            order.meet(op, kind)
    return any(kinds)


def _communicates(op: ir.Operation) -> str | None:
    """Whether `op` is a collective ("itself"), or one stands in its regions ("nested"), which are ordered."""
    if op.name in COLLECTIVES:
        return "itself"
    if op.name not in REGION_OPS:
        return None
    ordered = [_order(block) for block in _blocks(op)]  # every one, whatever the first says
    return "nested" if any(ordered) else None


@dataclass
class _OrderedBlock:
    """The operations of one block so far: of which communicating ones each value is computed."""

    met: list[ir.Operation] = field(default_factory=list)
    "Those that communicate."
    nested: int | None = None
    "The number of the last one in whose regions collectives stand: it waits for all before it."
    found: dict[ir.Value, int] = field(default_factory=dict)
    "Values by the set of numbers, as bits."

    def meet(self, op: ir.Operation, kind: str | None) -> None:
        """Reads `op`, and has it depend on what it is to wait for if it communicates."""
        known = self._of(_read(op))
        if kind is None:
            self._note(op, known)
            return
        number = len(self.met)
        for earlier in self._before(kind):
            if not known >> earlier & 1 and _depend(op, self.met[earlier]):
                known |= 1 << earlier
        if kind == "nested":
            self.nested = number
        self.met.append(op)
        self._note(op, known | 1 << number)

    def _before(self, kind: str) -> Sequence[int]:
        """The numbers of those that one of this kind waits for, and that do not wait for each other."""
        if kind == "nested":
            return range(self.nested or 0, len(self.met))
        return () if self.nested is None else (self.nested,)

    def _of(self, values: Iterable[ir.Value]) -> int:
        known = 0
        for value in values:
            known |= self.found.get(value, 0)
        return known

    def _note(self, op: ir.Operation, known: int) -> None:
        for number, result in enumerate(op.results):
            self.found[result] = self._of([op.operands[number]]) if _hands_on(op, number) else known


def _read(op: ir.Operation) -> list[ir.Value]:
    """What `op` computes with."""
    if not len(op.regions):
        return list(op.operands)
    operands = [op.operands[number] for number in _carried(op)] if op.name == "stablehlo.while" else list(op.operands)
    return [*operands, *(value for inner in walk(op) if inner != op for value in inner.operands)]


def _carried(loop: ir.Operation) -> list[int]:
    """The numbers of what the condition or the body of `loop` reads, other than to hand it on."""
    return [
        number
        for number in range(len(loop.operands))
        if any(
            use.owner.operation.name != "stablehlo.return" or use.operand_number != number
            for block in _blocks(loop)
            for use in block.arguments[number].uses
        )
    ]


def _hands_on(op: ir.Operation, number: int) -> bool:
    """Whether that result of `op` is the operand of that number, whatever a loop does beside."""
    if op.name != "stablehlo.while":
        return False
    body = op.regions[1].blocks[0]
    end = terminator(body)
    handed: bool = end is not None and end.operands[number] == body.arguments[number]
    return handed


def _depend(op: ir.Operation, earlier: ir.Operation) -> bool:
    """Has one operand of `op` depend on a result of `earlier`; False where either has no elements."""
    numbers = _carried(op) if op.name == "stablehlo.while" else range(len(op.operands))
    operands = sorted((number for number in numbers if _has_elements(op.operands[number])), key=lambda n: _rank(op.operands[n]))
    results = [value for number, value in enumerate(earlier.results) if _has_elements(value) and not _hands_on(earlier, number)]
    if not operands or not results:
        return False
    emit, value = Builder.before(op), op.operands[operands[0]]
    op.operands[operands[0]] = _joined(emit, value, min(results, key=_rank))
    return True


def _has_elements(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and prod(shape_of(value)) > 0


def _rank(value: ir.Value) -> tuple[bool, int]:
    """Small ones first, and counters last: XLA knows how often loops run by what they count from."""
    counts = isinstance(element_of(value), ir.IntegerType) and not shape_of(value)
    return counts, prod(shape_of(value))


def _joined(emit: Builder, value: ir.Value, other: ir.Value) -> ir.Value:
    """`value`, computed of it and of an element of `other`: max(x, min(x, y)) is x for all integers."""
    element = element_of(value)
    if isinstance(element, ir.ComplexType):
        parts = [emit.value(name, tensor(shape_of(value), element.element_type), [value]) for name in ("real", "imag")]
        return emit.value("complex", value.type, [_joined(emit, parts[0], other), parts[1]])
    bits = _bits(emit, value)
    kind = element_of(bits)
    number = emit.value("convert", tensor([], kind), [_bits(emit, _first(emit, other))])
    everywhere = emit.like(bits, number)
    lower, upper = ("and", "or") if ir.IntegerType(kind).width == 1 else ("minimum", "maximum")
    joined = emit.value(upper, bits.type, [bits, emit.value(lower, bits.type, [bits, everywhere])])
    return joined if kind == element else emit.value("bitcast_convert", value.type, [joined])


def _first(emit: Builder, value: ir.Value) -> ir.Value:
    """The first element, a scalar of real numbers."""
    shape, element = shape_of(value), element_of(value)
    value = emit.reshape(emit.cut(value, [0] * len(shape), [1] * len(shape)), []) if shape else value
    if isinstance(element, ir.ComplexType):
        value = emit.value("real", tensor([], element.element_type), [value])
    return value


def _bits(emit: Builder, value: ir.Value) -> ir.Value:
    """Integers as they are, and the bits of other numbers."""
    element = element_of(value)
    if isinstance(element, ir.IntegerType):
        return value
    bits = ir.IntegerType.get_signless(ir.FloatType(element).width)
    return emit.value("bitcast_convert", tensor(shape_of(value), bits), [value])
