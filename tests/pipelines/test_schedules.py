"""Schedules: complete, in order, without deadlock; their bubbles and memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshbridge.ir.errors import MeshError
from meshbridge.pipelines.schedules import NAMES, Schedule, Task, formula, named

SIZES = [(2, 4), (4, 4), (4, 8), (4, 16), (8, 16)]


def chunks_of(name: str, groups: int) -> int:
    """As many chunks as a schedule is tried with."""
    return 2 * groups if name == "interleaved" else groups


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("groups", "microbatches"), SIZES)
def test_the_bubble_is_that_of_the_formula(name: str, groups: int, microbatches: int) -> None:
    schedule = named(name, groups, chunks_of(name, groups), microbatches)
    assert schedule.even_timeline().bubble == pytest.approx(formula(name, groups, microbatches, schedule.chunks))


@pytest.mark.parametrize("name", NAMES)
def test_tasks_wait_for_each_other(name: str) -> None:
    schedule = named(name, 4, chunks_of(name, 4), 8)
    ended = set()
    for task in schedule.dispatch_order():
        assert ended.issuperset(schedule.waits_for(task))
        ended.add(task)
    assert len(ended) == (3 if name == "zero-bubble" else 2) * 8 * schedule.chunks
    runs = schedule.timeline(lambda task: 1.0, transfer=0.5).runs
    ends = {run.task: run.end for run in runs}
    starts = {run.task: run.start for run in runs}
    for task in ended:
        for needed in schedule.waits_for(task):
            crosses = needed.chunk % 4 != task.chunk % 4
            assert starts[task] >= ends[needed] + 0.5 * crosses


def test_peaks_of_live_activations() -> None:
    assert named("gpipe", 4, 4, 8).peak_live() == (8, 8, 8, 8)
    assert named("1f1b", 4, 4, 8).peak_live() == (4, 3, 2, 1)
    assert named("zero-bubble", 4, 4, 8).peak_live() == (4, 4, 4, 4)
    assert named("interleaved", 4, 8, 8).peak_live() == (11, 9, 7, 5)


def changed(order: tuple[Task, ...], group: int = 0) -> Schedule:
    """1F1B on two groups and two microbatches, with another order of a group."""
    schedule = named("1f1b", 2, 2, 2)
    orders = list(schedule.orders)
    orders[group] = order
    return replace(schedule, orders=tuple(orders))


def test_a_deadlock_is_found() -> None:
    with pytest.raises(MeshError) as raised:
        changed((Task("F", 0, 0), Task("B", 0, 0), Task("B", 1, 0), Task("F", 1, 0)))
    assert str(raised.value).splitlines() == [
        "error: schedule '1f1b' never ends:",
        "  group 0 is at the B of microbatch 1 in chunk 0, which waits for the F of microbatch 1 in chunk 0",
        "  group 0 is at the B of microbatch 1 in chunk 0, which waits for the B of microbatch 1 in chunk 1",
        "  group 1 is at the F of microbatch 1 in chunk 1, which waits for the F of microbatch 1 in chunk 0",
    ]


def test_tasks_that_are_missing_foreign_or_out_of_order() -> None:
    first, second = named("1f1b", 2, 2, 2).orders
    with pytest.raises(MeshError, match="group 0 lacks the B of microbatch 1 in chunk 0"):
        changed(first[:-1])
    with pytest.raises(MeshError, match="group 0 has a task twice"):
        changed((*first, first[-1]))
    with pytest.raises(MeshError, match="group 0 has the F of microbatch 0 in chunk 1, which is not its own"):
        changed(second)
    with pytest.raises(MeshError, match="has the F of microbatch 1 in chunk 0 before that of an earlier microbatch"):
        changed((first[1], first[0], *first[2:]))


def test_numbers_that_a_schedule_does_not_have() -> None:
    with pytest.raises(MeshError, match="needs numbers of chunks and microbatches that 4 groups of devices divide"):
        named("interleaved", 4, 8, 6)
    with pytest.raises(MeshError, match="'1f1b' has one stage on each of 2 groups of devices, found 4 stages\n  hint: choose"):
        named("1f1b", 2, 4, 4)
    with pytest.raises(MeshError, match="schedule is 'fast', expected one of gpipe, 1f1b, interleaved, zero-bubble"):
        named("fast", 2, 2, 4)
