"""Choosing an op's sharding option: of all options that its annotated tensors suggest, the one that sends the fewest bytes.

The cost of an option is the resharding of every operand to what the option needs and of every result from what the option
computes, in bytes on the wire per device, plus a small price for computing the same element on several devices. Propagation,
refinement and assignment differ in what an operand comes from and what a result becomes, which each of them says by a table of
`Prices`; the sum over them is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from math import inf, prod

from meshbridge import resharding
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split
from meshbridge.ops.option import (
    Candidates,
    Option,
    computed_sharding,
    is_legal,
    loop_candidates,
    movable_axes,
    needed_sharding,
    suggested_axes,
)
from meshbridge.ops.rounds import exchanged_bytes
from meshbridge.ops.rule import ShardingRule

CONTRACTION_PRICE = 1 / 64
"""Wire bytes that one multiply-add of a contraction on one device costs as much as. An accelerator does about 1,000 of them while
a byte crosses a link, so the price is high on purpose: a user who shards a program wants its contractions sharded, not repeated.

Measured (`benchmarks.constants`, wire KB): gpt12 29,644 with 0, 29,669 with 1/256, 29,419 with 1/64, 29,508 with 1/16;
llama_scan_fsdp_tp 22,665 with 0, 19,948 with 1/256 to 1/16. With 0, temporary memory of the latter grows from 29 to 75 MB."""

ELEMENT_PRICE = 1 / 256
"""The same for one iteration of any other op, which reads and writes memory rather than computes.

Measured likewise: gpt12 29,508 with 0 and with 1/2048, 29,419 with 1/256 to 1/16. From 1/64 on resnet_spatial takes 55
collectives instead of 47 for as many bytes."""

MOST_OPTIONS = 2048
"""Options tried per op; an op with more keeps each loop's first candidates.

Measured: from 64 to 16,384 nothing changes on the programs of `benchmarks.constants`, whose meshes have up to three axes. The
limit is for meshes of more axes."""

ROUNDING = 1e-9
"""The part by which sums of the same bytes in another order may differ."""

TensorType = tuple[tuple[int, ...], str]
"""Shape and element type."""

Taken = tuple[Axes, ...]
"""Per operand, the axes along which an op takes it as a partial sum and passes that on; () where it takes none so."""

Suggestions = tuple[tuple[int, Axes], ...]
"""Loops, each with axes that may split it."""


@dataclass(frozen=True, eq=False)
class Choice:
    """An option of an op that takes operands as partial sums along given axes, and passes them on: what follows from it."""

    option: Option
    compute: float
    "What one device computes, and what neighbours send it while it does, in bytes."
    needs: tuple[Sharding, ...]
    "What each operand is to be."
    computed: tuple[Sharding, ...]
    "How each result is computed."


@dataclass(frozen=True, eq=False)
class Choices:
    """The choices that an op has, in the order of preference, and their places in it from the one that computes least on."""

    ordered: list[Choice]
    by_compute: list[int]


class Prices(dict[Sharding, float]):
    """Bytes of one end of an op, an operand or a result, by the sharding that an option needs or computes there."""

    def __init__(self, price: Callable[[Sharding], float], floor: Callable[[Sharding], float] | None = None) -> None:
        super().__init__()
        self._price = price
        self._floor = floor

    def __missing__(self, sharding: Sharding) -> float:
        found = self[sharding] = self._price(sharding)
        return found

    def least(self, sharding: Sharding) -> float:
        """What it costs at least, without pricing it."""
        found = self.get(sharding)
        if found is None:
            return self._floor(sharding) if self._floor is not None else 0.0
        return found


Ends = Sequence[Prices | None]
"""The prices of all operands, or of all results; None for what is no ranked tensor."""


class Pricing:
    """What one program's deciding has priced on its mesh. Everything is computed once per distinct op, split and option: the
    second layer of a model looks up what the first one has paid for."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._from: dict[tuple[TensorType, Sharding], Prices] = {}
        self._into: dict[tuple[TensorType, Sharding, float], Prices] = {}
        self._shares: dict[Sharding, float] = {}
        self._suggestions: dict[tuple[ShardingRule, int, Split], tuple[Suggestions, Suggestions]] = {}
        self._masks: dict[Axes, int] = {}
        self._known: dict[tuple[ShardingRule, Taken], dict[Option, Choice | None]] = {}
        "Per op, what follows from each option; None for one that is not legal."
        self._choices: dict[tuple[ShardingRule, Candidates, Axes, Taken], Choices] = {}

    @property
    def count(self) -> int:
        """How many prices have been computed."""
        tables: list[Sized] = [self._choices, *self._from.values(), *self._into.values(), *self._known.values()]
        return sum(map(len, tables))

    def arriving(self, kind: TensorType, source: Sharding) -> Prices:
        """Bytes of resharding a value from `source` to what is needed of it."""
        found = self._from.get((kind, source))
        if found is None:
            shape, dtype = kind

            def price(need: Sharding) -> float:
                return 0.0 if need == source else resharding.cost(shape, dtype, self.mesh, source, need)

            found = self._from[kind, source] = Prices(price, lambda need: self._least(kind, source, need))
        return found

    def leaving(self, kind: TensorType, target: Sharding, share: float = 1.0) -> Prices:
        """Bytes of resharding a result to `target`; those of a partial one count only for the `share` of the runs after which it
        is reduced."""
        key = (kind, target, share)
        found = self._into.get(key)
        if found is None:

            def price(computed: Sharding) -> float:
                moved = self.arriving(kind, computed)[target]
                return share * moved if computed.partial_axes else moved

            def floor(computed: Sharding) -> float:
                moved = self._least(kind, computed, target)
                return share * moved if computed.partial_axes else moved

            found = self._into[key] = Prices(price, floor)
        return found

    def _least(self, kind: TensorType, source: Sharding, target: Sharding) -> float:
        """Bytes that no plan goes below: a device receives what it lacks. Where a value is reduced, that is all that it is to
        hold, and all devices together receive all terms of every element but one."""
        if source == target or not (source.is_plain and target.is_plain):
            return 0.0
        lacking = self._share(target)
        if source.partial_axes == target.partial_axes:
            lacking -= self._share(source)
        else:
            terms = self.mesh.group_size(source.partial_axes)
            if terms == 1 or target.partial_axes:
                return 0.0
            lacking = max(lacking, (terms - 1) / self.mesh.size)
        return max(0.0, lacking) * prod(kind[0]) * element_bytes(kind[1])

    def _share(self, sharding: Sharding) -> float:
        """The part of a value that one device holds, on average."""
        found = self._shares.get(sharding)
        if found is None:
            found = self._shares[sharding] = 1 / self.mesh.group_size(sharding.used_axes)
        return found

    def choices(self, rule: ShardingRule, splits: Sequence[Split], partial: Axes = (), taken: Taken = ()) -> Choices:
        """All legal options that the tensors' splits (operands, then results) suggest, the most split ones first. Axes on
        dimensions that must be replicated are suggested to the others.

        `partial`: the axes along which the user wants a result partial. They belong to reduction loops; if the op can leave its
        result so, only the options that do are considered (the RFC, setShardingAnnotations). Axes along which an operand is
        `taken` split no loop.
        """
        found: list[tuple[int, Axes]] = []
        moved: list[tuple[int, Axes]] = []
        for index, split in enumerate(splits):
            suggested, movable = self._suggestions_of(rule, index, split)
            found += suggested
            moved += movable
        key = (rule, loop_candidates(rule, (*found, *moved)), partial, taken)
        choices = self._choices.get(key)
        if choices is None:
            choices = self._choices[key] = choices_of(self._legal(*key))
        return choices

    def _legal(self, rule: ShardingRule, candidates: Candidates, partial: Axes, taken: Taken) -> list[Choice]:
        """The legal options that the candidates of each loop make."""
        if partial:
            candidates = tuple(
                (partial, *found) if loop.reduction and partial not in found else found
                for loop, found in zip(rule.loops, candidates, strict=True)
            )
        while prod(map(len, candidates)) > MOST_OPTIONS:
            widest = max(range(len(candidates)), key=lambda loop: len(candidates[loop]))
            candidates = (*candidates[:widest], (*candidates[widest][:-2], ()), *candidates[widest + 1 :])
        if passed := {*max(taken, default=())}:
            candidates = tuple(tuple(axes for axes in found if passed.isdisjoint(axes)) for found in candidates)
        known = self._known.setdefault((rule, taken), {})
        legal = []
        for option in self._disjoint(candidates):
            if option not in known:
                is_taken = rule.takes_any_option or is_legal(rule, option, self.mesh)
                known[option] = self.choice(rule, option, taken) if is_taken else None
            if (choice := known[option]) is not None:
                legal.append(choice)
        if not partial:
            return legal
        return [choice for choice in legal if {*partial} <= _reduced(rule, choice.option)] or legal

    def _disjoint(self, candidates: Candidates) -> list[Option]:
        """The options that use no axis twice, in the order of their product."""
        masks = self._masks
        found: list[tuple[int, Option]] = [(0, ())]
        for each in candidates:
            if len(each) == 1:
                found = [(used, (*option, *each)) for used, option in found]
            else:
                for axes in each:
                    if axes not in masks:
                        masks[axes] = sum(1 << axis for axis in axes)
                found = [
                    (used | masks[axes], (*option, axes)) for used, option in found for axes in each if not used & masks[axes]
                ]
        return [option for _, option in found]

    def _suggestions_of(self, rule: ShardingRule, index: int, split: Split) -> tuple[Suggestions, Suggestions]:
        """What the split of one tensor suggests, and what could take over axes from its dimensions that must be replicated."""
        found = self._suggestions.get((rule, index, split))
        if found is None:
            dims = (*rule.operands, *rule.results)[index]
            found = tuple(suggested_axes(rule, dims, split, self.mesh)), tuple(movable_axes(rule, dims, split, self.mesh))
            self._suggestions[rule, index, split] = found
        return found

    def choice(self, rule: ShardingRule, option: Option, taken: Taken = ()) -> Choice:
        """What follows from one option."""
        name, passed = self.mesh.name, max(taken, default=())
        operands = zip(rule.operands, taken or ((),) * len(rule.operands), strict=True)
        return Choice(
            option,
            self._compute_price(rule, option),
            tuple([needed_sharding(dims, option, name, axes) for dims, axes in operands]),
            tuple([computed_sharding(rule, option, index, self.mesh, passed) for index in range(len(rule.results))]),
        )

    def _compute_price(self, rule: ShardingRule, option: Option) -> float:
        """What one device computes, in bytes on the wire (see CONTRACTION_PRICE), and what neighbours send it while it does."""
        if not rule.loops:
            return 0.0
        iterations = 1.0
        for loop, axes in zip(rule.loops, option, strict=True):
            iterations *= loop.size / self.mesh.group_size(axes) if axes else loop.size
        price = (CONTRACTION_PRICE if rule.is_contraction else ELEMENT_PRICE) * rule.work * iterations
        return price + exchanged_bytes(rule, option, self.mesh) if rule.exchanges else price


def choices_of(ordered: list[Choice]) -> Choices:
    """Choices in the order of preference."""
    return Choices(ordered, sorted(range(len(ordered)), key=lambda place: ordered[place].compute))


def cost_of(choice: Choice, operands: Ends, results: Ends, most: float = inf) -> tuple[float, float]:
    """Bytes of computing results and of what becomes of them, and the same with those of bringing operands to what is needed;
    anything beyond `most` once the sum is."""
    total = choice.compute
    for prices, computed in zip(results, choice.computed, strict=True):
        if prices is not None:
            total += prices[computed]
            if total > most:
                return total, total
    own = total
    for prices, need in zip(operands, choice.needs, strict=True):
        if prices is not None:
            total += prices[need]
            if total > most:
                break
    return own, total


def least_cost(choice: Choice, operands: Ends, results: Ends) -> float:
    """What a choice costs at least, without pricing anything."""
    total = choice.compute
    for prices, computed in zip(results, choice.computed, strict=True):
        if prices is not None:
            total += prices.least(computed)
    for prices, need in zip(operands, choice.needs, strict=True):
        if prices is not None:
            total += prices.least(need)
    return total


def cheapest(choices: Choices, operands: Ends, results: Ends) -> tuple[Choice, float]:
    """The choice of the fewest bytes, of equals the first, and what it costs without its operands."""
    best, least, cheapest_own = len(choices.ordered), inf, 0.0
    for place in choices.by_compute:
        choice = choices.ordered[place]
        if choice.compute > least:
            break
        f = choice.compute
        for prices, computed in zip(results, choice.computed, strict=True):
            if prices is not None:
                f += prices.get(computed, 0.0)
        for prices, computed in zip(operands, choice.needs, strict=True):
            if prices is not None:
                f += prices.get(computed, 0.0)
        if f > least * (1 + 1e-12):
            continue
        if least_cost(choice, operands, results) * (1 - ROUNDING) > least:
            continue
        own, total = cost_of(choice, operands, results, least)
        if total < least or (total == least and place < best):
            best, least, cheapest_own = place, total, own
    return choices.ordered[best], cheapest_own


def _reduced(rule: ShardingRule, option: Option) -> set[int]:
    return {axis for loop, axes in zip(rule.loops, option, strict=True) if loop.reduction for axis in axes}


def extend(split: Split, wanted: Split, may_extend: tuple[bool, ...], banned: frozenset[int]) -> Split:
    """`split` with the axes of `wanted` added to its open dimensions, where `wanted` continues what is there and axes
    are free."""
    if split == wanted:
        return split
    used = {axis for axes in split for axis in axes} | banned
    extended: list[Axes] = []
    for axes, more, is_open in zip(split, wanted, may_extend, strict=True):
        added = more[len(axes) :]
        if is_open and added and more[: len(axes)] == axes and used.isdisjoint(added):
            used.update(added)
            extended.append(more)
        else:
            extended.append(axes)
    return tuple(extended)
