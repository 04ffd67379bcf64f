"""The cheapest choice of a node: nodes of one kind share all that has been found of each of their operands and results."""

from __future__ import annotations

from collections.abc import Callable

from meshbridge.decide.choice import Choice, End, Prices, Pricing, cheapest, choices_of
from meshbridge.decide.graph import Kind, Tensor, wanted_layout
from meshbridge.ir.sharding import Axes, Sharding

Known = tuple[Tensor | None, ...]
"""What is known of a node's operands and results; None for what is no ranked tensor."""

ArrivingFn = Callable[[Tensor, Axes], Prices]
"""Bytes of resharding an operand, which is taken as a partial sum along some axes, to what is needed of it."""

LeavingFn = Callable[[Tensor, Sharding | None], Prices]
"""Bytes of resharding what is computed to a result, which the user wants to be partial as some annotation says, or does not."""


class KindChoices:
    """What nodes of one kind have to choose from, and what becomes of their operands and results."""

    def __init__(self, kind: Kind, pricing: Pricing, arriving: ArrivingFn, leaving: LeavingFn) -> None:
        self.kind = kind
        self.op = pricing.op(kind.rule, kind.kept)
        self._arriving = arriving
        self._leaving = leaving
        self._operands = len(kind.rule.operands)
        self._ends: list[dict[tuple[Tensor, Sharding | None], End]] = [{} for _ in (*kind.rule.operands, *kind.rule.results)]
        self._fixed = choices_of([self.op.choice(kind.fixed_option)]) if kind.fixed_option is not None else None

    def cheapest(self, known: Known) -> tuple[Choice, float]:
        """The cheapest choice, and what it costs without its operands."""
        count = self._operands
        wanted = wanted_layout(known[count:])
        ends = [self._end(place, tensor, wanted) if tensor is not None else None for place, tensor in enumerate(known)]
        results = [end for end in ends[count:] if end is not None]
        choices = self._fixed
        if choices is None:
            suggestions = [end.suggestion if end is not None else self.op.nothing for end in ends]
            choices = self.op.suggested(tuple(suggestions), wanted.partial_axes if wanted and not self.kind.kept else ())
        choice = cheapest(choices, [*results, *[end for end in ends[:count] if end is not None]])
        return choice, sum([end[choice] for end in results], choice.compute)

    def _end(self, place: int, tensor: Tensor, wanted: Sharding | None) -> End:
        """What is known of one operand or, behind them, result."""
        found = self._ends[place].get((tensor, wanted))
        if found is None:
            result = place - self._operands
            if result < 0:
                prices = self._arriving(tensor, self.kind.kept[place] if self.kind.kept else ())
            else:
                prices = self._leaving(tensor, wanted)
            suggestion = self.op.suggestion(place, tensor.split)
            found = End(prices, result if result >= 0 else place, suggestion, is_result=result >= 0)
            self._ends[place][tensor, wanted] = found
        return found
