"""Sharding options: which mesh axes each loop of an op is split along, and what that means for its tensors.

The RFC's `getShardingOption` and `setShardingAnnotations` in arithmetic: `operand_split` and `result_sharding` go from an
option to shardings, `suggested_axes` from shardings to the options worth considering.
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
    """How a tensor of the loops `dims` is sharded under `option`; a merged dimension is split by its major loops first."""
    return tuple(
        [option[loops[0]] if len(loops) == 1 else tuple([axis for loop in loops for axis in option[loop]]) for loops in dims]
    )


def sharding_of(mesh: str, split: Split, partial: Axes = (), kind: str = "sum") -> Sharding:
    """The sharding of these axes; one object per value, so that dictionaries compare it by identity."""
    return _sharding_of(mesh, split, partial, kind)


@lru_cache(maxsize=1 << 16)
def _sharding_of(mesh: str, split: Split, partial: Axes, kind: str) -> Sharding:
    return Sharding(mesh, split, partial, kind)


def needed_sharding(dims: Dims, option: Option, mesh: str, partial: Axes = ()) -> Sharding:
    """The sharding that an operand of the loops `dims` needs under `option`; a linear op may take it as a partial sum."""
    return sharding_of(mesh, tensor_split(dims, option), partial)


@lru_cache(maxsize=1 << 16)
def with_split(sharding: Sharding, split: Split) -> Sharding:
    """A sharding with other splits; one object per value, too."""
    if sharding.is_plain:
        return sharding_of(sharding.mesh, split, sharding.partial_axes, sharding.partial_kind)
    return replace(sharding, split_axes=split)


def with_partial(sharding: Sharding, passed: Axes) -> Sharding:
    """What an op computes, or takes, as plain `sharding` of a value that is partial along the axes `passed` beside that."""
    if not passed:
        return sharding
    partial = tuple(sorted({*sharding.partial_axes, *passed}))
    return sharding_of(sharding.mesh, sharding.split_axes, partial, sharding.partial_kind)


def axes_by_loop(loops: tuple[int, ...], axes: Axes, rule: ShardingRule, mesh: Mesh) -> dict[int, Axes]:
    """Distributes the axes of one dimension over the loops along it.

    A minor loop can be split only once every loop major to it is split down to size 1; axes that do not fit evenly into one of
    several loops are left out. A dimension of one loop takes them all, the last shards padded.
    """
    if len(loops) == 1:
        return {loops[0]: axes}
    taken: dict[int, Axes] = {}
    remaining = list(axes)
    for loop in loops:
        left = rule.loops[loop].size
        while remaining and left % mesh.shape[remaining[0]] == 0:
            left //= mesh.shape[remaining[0]]
            taken[loop] = (*taken.get(loop, ()), remaining.pop(0))
        if left != 1:
            break
    return taken


@lru_cache(maxsize=1 << 16)
def is_legal(rule: ShardingRule, option: Option, mesh: Mesh) -> bool:
    """Whether there are the axes, none shards two loops or one that must not be, loops of merged dimensions are split evenly,
    major loop first, and what the shards compute is joined in one way."""
    used = [axis for axes in option for axis in axes]
    if len(set(used)) != len(used) or any(option[loop] for loop in rule.whole) or not all(0 <= axis < mesh.rank for axis in used):
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
    """The axes along which what the op computes is partial under `option`, and how its terms are joined."""
    partial: list[int] = []
    kind = "sum"
    if rule.reduces:
        for loop, axes in zip(rule.loops, option, strict=True):
            if axes and loop.reduction:
                partial += axes
                kind = loop.reduction
    return tuple(sorted(partial)), kind


def result_sharding(rule: ShardingRule, option: Option, index: int, mesh: Mesh) -> Sharding:
    """What the op computes for its result `index` under `option`: splits by parallel loops, partial by split reductions."""
    return sharding_of(mesh.name, tensor_split(rule.results[index], option), *partial_axes(rule, option))


def computed_sharding(rule: ShardingRule, option: Option, index: int, mesh: Mesh, carried: Axes) -> Sharding:
    """The same for an op that takes operands as partial sums over the axes `carried` and passes them on."""
    return with_partial(result_sharding(rule, option, index, mesh), carried)


def suggested_axes(rule: ShardingRule, dims: Dims, split: Split, mesh: Mesh) -> Iterator[tuple[int, Axes]]:
    """Loops, each with the axis lists that the split of one tensor of the loops `dims` suggests, and their prefixes."""
    for loops, axes in zip(dims, split, strict=True):
        if axes and loops:
            larger = tuple(axis for axis in axes if mesh.shape[axis] > 1)  # splitting along one device is no split
            for loop, taken in axes_by_loop(loops, larger, rule, mesh).items():
                for length in range(len(taken), 0, -1):
                    yield loop, taken[:length]


def movable_axes(rule: ShardingRule, dims: Dims, split: Split, mesh: Mesh) -> Iterator[tuple[int, Axes]]:
    """Loops, each with an axis list that it could take over from dimensions of one tensor that must be replicated: one all-to-all
    reshards along them, while giving them up takes an all-gather."""
    stranded = [axis for loops, axes in zip(dims, split, strict=True) if axes and not loops for axis in axes]
    larger = tuple(axis for axis in stranded if mesh.shape[axis] > 1)
    if larger:
        for loops, axes in zip(dims, split, strict=True):
            joined = (*axes, *larger)
            if (
                len(loops) == 1
                and not rule.loops[loops[0]].reduction
                and rule.loops[loops[0]].size % mesh.group_size(joined) == 0
            ):
                yield loops[0], joined


def loop_candidates(rule: ShardingRule, suggestions: Iterable[tuple[int, Axes]]) -> Candidates:
    """Per loop, the axis lists that are suggested for it, each once, always with () last."""
    found: list[dict[Axes, None]] = [{} for _ in rule.loops]
    for loop, axes in suggestions:
        found[loop][axes] = None
    return tuple([(*axes, ()) for axes in found])
