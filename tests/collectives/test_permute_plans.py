"""Plans for permutes that do not need one another: what is sent arrives once, of no more bytes, in fewer launches."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshbridge.collectives.permute_plans import Edges, LaneExchange, LanePermute, Launch, PermutePairs, Planner
from meshbridge.ir.groups import rotated, shifted


def moves(pairs: list[tuple[int, int]], size: int = 8) -> PermutePairs:
    table = np.array(pairs, np.int64)
    return PermutePairs(table[:, 0], table[:, 1], size)


def by_bytes(count: int, limit: float = 0) -> Planner:
    return Planner(count, limit, 0, lambda launch: launch.total_bytes(count))


def by_time(count: int, launch: float, *, joins: bool = False) -> Planner:
    return Planner(count, 0, launch, lambda each: each.busiest_bytes + launch, joins)


def edges_of(launch: Launch) -> tuple[Edges, ...]:
    return launch.lanes if isinstance(launch, LanePermute) else (launch.edges,)


@st.composite
def permutes(draw: st.DrawFn) -> tuple[int, list[PermutePairs]]:
    """A group, and what several permutes do in it."""
    count = draw(st.integers(2, 6))
    found = []
    for _ in range(draw(st.integers(1, 8))):
        targets = draw(st.permutations(range(count)))
        chosen = draw(st.sets(st.integers(0, count - 1), min_size=1))
        pairs = [(sender, targets[sender]) for sender in sorted(chosen) if targets[sender] != sender]
        if pairs:
            found.append(moves(pairs, draw(st.sampled_from([4, 8, 12]))))
    return count, found


@given(permutes(), st.sampled_from([0.0, 24.0, 1e9]), st.sampled_from([0.0, 10.0, 1e6]), st.booleans())
def test_every_edge_is_in_one_launch(drawn: tuple[int, list[PermutePairs]], limit: float, launch: float, joins: bool) -> None:
    count, found = drawn
    price = by_bytes(count).price if not launch else by_time(count, launch).price
    plan = Planner(count, limit, launch, price, joins).plan(found)
    delivered = [
        edge
        for each in plan
        for edges in edges_of(each)
        for edge in zip(edges.permutes.tolist(), edges.senders.tolist(), edges.receivers.tolist(), strict=True)
    ]
    wanted = [
        (number, *pair)
        for number, each in enumerate(found)
        for pair in zip(each.senders.tolist(), each.receivers.tolist(), strict=True)
    ]
    assert sorted(delivered) == sorted(wanted)
    assert len(plan) <= len(found)
    assert sum(each.busiest_bytes for each in plan) <= sum(each.size for each in found)
    if not launch:
        assert sum(each.total_bytes(count) for each in plan) <= sum(each.size * len(each.senders) for each in found)
    for each in plan:
        _check(each, found)


def _check(launch: Launch, found: list[PermutePairs]) -> None:
    if isinstance(launch, LaneExchange):
        rows = list(zip(launch.edges.senders.tolist(), launch.edges.receivers.tolist(), launch.slot.tolist(), strict=True))
        assert len({*rows}) == len(rows)
        assert int(launch.slot.max()) < launch.slots
    else:
        pairs = [sorted(zip(lane.senders.tolist(), lane.receivers.tolist(), strict=True)) for lane in launch.lanes]
        assert all(each == pairs[0] for each in pairs)
        assert len({sender for sender, _ in pairs[0]}) == len({receiver for _, receiver in pairs[0]}) == len(pairs[0])
    for edges in edges_of(launch):
        assert edges.size >= max(found[number].size for number in edges.permutes.tolist())


def test_permutes_of_all_pairs_are_one_all_to_all() -> None:
    """The gates of an LSTM that stand one on each of four devices: each sends a quarter of its own to each other one."""
    sparse = [moves([(gate, device)]) for gate in range(4) for device in range(4) if gate != device]
    (launch,) = by_bytes(4, 1024).plan(sparse)
    assert isinstance(launch, LaneExchange)
    assert launch.slots == 1
    assert len(by_bytes(4).plan(sparse)) == 3, "nothing is copied together: permutes of four devices each"


def test_opposite_shifts_of_two_devices_are_one_permute() -> None:
    (launch,) = by_bytes(2).plan([moves(shifted(2, 1).tolist()), moves(shifted(2, -1).tolist())])
    assert isinstance(launch, LanePermute)
    assert len(launch.lanes) == 1


def test_opposite_shifts_of_many_devices_stay() -> None:
    assert len(by_bytes(8, 1024).plan([moves(shifted(8, 1).tolist()), moves(shifted(8, -1).tolist())])) == 2


def test_rows_for_devices_that_get_nothing_are_bytes_that_a_machine_may_send() -> None:
    """Three devices, of which those at the ends have one neighbour: an all-to-all has a third of its rows for nothing."""
    both = [moves(shifted(3, 1).tolist()), moves(shifted(3, -1).tolist())]
    assert len(by_bytes(3, 1024).plan(both)) == 2
    assert len(by_time(3, 1e3).plan(both)) == 1


def test_sizes_are_padded_where_a_launch_is_worth_it() -> None:
    both = [moves([(0, 1)], 100), moves([(1, 0)], 60)]
    assert len(by_bytes(2, 1024).plan(both)) == 2
    assert len(by_time(2, 50).plan(both)) == 1


def test_permutes_of_the_same_pairs_are_joined_up_to_the_limit() -> None:
    several = [moves(rotated(4, 1).tolist(), size) for size in (8, 8, 4)]
    assert len(by_bytes(4, 1024).plan(several)) == 1
    assert len(by_bytes(4, 16).plan(several)) == 2
    assert len(by_bytes(4).plan(several)) == 3


def test_what_a_compiler_joins_by_itself_is_one_launch_already() -> None:
    """Two slices of each neighbour, two devices: as two permutes of the same pairs, or in one all-to-all of as many bytes."""
    several = [moves(shifted(2, offset).tolist()) for offset in (1, 1, -1, -1)]
    assert [type(launch) for launch in by_time(2, 1e3, joins=True).plan(several)] == [LanePermute, LanePermute]
    assert [type(launch) for launch in by_time(2, 1e3).plan(several)] == [LaneExchange]
