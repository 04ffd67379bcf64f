"""The cheapest choice of a node; nodes of one kind share the prices of their operands and results."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshbridge.decide.choice import Choice, End, EndPrices, Pricing, cheapest, choices_of
from meshbridge.decide.graph import NodeKind, Tensor, wanted_layout
from meshbridge.ir.sharding import Axes, Sharding

NodeTensors = tuple[Tensor | None, ...]
"""The tensors of a node's operands and results; None for a value that is no ranked tensor."""

ArrivingFn = Callable[[Tensor, Axes], EndPrices]
"""Bytes of resharding an operand, which is taken as a partial sum along some axes, to the op's need."""

LeavingFn = Callable[[Tensor, Sharding | None], EndPrices]
"""Bytes of resharding the computed value to a result, which the user may have annotated as partial."""


class KindChoices:
    """The choices of nodes of one kind, and the prices of their operands and results."""

    def __init__(self, kind: NodeKind, pricing: Pricing, arriving: ArrivingFn, leaving: LeavingFn) -> None:
        self.kind = kind
        self.op = pricing.op(kind.rule, kind.unreduced)
        self.compute = pricing.compute(kind.rule, kind.sharing)
        self._arriving = arriving
        self._leaving = leaving
        self._operands = len(kind.rule.operands)
        self._nothing = End(pricing.nothing, self.op.nothing)
        self._ends: dict[Sharding | None, list[dict[Tensor | None, End]]] = {}
        "By the annotation of a partial result: per operand and, after them, result, the end of each tensor."
        self._fixed = choices_of([self.op.choice(kind.fixed_option)]) if kind.fixed_option is not None else None

    def fitting(self, known: NodeTensors) -> Choice | None:
        """The choice that reshards nothing, if tensors are split alike along each loop; the cheapest, as others compute more."""
        if self._fixed is not None or self.kind.unreduced or has_layout(known):
            return None
        return self.op.fitting(tuple([tensor.split if tensor is not None else () for tensor in known]))

    def cheapest(self, known: NodeTensors) -> tuple[Choice, float, tuple[float, ...]]:
        """The cheapest choice, its cost without the operands, and the bytes of resharding each operand."""
        count = self._operands
        wanted = wanted_layout(known[count:])
        tables = self._ends.get(wanted)
        if tables is None:
            tables = self._ends[wanted] = [{None: self._nothing} for _ in known]
        ends = [
            table.get(tensor) or self._end(table, position, tensor, wanted)
            for position, (table, tensor) in enumerate(zip(tables, known, strict=True))
        ]
        choices = self._fixed
        if choices is None:
            partial = wanted.partial_axes if wanted and not self.kind.unreduced else ()
            choices = self.op.suggested(tuple([end.suggestion for end in ends]), partial)
        prices = tuple([end.prices for end in ends])
        return cheapest(choices, self.compute, prices[count:], prices[:count])

    def _end(self, table: dict[Tensor | None, End], position: int, tensor: Tensor | None, wanted: Sharding | None) -> End:
        """The end of a tensor as one operand or, numbered after them, result."""
        assert tensor is not None
        if position >= self._operands:
            prices = self._leaving(tensor, wanted)
        else:
            prices = self._arriving(tensor, self.kind.unreduced[position] if self.kind.unreduced else ())
        end = table[tensor] = End(prices, self.op.suggestion(position, tensor.split))
        return end


def has_layout(known: Iterable[Tensor | None]) -> bool:
    """Whether the user's annotation of a tensor has more than splits."""
    return any([tensor.layout for tensor in known if tensor is not None])  # noqa: C419
