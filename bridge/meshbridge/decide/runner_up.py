"""What the next best way to compute an op would cost, if everything else stays as it is decided; reports say it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, prod

from meshbridge import resharding
from meshbridge.decide.choice import (
    MOST_OPTIONS,
    ROUNDING,
    Choice,
    Choices,
    EndPrices,
    OpChoices,
    Pair,
    Pricing,
    choices_of,
    ranked,
)
from meshbridge.decide.decisions import OpDecision
from meshbridge.ir.mlir import ir
from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.resharding import PlanOptions, ReshardingPlan, steps
from meshbridge.text import size_text

_EQUAL = 0.5
"""Bytes below which two ways send as much: sizes are printed in whole bytes."""


@dataclass(frozen=True)
class Traffic:
    """What one execution of an op communicates on a device: the resharding of its operands and results, and its own exchange."""

    reshards: tuple[tuple[str, ReshardingPlan], ...]
    "By operand or result, those that communicate."
    exchanged: float
    share: float
    "The part of the op's work that the device does."

    @property
    def wire_bytes(self) -> float:
        """Wire bytes of the device."""
        return self.exchanged + sum(plan.wire_bytes for _, plan in self.reshards)

    @property
    def collectives(self) -> int:
        """How many collectives reshard operands and results."""
        return sum(plan.collectives for _, plan in self.reshards)

    def text(self) -> str:
        """`gather operands 0 and 1, all-reduce the result`: what it takes."""
        of_verbs: dict[str, list[str]] = {}
        for what, plan in self.reshards:
            of_verbs.setdefault(_listed([*_verbs(plan)]), []).append(what)
        parts = [f"{verbs} {_together(names)}" for verbs, names in of_verbs.items()]
        parts += ["read elements of other shards"] if self.exchanged else []
        return ", ".join(parts) or "communicate nothing"


@dataclass(frozen=True)
class RunnerUp:
    """The cheapest other way to compute an op from its operands to its results, as both are sharded."""

    chosen: Traffic
    other: Traffic

    def text(self) -> str:
        """`gather operand 1, +1.2 MB, 4 times the work`; empty if no figure that is printed is worse."""
        more = self.other.wire_bytes - self.chosen.wire_bytes
        launches = self.other.collectives - self.chosen.collectives
        work = self.other.share / self.chosen.share
        if more < _EQUAL and launches <= 0 and work <= 1 + ROUNDING:
            return ""
        parts = ["as many bytes" if abs(more) < _EQUAL else f"{'+' if more > 0 else '-'}{size_text(abs(more))}"]
        if launches > 0 and more < _EQUAL:
            parts.append(f"{launches} more collective{'' if launches == 1 else 's'}")
        if work > 1 + ROUNDING:
            parts.append(f"{work:.3g} times the work")
        return ", ".join((self.other.text(), *parts))


def runner_up(
    op: ir.Operation,
    decision: OpDecision,
    arriving: Sequence[Sharding | None],
    shapes: Sequence[tuple[int, ...]],
    pricing: Pricing,
) -> RunnerUp | None:
    """The cheapest other way to compute `op`, whose operands arrive so, and whose operands and results have global `shapes`. None
    if the op has a body or a layout of its own, if it does not communicate as decided, or if there is no other way."""
    rule = decision.rule
    if rule is None or decision.regions or decision.layout is not None or not rule.has_rule:
        return None
    ends = _Ends(op, decision, arriving, shapes, pricing.mesh, pricing.objective.pricing)
    partial_axes = tuple([need.partial_axes if need is not None else () for need in decision.operands])
    chosen = pricing.op(rule, partial_axes if any(partial_axes) else ()).choice(decision.option)
    traffic = ends.traffic(chosen)
    if not traffic.wire_bytes:
        return None
    splits = [sharding.split_axes if sharding is not None else () for sharding in (*arriving, *ends.targets)]
    operands, results, compute = ends.operands(pricing), ends.results(pricing), pricing.compute(rule, 1)
    best: Choice | None = None
    least = inf
    for passed in dict.fromkeys((partial_axes, ((),) * len(partial_axes))):
        choices = _considered(pricing.op(rule, passed if any(passed) else ()), splits)
        if others := Choices(entry for entry in choices if not _is_same(entry[2], chosen)):
            choice, own, arrive = ranked(others, compute, results, operands)
            if (total := own + sum(arrive)) < least:
                best, least = choice, total
    return None if best is None else RunnerUp(traffic, ends.traffic(best))


def _considered(op: OpChoices, splits: Sequence[Split]) -> Choices:
    """The choices along the lists of axes that split some operand or result, for any loop; only for the loops that these suggest
    if they are too many."""
    lists = dict.fromkeys(axes for split in splits for axes in split if axes)
    if (1 + len(op.rule.loops)) ** len(lists) <= MOST_OPTIONS:
        return choices_of(op.along([*lists]))
    return op.suggested(tuple([op.suggestion(end, split) for end, split in enumerate(splits)]))


def _is_same(choice: Choice, other: Choice) -> bool:
    return choice.needs == other.needs and choice.computed == other.computed


@dataclass(frozen=True)
class _Ends:
    """The operands and results of an op, between which it is computed."""

    op: ir.Operation
    decision: OpDecision
    arriving: Sequence[Sharding | None]
    shapes: Sequence[tuple[int, ...]]
    mesh: Mesh
    planning: PlanOptions

    @property
    def targets(self) -> Sequence[Sharding | None]:
        """The shardings that the results are to have."""
        return self.decision.results

    def operands(self, pricing: Pricing) -> list[EndPrices]:
        """The prices of the operands by the sharding that is needed."""
        return [self._prices(pricing, end, sharding, is_operand=True) for end, sharding in enumerate(self.arriving)]

    def results(self, pricing: Pricing) -> list[EndPrices]:
        """The prices of the results by the sharding that is computed."""
        first = len(self.arriving)
        return [self._prices(pricing, first + end, sharding, is_operand=False) for end, sharding in enumerate(self.targets)]

    def _prices(self, pricing: Pricing, end: int, sharding: Sharding | None, *, is_operand: bool) -> EndPrices:
        if sharding is None:
            return pricing.nothing

        def pair(other: Sharding) -> Pair:
            return (sharding, other, 1.0) if is_operand else (other, sharding, 1.0)

        return pricing.prices((self.shapes[end], self._dtype(end)), pair)

    def _dtype(self, end: int) -> str:
        operands = len(self.arriving)
        value = self.op.operands[end] if end < operands else self.op.results[end - operands]
        return str(ir.RankedTensorType(value.type).element_type)

    def traffic(self, choice: Choice) -> Traffic:
        """What a choice communicates."""
        work = prod([self.mesh.group_size(axes) for axes in choice.option if axes])
        return Traffic(tuple(self._reshards(choice)), choice.exchanged, 1 / work)

    def _reshards(self, choice: Choice) -> Iterator[tuple[str, ReshardingPlan]]:
        pairs: list[tuple[Sharding | None, Sharding | None]] = [
            *zip(self.arriving, choice.needs, strict=True),
            *zip(choice.computed, self.targets, strict=True),
        ]
        names = [f"operand {index}" for index in range(len(choice.needs))]
        names += [f"result {index}" for index in range(len(choice.computed))] if len(choice.computed) > 1 else ["the result"]
        for end, (name, (source, target)) in enumerate(zip(names, pairs, strict=True)):
            if source is not None and target is not None and source != target:
                plan = resharding.plan(self.shapes[end], self._dtype(end), self.mesh, source, target, self.planning)
                if plan.wire_bytes:
                    yield name, plan


def _together(names: Sequence[str]) -> str:
    """`operands 0 and 1 and the result` of the names of these."""
    numbers: dict[str, list[str]] = {}
    for name in names:
        kind, _, number = name.rpartition(" ")
        numbers.setdefault(kind, []).append(number)
    return " and ".join(f"{kind}{'s' if len(of) > 1 else ''} {_listed(of)}" for kind, of in numbers.items())


def _listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


_VERBS = {
    steps.AllGather: "gather",
    steps.AllReduce: "all-reduce",
    steps.ReduceScatter: "reduce-scatter",
    steps.AllToAll: "all-to-all",
}
"""What the steps of a plan do; all others that communicate exchange shards."""


def _verbs(plan: ReshardingPlan) -> dict[str, None]:
    """What a plan does to a tensor, in order."""
    return dict.fromkeys(_VERBS.get(type(step), "exchange shards of") for step in plan.steps if step.collectives)
