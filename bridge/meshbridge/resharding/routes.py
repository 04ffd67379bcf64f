"""Plans of several legs: shardings in between where one leg has no plan, or costs more launches than a small tensor is worth."""

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
    if any(each.partial_axes and each.partial_kind == "generic" for each in (source, target)):
        raise MeshError("a partial value of kind generic cannot be resharded: nothing says how to reduce it")
    kept = set(source.partial_axes) & set(target.partial_axes) if source.partial_kind == target.partial_kind else set()
    reduced = tuple(axis for axis in source.partial_axes if axis not in kept)
    return reduced, tuple(axis for axis in target.partial_axes if axis not in kept)


def placed(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Sharding | None:
    """What the source becomes without communication on its way to a target that is partial along axes that split the source:
    each device holds its shard among neutral elements. None where there is nothing of the kind, the reduction has no neutral
    element, or blocks would not be whole."""
    if target.partial_kind in WITHOUT_NEUTRAL:
        return None
    _, made = reduced_axes(source, target)
    is_alike = not source.partial_axes or source.partial_kind == target.partial_kind
    if not made or not is_alike or not (source.is_plain and target.is_plain) or not is_even(shape, mesh, source.split_axes):
        return None
    split = tuple(axes[: len(axes) - _ending(axes, made)] for axes in source.split_axes)
    if split == source.split_axes:
        return None
    summed = {axis for axes, kept in zip(source.split_axes, split, strict=True) for axis in axes[len(kept) :]}
    return replace(
        source, split_axes=split, partial_axes=tuple(sorted({*source.partial_axes, *summed})), partial_kind=target.partial_kind
    )


def _ending(axes: Axes, made: Axes) -> int:
    """How many of `axes`, from the innermost on, are in `made`."""
    return next((count for count, axis in enumerate(reversed(axes)) if axis not in made), len(axes))


def routes(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Iterator[Route]:
    """Every route that may be the cheapest; the first legs take a halo or a partial value away, the last ones bring a halo."""
    starts: list[Route] = [()]
    if source.halo_sizes:
        starts.append((replace(source, halo_sizes=()),))
    ends: list[Route] = [(target,)]
    if target.halo_sizes:
        ends.append(_growing_halo(target))
    for start in starts:
        for end in ends:
            first, last = (start or (source,))[-1], end[0]
            for between in _between(shape, mesh, first, last):
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
    """Nothing, the value reduced first, or the dimensions that differ replicated."""
    yield ()
    reduced, _ = reduced_axes(source, target)
    if reduced:
        yield from ((between,) for between in reductions(shape, mesh, source, target, reduced))
    elif source.is_plain and target.is_plain:
        yield from ((between,) for between in replications(source, target))


def replications(source: Sharding, target: Sharding) -> Iterator[Sharding]:
    """The dimensions that differ replicated."""
    split = tuple(a if a == b else () for a, b in zip(source.split_axes, target.split_axes, strict=True))
    if split not in (source.split_axes, target.split_axes):
        yield Sharding(source.mesh, split, source.partial_axes, source.partial_kind)


def reductions(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, reduced: Axes) -> Iterator[Sharding]:
    """The value reduced where it is, or scattered along one dimension; before, the copies of an unaligned one may divide it."""
    kept = tuple([axis for axis in source.partial_axes if axis not in reduced])
    whole = replace(source, partial_axes=kept)
    yield whole
    if source.halo_sizes or source.offsets:
        return
    copies = source.copied_axes(mesh)
    dims = range(len(shape))
    places: list[tuple[int, int | None]] = [(dim, None) for dim in dims]
    if copies and align(shape, mesh, source.split_axes, target.split_axes) is None:
        places += itertools.product(dims, dims)
    for scattered, divided in places:
        split = list(source.split_axes)
        if divided is not None:
            split[divided] += copies
        split[scattered] += reduced
        if all(shape[dim] % mesh.group_sizes[split[dim]] == 0 for dim in (scattered, divided) if dim is not None):
            yield Sharding(whole.mesh, tuple(split), kept, whole.partial_kind)
