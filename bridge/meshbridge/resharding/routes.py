"""Plans of several legs: stops at other shardings, if one leg has no plan, or launches cost more than the bytes they save."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from meshbridge.ir.elements import WITHOUT_NEUTRAL
from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import Axes, Mesh, Sharding, is_even
from meshbridge.resharding.alignment import align
from meshbridge.resharding.steps import Shape

Route = tuple[Sharding, ...]


def reduced_axes(source: Sharding, target: Sharding) -> tuple[Axes, Axes]:
    """The axes to reduce over, and those over which the result becomes partial. Raises MeshError for the kind `generic`."""
    if not (source.partial_axes or target.partial_axes):
        return (), ()
    if any(sharding.partial_axes and sharding.partial_kind == "generic" for sharding in (source, target)):
        raise MeshError("a partial value of kind generic cannot be resharded: nothing says how to reduce it")
    still_partial = set(source.partial_axes) & set(target.partial_axes) if source.partial_kind == target.partial_kind else set()
    reduced = tuple(axis for axis in source.partial_axes if axis not in still_partial)
    return reduced, tuple(axis for axis in target.partial_axes if axis not in still_partial)


def split_to_partial(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Sharding | None:
    """The sharding that the source becomes without communication on its way to a target that is partial along axes that split the
    source: each device holds its shard among neutral elements. None if the target is not partial along such axes, the reduction
    has no neutral element, or blocks would be uneven."""
    if target.partial_kind in WITHOUT_NEUTRAL:
        return None
    _, new_partial = reduced_axes(source, target)
    is_alike = not source.partial_axes or source.partial_kind == target.partial_kind
    is_plain = source.is_plain and target.is_plain
    if not new_partial or not is_alike or not is_plain or not is_even(shape, mesh, source.split_axes):
        return None
    split = tuple(axes[: len(axes) - _ending(axes, new_partial)] for axes in source.split_axes)
    if split == source.split_axes:
        return None
    summed = {axis for axes, remaining in zip(source.split_axes, split, strict=True) for axis in axes[len(remaining) :]}
    partial_axes = tuple(sorted({*source.partial_axes, *summed}))
    return replace(source, split_axes=split, partial_axes=partial_axes, partial_kind=target.partial_kind)


def _ending(axes: Axes, ending: Axes) -> int:
    """The number of innermost `axes` that are in `ending`."""
    return next((count for count, axis in enumerate(reversed(axes)) if axis not in ending), len(axes))


def routes(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Iterator[Route]:
    """Every route that may be the cheapest. First legs remove a halo or reduce a partial value; last legs add a halo."""
    starts: list[Route] = [()]
    if source.halo_sizes:
        starts.append((replace(source, halo_sizes=()),))
    ends: list[Route] = [(target,)]
    if target.halo_sizes:
        ends.append(_growing_halo(target))
    for start in starts:
        for end in ends:
            core_source, core_target = (start or (source,))[-1], end[0]
            for between in _between(shape, mesh, core_source, core_target):
                yield (*start, *between, *end)


def _growing_halo(target: Sharding) -> Route:
    """From no halo to all halos, one dimension after the other: the corners travel with the sides."""
    sizes = target.halo_sizes
    zeros = [0] * len(sizes)
    route = [replace(target, halo_sizes=())]
    for i in range(0, len(sizes), 2):
        if any(sizes[i : i + 2]):
            zeros[i : i + 2] = sizes[i : i + 2]
            route.append(replace(target, halo_sizes=tuple(zeros)))
    return tuple(route)


def _between(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Iterator[Route]:
    """No stop, the value reduced first, or the dimensions that differ replicated."""
    yield ()
    reduced, _ = reduced_axes(source, target)
    if reduced:
        yield from ((between,) for between in reductions(shape, mesh, source, target, reduced))
    elif source.is_plain and target.is_plain:
        yield from ((between,) for between in replications(source, target))


def replications(source: Sharding, target: Sharding) -> Iterator[Sharding]:
    """Replicates the dimensions that differ."""
    split = tuple(a if a == b else () for a, b in zip(source.split_axes, target.split_axes, strict=True))
    if split not in (source.split_axes, target.split_axes):
        yield Sharding(source.mesh, split, source.partial_axes, source.partial_kind)


def reductions(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, reduced: Axes) -> Iterator[Sharding]:
    """Reduces the value in place, or scatters it along one dimension. First, copies of an unaligned value may split it."""
    partial_axes = tuple([axis for axis in source.partial_axes if axis not in reduced])
    reduced_in_place = replace(source, partial_axes=partial_axes)
    yield reduced_in_place
    if source.halo_sizes or source.offsets:
        return
    copies = source.copied_axes(mesh)
    dims = range(len(shape))
    choices: list[tuple[int, int | None]] = [(dim, None) for dim in dims]
    if copies and align(shape, mesh, source.split_axes, target.split_axes) is None:
        choices += itertools.product(dims, dims)
    for scattered, sliced in choices:
        split = list(source.split_axes)
        if sliced is not None:
            split[sliced] += copies
        split[scattered] += reduced
        if all(shape[dim] % mesh.group_sizes[split[dim]] == 0 for dim in (scattered, sliced) if dim is not None):
            yield Sharding(reduced_in_place.mesh, tuple(split), partial_axes, reduced_in_place.partial_kind)
