"""Chooses a plan: by default the candidate that `uneven` has priced. If the lower bound is required, or there are halos or shard
offsets, every route is planned and the cheapest is taken.

A *route* (`routes`) is a list of shardings to pass through, mostly just the target. A *leg* between two of them is planned as one
(`candidates`): by digits if the shards are aligned, by tiles if not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from meshbridge.ir.elements import element_bytes
from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import DYNAMIC, Mesh, Sharding, is_even
from meshbridge.resharding.boxes import buffer_shape, same_boxes
from meshbridge.resharding.candidates import (
    in_padding,
    mask_steps,
    padded_shape,
    plans_between,
    plans_by_tiles,
    relabel,
    relabelling,
    split_to_partial_steps,
)
from meshbridge.resharding.check import PlanError, check
from meshbridge.resharding.exchange import exchanged_axes
from meshbridge.resharding.objective import BYTES, Objective
from meshbridge.resharding.plan import DEFAULTS, PlanOptions, ReshardingPlan
from meshbridge.resharding.price import even_share
from meshbridge.resharding.routes import reduced_axes, replications, routes, split_to_partial
from meshbridge.resharding.steps import Rounds, Shape, Step
from meshbridge.resharding.tiles import TileExchange
from meshbridge.resharding.uneven import candidate_between


@lru_cache(maxsize=65536)
def plan(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: PlanOptions = DEFAULTS
) -> ReshardingPlan:
    """The cheapest plan under `options` from `source` to `target` for a tensor of `shape` and MLIR element type `dtype`.

    Raises MeshError for shardings that contradict themselves or the shape, and for sizes that are only known at run time.
    """
    if options.check:
        checked = plan(shape, dtype, mesh, source, target, replace(options, check=False))
        check(checked)
        return checked
    for sharding in (source, target):
        _validate(shape, mesh, sharding)
        if sharding.partial_axes and sharding.partial_kind.startswith("bitwise") and not re.match(r"(ui|si|i)\d+$", dtype):
            raise MeshError(f"a partial value of kind {sharding.partial_kind} needs integers, found {dtype}")
    source, target = _normal(shape, mesh, source), _normal(shape, mesh, target)
    empty = _without_steps(shape, dtype, mesh, source, target)
    if (partial_source := split_to_partial(shape, mesh, source, target)) is not None:
        following_steps = plan(shape, dtype, mesh, partial_source, target, options).steps
        return replace(empty, steps=(*split_to_partial_steps(shape, mesh, source, partial_source), *following_steps))
    if _is_priced(shape, mesh, source, target, options):
        return replace(empty, steps=_steps_of_best_candidate(shape, dtype, mesh, source, target, options))
    plans: list[ReshardingPlan] = []
    for route in routes(shape, mesh, source, target):
        grown = prod(buffer_shape(shape, mesh, route[0])) - prod(empty.start)  # what a device must receive on the way
        if plans and not options.exact and options.beta * grown * element_bytes(dtype) > plans[0].seconds(options):
            continue
        route_steps = _along(shape, dtype, mesh, source, route, options)
        if route_steps is not None:
            plans.append(replace(empty, steps=route_steps))
            if len(route) == 1 and _is_unbeatable(plans[-1], options):
                break
    if not plans:
        raise PlanError(f"no plan leads from {source} to {target} for a tensor of shape {list(shape)} on mesh {list(mesh.shape)}")
    return _cheapest(plans, options)


def _without_steps(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding) -> ReshardingPlan:
    return ReshardingPlan(shape, dtype, mesh, source, target, buffer_shape(shape, mesh, source), ())


def _is_priced(shape: Shape, mesh: Mesh, source: Sharding, target: Sharding, options: PlanOptions) -> bool:
    """Whether `uneven` has priced all candidates of the pair."""
    if options.exact or 0 in shape or not (source.is_plain and target.is_plain):
        return False
    return bool(reduced_axes(source, target)[0]) or not same_boxes(shape, mesh, source, target)


def _steps_of_best_candidate(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: PlanOptions
) -> tuple[Step, ...]:
    """The steps of the candidate that `uneven` prices lowest."""
    candidate = candidate_between(shape, dtype, mesh, source, target, options)
    if candidate.between is not None:
        legs = ((source, candidate.between), (candidate.between, target))
        return tuple(step for leg in legs for step in plan(shape, dtype, mesh, *leg, options).steps)
    if candidate.kind == "padded":
        padded = padded_shape(shape, mesh, source.split_axes, target.split_axes)
        if padded == shape:
            return _steps_of_even_pair(shape, dtype, mesh, source, target, options)
        steps = plan(padded, dtype, mesh, source, target, options).steps
        return in_padding(shape, padded, mesh, source, target, steps, options.lists(mesh))
    if candidate.kind == "tiles":
        empty = _without_steps(shape, dtype, mesh, source, target)
        exchanges = [replace(empty, steps=steps) for steps in plans_by_tiles(shape, mesh, source, target)]
        steps = _cheapest(exchanges, options).steps
    else:
        digits = relabelling(mesh, source, target)
        assert digits is not None
        steps = (relabel(shape, mesh, source, digits, options.lists(mesh)),)
    return (*steps, *mask_steps(shape, mesh, source, target))


def _steps_of_even_pair(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: PlanOptions
) -> tuple[Step, ...]:
    """The steps without a stop. Small tensors may be replicated first along the dimensions that differ, to save collectives."""
    leg = _leg(shape, dtype, mesh, source, target, options)
    assert leg is not None, f"no plan from {source} to {target}, which have a price"
    plans = [leg]
    if leg.collectives > 2 and not reduced_axes(source, target)[0]:
        stops = [(between, target) for between in replications(source, target)]
        steps_of_stops = [_along(shape, dtype, mesh, source, route, options) for route in stops]
        plans += [replace(leg, steps=steps) for steps in steps_of_stops if steps is not None]
    return _cheapest(plans, options).steps


def _is_unbeatable(direct: ReshardingPlan, options: PlanOptions) -> bool:
    """Whether no detour can save a byte or a collective."""
    plain = not (direct.source.partial_axes or direct.source.halo_sizes or direct.target.halo_sizes)
    return plain and (options.exact or direct.collectives <= 1)


@lru_cache(maxsize=1 << 20)
def cost(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, objective: Objective = BYTES) -> float:
    """What resharding costs under `objective`: wire bytes per device of the best plan, on average (a permute in which half of the
    devices keep their data moves half of it), and its launches. Even shards are priced by a formula (`price`), which ignores that
    small tensors may give up bytes for fewer collectives.
    """
    options, size = objective.pricing, element_bytes(dtype)
    if source.is_plain and target.is_plain:
        source, target = source.padded(len(shape)), target.padded(len(shape))
        source = split_to_partial(shape, mesh, source, target) or source
        if is_even(shape, mesh, source.split_axes) and is_even(shape, mesh, target.split_axes):
            share = even_share(mesh, source, target, options.permutes(mesh))
            if share is not None:
                received = share.of(prod(shape))
                return objective.price(mesh, source, target, received.received * size, received.collectives)
        candidate = candidate_between(shape, dtype, mesh, source, target, options)
        return objective.price(mesh, source, target, candidate.received * size, candidate.launches)
    best = plan(shape, dtype, mesh, source, target, options)
    return objective.price(mesh, source, target, best.total_bytes / mesh.size, best.collectives)


def _validate(shape: Shape, mesh: Mesh, sharding: Sharding) -> None:
    """Raises MeshError where `sharding` cannot be the sharding of a tensor of `shape` on `mesh`."""
    if DYNAMIC in shape or DYNAMIC in mesh.shape or min(mesh.shape, default=1) < 1:
        texts = ["x".join("?" if size == DYNAMIC else str(size) for size in sizes) for sizes in (shape, mesh.shape)]
        raise MeshError(f"resharding needs static sizes, found shape {texts[0]} on mesh {texts[1]}")
    if len(sharding.split_axes) > len(shape):
        raise MeshError(f"{len(sharding.split_axes)} split dimensions for a tensor of rank {len(shape)}")
    used = (*sharding.used_axes, *sharding.partial_axes)
    if len(set(used)) < len(used) or any(not 0 <= axis < mesh.rank for axis in used):
        raise MeshError(f"expected each axis of the {mesh.rank}-axis mesh '{mesh.name}' at most once, found {list(used)}")


def _normal(shape: Shape, mesh: Mesh, sharding: Sharding) -> Sharding:
    """The sharding without axes of one device, empty halos, and offsets that equal the ceiling division."""
    sharding = sharding.padded(len(shape))
    if min(mesh.shape, default=2) > 1 and not (sharding.halo_sizes or sharding.offsets):
        return sharding
    partial = tuple(axis for axis in sharding.partial_axes if mesh.shape[axis] > 1)
    sharding = replace(sharding, partial_axes=partial) if partial else sharding.without_partial()
    plain = replace(sharding, halo_sizes=(), offsets=())
    if not same_boxes(shape, mesh, sharding, plain):
        return sharding
    return replace(plain, split_axes=tuple(tuple(axis for axis in axes if mesh.shape[axis] > 1) for axes in plain.split_axes))


def _along(
    shape: Shape, dtype: str, mesh: Mesh, source: Sharding, route: Sequence[Sharding], options: PlanOptions
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
def _leg(shape: Shape, dtype: str, mesh: Mesh, source: Sharding, target: Sharding, options: PlanOptions) -> ReshardingPlan | None:
    """The cheapest plan from `source` to `target` without a stop."""
    empty = _without_steps(shape, dtype, mesh, source, target)
    candidates = list(plans_between(shape, mesh, source, target, options.lists(mesh), options.slowest))
    if not options.exact:
        candidates = [steps for steps in candidates if _longest_exchange(steps) <= options.permutes(mesh)] or candidates
    plans = [replace(empty, steps=steps) for steps in candidates]
    has_lean = not options.exact or any(_is_lean(candidate, options) for candidate in plans)
    if plans and not has_lean and _could_be_tiles(plans[0], options):
        plans += [replace(empty, steps=steps) for steps in plans_by_tiles(shape, mesh, source, target)]
    return _cheapest(plans, options) if plans else None


def _could_be_tiles(candidate: ReshardingPlan, options: PlanOptions) -> bool:
    """Whether an exchange of tiles does the same, in no more permutes than allowed."""
    mesh, source, target = candidate.mesh, candidate.source, candidate.target
    plain = not (source.partial_axes or target.partial_axes)
    return plain and mesh.group_size(exchanged_axes(source, target)) <= options.permutes(mesh)


def _is_lean(candidate: ReshardingPlan, options: PlanOptions) -> bool:
    return candidate.peak_bytes <= candidate.peak_bound + options.slack


def _cheapest(plans: Sequence[ReshardingPlan], options: PlanOptions) -> ReshardingPlan:
    """The best plan within its memory, or the plan that needs least. Among equals, plans without tiles come first: their tables
    are unreadable."""
    if len(plans) == 1:
        return plans[0]
    if options.exact:
        fewest = min((candidate.wire_bytes, candidate.total_bytes) for candidate in plans)
        plans = [candidate for candidate in plans if (candidate.wire_bytes, candidate.total_bytes) == fewest]
    lean = [candidate for candidate in plans if _is_lean(candidate, options)]
    if not lean:
        least = min(candidate.peak_bytes for candidate in plans)
        lean = [candidate for candidate in plans if candidate.peak_bytes == least]
    return min(
        lean,
        key=lambda candidate: (
            candidate.collectives if options.exact else candidate.seconds(options),
            candidate.total_bytes,
            *_complexity(candidate),
        ),
    )


def _longest_exchange(steps: Sequence[Step]) -> int:
    return max((step.collectives for step in steps if isinstance(step, Rounds)), default=0)


def _complexity(candidate: ReshardingPlan) -> tuple[int, float, int]:
    return sum(isinstance(step, TileExchange) for step in candidate.steps), candidate.peak_bytes, len(candidate.steps)
