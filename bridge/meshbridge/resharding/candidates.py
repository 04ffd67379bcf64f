"""The plans of one leg, from one sharding to another without a sharding in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from meshbridge.ir.digits import axis_digits
from meshbridge.ir.sharding import Axes, Mesh, Sharding, is_even, local_shape
from meshbridge.resharding.aligned import Recipe, aligned_steps
from meshbridge.resharding.alignment import align
from meshbridge.resharding.boxes import buffer_shape, layout, lie_alike
from meshbridge.resharding.exchange import expected_tiles, lean, tile_exchange
from meshbridge.resharding.routes import reduced_axes
from meshbridge.resharding.steps import (
    AllGather,
    AllReduce,
    Crop,
    Mask,
    Pad,
    Permute,
    Rounds,
    Shape,
    Step,
    Transpose,
)

MANY_TILES = 512
"""Tiles beyond which an exchange is planned only if there is no other plan: planning takes 50 microseconds for each."""

Steps = tuple[Step, ...]


def plans_between(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, exact: bool) -> Iterator[Steps]:
    """The steps of every plan from `source` to `target` in one leg; with `exact` at least one at the lower bound, if nothing is
    reduced."""
    reduced, masked = reduced_axes(source, target)
    if 0 in shape:  # nothing to send or to reduce: a new buffer
        yield (tile_exchange(shape, mesh, source, target),)
        return
    mask = (Mask(buffer_shape(shape, mesh, target), axis_digits(mesh, masked), target.partial_kind),) if masked else ()
    if lie_alike(shape, mesh, source, target) and not reduced:
        yield mask
        return
    plain = replace(source, halo_sizes=())
    if source.halo_sizes and plain.partial_axes == target.partial_axes and lie_alike(shape, mesh, plain, target):
        yield (Crop(buffer_shape(shape, mesh, target), _halo_starts(source)),)
        return
    if lie_alike(shape, mesh, source, target) and (source.halo_sizes or source.offsets):
        start = buffer_shape(shape, mesh, source)
        yield (AllReduce(start, axis_digits(mesh, reduced), source.partial_kind), *mask)
        return
    found = False
    if not (source.halo_sizes or source.offsets or target.halo_sizes or target.offsets):
        for steps in _aligned(shape, mesh, source, target, reduced):
            yield (*steps, *mask)
            found = True
        if not found and not reduced and (steps := _relabelled(shape, mesh, source, target)):
            yield (*steps, *mask)
    even = is_even(shape, mesh, source.split_axes) and is_even(shape, mesh, target.split_axes)
    few = not found or exact or expected_tiles(mesh, source, target) <= MANY_TILES
    if not reduced and few and not (found and even):
        for steps in plans_by_tiles(shape, mesh, source, target):
            yield (*steps, *mask)


def plans_by_tiles(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Iterator[Steps]:
    """Exchanges of tiles, partial axes aside: always at the lower bound, and one of them lean."""
    layouts = zip(layout(shape, mesh, source), layout(shape, mesh, target), strict=True)
    ragged = any(a == b and not a.is_uniform for a, b in layouts)
    for tight in (False, True) if ragged else (False,):
        exchange = tile_exchange(shape, mesh, source, target, tight)
        yield (exchange,)
        in_pieces = lean(exchange, prod(buffer_shape(shape, mesh, source)))
        if in_pieces.collectives > exchange.collectives:
            yield (in_pieces,)


def _halo_starts(source: Sharding) -> Shape:
    """Where the owned part of a shard with halos begins."""
    lows = iter(source.halo_sizes[::2])
    return tuple(next(lows) if axes else 0 for axes in source.split_axes)


def _aligned(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, reduced: Axes) -> Iterator[Steps]:
    """Plans by digits, a pad of an uneven replicated source before them, a crop of an uneven replicated target behind."""
    whole = _padded_shape(shape, mesh, source, target)
    alignment = align(whole, mesh, source.split_axes, target.split_axes) if whole is not None else None
    if whole is None or alignment is None:
        return
    zeros = (0,) * len(shape)
    start, padded = (local_shape(size, mesh, source.split_axes) for size in (shape, whole))
    before = (Pad(padded, zeros),) if padded != start else ()
    end, padded = (local_shape(size, mesh, target.split_axes) for size in (shape, whole))
    after = (Crop(end, zeros),) if padded != end else ()
    unused = alignment.of(source.copied_axes(mesh))
    for spread in (False, True) if reduced else (False,):
        for fused in (True, False):
            recipe = Recipe(fused, spread=spread)
            given = (alignment, alignment.of(reduced), unused, source.partial_kind)
            steps = aligned_steps(*given, recipe)
            yield (*before, *steps, *after)
            if _transposes_a_gathered_buffer(steps):
                yield (*before, *aligned_steps(*given, replace(recipe, apart=True)), *after)
            if not any(isinstance(step, Rounds) for step in steps):
                break  # nothing was fused


def _transposes_a_gathered_buffer(steps: Sequence[Step]) -> bool:
    last = max((i for i, step in enumerate(steps) if isinstance(step, AllGather)), default=len(steps))
    return any(isinstance(step, Transpose) for step in steps[last:])


def _relabelled(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Steps:
    """One permute, if both sides have as many blocks in every dimension: each block goes to one device."""
    splits = (source.split_axes, target.split_axes)
    if any(mesh.group_size(before) != mesh.group_size(after) for before, after in zip(*splits, strict=True)):
        return ()
    free = [axis for axis in range(mesh.rank) if axis not in source.partial_axes]
    used = (source.used_axes, target.used_axes)
    sources, targets = ((*axes, *(axis for axis in free if axis not in axes)) for axes in used)
    local = local_shape(shape, mesh, source.split_axes)
    return (Permute(local, axis_digits(mesh, sources), axis_digits(mesh, targets)),)


def _padded_shape(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Shape | None:
    """The shape with every dimension padded so that both shardings divide it evenly; None if they pad it unlike."""
    padded = []
    for size, before, after in zip(shape, source.split_axes, target.split_axes, strict=True):
        sizes = {-(-size // n) * n for n in (mesh.group_size(before), mesh.group_size(after)) if n > 1}
        if len(sizes) > 1:
            return None
        padded.append(sizes.pop() if sizes else size)
    return tuple(padded)
