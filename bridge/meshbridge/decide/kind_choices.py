"""The cheapest choice of a node: nodes of one kind share all that has been found of each of their operands and results."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from meshbridge.decide.choice import Choice, End, EndPrices, Pricing, cheapest, choices_of
from meshbridge.decide.graph import Kind, Tensor, wanted_layout
from meshbridge.ir.sharding import Axes, Sharding

Known = tuple[Tensor | None, ...]
"""What is known of a node's operands and results; None for what is no ranked tensor."""

ArrivingFn = Callable[[Tensor, Axes], EndPrices]
"""Bytes of resharding an operand, which is taken as a partial sum along some axes, to what is needed of it."""

LeavingFn = Callable[[Tensor, Sharding | None], EndPrices]
"""Bytes of resharding what is computed to a result, which the user wants to be partial as some annotation says, or does not."""


class KindChoices:
    """What nodes of one kind have to choose from, and what becomes of their operands and results."""

    def __init__(self, kind: Kind, pricing: Pricing, arriving: ArrivingFn, leaving: LeavingFn) -> None:
        self.kind = kind
        self.op = pricing.op(kind.rule, kind.kept)
        self.compute = pricing.compute(kind.rule, kind.sharing)
        self._arriving = arriving
        self._leaving = leaving
        self._operands = len(kind.rule.operands)
        self._nothing = End(pricing.nothing, self.op.nothing)
        self._ends: dict[Sharding | None, list[dict[Tensor | None, End]]] = {}
        "By what the user wants of a result: per operand and, behind them, result, what is known of each tensor there."
        self._fixed = choices_of([self.op.choice(kind.fixed_option)]) if kind.fixed_option is not None else None

    def fitting(self, known: Known) -> Choice | None:
        """The choice that reshards nothing, if there is one: all tensors are split alike along each loop. It is the cheapest: all
        others leave some of these axes out, and so compute more."""
        if self._fixed is not None or self.kind.kept or has_layout(known):
            return None
        return self.op.fitting(tuple([tensor.split if tensor is not None else () for tensor in known]))

    def cheapest(self, known: Known) -> tuple[Choice, float, tuple[float, ...]]:
        """The cheapest choice, what it costs without its operands, and the bytes of resharding each of these."""
        count = self._operands
        wanted = wanted_layout(known[count:])
        tables = self._ends.get(wanted)
        if tables is None:
            tables = self._ends[wanted] = [{None: self._nothing} for _ in known]
        ends = [
            table.get(tensor) or self._end(table, place, tensor, wanted)
            for place, (table, tensor) in enumerate(zip(tables, known, strict=True))
        ]
        choices = self._fixed
        if choices is None:
            partial = wanted.partial_axes if wanted and not self.kind.kept else ()
            choices = self.op.suggested(tuple([end.suggestion for end in ends]), partial)
        prices = tuple([end.prices for end in ends])
        return cheapest(choices, self.compute, prices[count:], prices[:count])

    def _end(self, table: dict[Tensor | None, End], place: int, tensor: Tensor | None, wanted: Sharding | None) -> End:
        """What is known of a tensor as one operand or, behind them, result."""
        assert tensor is not None
        if place >= self._operands:
            prices = self._leaving(tensor, wanted)
        else:
            prices = self._arriving(tensor, self.kind.kept[place] if self.kind.kept else ())
        found = table[tensor] = End(prices, self.op.suggestion(place, tensor.split))
        return found


def has_layout(known: Iterable[Tensor | None]) -> bool:
    """Whether the user's annotation of a tensor says more than a split."""
    return any([tensor.layout for tensor in known if tensor is not None])  # noqa: C419
