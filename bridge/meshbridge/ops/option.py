"""Sharding options: the mesh axes that split each loop of an op, and the shardings that they imply for its tensors.

These are the RFC's `getShardingOption` and `setShardingAnnotations`: `needed_sharding` and `result_sharding` go from an option to
shardings, `suggested_axes` from shardings to the options worth considering.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split
from meshbridge.ops.rule import Dims, ShardingRule

Option = tuple[Axes, ...]
"""Per loop, the mesh axes that split it."""

Candidates = tuple[tuple[Axes, ...], ...]
"""Per loop, the axis lists to choose from."""


def tensor_split(dims: Dims, option: Option) -> Split:
    """The sharding of a tensor of the loops `dims` under `option`; a merged dimension is split by its major loops first."""
    return tuple(
        [option[loops[0]] if len(loops) == 1 else tuple([axis for loop in loops for axis in option[loop]]) for loops in dims]
    )


def sharding_of(mesh: str, split: Split, partial: Axes = (), kind: str = "sum") -> Sharding:
    """The sharding of these axes. Equal shardings are one object, which dictionaries compare by identity."""
    return _sharding_of(mesh, split, partial, kind)


@lru_cache(maxsize=1 << 16)
def _sharding_of(mesh: str, split: Split, partial: Axes, kind: str) -> Sharding:
    return Sharding(mesh, split, partial, kind)


def needed_sharding(dims: Dims, option: Option, mesh: str, partial: Axes = ()) -> Sharding:
    """The sharding that an operand of the loops `dims` needs under `option`; a linear op may take a partial sum."""
    return sharding_of(mesh, tensor_split(dims, option), partial)


@lru_cache(maxsize=1 << 16)
def with_split(sharding: Sharding, split: Split) -> Sharding:
    """A sharding with other splits. Equal shardings are one object."""
    if sharding.is_plain:
        return sharding_of(sharding.mesh, split, sharding.partial_axes, sharding.partial_kind)
    return replace(sharding, split_axes=split)


def with_partial(sharding: Sharding, passed: Axes) -> Sharding:
    """`sharding`, with the axes `passed` added to the partial ones."""
    if not passed:
        return sharding
    partial = tuple(sorted({*sharding.partial_axes, *passed}))
    return sharding_of(sharding.mesh, sharding.split_axes, partial, sharding.partial_kind)


def axes_by_loop(loops: tuple[int, ...], axes: Axes, rule: ShardingRule, mesh: Mesh) -> dict[int, Axes]:
    """Distributes the axes of one dimension over the loops along it.

    A loop can be split only if every more major loop is split down to size 1; axes that do not divide one of several loops are
    left out. A single loop takes all axes, and its last shards are padded.
    """
    if len(loops) == 1:
        return {loops[0]: axes}
    by_loop: dict[int, Axes] = {}
    remaining = list(axes)
    for loop in loops:
        extent = rule.loops[loop].size
        while remaining and extent % mesh.shape[remaining[0]] == 0:
            extent //= mesh.shape[remaining[0]]
            by_loop[loop] = (*by_loop.get(loop, ()), remaining.pop(0))
        if extent != 1:
            break
    return by_loop


@lru_cache(maxsize=1 << 16)
def is_legal(rule: ShardingRule, option: Option, mesh: Mesh) -> bool:
    """True if all axes exist, no axis splits two loops, no loop in `replicated` is split, merged dimensions are split evenly and
    major loop first, and partial results have one reduction kind."""
    used = [axis for axes in option for axis in axes]
    if (
        len(set(used)) != len(used)
        or any(option[loop] for loop in rule.replicated)
        or not all(0 <= axis < mesh.rank for axis in used)
    ):
        return False
    if rule.reduces and len({loop.reduction for loop, axes in zip(rule.loops, option, strict=True) if axes} - {""}) > 1:
        return False
    if any(option[loop] and rule.loops[loop].size % mesh.group_size(option[loop]) for loop in rule.merged_loops):
        return False
    return all(
        _major_first(loops, rule, option, mesh) for dims in (*rule.operands, *rule.results) for loops in dims if len(loops) > 1
    )


def _major_first(loops: tuple[int, ...], rule: ShardingRule, option: Option, mesh: Mesh) -> bool:
    return all(
        not option[minor] or mesh.group_size(option[major]) == rule.loops[major].size
        for position, major in enumerate(loops)
        for minor in loops[position + 1 :]
    )


def partial_axes(rule: ShardingRule, option: Option) -> tuple[Axes, str]:
    """The axes along which the op's results are partial under `option`, and the reduction kind."""
    partial: list[int] = []
    kind = "sum"
    if rule.reduces:
        for loop, axes in zip(rule.loops, option, strict=True):
            if axes and loop.reduction:
                partial += axes
                kind = loop.reduction
    return tuple(sorted(partial)), kind


def result_sharding(rule: ShardingRule, option: Option, index: int, mesh: Mesh) -> Sharding:
    """The sharding of result `index` under `option`: split by parallel loops, partial by split reductions."""
    return sharding_of(mesh.name, tensor_split(rule.results[index], option), *partial_axes(rule, option))


def computed_sharding(rule: ShardingRule, option: Option, index: int, mesh: Mesh, carried: Axes) -> Sharding:
    """The same for an op that passes operands that are partial over the axes `carried` on."""
    return with_partial(result_sharding(rule, option, index, mesh), carried)


def suggested_axes(rule: ShardingRule, dims: Dims, split: Split, mesh: Mesh) -> Iterator[tuple[int, Axes]]:
    """Loops with the axis lists, and their prefixes, that the split of a tensor of the loops `dims` suggests."""
    for loops, axes in zip(dims, split, strict=True):
        if axes and loops:
            larger = tuple(axis for axis in axes if mesh.shape[axis] > 1)  # splitting along one device is no split
            for loop, loop_axes in axes_by_loop(loops, larger, rule, mesh).items():
                for length in range(len(loop_axes), 0, -1):
                    yield loop, loop_axes[:length]


def movable_axes(rule: ShardingRule, dims: Dims, split: Split, mesh: Mesh) -> Iterator[tuple[int, Axes]]:
    """Loops with an axis list that includes axes of dimensions that must be replicated: one all-to-all reshards to that, while
    replicating takes an all-gather."""
    stranded = [axis for loops, axes in zip(dims, split, strict=True) if axes and not loops for axis in axes]
    larger = tuple(axis for axis in stranded if mesh.shape[axis] > 1)
    if larger:
        for loops, axes in zip(dims, split, strict=True):
            extended = (*axes, *larger)
            if (
                len(loops) == 1
                and not rule.loops[loops[0]].reduction
                and rule.loops[loops[0]].size % mesh.group_size(extended) == 0
            ):
                yield loops[0], extended


def loop_candidates(rule: ShardingRule, suggestions: Iterable[tuple[int, Axes]]) -> Candidates:
    """Per loop, the distinct suggested axis lists, always with () last."""
    candidates: list[dict[Axes, None]] = [{} for _ in rule.loops]
    for loop, axes in suggestions:
        candidates[loop][axes] = None
    return tuple([(*axes, ()) for axes in candidates])
