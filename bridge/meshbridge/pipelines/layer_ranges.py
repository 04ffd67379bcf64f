"""Which chunk has which layers: cuts a sequence of scans over layers where the chunk with the most work has the least.

an encoder of 4 layers, then a decoder of 8         in three chunks: layers 0-3 | 4-7 | 8-11
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, pairwise, product
from math import prod
from typing import NamedTuple

SLACK = 1.1
"""How much more work the largest chunk may have than in the most even cut, so that each stack is in equal parts: of such a stack
one array is on the devices of all chunks. Nothing was measured."""

MOST_EQUAL = 10_000
"""The most cuts into equal parts that are compared."""


class Unit(NamedTuple):
    """A layer of a scan, or what a boundary beside scans begins. `scan` numbers these."""

    scan: int
    work: float
    may_begin: bool
    "Whether a chunk may begin with it."


def cut_layers(units: Sequence[Unit], chunks: int) -> list[int]:
    """The numbers of the units with which each chunk but the first begins; enough of them may.

    Prefers stacks in equal parts where the largest chunk has at most SLACK times the least work that the largest can have.
    """
    starts = [number for number, unit in enumerate(units) if number and unit.may_begin]
    done = [0.0, *accumulate(unit.work for unit in units)]
    best = _most_even(starts, done, chunks)
    equal = min(_in_equal_parts(units, starts, chunks), key=lambda cut: _largest(cut, done), default=None)
    return equal if equal is not None and _largest(equal, done) <= SLACK * _largest(best, done) else best


def _largest(cut: Sequence[int], done: Sequence[float]) -> float:
    """The work of the largest chunk. `done` is the work before each unit."""
    return max(done[end] - done[start] for start, end in pairwise([0, *cut, len(done) - 1]))


def _most_even(starts: Sequence[int], done: Sequence[float], chunks: int) -> list[int]:
    """The cut at `starts` whose largest chunk has the least work; of these, the one with the least sum of squares."""
    points = [0, *starts]
    # By point, the largest chunk, the sum of squares and the cut of what is before it, in one chunk fewer in each round.
    before: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [])}
    for _ in range(chunks - 1):
        following: dict[int, tuple[float, float, list[int]]] = {}
        for end in points:
            options = [
                (max(largest, work := done[end] - done[start]), squares + work**2, [*cut, end])
                for start, (largest, squares, cut) in before.items()
                if start < end
            ]
            if options:
                following[end] = min(options)
        before = following
    total = done[-1]
    return min(
        (max(largest, total - done[at]), squares + (total - done[at]) ** 2, cut) for at, (largest, squares, cut) in before.items()
    )[2]


def _in_equal_parts(units: Sequence[Unit], starts: Sequence[int], chunks: int) -> Iterator[list[int]]:
    """The cuts in which each scan has equally many layers in each of its chunks: for each number of parts of the scans, with the
    remaining chunks beginning between scans."""
    layers: dict[int, list[int]] = {}
    for number, unit in enumerate(units):
        layers.setdefault(unit.scan, []).append(number)
    between = [own[0] for own in layers.values() if own[0] in starts]
    inner = [_equal_starts(own, set(starts), chunks) for own in layers.values()]
    if prod(map(len, inner)) > MOST_EQUAL:
        return
    for chosen in product(*inner):
        cut = [number for own in chosen for number in own]
        missing = chunks - 1 - len(cut)
        if missing >= 0:
            for others in combinations(between, missing):
                yield sorted((*cut, *others))


def _equal_starts(layers: Sequence[int], starts: set[int], chunks: int) -> list[list[int]]:
    """For each number of equal parts of a scan's layers, the first layer of each part but the first."""
    counts = [count for count in range(1, chunks + 1) if len(layers) % count == 0]
    cuts = [list(layers[len(layers) // count :: len(layers) // count]) for count in counts]
    return [cut for cut in cuts if starts.issuperset(cut)]
