"""Chooses a plan: every way known for a pair of shardings, and the cheapest of them.

A *route* is a list of shardings to pass through, mostly just the target; a *leg* between two of them is planned in one piece, by
digits where the shards are aligned and by tiles where they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from meshbridge.mlir import MeshError
from meshbridge.resharding.aligned import Recipe, aligned_steps
from meshbridge.resharding.boxes import buffer_shape, layout
from meshbridge.resharding.check import check
from meshbridge.resharding.digits import align
from meshbridge.resharding.plan import DEFAULTS, Options, Plan
from meshbridge.resharding.routes import reduced_axes, routes
from meshbridge.resharding.steps import Crop, Mask, Pad, Permute, Rounds, Shape, Step, axis_digits
from meshbridge.resharding.tiles import TileExchange, tile_exchange
from meshbridge.sharding import DYNAMIC, Axes, Mesh, Sharding, is_even, local_shape


@lru_cache(maxsize=65536)
def plan(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: Options = DEFAULTS) -> Plan:
    """The cheapest plan under `options` from `source` to `target` for a tensor of `shape` and MLIR element type `dtype`.

    Raises MeshError for shardings that contradict themselves or the shape, and for sizes that are only known at run time.
    """
    if options.check:
        checked = plan(shape, dtype, mesh, source, target, replace(options, check=False))
        check(checked)
        return checked
    _validate(shape, mesh, source)
    _validate(shape, mesh, target)
    source, target = _normal(shape, mesh, source), _normal(shape, mesh, target)
    found: list[Plan] = []
    for route in routes(shape, mesh, source, target):
        steps = _along(shape, dtype, mesh, source, route, options)
        if steps is not None:
            found.append(Plan(shape, dtype, mesh, source, target, buffer_shape(shape, mesh, source), steps))
            if len(route) == 1 and _is_unbeatable(found[-1], options):
                break
    return _cheapest(found, options)


def _is_unbeatable(direct: Plan, options: Options) -> bool:
    """Whether no detour can save a byte or a collective."""
    plain = not (direct.source.partial_axes or direct.source.halo_sizes or direct.target.halo_sizes)
    return plain and (options.exact or direct.collectives <= 1)


@lru_cache(maxsize=1 << 20)
def cost(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding) -> float:
    """Wire bytes per device of the default plan; a dictionary look-up after the first time.

    The plan is not checked before somebody asks for it: most of what is priced is never built.
    """
    return plan(shape, dtype, mesh, source, target, _UNCHECKED).wire_bytes


_UNCHECKED = replace(DEFAULTS, check=False)


def _validate(shape: Shape, mesh: Mesh, sharding: Sharding) -> None:
    """Raises MeshError where `sharding` cannot be the sharding of a tensor of `shape` on `mesh`."""
    if DYNAMIC in shape or DYNAMIC in mesh.shape or min(mesh.shape, default=1) < 1:
        raise MeshError(f"resharding needs static sizes, found shape {list(shape)} on mesh {list(mesh.shape)}")
    if len(sharding.split_axes) > len(shape):
        raise MeshError(f"{len(sharding.split_axes)} split dimensions for a tensor of rank {len(shape)}")
    used = (*sharding.used_axes, *sharding.partial_axes)
    if len(set(used)) < len(used) or any(not 0 <= axis < mesh.rank for axis in used):
        raise MeshError(f"expected each axis of the {mesh.rank}-axis mesh '{mesh.name}' at most once, found {list(used)}")


def _normal(shape: Shape, mesh: Mesh, sharding: Sharding) -> Sharding:
    """The same sharding without axes of one device, halos of nothing, and offsets that say what the ceiling division says."""
    sharding = sharding.padded(len(shape))
    if min(mesh.shape, default=2) > 1 and not (sharding.halo_sizes or sharding.offsets):
        return sharding
    partial = tuple(axis for axis in sharding.partial_axes if mesh.shape[axis] > 1)
    sharding = replace(sharding, partial_axes=partial) if partial else sharding.without_partial()
    plain = replace(sharding, halo_sizes=(), offsets=())
    if sharding != plain and layout(shape, mesh, sharding) != layout(shape, mesh, plain):
        return sharding
    return replace(plain, split_axes=tuple(tuple(axis for axis in axes if mesh.shape[axis] > 1) for axes in plain.split_axes))


def _along(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, route: Sequence[Sharding], options: Options
) -> tuple[Step, ...] | None:
    """The steps of all legs of a route; None if a leg has no plan."""
    steps: list[Step] = []
    for target in route:
        leg = _leg(shape, dtype, mesh, source, target, options)
        if leg is None:
            return None
        steps += leg.steps
        source = target
    return tuple(steps)


@lru_cache(maxsize=65536)
def _leg(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: Options) -> Plan | None:
    """The cheapest plan from `source` to `target` without stopping between."""
    start = buffer_shape(shape, mesh, source)
    ways = list(_ways(shape, mesh, source, target))
    if not options.exact:
        ways = [steps for steps in ways if _longest_exchange(steps) <= options.rounds] or ways
    found = [Plan(shape, dtype, mesh, source, target, start, steps) for steps in ways]
    return _cheapest(found, options) if found else None


def _cheapest(plans: Sequence[Plan], options: Options) -> Plan:
    """The best plan; of equals the one that holds less, and rather one without tiles, whose tables nobody can read."""
    if options.exact:
        return min(plans, key=lambda one: (one.wire_bytes, one.total_bytes, one.collectives, *_burden(one)))
    lean = [one for one in plans if one.peak_bytes <= one.peak_bound + options.scratch] or plans
    return min(lean, key=lambda one: (one.seconds(options), *_burden(one)))


def _longest_exchange(steps: Sequence[Step]) -> int:
    return max((step.collectives for step in steps if isinstance(step, Rounds)), default=0)


def _burden(one: Plan) -> tuple[int, float, int]:
    return sum(isinstance(step, TileExchange) for step in one.steps), one.peak_bytes, len(one.steps)


def _ways(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Iterator[tuple[Step, ...]]:
    """Every way from `source` to `target` in one leg."""
    reduced, masked = reduced_axes(source, target)
    if 0 in shape:  # nothing to move or to reduce: a new buffer
        yield (tile_exchange(shape, mesh, source, target),)
        return
    mask = (Mask(buffer_shape(shape, mesh, target), axis_digits(mesh, masked), target.partial_kind),) if masked else ()
    same = layout(shape, mesh, source) == layout(shape, mesh, target)
    if same and not reduced:
        yield mask
        return
    if source.halo_sizes and replace(source, halo_sizes=()) == target:
        yield (Crop(buffer_shape(shape, mesh, target), _halo_starts(source)),)
        return
    found = False
    if not (source.halo_sizes or source.offsets or target.halo_sizes or target.offsets):
        for steps in _aligned(shape, mesh, source, target, reduced):
            yield (*steps, *mask)
            found = True
        if not found and not reduced and (steps := _relabelled(shape, mesh, source, target)):
            yield (*steps, *mask)
    even = is_even(shape, mesh, source.split_axes) and is_even(shape, mesh, target.split_axes)
    if not reduced and not (found and even):
        yield (tile_exchange(shape, mesh, source, target), *mask)
        layouts = zip(layout(shape, mesh, source), layout(shape, mesh, target), strict=True)
        if any(a == b and not a.is_uniform for a, b in layouts):
            yield (tile_exchange(shape, mesh, source, target, tight=True), *mask)


def _halo_starts(source: Sharding) -> Shape:
    """Where the owned part of a shard with halos begins."""
    lows = iter(source.halo_sizes[::2])
    return tuple(next(lows) if axes else 0 for axes in source.split_axes)


def _aligned(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, reduced: Axes) -> Iterator[tuple[Step, ...]]:
    """Plans by digits, the pad of an uneven whole source before them, the crop of an uneven whole target behind them."""
    whole = _padded_shape(shape, mesh, source, target)
    alignment = align(whole, mesh, source.split_axes, target.split_axes) if whole is not None else None
    if whole is None or alignment is None:
        return
    zeros = (0,) * len(shape)
    start, padded = (local_shape(size, mesh, source.split_axes) for size in (shape, whole))
    before = (Pad(padded, zeros),) if padded != start else ()
    end, padded = (local_shape(size, mesh, target.split_axes) for size in (shape, whole))
    after = (Crop(end, zeros),) if padded != end else ()
    used = (*source.used_axes, *source.partial_axes)
    unused = alignment.of(tuple(axis for axis in range(mesh.rank) if axis not in used))
    for spread in (False, True) if reduced else (False,):
        for fused in (True, False):
            recipe = Recipe(fused, spread)
            steps = aligned_steps(alignment, alignment.of(reduced), unused, source.partial_kind, recipe)
            yield (*before, *steps, *after)
            if not any(isinstance(step, Rounds) for step in steps):
                break  # nothing was fused


def _relabelled(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> tuple[Step, ...]:
    """One permute, if both sides cut every dimension into as many blocks: the blocks change places whole."""
    splits = (source.split_axes, target.split_axes)
    if any(mesh.group_size(before) != mesh.group_size(after) for before, after in zip(*splits, strict=True)):
        return ()
    free = [axis for axis in range(mesh.rank) if axis not in source.partial_axes]
    used = (source.used_axes, target.used_axes)
    sources, targets = ((*axes, *(axis for axis in free if axis not in axes)) for axes in used)
    local = local_shape(shape, mesh, source.split_axes)
    return (Permute(local, axis_digits(mesh, sources), axis_digits(mesh, targets)),)


def _padded_shape(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Shape | None:
    """The shape with every dimension padded so that both shardings cut it evenly where they cut it; None if they pad unlike."""
    padded = []
    for size, before, after in zip(shape, source.split_axes, target.split_axes, strict=True):
        sizes = {-(-size // n) * n for n in (mesh.group_size(before), mesh.group_size(after)) if n > 1}
        if len(sizes) > 1:
            return None
        padded.append(sizes.pop() if sizes else size)
    return tuple(padded)
