"""Choosing an op's sharding option: of all options that its annotated tensors suggest, the one that sends the fewest bytes.

The cost of an option is the resharding of every operand to what the option needs and of every result from what the option
computes, in bytes on the wire per device, plus a small price for computing the same element on several devices. Propagation,
refinement and assignment differ in what an operand comes from and what a result becomes, which each of them says by a table of
`EndPrices`; the sum over them is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappush, heapreplace
from itertools import chain
from math import prod
from operator import getitem
from typing import NamedTuple

from meshbridge import resharding
from meshbridge.ir.elements import element_bytes
from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split
from meshbridge.ops.option import (
    Candidates,
    Option,
    is_legal,
    loop_candidates,
    movable_axes,
    partial_axes,
    sharding_of,
    suggested_axes,
    tensor_split,
    with_partial,
)
from meshbridge.ops.rounds import exchanged_bytes
from meshbridge.ops.rule import Dims, Loop, ShardingRule
from meshbridge.resharding import ALONE, BYTES, Concurrency, Objective

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


@dataclass(eq=False, slots=True)
class Choice:
    """An option of an op that takes operands as partial sums along given axes, and passes them on: what follows from it."""

    option: Option
    share: float
    "The part of all iterations that one device runs."
    exchanged: float
    "Bytes that neighbours send it while it does."
    computed: tuple[Sharding, ...]
    "How each result is computed."
    needs: tuple[Sharding, ...]
    "What each operand is to be."


class Choices(tuple[tuple[float, int, Choice], ...]):
    """The choices that an op has from the one that computes least on, each with its share and its place in order of preference.
    They are found again as an object."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Compute(NamedTuple):
    """What an op costs a device that computes a share of it, in bytes on the wire."""

    price: float
    "Of all of it."
    again: float
    "What all of it costs beside, where others compute the same although the annotations share it."
    shared: float
    "The share that they leave to a device."

    def of(self, share: float) -> float:
        """What it costs to compute a `share`."""
        price, again, shared = self
        return share * price + (share - shared) * again if share > shared else share * price


NO_COMPUTE = Compute(0.0, 0.0, 1.0)
"""Of what hands values on."""

Pair = tuple[Sharding, Sharding, float]
"""From what to what a tensor is resharded, and how often."""


class EndPrices(dict[Sharding, float]):
    """Bytes of one end of an op, an operand or a result, by the sharding that an option needs or computes there: until `price` is
    asked, at least as many. They are found again as an object."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(
        self, kind: TensorType, mesh: Mesh, pair: Callable[[Sharding], Pair | None], objective: Objective = BYTES
    ) -> None:
        """`pair` is what a sharding there leads to; None for nothing."""
        super().__init__()
        self._shape, self._dtype = kind
        self._mesh = mesh
        self._objective = objective
        self._pair = pair
        self._floors: dict[Sharding, Pair] = {}

    def __missing__(self, sharding: Sharding) -> float:
        pair = self._pair(sharding)
        found, is_price = 0.0, True
        if pair is not None and pair[0] is not pair[1]:
            received, is_price, launches = resharding.floor(self._shape, self._mesh, pair[0], pair[1])
            if received:
                size = received * element_bytes(self._dtype)
                found = pair[2] * self._objective.price(self._mesh, pair[0], pair[1], size, max(1, launches))
                is_price = is_price and not (self._objective.launch and not launches)
            if not is_price and pair[0] != pair[1]:
                self._floors[sharding] = pair
                found *= 1 - ROUNDING
        self[sharding] = found
        return found

    def price(self, sharding: Sharding) -> float:
        """What it costs."""
        found = self[sharding]
        if self._floors and (pair := self._floors.get(sharding)) is not None:
            source, target, share = pair
            found = self[sharding] = share * resharding.cost(
                self._shape, self._dtype, self._mesh, source, target, self._objective
            )
            self._floors.pop(sharding, None)  # last: another thread may ask for the same
        return found


@dataclass(frozen=True, eq=False)
class End:
    """One end of an op, and what its sharding suggests."""

    prices: EndPrices
    suggestion: LoopSuggestion


@dataclass(frozen=True, eq=False)
class LoopSuggestion:
    """Loops, each with axes that may split it, as the split of one tensor suggests; and with axes that it could take over from
    dimensions of the tensor that must be replicated."""

    found: tuple[tuple[int, Axes], ...] = ()
    movable: tuple[tuple[int, Axes], ...] = ()


class OpChoices:
    """What an op has to choose from that takes its operands as partial sums along given axes: every option is made once."""

    def __init__(self, rule: ShardingRule, taken: Taken, mesh: Mesh) -> None:
        self.rule = rule
        self.taken = taken
        self.mesh = mesh
        self._dims = (*rule.operands, *rule.results)
        self._distinct = tuple({*self._dims})
        self._places = tuple(map(self._distinct.index, self._dims))
        "Which of the distinct loops of tensors each end has: most ends of most ops are alike."
        self._known: dict[Option, Choice | None] = {}
        "What follows from each option; None for one that is not legal."
        self.nothing = LoopSuggestion()
        self._suggestions: dict[tuple[Dims, Split], LoopSuggestion] = {}
        self._equal: dict[tuple[object, ...], LoopSuggestion] = {((), ()): self.nothing}
        self._fitting: dict[tuple[Split, ...], Choice | None] = {}
        self._by_suggestions: dict[tuple[LoopSuggestion, ...], Choices] = {}
        self._by_candidates: dict[tuple[Candidates, Axes], Choices] = {}

    def suggestion(self, end: int, split: Split) -> LoopSuggestion:
        """What the split of one tensor suggests, of an operand or, behind them, a result. Equal ones are one object."""
        if not any(split):
            return self.nothing
        key = (dims := self._dims[end], split)
        found = self._suggestions.get(key)
        if found is None:
            said = (
                tuple(suggested_axes(self.rule, dims, split, self.mesh)),
                tuple(movable_axes(self.rule, dims, split, self.mesh)),
            )
            found = self._suggestions[key] = self._equal.setdefault(said, LoopSuggestion(*said))
        return found

    def suggested(self, suggestions: tuple[LoopSuggestion, ...], partial: Axes = ()) -> Choices:
        """All legal options that suggestions make, the most split ones first.

        `partial`: the axes along which the user wants a result partial. They belong to reduction loops; if the op can leave its
        result so, only the options that do are considered (the RFC, setShardingAnnotations). Axes along which an operand is
        taken as a partial sum split no loop.
        """
        choices = self._by_suggestions.get(suggestions) if not partial else None
        if choices is None:
            found = [said for suggestion in suggestions for said in suggestion.found]
            moved = [said for suggestion in suggestions for said in suggestion.movable]
            key = (loop_candidates(self.rule, (*found, *moved)), partial)
            choices = self._by_candidates.get(key)
            if choices is None:
                choices = self._by_candidates[key] = choices_of(self._legal(*key))
            if not partial:
                self._by_suggestions[suggestions] = choices
        return choices

    def along(self, each: Sequence[Axes]) -> list[Choice]:
        """All legal choices in which loops are split along those lists of axes, no axis twice, however many they are."""
        return self._made_of(((*each, ()),) * len(self.rule.loops))

    def fitting(self, splits: tuple[Split, ...]) -> Choice | None:
        """The choice that takes all operands and computes all results as they are split, if there is one that sends nothing."""
        if splits not in self._fitting:
            self._fitting[splits] = self._found_fitting(splits)
        return self._fitting[splits]

    def _found_fitting(self, splits: tuple[Split, ...]) -> Choice | None:
        option: list[Axes | None] = [None] * len(self.rule.loops)
        for dims, split in {*zip(self._dims, splits, strict=True)}:  # many ends of many ops are alike
            for loops, axes in zip(dims, split, strict=True):
                if axes and len(loops) != 1:
                    return None
                for loop in loops:
                    if option[loop] is None:
                        option[loop] = axes
                    elif option[loop] != axes:
                        return None
        used = [axis for axes in option if axes for axis in axes]
        if len(set(used)) < len(used):
            return None
        choice = self._choice(tuple([axes or () for axes in option]))
        if choice is None or choice.exchanged or (self.rule.reduces and _reduced(self.rule, choice.option)):
            return None
        return choice

    def _legal(self, candidates: Candidates, partial: Axes) -> list[Choice]:
        """The legal options that the candidates of each loop make."""
        rule = self.rule
        if partial:
            candidates = tuple(
                (partial, *found) if loop.reduction and partial not in found else found
                for loop, found in zip(rule.loops, candidates, strict=True)
            )
        while prod(map(len, candidates)) > MOST_OPTIONS:
            widest = max(range(len(candidates)), key=lambda loop: len(candidates[loop]))
            candidates = (*candidates[:widest], (*candidates[widest][:-2], ()), *candidates[widest + 1 :])
        legal = self._made_of(candidates)
        if not partial:
            return legal
        return [choice for choice in legal if {*partial} <= _reduced(rule, choice.option)] or legal

    def _made_of(self, candidates: Candidates) -> list[Choice]:
        if passed := {*max(self.taken, default=())}:
            candidates = tuple(tuple(axes for axes in found if passed.isdisjoint(axes)) for found in candidates)
        find = self._known.get
        options = [find(option) or self._choice(option) for option in disjoint(candidates)]
        return [choice for choice in options if choice is not None]

    def _choice(self, option: Option) -> Choice | None:
        """What follows from one option, if it is legal."""
        if option in self._known:
            return self._known[option]
        is_taken = self.rule.takes_any_option or is_legal(self.rule, option, self.mesh)
        found = self._known[option] = self.choice(option) if is_taken else None
        return found

    def choice(self, option: Option) -> Choice:
        """What follows from one option."""
        rule, name, passed = self.rule, self.mesh.name, max(self.taken, default=())
        distinct = [sharding_of(name, tensor_split(dims, option)) for dims in self._distinct]
        whole = [distinct[place] for place in self._places]
        needs, computed = whole[: len(rule.operands)], whole[len(rule.operands) :]
        partial, kind = partial_axes(rule, option)
        if partial:
            computed = [sharding_of(name, each.split_axes, partial, kind) for each in computed]
        if passed:
            computed = [with_partial(each, passed) for each in computed]
            needs = [sharding_of(name, each.split_axes, axes) for each, axes in zip(needs, self.taken, strict=True)]
        return Choice(
            option,
            1 / prod([self.mesh.group_size(axes) for axes in option if axes]),
            exchanged_bytes(rule, option, self.mesh) if rule.exchanges else 0.0,
            tuple(computed),
            tuple(needs),
        )


@lru_cache(maxsize=1 << 12)
def _op_choices(rule: ShardingRule, taken: Taken, mesh: Mesh) -> OpChoices:
    """Those of an op, also in the next program. Ops of which the sizes do not matter share them."""
    if not rule.has_choices_of_any_size:
        return OpChoices(rule, taken, mesh)
    reductions = tuple([loop.reduction for loop in rule.loops])
    return _choices_of_any_size(rule.operands, rule.results, reductions, taken, mesh)


@lru_cache(maxsize=1 << 10)
def _choices_of_any_size(
    operands: tuple[Dims, ...], results: tuple[Dims, ...], reductions: tuple[str, ...], taken: Taken, mesh: Mesh
) -> OpChoices:
    return OpChoices(ShardingRule(tuple([Loop(1, reduction) for reduction in reductions]), operands, results), taken, mesh)


@lru_cache(maxsize=1 << 14)
def _arriving(mesh: Mesh, objective: Objective, kind: TensorType, source: Sharding) -> EndPrices:
    return EndPrices(kind, mesh, lambda need: (source, need, 1.0), objective)


@lru_cache(maxsize=1 << 14)
def _leaving(mesh: Mesh, objective: Objective, kind: TensorType, target: Sharding, share: float) -> EndPrices:
    return EndPrices(kind, mesh, lambda computed: (computed, target, share if computed.partial_axes else 1.0), objective)


class Pricing:
    """What deciding prices on a mesh. Everything is computed once per distinct op, split and option: the second layer of a model
    looks up what the first one has paid for, and so does the next program."""

    def __init__(self, mesh: Mesh, objective: Objective = BYTES, work: float = 1.0) -> None:
        self.mesh = mesh
        self.objective = objective
        self.work = work
        "How many times CONTRACTION_PRICE and ELEMENT_PRICE it costs to compute again what the annotations share."
        self._devices: dict[int, int] = {}
        self._objectives: dict[Concurrency, Objective] = {ALONE: objective}
        "By what goes on while a tensor is gathered or reduced."
        self.nothing = EndPrices(((), ""), mesh, lambda _: None)
        "Those of what is no ranked tensor."

    def op(self, rule: ShardingRule, taken: Taken = ()) -> OpChoices:
        """What an op has to choose from that takes operands as partial sums so."""
        return _op_choices(rule, taken, self.mesh)

    def computed(self, rule: ShardingRule) -> float:
        """What it takes one device to compute if nothing is split, in bytes on the wire."""
        if not rule.loops:
            return 0.0
        work = self.objective.work
        multiply_add, iteration = (CONTRACTION_PRICE, ELEMENT_PRICE) if work is None else (work.multiply_add, work.iteration)
        price = multiply_add if rule.is_contraction else iteration
        return price * rule.work * prod([loop.size for loop in rule.loops])

    def compute(self, rule: ShardingRule, sharing: int) -> Compute:
        """What an op costs that the annotations share among so many devices."""
        price = self.computed(rule)
        return Compute(price, (self.work - 1) * price, 1 / sharing)

    def devices(self, axes: int) -> int:
        """How many devices a set of axes, a bit for each, splits over."""
        found = self._devices.get(axes)
        if found is None:
            found = self._devices[axes] = self.mesh.group_size(axis for axis in range(self.mesh.rank) if axes >> axis & 1)
        return found

    def prices(self, kind: TensorType, pair: Callable[[Sharding], Pair | None], beside: Concurrency = ALONE) -> EndPrices:
        """Those of a tensor, by what is resharded at one end of an op to what, and what goes on beside it."""
        return EndPrices(kind, self.mesh, pair, self._objective(beside))

    def arriving(self, kind: TensorType, source: Sharding, beside: Concurrency = ALONE) -> EndPrices:
        """Bytes of resharding a value from `source` to what is needed of it."""
        return _arriving(self.mesh, self._objective(beside), kind, source)

    def leaving(self, kind: TensorType, target: Sharding, share: float = 1.0, beside: Concurrency = ALONE) -> EndPrices:
        """Bytes of resharding a result to `target`; those of a partial one count only for the `share` of the runs after which it
        is reduced."""
        return _leaving(self.mesh, self._objective(beside), kind, target, share)

    def _objective(self, beside: Concurrency) -> Objective:
        if (found := self._objectives.get(beside)) is None:
            found = self._objectives[beside] = self.objective.of(beside)
        return found


@lru_cache(maxsize=16)
def pricing_of(mesh: Mesh, objective: Objective = BYTES, work: float = 1.0) -> Pricing:
    """The one for a mesh."""
    return Pricing(mesh, objective, work)


def choices_of(preferred: Iterable[Choice]) -> Choices:
    """Choices, the most preferred first, in the order in which they compute."""
    return Choices(sorted([(choice.share, place, choice) for place, choice in enumerate(preferred)]))


@lru_cache(maxsize=1 << 16)
def cheapest(
    choices: Choices, compute: Compute, results: tuple[EndPrices, ...], operands: tuple[EndPrices, ...]
) -> tuple[Choice, float, tuple[float, ...]]:
    """The cheapest of `choices`, the first of equals, see `ranked`."""
    return ranked(choices, compute, results, operands)


def ranked(
    choices: Choices,
    compute: Compute,
    results: Sequence[EndPrices],
    operands: Sequence[EndPrices],
    rank: Callable[[Choice], float] | None = None,
) -> tuple[Choice, float, tuple[float, ...]]:
    """The choice of the fewest bytes; of equals that of the lowest `rank`, and of these the first. Besides, what it costs without
    its operands, and the bytes of resharding each of them. Whatever is not split computes `compute`.

    The one that costs least as far as is known is priced, until that is what it costs.
    """
    waiting: list[tuple[float, float, int, Choice]] = []
    count, seen = len(choices), 0
    while True:
        while seen < count and (not waiting or compute.of(choices[seen][0]) <= waiting[0][0]):
            share, place, choice = choices[seen]
            own = sum(map(getitem, results, choice.computed), compute.of(share) + choice.exchanged)
            total = sum(map(getitem, operands, choice.needs), own)
            heappush(waiting, (total, rank(choice) if rank is not None else 0.0, place, choice))
            seen += 1
        known, ranked, place, choice = waiting[0]
        own = sum(map(EndPrices.price, results, choice.computed), compute.of(choice.share) + choice.exchanged)
        arriving = tuple(map(EndPrices.price, operands, choice.needs))
        total = sum(arriving, own)
        if total == known:
            return choice, own, arriving
        heapreplace(waiting, (total, ranked, place, choice))


@lru_cache(maxsize=1 << 14)
def disjoint(candidates: Candidates) -> list[Option]:
    """The options that use no axis twice, in the order of their product."""
    found: list[tuple[int, Option]] = [(0, ())]
    for each in candidates:
        if len(each) == 1:
            found = [(used, option + each) for used, option in found]
        else:
            masked = [(sum([1 << axis for axis in axes]), (axes,)) for axes in each]
            found = [(used | mask, option + added) for used, option in found for mask, added in masked if not used & mask]
    return [option for _, option in found]


def _reduced(rule: ShardingRule, option: Option) -> set[int]:
    return {axis for loop, axes in zip(rule.loops, option, strict=True) if loop.reduction for axis in axes}


def extend(split: Split, wanted: Split, may_extend: tuple[bool, ...], banned: frozenset[int]) -> Split:
    """`split` with the axes of `wanted` added to its open dimensions, where `wanted` continues what is there and axes
    are free."""
    if split == wanted:
        return split
    longer = [
        dim
        for dim, (axes, more) in enumerate(zip(split, wanted, strict=True))
        if axes != more and may_extend[dim] and more[: len(axes)] == axes
    ]
    if not longer:
        return split
    used, extended = {*chain.from_iterable(split), *banned}, [*split]
    for dim in longer:
        added = wanted[dim][len(split[dim]) :]
        if used.isdisjoint(added):
            used.update(added)
            extended[dim] = wanted[dim]
    return tuple(extended)
