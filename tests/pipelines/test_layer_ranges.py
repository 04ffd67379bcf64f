"""Which chunk has which layers of several scans: the largest chunk is as small as can be, and stacks are in equal parts."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from meshbridge.pipelines.layer_ranges import SLACK, Unit, cut_layers


def layers(scan: int, count: int, work: float = 1.0, *, may_begin: bool = True) -> list[Unit]:
    """Layers of one scan."""
    return [Unit(scan, work, may_begin)] * count


def test_an_encoder_and_a_decoder() -> None:
    assert cut_layers([*layers(0, 4), *layers(1, 4)], 4) == [2, 4, 6]
    assert cut_layers([*layers(0, 4), *layers(1, 8)], 3) == [4, 8]
    # The chunk in the middle has the end of one and the start of the other.
    assert cut_layers([*layers(0, 3), *layers(1, 3)], 3) == [2, 4]


def test_equal_parts() -> None:
    """Equal parts of each stack are taken that cost little, though the most even cut has one layer of the encoder later."""
    assert cut_layers([*layers(0, 10), *layers(1, 10, 0.85)], 2) == [10]
    assert cut_layers([*layers(0, 10), *layers(1, 10, 0.8)], 2) == [9]


def test_chunks_begin_where_they_may() -> None:
    units = [*layers(0, 4, may_begin=False), Unit(1, 0.0, may_begin=True), *layers(2, 4, may_begin=False)]
    assert cut_layers(units, 2) == [4]


@st.composite
def sequences(draw: st.DrawFn) -> tuple[list[Unit], int]:
    """Layers of one to three scans, and a number of chunks that they can have."""
    works = st.sampled_from([0.5, 1.0, 3.0])
    units = [
        unit
        for scan in range(draw(st.integers(1, 3)))
        for unit in layers(scan, draw(st.integers(1, 4)), draw(works), may_begin=draw(st.booleans()))
    ]
    return units, draw(st.integers(1, 1 + sum(unit.may_begin for unit in units[1:])))


@given(sequences())
def test_the_largest_chunk_has_little_more_than_the_least(given_units: tuple[list[Unit], int]) -> None:
    units, chunks = given_units

    def largest(cut: tuple[int, ...]) -> float:
        return max(sum(unit.work for unit in units[start:end]) for start, end in pairwise((0, *cut, len(units))))

    starts = [number for number, unit in enumerate(units) if number and unit.may_begin]
    found = tuple(cut_layers(units, chunks))
    assert len(found) == chunks - 1
    assert set(found) <= set(starts)
    assert largest(found) <= SLACK * min(map(largest, combinations(starts, chunks - 1))) + 1e-9
