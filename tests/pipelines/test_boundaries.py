"""Where chunks begin: the cut with the shortest simulated step that fits in memory, by the prices of segments."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbridge.pipelines.boundaries import GAIN, Begins, Boundaries
from meshbridge.pipelines.schedules import Schedule, Task, named
from meshbridge.pipelines.segment_prices import Price, division_to_price, joined, prices_of_layers
from meshbridge.pipelines.stacks import Division

LAYER = Price(forward=1.0, backward=2.0, entering=1.0, fixed=10.0, activations=3.0, temporaries=2.0)


def boundaries(prices: list[Price], schedule: Schedule, memory: float = inf, transfer: float = 0.0) -> Boundaries:
    """Cuts of segments, in which each transfer takes so long."""
    return Boundaries(prices, schedule, lambda size: transfer * size, memory)


def every_cut(segments: int, chunks: int) -> list[Begins]:
    """All cuts."""
    return list(combinations(range(1, segments), chunks - 1))


def even(segments: int, chunks: int) -> Begins:
    """The default cut."""
    return Division.even(segments, chunks).bounds[1:-1]


def test_a_head_that_takes_as_long_as_two_layers() -> None:
    """The last stage has fewer layers."""
    head = replace(LAYER, forward=9.0, backward=0.0)  # a layer forward and backward, and the head
    prices = [*[LAYER] * 9, head]
    found = boundaries(prices, named("1f1b", 2, 2, 8)).best((5,))
    assert found == (6,)


def test_an_even_cut_stays_unless_another_one_saves_time() -> None:
    last = replace(LAYER, forward=3.0, backward=0.0)
    prices = [*[LAYER] * 7, last]
    slightly = [replace(LAYER, forward=1.0 + 2 * GAIN / 10), *prices[1:]]
    for given_prices in (prices, slightly):
        assert boundaries(given_prices, named("1f1b", 4, 4, 8)).best((2, 4, 6)) == (2, 4, 6)


def test_memory() -> None:
    """The first stage holds the activations of all microbatches, the last one those of one."""
    prices = [*[LAYER] * 7, replace(LAYER, forward=3.0, backward=0.0)]
    schedule = named("gpipe", 2, 2, 8)
    needed = 4 * LAYER.fixed + 8 * 4 * LAYER.activations + LAYER.temporaries
    for memory, begins in ((inf, (4,)), (needed, (4,)), (needed - 1, (3,))):
        assert boundaries(prices, schedule, memory).best((4,)) == begins
    # Nothing fits: what needs least.
    tight = boundaries(prices, schedule, memory=1.0)
    assert tight.estimate(tight.best((4,))).excess_bytes == min(tight.estimate(cut).excess_bytes for cut in every_cut(8, 2))


def test_the_simulation_is_that_of_the_schedule() -> None:
    """The last chunk goes backward in the task of its forward pass."""
    schedule = named("1f1b", 3, 3, 5)
    prices = [LAYER, LAYER, replace(LAYER, forward=3.5, backward=0.0)]

    def seconds(task: Task) -> float:
        return {"F": 1.0, "B": 2.0}[task.kind] if task.chunk < 2 else {"F": 3.5, "B": 0.0}[task.kind]

    found = boundaries(prices, schedule, transfer=0.25).estimate((1, 2))
    assert found.seconds == pytest.approx(schedule.timeline(seconds, 0.25).seconds)


def test_tasks_that_are_part_of_others() -> None:
    """Nothing waits for their place in the order: the first chunk gets what it waits for as soon as the last one has computed
    it."""
    last = replace(LAYER, forward=3.5, backward=0.0)
    found = boundaries([LAYER, last], named("gpipe", 2, 2, 2), transfer=0.25).estimate((1,))
    assert found.seconds == 1 + 0.25 + 3.5 + 3.5 + 0.25 + 2
    apart = [replace(LAYER, backward=0.0, weight=2.0), last]
    found = boundaries(apart, named("zero-bubble", 2, 2, 2), transfer=0.25).estimate((1,))
    assert found.seconds == 1 + 0.25 + 3.5 + 3.5 + 0.25 + 2


@st.composite
def segments(draw: st.DrawFn) -> list[Price]:
    """Prices of few segments, the last of which goes forward and backward at once."""
    count = draw(st.integers(4, 8))
    sizes = st.integers(1, 9)
    own = [replace(LAYER, forward=draw(sizes), backward=draw(sizes), activations=draw(sizes)) for _ in range(count)]
    return [*own[:-1], replace(own[-1], forward=own[-1].forward + own[-1].backward, backward=0.0)]


@given(segments(), st.integers(2, 3), st.sampled_from(["gpipe", "1f1b", "zero-bubble"]), st.sampled_from([inf, 90.0]))
def test_the_cut_is_near_the_best_one(prices: list[Price], chunks: int, name: str, memory: float) -> None:
    """The search moves boundaries as long as that helps, so that it may end in a local optimum, but never worse than the even
    cut and the one whose slowest chunk is fastest."""
    found = boundaries(prices, named(name, chunks, chunks, 6), memory)
    best = min(found.estimate(cut) for cut in every_cut(len(prices), chunks))
    own = found.estimate(found.best(even(len(prices), chunks)))
    assert own.excess_bytes == pytest.approx(best.excess_bytes)
    if not own.excess_bytes:
        assert own.seconds <= (1 + 2 * GAIN) * best.seconds


def test_prices_of_layers() -> None:
    """The ends have the embedding and the head, so that layers cost what those in the middle do."""
    division = Division((0, 2, 5, 7))
    first = Price(forward=2.5, backward=4.5, fixed=27.0, temporaries=4.0)
    middle = Price(forward=3.0, backward=6.0, entering=1.0, fixed=30.0, activations=9.0, temporaries=2.0)
    last = Price(forward=8.0, entering=1.0, fixed=25.0, temporaries=10.0)
    prices = prices_of_layers([first, middle, last], division, [0] * 7, merged=True)
    assert len(prices) == 7
    assert prices[0] == Price(forward=1.5, backward=2.5, fixed=17.0, temporaries=4.0)
    assert prices[1:-1] == [Price(forward=1.0, backward=2.0, entering=1.0, fixed=10.0, activations=3.0, temporaries=2.0)] * 5
    assert prices[-1] == Price(forward=5.0, entering=1.0, fixed=15.0, temporaries=7.0)


def test_segments_to_price() -> None:
    even = Division((0, 2, 5, 7))
    assert division_to_price(even, [0] * 7) == even
    assert division_to_price(Division((0, 4, 7)), [0] * 7) == Division((0, 1, 6, 7))
    assert division_to_price(even, [0] * 3 + [1] * 4) == Division((0, 1, 2, 3, 4, 6, 7))
    joint = joined([LAYER] * 3, (2,))
    assert joint == [Price(forward=2.0, backward=4.0, entering=1.0, fixed=20.0, activations=6.0, temporaries=2.0), LAYER]
