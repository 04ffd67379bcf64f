"""When tasks start that share resources: a list schedule, which starts of what is ready the task that most time depends on.

Tasks stand in an order in which each follows those that it waits for. The schedule takes time that is linear in tasks and in what
they wait for, but for a logarithm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True)
class Task:
    """Something that takes `seconds`, and occupies each resource for as many as `busy` says from its start on."""

    seconds: float
    busy: Mapping[str, float]
    after: tuple[int, ...] = ()
    "The numbers of the tasks that it waits for."


def starts(tasks: Sequence[Task]) -> list[float]:
    """The seconds at which tasks start."""
    remaining = _remaining(tasks)
    waiting = [len(task.after) for task in tasks]
    followers: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for before in task.after:
            followers[before].append(number)
    found = [0.0] * len(tasks)
    free: dict[str, float] = {}
    ready = _Ready(tasks, remaining)
    for number, count in enumerate(waiting):
        if not count:
            ready.add(number)
    events: list[tuple[float, int]] = [(0.0, -1)]
    "When tasks end (by number), and when resources become free (-1)."
    while events:
        now = events[0][0]
        while events and events[0][0] <= now:
            _, ended = heappop(events)
            for follower in followers[ended] if ended >= 0 else ():
                waiting[follower] -= 1
                if not waiting[follower]:
                    ready.add(follower)
        for number in ready.startable(free, now):
            found[number] = now
            for resource, seconds in tasks[number].busy.items():
                free[resource] = now + seconds
                heappush(events, (now + seconds, -1))
            heappush(events, (now + tasks[number].seconds, number))
    return found


def _remaining(tasks: Sequence[Task]) -> list[float]:
    """The seconds from the start of each task to the end of all, were there resources for everything at once."""
    found = [task.seconds for task in tasks]
    for number in range(len(tasks) - 1, -1, -1):
        for before in tasks[number].after:
            found[before] = max(found[before], tasks[before].seconds + found[number])
    return found


class _Ready:
    """Tasks that wait for nothing but resources, by the resources that they need."""

    def __init__(self, tasks: Sequence[Task], remaining: Sequence[float]) -> None:
        self.tasks = tasks
        self.remaining = remaining
        self.queues: dict[frozenset[str], list[tuple[float, int]]] = {}

    def add(self, number: int) -> None:
        queue = self.queues.setdefault(frozenset(self.tasks[number].busy), [])
        heappush(queue, (-self.remaining[number], number))

    def startable(self, free: Mapping[str, float], now: float) -> Iterator[int]:
        """The tasks that start now, most remaining time first; whoever takes them updates when resources are `free`."""
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
