"""No plan at the lower bound has fewer collectives: even pairs on small meshes of twos, against a search through every state.

A state says which factor of two of the device number spreads which factor of two of which dimension. Slices cost nothing; a
collective gathers any of them, exchanges any of them with local ones, relabels them at will, or does the last two at once in as
many permutes as the exchange has devices.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from meshbridge.ir.sharding import Mesh, Sharding, Split
from meshbridge.resharding import PlanOptions, bound, plan
from tests.resharding.reshard_cases import Array, splits

State = tuple[int | None, ...]
"""Per factor of the tensor, row-major, the factor of the device number that spreads it; 0 is the outermost one."""

Cost = tuple[float, float, int]
"""Elements that the busiest device receives, that all devices receive, collectives."""


def state_of(mesh: Mesh, shape: tuple[int, ...], split: Split) -> State:
    first = [sum(size.bit_length() - 1 for size in mesh.shape[:axis]) for axis in range(mesh.rank)]
    state: list[int | None] = []
    for size, axes in zip(shape, split, strict=True):
        digits = [first[axis] + i for axis in axes for i in range(mesh.shape[axis].bit_length() - 1)]
        state += [*digits, *[None] * (size.bit_length() - 1 - len(digits))]
    return tuple(state)


@cache
def held(state: State, digits: int) -> Array:
    """Per device and element, whether the one holds the other."""
    devices, elements = np.indices((1 << digits, 1 << len(state)))
    found = np.ones(devices.shape, bool)
    for place, digit in enumerate(state):
        if digit is not None:
            found &= (elements >> (len(state) - 1 - place) & 1) == (devices >> (digits - 1 - digit) & 1)
    return found


def moves(state: State, digits: int) -> Iterator[tuple[State, Cost]]:
    spread = [place for place, digit in enumerate(state) if digit is not None]
    local = [place for place, digit in enumerate(state) if digit is None]
    devices, size = 1 << digits, 1 << len(local)
    for place in local:
        for digit in set(range(digits)) - set(state):
            yield (*state[:place], digit, *state[place + 1 :]), (0, 0, 0)
    for count in range(1, len(spread) + 1):
        for left in itertools.combinations(spread, count):
            whole = tuple(None if place in left else digit for place, digit in enumerate(state))
            received = ((1 << count) - 1) * size
            yield whole, (received, received * devices, 1)
    yield from exchanges(state, spread, local, digits, size)


def exchanges(state: State, spread: list[int], local: list[int], digits: int, size: int) -> Iterator[tuple[State, Cost]]:
    """What any exchange leads to: as many factors are spread, elsewhere or over other digits."""
    devices = 1 << digits
    for places in itertools.combinations(range(len(state)), len(spread)):
        entered = [place for place in places if place in local]
        for order in itertools.permutations(range(digits), len(places)):
            after = [None] * len(state)
            for place, digit in zip(places, order, strict=True):
                after[place] = digit
            moved = tuple(after)
            kept = (held(state, digits) & held(moved, digits)).sum(axis=1)
            if moved == state:
                continue
            pieces = 1 << len(entered)
            stay = all(state[place] == moved[place] for place in places if place in spread)
            freed = {state[place] for place in spread if place not in places}
            if stay and entered and freed == {moved[place] for place in entered}:
                received = size * (pieces - 1) // pieces
                yield moved, (received, received * devices, 1)
            elif not entered:
                yield moved, (size, float(size * (kept < size).sum()), 1)
            else:
                yield moved, (size, float((size - kept).sum()), pieces)


def cheapest(start: State, digits: int) -> dict[State, Cost]:
    """The fewest elements to every state, and of the ways with as few the fewest collectives."""
    best: dict[State, Cost] = {start: (0, 0, 0)}
    done = set[State]()
    queue: list[tuple[Cost, tuple[int, ...]]] = [((0, 0, 0), _key(start))]
    while queue:
        cost, key = heapq.heappop(queue)
        state = tuple(None if digit < 0 else digit for digit in key)
        if state in done:
            continue
        done.add(state)
        for after, more in moves(state, digits):
            total = (cost[0] + more[0], cost[1] + more[1], cost[2] + more[2])
            if after not in done and (after not in best or total < best[after]):
                best[after] = total
                heapq.heappush(queue, (total, _key(after)))
    return best


def _key(state: State) -> tuple[int, ...]:
    """The state as numbers, which have an order."""
    return tuple(-1 if digit is None else digit for digit in state)


@pytest.mark.parametrize(
    ("sizes", "shape", "sources"),
    [
        ((2, 2), (16,), 99),
        ((2, 2), (4, 4), 99),
        ((4,), (4, 8), 99),
        ((2, 4), (8, 8), 6),
        ((2, 2, 2), (8, 8), 6),
        ((2, 2, 2), (64,), 9),
    ],
)
def test_no_plan_at_the_bound_has_fewer_collectives(sizes: tuple[int, ...], shape: tuple[int, ...], sources: int) -> None:
    mesh, options = Mesh("m", sizes), PlanOptions(exact=True, scratch=1 << 40)
    digits = sum(size.bit_length() - 1 for size in sizes)
    every = splits(mesh, len(shape))
    for source in random.Random(0).sample(every, min(sources, len(every))):
        best = cheapest(state_of(mesh, shape, source), digits)
        for target in every:
            pair = Sharding("m", source), Sharding("m", target)
            found, least = plan(shape, "i8", mesh, *pair, options), bound(shape, "i8", mesh, *pair)
            received, total, collectives = best[state_of(mesh, shape, target)]
            assert (received, total) == (least.busiest, least.total), found
            assert found.collectives == collectives, found
