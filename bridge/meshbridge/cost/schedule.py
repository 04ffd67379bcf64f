"""A list schedule of tasks that share resources: of the ready tasks, the one on the longest remaining path starts first.

Each task follows its predecessors in the input. Scheduling takes time that is linear in tasks and dependences, apart from a
logarithm.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import NamedTuple


@dataclass(frozen=True)
class Task:
    """A task that takes `seconds`, and occupies each resource in `busy` for that many seconds from its start."""

    seconds: float
    busy: Mapping[str, float]
    after: tuple[int, ...] = ()
    "The numbers of its predecessors."
    launch: float = 0.0
    "The part of `seconds`, and of each in `busy`, in which it starts."
    combines: Hashable = None
    """Tasks with the same are combined: one that is ready before another, which has started, is over does not depend on it, and
    needs no launch of its own. None: with no other."""


class Schedule(NamedTuple):
    """When each task starts, in seconds, and which are combined with one that started before."""

    starts: list[float]
    combined: set[int]


def list_schedule(tasks: Sequence[Task]) -> Schedule:
    """The schedule of some tasks."""
    remaining = _remaining(tasks)
    waiting = [len(task.after) for task in tasks]
    followers: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for predecessor in task.after:
            followers[predecessor].append(number)
    start_times = [0.0] * len(tasks)
    free: dict[str, float] = {}
    ready = _Ready(tasks, remaining)
    for number, count in enumerate(waiting):
        if not count:
            ready.add(number, 0.0)
    events: list[tuple[float, int]] = [(0.0, -1)]
    "Ends of tasks (by number), and releases of resources (-1)."
    while events:
        now = events[0][0]
        while events and events[0][0] <= now:
            _, ended = heappop(events)
            for follower in followers[ended] if ended >= 0 else ():
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.add(follower, now)
        for number in ready.startable(free, now):
            start_times[number] = now
            task = tasks[number]
            saved = task.launch if number in ready.combined else 0.0
            for resource, seconds in task.busy.items():
                free[resource] = now + (seconds - saved)
                heappush(events, (free[resource], -1))
            heappush(events, (now + (task.seconds - saved), number))
    return Schedule(start_times, ready.combined)


def _remaining(tasks: Sequence[Task]) -> list[float]:
    """The seconds from the start of each task to the end of all, with unlimited resources."""
    remaining = [task.seconds for task in tasks]
    for number in range(len(tasks) - 1, -1, -1):
        for predecessor in tasks[number].after:
            remaining[predecessor] = max(remaining[predecessor], tasks[predecessor].seconds + remaining[number])
    return remaining


_Queue = list[tuple[float, int]]
"""A heap of tasks: the negated remaining seconds, and the number."""


class _Ready:
    """Tasks without unfinished predecessors, by the resources that they need."""

    def __init__(self, tasks: Sequence[Task], remaining: Sequence[float]) -> None:
        self.combined: set[int] = set()
        "Those that need no launch of their own."
        self._tasks = tasks
        self._remaining = remaining
        self._alone: dict[Hashable, set[int]] = {}
        "By what they have in common, those that are not combined yet."
        self._over: dict[Hashable, float] = {}
        "By the same, when the last one that was not combined is over."
        needs: dict[tuple[str, ...], _Queue] = {}
        self._queue_of = [needs.setdefault(tuple(sorted(task.busy)), []) for task in tasks]
        self._queues = [(queue, resources) for resources, queue in needs.items()]

    def add(self, number: int, now: float) -> None:
        heappush(self._queue_of[number], (-self._remaining[number], number))
        if (key := self._tasks[number].combines) is not None:
            (self.combined if now < self._over.get(key, 0.0) else self._alone.setdefault(key, set())).add(number)

    def startable(self, free: Mapping[str, float], now: float) -> Iterator[int]:
        """The tasks that start now, longest remaining time first; the caller updates `free`, the time at which each resource is
        free."""
        while True:
            first: _Queue | None = None
            for queue, resources in self._queues:
                if queue and (first is None or queue[0] < first[0]):
                    for resource in resources:
                        if free.get(resource, 0.0) > now:
                            break
                    else:
                        first = queue
            if first is None:
                return
            _, number = heappop(first)
            if (key := self._tasks[number].combines) is not None and number not in self.combined:
                self.combined |= self._alone.pop(key) - {number}
                self._over[key] = now + self._tasks[number].seconds
            yield number
