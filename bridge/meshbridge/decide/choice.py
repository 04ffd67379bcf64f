"""Chooses an op's sharding option: of all options that its annotated tensors suggest, the one that sends the fewest bytes.

The cost of an option is the resharding of every operand to the option's need and of every result from what the option computes,
in wire bytes per device, plus a small price for computing the same element on several devices. Propagation, refinement and
assignment differ in what an operand is resharded from and a result to; each of them states this in tables of `EndPrices`, over
which the cost is summed in the same way.
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
from meshbridge.ops.permute_rounds import exchanged_bytes
from meshbridge.ops.rule import Dims, Loop, ShardingRule
from meshbridge.resharding import ALONE, BYTES, Concurrency, Objective

CONTRACTION_PRICE = 1 / 64
"""The cost of one multiply-add of a contraction on one device, in wire bytes. An accelerator does about 1,000 of them in the time
of a byte on a link; the price is high on purpose: a user who shards a program wants its contractions sharded, not repeated.

Measured (`benchmarks.constants`, wire KB): gpt12 29,644 with 0, 29,669 with 1/256, 29,419 with 1/64, 29,508 with 1/16;
llama_scan_fsdp_tp 22,665 with 0, 19,948 with 1/256 to 1/16. With 0, temporary memory of the latter grows from 29 to 75 MB."""

ELEMENT_PRICE = 1 / 256
"""The same for one iteration of any other op, which is limited by memory rather than arithmetic.

Measured likewise: gpt12 29,508 with 0 and with 1/2048, 29,419 with 1/256 to 1/16. From 1/64 on resnet_spatial takes 55
collectives instead of 47 for the same number of bytes."""

MOST_OPTIONS = 2048
"""Options tried per op; an op with more keeps each loop's first candidates.

Measured: from 64 to 16,384 nothing changes on the programs of `benchmarks.constants`, whose meshes have up to three axes. Only
meshes of more axes reach the limit."""

ROUNDING = 1e-9
"""The relative difference that summing the same bytes in another order may make."""

TensorType = tuple[tuple[int, ...], str]
"""Shape and element type."""

PartialOperands = tuple[Axes, ...]
"""Per operand, the axes along which an op takes it as a partial sum and passes that on; () if it takes none."""


@dataclass(eq=False, slots=True)
class Choice:
    """An option of an op that passes on partial sums along given axes, and its consequences."""

    option: Option
    share: float
    "The part of all iterations that one device executes."
    exchanged: float
    "Bytes that neighbours send the device meanwhile."
    computed: tuple[Sharding, ...]
    "The sharding in which each result is computed."
    needs: tuple[Sharding, ...]
    "The sharding that each operand must have."


class Choices(tuple[tuple[float, int, Choice], ...]):
    """An op's choices by the share that each device computes, with it and the rank of preference. Compared by identity."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class Compute(NamedTuple):
    """The cost of an op on a device that computes a share of it, in wire bytes."""

    price: float
    "The cost of the whole op."
    again: float
    "The extra cost of the whole op if devices repeat work that the annotations share among them."
    shared: float
    "The share of each device under the annotations."

    def of(self, share: float) -> float:
        """The cost of computing a `share`."""
        price, again, shared = self
        return share * price + (share - shared) * again if share > shared else share * price


NO_COMPUTE = Compute(0.0, 0.0, 1.0)
"""The cost of an identity."""

Pair = tuple[Sharding, Sharding, float]
"""A resharding of a tensor: source, target, and how often it runs."""


class EndPrices(dict[Sharding, float]):
    """Bytes of resharding at one end of an op, an operand or a result, by the sharding that an option needs or computes there: a
    lower bound until `price` is called. Compared by identity."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(
        self, kind: TensorType, mesh: Mesh, pair: Callable[[Sharding], Pair | None], objective: Objective = BYTES
    ) -> None:
        """`pair` maps the sharding at this end to the resharding that it takes, or None."""
        super().__init__()
        self._shape, self._dtype = kind
        self._mesh = mesh
        self._objective = objective
        self._pair = pair
        self._floors: dict[Sharding, Pair] = {}

    def __missing__(self, sharding: Sharding) -> float:
        pair = self._pair(sharding)
        cost, is_price = 0.0, True
        if pair is not None and pair[0] is not pair[1]:
            received, is_price, launches = resharding.floor(self._shape, self._mesh, pair[0], pair[1])
            if received:
                size = received * element_bytes(self._dtype)
                cost = pair[2] * self._objective.price(self._mesh, pair[0], pair[1], size, max(1, launches))
                is_price = is_price and not (self._objective.launch and not launches)
            if not is_price and pair[0] != pair[1]:
                self._floors[sharding] = pair
                cost *= 1 - ROUNDING
        self[sharding] = cost
        return cost

    def price(self, sharding: Sharding) -> float:
        """The exact cost."""
        cost = self[sharding]
        if self._floors and (pair := self._floors.get(sharding)) is not None:
            source, target, share = pair
            cost = self[sharding] = share * resharding.cost(self._shape, self._dtype, self._mesh, source, target, self._objective)
            self._floors.pop(sharding, None)  # last: another thread may ask for the same sharding
        return cost


@dataclass(frozen=True, eq=False)
class End:
    """One end of an op, and the suggestion of its sharding."""

    prices: EndPrices
    suggestion: LoopSuggestion


@dataclass(frozen=True, eq=False)
class LoopSuggestion:
    """The axes that the split of one tensor suggests for each loop, and those that a loop could take over from dimensions of the
    tensor that must be replicated."""

    loop_axes: tuple[tuple[int, Axes], ...] = ()
    movable: tuple[tuple[int, Axes], ...] = ()


class OpChoices:
    """The choices of an op that takes its operands as partial sums along given axes. Each option is evaluated once."""

    def __init__(self, rule: ShardingRule, taken: PartialOperands, mesh: Mesh) -> None:
        self.rule = rule
        self.taken = taken
        self.mesh = mesh
        self._dims = (*rule.operands, *rule.results)
        self._distinct = tuple({*self._dims})
        self._positions = tuple(map(self._distinct.index, self._dims))
        "Per end, its index among the distinct dimension lists: most ends of most ops are equal."
        self._known: dict[Option, Choice | None] = {}
        "The choice of each option; None if the option is not legal."
        self.nothing = LoopSuggestion()
        self._suggestions: dict[tuple[Dims, Split], LoopSuggestion] = {}
        self._equal: dict[tuple[object, ...], LoopSuggestion] = {((), ()): self.nothing}
        self._fitting: dict[tuple[Split, ...], Choice | None] = {}
        self._by_suggestions: dict[tuple[LoopSuggestion, ...], Choices] = {}
        self._by_candidates: dict[tuple[Candidates, Axes], Choices] = {}

    def suggestion(self, end: int, split: Split) -> LoopSuggestion:
        """The suggestion of the split of an operand or, numbered after them, a result. Equal suggestions are one object."""
        if not any(split):
            return self.nothing
        key = (dims := self._dims[end], split)
        suggestion = self._suggestions.get(key)
        if suggestion is None:
            loop_axes = (
                tuple(suggested_axes(self.rule, dims, split, self.mesh)),
                tuple(movable_axes(self.rule, dims, split, self.mesh)),
            )
            suggestion = self._suggestions[key] = self._equal.setdefault(loop_axes, LoopSuggestion(*loop_axes))
        return suggestion

    def suggested(self, suggestions: tuple[LoopSuggestion, ...], partial: Axes = ()) -> Choices:
        """All legal options that the suggestions form, the most split ones first.

        `partial`: the axes along which the user wants a result partial. They belong to reduction loops; if the op can leave its
        result partial so, only the options that do are considered (the RFC, setShardingAnnotations). Axes along which an operand
        is taken as a partial sum split no loop.
        """
        choices = self._by_suggestions.get(suggestions) if not partial else None
        if choices is None:
            loop_axes = [pair for suggestion in suggestions for pair in suggestion.loop_axes]
            movable = [pair for suggestion in suggestions for pair in suggestion.movable]
            key = (loop_candidates(self.rule, (*loop_axes, *movable)), partial)
            choices = self._by_candidates.get(key)
            if choices is None:
                choices = self._by_candidates[key] = choices_of(self._legal(*key))
            if not partial:
                self._by_suggestions[suggestions] = choices
        return choices

    def along(self, axis_lists: Sequence[Axes]) -> list[Choice]:
        """All legal choices that split loops along those lists of axes, no axis twice, without a limit on their number."""
        return self._from_candidates(((*axis_lists, ()),) * len(self.rule.loops))

    def fitting(self, splits: tuple[Split, ...]) -> Choice | None:
        """The choice that takes all operands and computes all results as they are split, if one does without communication."""
        if splits not in self._fitting:
            self._fitting[splits] = self._find_fitting(splits)
        return self._fitting[splits]

    def _find_fitting(self, splits: tuple[Split, ...]) -> Choice | None:
        option: list[Axes | None] = [None] * len(self.rule.loops)
        for dims, split in {*zip(self._dims, splits, strict=True)}:  # many ends of many ops are equal
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
        """The legal options that the candidates of the loops form."""
        rule = self.rule
        if partial:
            candidates = tuple(
                (partial, *axis_lists) if loop.reduction and partial not in axis_lists else axis_lists
                for loop, axis_lists in zip(rule.loops, candidates, strict=True)
            )
        while prod(map(len, candidates)) > MOST_OPTIONS:
            widest = max(range(len(candidates)), key=lambda loop: len(candidates[loop]))
            candidates = (*candidates[:widest], (*candidates[widest][:-2], ()), *candidates[widest + 1 :])
        legal = self._from_candidates(candidates)
        if not partial:
            return legal
        return [choice for choice in legal if {*partial} <= _reduced(rule, choice.option)] or legal

    def _from_candidates(self, candidates: Candidates) -> list[Choice]:
        if passed := {*max(self.taken, default=())}:
            candidates = tuple(tuple(axes for axes in axis_lists if passed.isdisjoint(axes)) for axis_lists in candidates)
        find = self._known.get
        options = [find(option) or self._choice(option) for option in disjoint(candidates)]
        return [choice for choice in options if choice is not None]

    def _choice(self, option: Option) -> Choice | None:
        """The choice of an option; None if the option is not legal."""
        if option in self._known:
            return self._known[option]
        is_valid = self.rule.takes_any_option or is_legal(self.rule, option, self.mesh)
        choice = self._known[option] = self.choice(option) if is_valid else None
        return choice

    def choice(self, option: Option) -> Choice:
        """The choice of a legal option."""
        rule, name, passed = self.rule, self.mesh.name, max(self.taken, default=())
        distinct = [sharding_of(name, tensor_split(dims, option)) for dims in self._distinct]
        shardings = [distinct[position] for position in self._positions]
        needs, computed = shardings[: len(rule.operands)], shardings[len(rule.operands) :]
        partial, kind = partial_axes(rule, option)
        if partial:
            computed = [sharding_of(name, sharding.split_axes, partial, kind) for sharding in computed]
        if passed:
            computed = [with_partial(sharding, passed) for sharding in computed]
            needs = [sharding_of(name, sharding.split_axes, axes) for sharding, axes in zip(needs, self.taken, strict=True)]
        return Choice(
            option,
            1 / prod([self.mesh.group_size(axes) for axes in option if axes]),
            exchanged_bytes(rule, option, self.mesh) if rule.exchanges else 0.0,
            tuple(computed),
            tuple(needs),
        )


@lru_cache(maxsize=1 << 12)
def _op_choices(rule: ShardingRule, taken: PartialOperands, mesh: Mesh) -> OpChoices:
    """The choices of an op, cached across programs. Ops whose sizes do not matter share them."""
    if not rule.options_ignore_sizes:
        return OpChoices(rule, taken, mesh)
    reductions = tuple([loop.reduction for loop in rule.loops])
    return _choices_of_any_size(rule.operands, rule.results, reductions, taken, mesh)


@lru_cache(maxsize=1 << 10)
def _choices_of_any_size(
    operands: tuple[Dims, ...], results: tuple[Dims, ...], reductions: tuple[str, ...], taken: PartialOperands, mesh: Mesh
) -> OpChoices:
    return OpChoices(ShardingRule(tuple([Loop(1, reduction) for reduction in reductions]), operands, results), taken, mesh)


@lru_cache(maxsize=1 << 14)
def _arriving(mesh: Mesh, objective: Objective, kind: TensorType, source: Sharding) -> EndPrices:
    return EndPrices(kind, mesh, lambda need: (source, need, 1.0), objective)


@lru_cache(maxsize=1 << 14)
def _leaving(mesh: Mesh, objective: Objective, kind: TensorType, target: Sharding, share: float) -> EndPrices:
    return EndPrices(kind, mesh, lambda computed: (computed, target, share if computed.partial_axes else 1.0), objective)


class Pricing:
    """The prices on a mesh. Each distinct op, split and option is priced once, for all layers of a model and later programs."""

    def __init__(self, mesh: Mesh, objective: Objective = BYTES, work: float = 1.0) -> None:
        self.mesh = mesh
        self.objective = objective
        self.work = work
        "The price of work that the annotations share but devices repeat, as a multiple of CONTRACTION_PRICE and ELEMENT_PRICE."
        self._devices: dict[int, int] = {}
        self._objectives: dict[Concurrency, Objective] = {ALONE: objective}
        "By the concurrency of a tensor's gather or reduction."
        self.nothing = EndPrices(((), ""), mesh, lambda _: None)
        "The prices of a value that is no ranked tensor."

    def op(self, rule: ShardingRule, taken: PartialOperands = ()) -> OpChoices:
        """The choices of an op that takes operands as partial sums along `taken`."""
        return _op_choices(rule, taken, self.mesh)

    def computed(self, rule: ShardingRule) -> float:
        """The cost of computing an op on one device without any split, in wire bytes."""
        if not rule.loops:
            return 0.0
        work = self.objective.work
        multiply_add, iteration = (CONTRACTION_PRICE, ELEMENT_PRICE) if work is None else (work.multiply_add, work.iteration)
        price = multiply_add if rule.is_contraction else iteration
        return price * rule.work * prod([loop.size for loop in rule.loops])

    def compute(self, rule: ShardingRule, sharing: int) -> Compute:
        """The cost of an op that the annotations share among `sharing` devices."""
        price = self.computed(rule)
        return Compute(price, (self.work - 1) * price, 1 / sharing)

    def devices(self, axes: int) -> int:
        """The number of devices over which a set of axes, given as bits, splits."""
        count = self._devices.get(axes)
        if count is None:
            count = self._devices[axes] = self.mesh.group_size(axis for axis in range(self.mesh.rank) if axes >> axis & 1)
        return count

    def prices(self, kind: TensorType, pair: Callable[[Sharding], Pair | None], concurrency: Concurrency = ALONE) -> EndPrices:
        """The prices of a tensor at one end of an op, by the resharding there and its concurrency."""
        return EndPrices(kind, self.mesh, pair, self._objective(concurrency))

    def arriving(self, kind: TensorType, source: Sharding, concurrency: Concurrency = ALONE) -> EndPrices:
        """Bytes of resharding a value from `source` to an op's need."""
        return _arriving(self.mesh, self._objective(concurrency), kind, source)

    def leaving(self, kind: TensorType, target: Sharding, share: float = 1.0, concurrency: Concurrency = ALONE) -> EndPrices:
        """Bytes of resharding a result; a partial one counts for the `share` of executions after which it is reduced."""
        return _leaving(self.mesh, self._objective(concurrency), kind, target, share)

    def _objective(self, concurrency: Concurrency) -> Objective:
        if (objective := self._objectives.get(concurrency)) is None:
            objective = self._objectives[concurrency] = self.objective.of(concurrency)
        return objective


@lru_cache(maxsize=16)
def pricing_of(mesh: Mesh, objective: Objective = BYTES, work: float = 1.0) -> Pricing:
    """The prices on a mesh, cached."""
    return Pricing(mesh, objective, work)


def choices_of(preferred: Iterable[Choice]) -> Choices:
    """Choices, given by preference, ordered by the share that they compute."""
    return Choices(sorted([(choice.share, order, choice) for order, choice in enumerate(preferred)]))


@lru_cache(maxsize=1 << 16)
def cheapest(
    choices: Choices, compute: Compute, results: tuple[EndPrices, ...], operands: tuple[EndPrices, ...]
) -> tuple[Choice, float, tuple[float, ...]]:
    """The cheapest choice, the first of equal ones; see `ranked`."""
    return ranked(choices, compute, results, operands)


def ranked(
    choices: Choices,
    compute: Compute,
    results: Sequence[EndPrices],
    operands: Sequence[EndPrices],
    rank: Callable[[Choice], float] | None = None,
) -> tuple[Choice, float, tuple[float, ...]]:
    """The choice of the fewest bytes; of equal ones the one of the lowest `rank`, and of these the first. Also returns its cost
    without operands, and the bytes of resharding each operand. An op that is not split costs `compute`.

    Prices the choice of the lowest bound until its bound is exact.
    """
    waiting: list[tuple[float, float, int, Choice]] = []
    count, visited = len(choices), 0
    while True:
        while visited < count and (not waiting or compute.of(choices[visited][0]) <= waiting[0][0]):
            share, order, choice = choices[visited]
            own = sum(map(getitem, results, choice.computed), compute.of(share) + choice.exchanged)
            total = sum(map(getitem, operands, choice.needs), own)
            heappush(waiting, (total, rank(choice) if rank is not None else 0.0, order, choice))
            visited += 1
        bound, ranked, order, choice = waiting[0]
        own = sum(map(EndPrices.price, results, choice.computed), compute.of(choice.share) + choice.exchanged)
        arriving = tuple(map(EndPrices.price, operands, choice.needs))
        total = sum(arriving, own)
        if total == bound:
            return choice, own, arriving
        heapreplace(waiting, (total, ranked, order, choice))


@lru_cache(maxsize=1 << 14)
def disjoint(candidates: Candidates) -> list[Option]:
    """The options that use no axis twice, in the order of the product of candidates."""
    options: list[tuple[int, Option]] = [(0, ())]
    for axis_lists in candidates:
        if len(axis_lists) == 1:
            options = [(used, option + axis_lists) for used, option in options]
        else:
            masked = [(sum([1 << axis for axis in axes]), (axes,)) for axes in axis_lists]
            options = [(used | mask, option + added) for used, option in options for mask, added in masked if not used & mask]
    return [option for _, option in options]


def _reduced(rule: ShardingRule, option: Option) -> set[int]:
    return {axis for loop, axes in zip(rule.loops, option, strict=True) if loop.reduction for axis in axes}


def extend(split: Split, wanted: Split, may_extend: tuple[bool, ...], banned: frozenset[int]) -> Split:
    """`split`, with its open dimensions extended to those of `wanted`, if these continue them by unused axes."""
    if split == wanted:
        return split
    longer = [
        dim
        for dim, (axes, target) in enumerate(zip(split, wanted, strict=True))
        if axes != target and may_extend[dim] and target[: len(axes)] == axes
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
