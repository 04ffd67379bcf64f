"""A list schedule of tasks that share resources: of the ready tasks, the one on the longest remaining path starts first.

Each task follows its predecessors in the input. Scheduling takes time that is linear in tasks and dependences, apart from a
logarithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True)
class Task:
    """A task that takes `seconds`, and occupies each resource in `busy` for that many seconds from its start."""

    seconds: float
    busy: Mapping[str, float]
    after: tuple[int, ...] = ()
    "The numbers of its predecessors."


def list_schedule(tasks: Sequence[Task]) -> list[float]:
    """The start of each task, in seconds."""
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
            ready.add(number)
    events: list[tuple[float, int]] = [(0.0, -1)]
    "Ends of tasks (by number), and releases of resources (-1)."
    while events:
        now = events[0][0]
        while events and events[0][0] <= now:
            _, ended = heappop(events)
            for follower in followers[ended] if ended >= 0 else ():
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.add(follower)
        for number in ready.startable(free, now):
            start_times[number] = now
            for resource, seconds in tasks[number].busy.items():
                free[resource] = now + seconds
                heappush(events, (now + seconds, -1))
            heappush(events, (now + tasks[number].seconds, number))
    return start_times


def _remaining(tasks: Sequence[Task]) -> list[float]:
    """The seconds from the start of each task to the end of all, with unlimited resources."""
    remaining = [task.seconds for task in tasks]
    for number in range(len(tasks) - 1, -1, -1):
        for predecessor in tasks[number].after:
            remaining[predecessor] = max(remaining[predecessor], tasks[predecessor].seconds + remaining[number])
    return remaining


class _Ready:
    """Tasks without unfinished predecessors, by the resources that they need."""

    def __init__(self, tasks: Sequence[Task], remaining: Sequence[float]) -> None:
        self.tasks = tasks
        self.remaining = remaining
        self.queues: dict[frozenset[str], list[tuple[float, int]]] = {}

    def add(self, number: int) -> None:
        queue = self.queues.setdefault(frozenset(self.tasks[number].busy), [])
        heappush(queue, (-self.remaining[number], number))

    def startable(self, free: Mapping[str, float], now: float) -> Iterator[int]:
        """The tasks that start now, longest remaining time first; the caller updates `free`, the time at which each resource is
        free."""
        while True:
            heads = [
                (queue[0], needed)
                for needed, queue in self.queues.items()
                if queue and all(free.get(resource, 0.0) <= now for resource in needed)
            ]
            if not heads:
                return
            _, needed = min(heads, key=lambda head: head[0])
            yield heappop(self.queues[needed])[1]
