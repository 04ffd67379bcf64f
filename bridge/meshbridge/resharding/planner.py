"""Chooses a plan: every way known for a pair of shardings, checked, and the cheapest of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod

from meshbridge.mlir import MeshError
from meshbridge.resharding.aligned import Recipe, aligned_steps
from meshbridge.resharding.digits import align
from meshbridge.resharding.plan import DEFAULTS, Options, Plan
from meshbridge.resharding.steps import Crop, Mask, Pad, Shape, Step, axis_digits
from meshbridge.sharding import Axes, Mesh, Sharding, local_shape

Steps = tuple[Step, ...]


@lru_cache(maxsize=65536)
def plan(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: Options = DEFAULTS) -> Plan:
    """The cheapest plan under `options` from `source` to `target` for a tensor of `shape` and MLIR element type `dtype`.

    Raises MeshError for shardings that contradict themselves or that no plan handles.
    """
    source, target = source.padded(len(shape)), target.padded(len(shape))
    found = [Plan(shape, dtype, mesh, source, target, local_shape(shape, mesh, source.split_axes), steps)
             for steps in _candidates(shape, mesh, source, target)]
    if not found:
        raise MeshError(f"no plan from {source} to {target} for shape {list(shape)} on mesh {list(mesh.shape)}")
    if options.exact:
        return min(found, key=lambda one: (one.wire_bytes, one.total_bytes, one.collectives, one.peak_bytes))
    return min(found, key=lambda one: (one.seconds(options), one.peak_bytes))


@lru_cache(maxsize=1 << 20)
def cost(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding) -> float:
    """Wire bytes per device of the default plan; a dictionary look-up after the first time."""
    return plan(shape, dtype, mesh, source, target).wire_bytes


def _candidates(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Iterator[Steps]:
    if source == target:
        yield ()
        return
    whole = _padded_shape(shape, mesh, source, target)
    alignment = align(whole, mesh, source.split_axes, target.split_axes) if whole is not None else None
    if whole is None or alignment is None:
        return
    reduced, masked = _partial_change(source, target)
    for recipe in (Recipe(), Recipe(fused=False)):
        steps = aligned_steps(alignment, alignment.of(reduced), source.partial_kind, recipe)
        yield _framed(shape, mesh, source, target, whole, steps, masked)


def _framed(
    shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, whole: Shape, steps: list[Step], masked: Axes
) -> Steps:
    """Puts the pad of an uneven replicated source before, the crop of an uneven replicated target after."""
    rank = (0,) * len(shape)
    before = local_shape(whole, mesh, source.split_axes)
    after = local_shape(shape, mesh, target.split_axes)
    framed = list(steps)
    if before != local_shape(shape, mesh, source.split_axes):
        framed.insert(0, Pad(before, rank))
    if after != local_shape(whole, mesh, target.split_axes):
        framed.append(Crop(after, rank))
    if masked:
        framed.append(Mask(after, axis_digits(mesh, masked), target.partial_kind))
    return tuple(framed)


def _padded_shape(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding) -> Shape | None:
    """The shape with every dimension padded so that both shardings cut it evenly where they cut it; None if they pad differently."""
    padded = []
    for size, before, after in zip(shape, source.split_axes, target.split_axes, strict=True):
        sizes = {-(-size // n) * n for n in (mesh.group_size(before), mesh.group_size(after)) if n > 1}
        if len(sizes) > 1:
            return None
        padded.append(sizes.pop() if sizes else size)
    return tuple(padded)


def _partial_change(source: Sharding, target: Sharding) -> tuple[Axes, Axes]:
    """The axes to reduce over, and those over which the result becomes partial."""
    if "generic" in (source.partial_kind, target.partial_kind):
        raise MeshError("a partial value of kind generic cannot be resharded: nothing says how to reduce it")
    kept = set(source.partial_axes) & set(target.partial_axes) if source.partial_kind == target.partial_kind else set()
    reduced = tuple(axis for axis in source.partial_axes if axis not in kept)
    return reduced, tuple(axis for axis in target.partial_axes if axis not in kept)
