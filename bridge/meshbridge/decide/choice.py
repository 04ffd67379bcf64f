"""Choosing an op's sharding option: of all options that its annotated tensors suggest, the one that sends the fewest bytes.

The cost of an option is the resharding of every operand to what the option needs and of every result from what the option
computes, in bytes on the wire per device, plus a small price for computing the same element on several devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from meshbridge import resharding
from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split
from meshbridge.ops.option import (
    Option,
    is_legal,
    loop_candidates,
    movable_axes,
    needed_sharding,
    result_sharding,
    split_sharding,
    tensor_split,
    with_partial,
    with_split,
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

TensorType = tuple[tuple[int, ...], str]
"""Shape and element type."""

Tensor = tuple[tuple[int, ...], str, Split, tuple[bool, ...]]
"""Shape, element type, present split, and which dimensions may be sharded along more axes."""


def options(rule: ShardingRule, splits: list[Split], mesh: Mesh, partial: Axes = (), passed: Axes = ()) -> list[Option]:
    """All legal options that the tensors' splits (operands, then results) suggest, the most split ones first. Axes on dimensions
    that must be replicated are suggested to the others.

    `partial`: the axes along which the user wants a result partial. They belong to reduction loops; if the op can leave
    its result
    so, only the options that do are considered (the RFC, setShardingAnnotations). `passed`: the axes along which it passes a
    partial operand on; they split no loop.
    """
    tensors = list(zip((*rule.operands, *rule.results), splits, strict=True))
    candidates = loop_candidates(rule, tensors, mesh)
    for loop, axes in movable_axes(rule, tensors, mesh):
        if axes not in candidates[loop]:
            candidates[loop].insert(-1, axes)
    if partial:
        candidates = [
            [partial, *found] if loop.reduction and partial not in found else found
            for loop, found in zip(rule.loops, candidates, strict=True)
        ]
    while prod(map(len, candidates)) > MOST_OPTIONS:
        widest = max(range(len(candidates)), key=lambda loop: len(candidates[loop]))
        candidates[widest] = [*candidates[widest][:-2], ()]
    if passed:
        candidates = [[axes for axes in found if not set(axes) & set(passed)] for found in candidates]
    legal = [option for option in product(*candidates) if is_legal(rule, option, mesh)]
    if not partial:
        return legal
    wanted = [option for option in legal if set(partial) <= _reduced(rule, option)]
    return wanted or legal


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


def compute_price(rule: ShardingRule, option: Option, mesh: Mesh) -> float:
    """What one device computes, in bytes on the wire (see CONTRACTION_PRICE), and what neighbours send it while it does."""
    if not rule.loops:
        return 0.0
    price = CONTRACTION_PRICE if rule.is_contraction else ELEMENT_PRICE
    price *= rule.work * prod(loop.size / mesh.group_size(axes) for loop, axes in zip(rule.loops, option, strict=True))
    return price + exchanged_bytes(rule, option, mesh) if rule.exchanges else price


def reshard_cost(shape: tuple[int, ...], dtype: str, mesh: Mesh, source: Sharding, target: Sharding) -> float:
    """Bytes on the wire per device; 0 for equal shardings without asking the planner."""
    return 0.0 if source == target else resharding.cost(shape, dtype, mesh, source, target)


def reducing_cost(shape: tuple[int, ...], dtype: str, mesh: Mesh, computed: Sharding, target: Sharding, share: float) -> float:
    """`reshard_cost` of a result; that of a partial one counts only for the `share` of the runs after which it is reduced."""
    cost = reshard_cost(shape, dtype, mesh, computed, target)
    return share * cost if computed.partial_axes else cost


@dataclass(frozen=True)
class NodeCost:
    """What an op costs under its cheapest option, in bytes: computing and reducing its results. Bringing its operands to what it
    `needs` is counted apart, since several ops may share it."""

    own: float
    needs: tuple[Sharding | None, ...]


@lru_cache(maxsize=1 << 17)
def cheapest(
    rule: ShardingRule,
    types: tuple[TensorType | None, ...],
    splits: tuple[Split, ...],
    wanted: Sharding | None,
    kept: tuple[Axes, ...],
    fixed: Option | None,
    mesh: Mesh,
    reduce_share: float = 1.0,
) -> NodeCost:
    """The cost of an op whose operands and results are split as `splits`, under the option that is cheapest with its operands'
    reshardings.

    `wanted` is the user's partial annotation of the result; `kept` says along which axes operands are taken as partial sums;
    `fixed` an option that the user chose; `reduce_share` the part
    of the op's runs after which a partial result is reduced.
    """
    partial = wanted.partial_axes if wanted and not kept else ()
    passed = max(kept, default=())
    taken = kept or ((),) * len(rule.operands)
    count = len(rule.operands)
    best: tuple[float, NodeCost] | None = None
    for option in [fixed] if fixed is not None else options(rule, list(splits), mesh, partial, passed):
        own = compute_price(rule, option, mesh)
        for index, (kind, split) in enumerate(zip(types[count:], splits[count:], strict=True)):
            if kind is not None:
                target = with_split(wanted, split) if wanted else split_sharding(mesh.name, split)
                computed = with_partial(result_sharding(rule, option, index, mesh), passed)
                own += reducing_cost(*kind, mesh, computed, target, reduce_share)
        total, needs = own, []
        for kind, split, dims, summed in zip(types, splits, rule.operands, taken, strict=False):
            need = needed_sharding(dims, option, mesh.name, summed) if kind is not None else None
            needs.append(need)
            if kind is not None and need is not None:
                total += reshard_cost(*kind, mesh, with_partial(split_sharding(mesh.name, split), summed), need)
        if best is None or total < best[0]:
            best = (total, NodeCost(own, tuple(needs)))
    assert best is not None, "the unsplit option is always legal"
    return best[1]


def propagation_cost(
    rule: ShardingRule,
    option: Option,
    operands: list[Tensor],
    results: list[Tensor],
    banned: list[frozenset[int]],
    mesh: Mesh,
    reduce_share: float,
) -> float:
    """Cost of `option` while shardings are still being propagated: what may still be extended to fit is free. That an operand is
    passed on as a partial sum changes nothing between options."""
    total = compute_price(rule, option, mesh)
    for (shape, dtype, split, may_extend), dims, ban in zip(operands, rule.operands, banned, strict=False):
        needed = tensor_split(dims, option)
        total += reshard_cost(
            shape,
            dtype,
            mesh,
            split_sharding(mesh.name, extend(split, needed, may_extend, ban)),
            split_sharding(mesh.name, needed),
        )
    for index, (shape, dtype, split, may_extend) in enumerate(results):
        computed = result_sharding(rule, option, index, mesh)
        final = extend(split, computed.split_axes, may_extend, banned[len(operands) + index])
        total += reducing_cost(shape, dtype, mesh, computed, split_sharding(mesh.name, final), reduce_share)
    return total
