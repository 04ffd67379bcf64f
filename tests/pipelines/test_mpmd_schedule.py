"""The schedule of a mapped program: found from the labels of fragments."""

from __future__ import annotations

import pytest

from meshbridge.pipelines.mpmd_schedule import AS_MAPPED, Label, schedule_of, tasks_of
from meshbridge.pipelines.schedules import NAMES, Schedule, Task, named


def without_last_backward(schedule: Schedule) -> list[list[Task]]:
    """The tasks of each group that are fragments of their own: the last stage goes forward and backward in one."""
    return [[task for task in order if task.kind == "F" or task.chunk < schedule.chunks - 1] for order in schedule.orders]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunks", [2, 4])
def test_named_schedules_are_recognised(name: str, chunks: int) -> None:
    schedule = named(name, 2 if name == "interleaved" else chunks, chunks, 8)
    found = schedule_of(without_last_backward(schedule))
    assert found is not None
    assert found.orders == schedule.orders
    if name != "interleaved" or chunks > 2:  # with a stage on each group, it is 1F1B
        assert found.name == name


def test_another_order_has_a_schedule() -> None:
    orders = [[Task("F", 0, 0), Task("B", 0, 0), Task("F", 1, 0), Task("B", 1, 0)], [Task("F", 0, 1), Task("F", 1, 1)]]
    found = schedule_of(orders)
    assert found is not None
    assert (found.name, found.chunks, found.microbatches) == (AS_MAPPED, 2, 2)
    assert found.orders[1] == (Task("F", 0, 1), Task("B", 0, 1), Task("F", 1, 1), Task("B", 1, 1))


@pytest.mark.parametrize(
    "orders",
    [
        [[], []],
        [[Task("F", 0, 0), Task("F", 0, 0)], [Task("F", 0, 1)]],
        [[Task("F", 0, 1)], [Task("F", 0, 0)]],
        [[Task("F", 1, 0)], [Task("F", 1, 1)]],
    ],
    ids=["no task", "a task twice", "stages on each other's groups", "a microbatch is missing"],
)
def test_none_for_other_programs(orders: list[list[Task]]) -> None:
    assert schedule_of(orders) is None


def test_fragments_without_numbers_are_counted() -> None:
    first, last = Label((("a", 0),), "F", None, None), Label((("b", 0), ("b", 1)), "F", None, None)
    back, update = Label((("a", 1),), "B", None, None), Label((("update", 0),), "F", None, None)
    tasks = tasks_of([None, first, first, last, back, last, back, update])
    assert tasks == [
        None,
        Task("F", 0, 0),
        Task("F", 1, 0),
        Task("F", 0, 1),
        Task("B", 0, 0),
        Task("F", 1, 1),
        Task("B", 1, 0),
        None,
    ]


def test_numbers_count_where_fragments_have_them() -> None:
    numbered = [Label((("a", 0),), "F", 3, 1), Label((("a", 0),), "F", 3, 0), Label((("update", 0),), "F", None, None)]
    assert tasks_of(numbered) == [Task("F", 1, 0), Task("F", 0, 0), None]
