"""The plans of one leg: from one sharding to another without a sharding in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm, prod

from meshbridge.ir.digits import Digits, axis_digits
from meshbridge.ir.sharding import Axes, Mesh, Sharding, Split, is_even, local_shape
from meshbridge.resharding.aligned import Recipe, aligned_steps
from meshbridge.resharding.alignment import align
from meshbridge.resharding.boxes import buffer_shape, layout, same_boxes
from meshbridge.resharding.exchange import split_large_tiles, tile_exchange
from meshbridge.resharding.routes import reduced_axes
from meshbridge.resharding.steps import (
    AllGather,
    AllReduce,
    Crop,
    Mask,
    Pad,
    Permute,
    Place,
    Reblock,
    Relay,
    Rounds,
    Shape,
    Step,
    Transpose,
)

Steps = tuple[Step, ...]


def plans_between(
    shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, listed: bool, slowest: Axes = ()
) -> Iterator[Steps]:
    """The steps of every plan from `source` to `target` in one leg. If nothing is reduced and permutes may list devices
    (`listed`), at least one is at the lower bound. Gathers along the `slowest` axes come first."""
    reduced, _ = reduced_axes(source, target)
    if 0 in shape:  # nothing to send or to reduce: a new buffer
        yield (tile_exchange(shape, mesh, source, target),)
        return
    mask = mask_steps(shape, mesh, source, target)
    if same_boxes(shape, mesh, source, target) and not reduced:
        yield mask
        return
    plain = replace(source, halo_sizes=())
    if source.halo_sizes and plain.partial_axes == target.partial_axes and same_boxes(shape, mesh, plain, target):
        yield (Crop(buffer_shape(shape, mesh, target), _halo_starts(source)),)
        return
    if same_boxes(shape, mesh, source, target) and (source.halo_sizes or source.offsets):
        start = buffer_shape(shape, mesh, source)
        yield (AllReduce(start, axis_digits(mesh, reduced), source.partial_kind), *mask)
        return
    any_aligned = False
    if not (source.halo_sizes or source.offsets or target.halo_sizes or target.offsets):
        for steps in _aligned(shape, mesh, source, target, reduced, listed, slowest):
            yield (*steps, *mask)
            any_aligned = True
        if not any_aligned and not reduced and (digits := relabelling(mesh, source, target)):
            yield (relabel(shape, mesh, source, digits, listed), *mask)
    even = is_even(shape, mesh, source.split_axes) and is_even(shape, mesh, target.split_axes)
    if not reduced and not (any_aligned and even):
        for steps in (*plans_by_tiles(shape, mesh, source, target), *_tight_plans(shape, mesh, source, target)):
            yield (*steps, *mask)


def mask_steps(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Steps:
    """The step that makes the value partial along the axes that only `target` names."""
    _, masked = reduced_axes(source, target)
    return (Mask(buffer_shape(shape, mesh, target), axis_digits(mesh, masked), target.partial_kind),) if masked else ()


def split_to_partial_steps(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Steps:
    """The steps that make the value partial along axes that split the source and not the target (`split_to_partial`)."""
    steps: list[Step] = []
    buffer = list(buffer_shape(shape, mesh, source))
    for dim, (before, after) in enumerate(zip(source.split_axes, target.split_axes, strict=True)):
        if axes := before[len(after) :]:
            buffer[dim] *= mesh.group_size(axes)
            steps.append(Place(tuple(buffer), axis_digits(mesh, axes), dim, target.partial_kind))
    return tuple(steps)


def plans_by_tiles(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, tight: bool = False) -> Iterator[Steps]:
    """Exchanges of tiles, partial axes aside: one at the lower bound but for padding that stays, and one that holds less
    memory."""
    exchange = tile_exchange(shape, mesh, source, target, tight)
    yield (exchange,)
    with_split_tiles = split_large_tiles(exchange, prod(buffer_shape(shape, mesh, source)))
    if with_split_tiles.collectives > exchange.collectives:
        yield (with_split_tiles,)


def _tight_plans(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Iterator[Steps]:
    """Exchanges of tiles without padding, if a dimension that both sides shard alike has some."""
    layouts = zip(layout(shape, mesh, source), layout(shape, mesh, target), strict=True)
    if any(a == b and not a.is_uniform for a, b in layouts):
        yield from plans_by_tiles(shape, mesh, source, target, tight=True)


def _halo_starts(source: Sharding) -> Shape:
    """Where the owned part of a shard with halos begins."""
    lows = iter(source.halo_sizes[::2])
    return tuple(next(lows) if axes else 0 for axes in source.split_axes)


def _aligned(
    shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, reduced: Axes, listed: bool, slowest: Axes
) -> Iterator[Steps]:
    """Plans by digits. A pad of an uneven replicated source comes first, a crop of an uneven replicated target last."""
    padded = padded_shape(shape, mesh, source.split_axes, target.split_axes)
    alignment = align(padded, mesh, source.split_axes, target.split_axes)
    if alignment is None:
        return
    unused = alignment.of(source.copied_axes(mesh))
    for spread in (False, True) if reduced else (False,):
        for fused in (True, False) if listed else (False,):
            recipe = Recipe(fused, relayed=not listed, spread=spread, slowest=slowest)
            pair = (alignment, alignment.of(reduced), unused, source.partial_kind)
            steps = aligned_steps(*pair, recipe)
            yield in_padding(shape, padded, mesh, source, target, steps, listed)
            if _transposes_a_gathered_buffer(steps):
                steps = aligned_steps(*pair, replace(recipe, apart=True))
                yield in_padding(shape, padded, mesh, source, target, steps, listed)
            if not any(isinstance(step, Rounds) for step in steps):
                break  # nothing was fused


def in_padding(
    shape: Shape, whole: Shape, mesh: Mesh, source: Sharding, target: Sharding, steps: Sequence[Step], listed: bool
) -> Steps:
    """Turns `steps` between shards of the tensor padded to `whole` into steps between shards of `shape`.

    A split dimension has its padding in its blocks, or its blocks get another length first and last. A dimension that the source
    replicates is padded; one that the target replicates is cropped.
    """
    zeros = (0,) * len(shape)
    before, after = reblocks(shape, whole, mesh, source.split_axes, target.split_axes, listed)
    start, padded = (local_shape(size, mesh, source.split_axes) for size in (shape, whole))
    if before:
        start = before[-1].shape
    pad = (Pad(padded, zeros),) if padded != start else ()
    end = tuple(
        a if axes else b for a, b, axes in zip(local_shape(whole, mesh, target.split_axes), shape, target.split_axes, strict=True)
    )
    crop = (Crop(end, zeros),) if end != local_shape(whole, mesh, target.split_axes) else ()
    return (*before, *pad, *steps, *crop, *after)


def reblocks(
    shape: Shape, whole: Shape, mesh: Mesh, source: Split, target: Split, listed: bool
) -> tuple[tuple[Reblock, ...], tuple[Reblock, ...]]:
    """The steps from blocks of `shape` to blocks of the padded shape `whole`, and back."""
    if shape == whole:
        return (), ()
    return (
        _reblocks(shape, mesh, source, (shape, whole), listed),
        _reblocks(shape, mesh, target, (whole, shape), listed),
    )


def _reblocks(shape: Shape, mesh: Mesh, split: Split, between: tuple[Shape, Shape], listed: bool) -> tuple[Reblock, ...]:
    """Changes blocks of the first tensor size to blocks of the second, one dimension after the other."""
    sizes, (before, after) = mesh.group_sizes, between
    changed = [dim for dim, axes in enumerate(split) if axes and -(-before[dim] // sizes[axes]) != -(-after[dim] // sizes[axes])]
    if not changed:
        return ()
    source_block, target_block = (local_shape(size, mesh, split) for size in between)
    buffer = [size if axes else full for size, full, axes in zip(source_block, shape, split, strict=True)]
    steps = []
    for dim in changed:
        buffer[dim] = target_block[dim]
        steps.append(Reblock(tuple(buffer), axis_digits(mesh, split[dim]), dim, source_block[dim], listed))
    return tuple(steps)


def _transposes_a_gathered_buffer(steps: Sequence[Step]) -> bool:
    last_gather = max((i for i, step in enumerate(steps) if isinstance(step, AllGather)), default=len(steps))
    return any(isinstance(step, Transpose) for step in steps[last_gather:])


def relabel(shape: Shape, mesh: Mesh, source: Sharding, digits: tuple[Digits, Digits], listed: bool) -> Permute | Relay:
    """The step that moves each block of `source` along `digits`."""
    return (Permute if listed else Relay)(local_shape(shape, mesh, source.split_axes), *digits)


def relabelling(mesh: Mesh, source: Sharding, target: Sharding) -> tuple[Digits, Digits] | None:
    """The digits of one permute that brings every block to a device that needs it, if both sides have the same number of blocks
    in every dimension."""
    splits = (source.split_axes, target.split_axes)
    if any(mesh.group_size(before) != mesh.group_size(after) for before, after in zip(*splits, strict=True)):
        return None
    free = [axis for axis in range(mesh.rank) if axis not in source.partial_axes]
    used = (source.used_axes, target.used_axes)
    sources, targets = ((*axes, *(axis for axis in free if axis not in axes)) for axes in used)
    return axis_digits(mesh, sources), axis_digits(mesh, targets)


def padded_shape(shape: Shape, mesh: Mesh, source: Split, target: Split) -> Shape:
    """The shape with every dimension padded so that both splits divide it evenly."""
    padded = []
    for size, before, after in zip(shape, source, target, strict=True):
        count = lcm(mesh.group_sizes[before], mesh.group_sizes[after])
        padded.append(-(-size // count) * count)
    return tuple(padded)
