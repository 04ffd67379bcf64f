"""Schedules of microbatches, as data: for each group of devices, its tasks in order.

A group of devices runs one task at a time. With `g` groups and `c` chunks of the program, group `k` runs the chunks `k`, `k + g`,
`k + 2 g`, …: one each, unless the schedule is interleaved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, NamedTuple

from meshbridge.ir.errors import MeshError

Kind = Literal["F", "B", "W"]
"""Forward; backward, all of it, or the part on which earlier chunks wait; the rest of the backward pass: gradients of weights."""


class Task(NamedTuple):
    """A microbatch in a chunk of the program, forward or backward."""

    kind: Kind
    microbatch: int
    chunk: int

    def __str__(self) -> str:
        return f"{self.kind} of microbatch {self.microbatch} in chunk {self.chunk}"


@dataclass(frozen=True)
class Schedule:
    """The tasks of each group of devices, in order. Raises MeshError for one that is incomplete, out of order, or that never
    ends."""

    name: str
    chunks: int
    microbatches: int
    orders: tuple[tuple[Task, ...], ...]

    def __post_init__(self) -> None:
        _check_tasks(self)
        self.dispatch_order()

    @property
    def groups(self) -> int:
        """The number of groups of devices."""
        return len(self.orders)

    @property
    def splits_weights(self) -> bool:
        """Whether gradients of weights are tasks of their own."""
        return any(task.kind == "W" for order in self.orders for task in order)

    def tasks(self) -> Iterator[Task]:
        """All tasks, in the order of the groups."""
        return (task for order in self.orders for task in order)

    def waits_for(self, task: Task) -> tuple[Task, ...]:
        """The tasks whose results a task needs."""
        kind, microbatch, chunk = task
        if kind == "W":
            return (Task("B", microbatch, chunk),)
        if kind == "F":
            return (Task("F", microbatch, chunk - 1),) if chunk else ()
        after = (Task("B", microbatch, chunk + 1),) if chunk + 1 < self.chunks else ()
        return (Task("F", microbatch, chunk), *after)

    def dispatch_order(self) -> list[Task]:
        """All tasks in an order in which each comes after those that it waits for, and each group keeps its own order.

        Raises MeshError if there is none: groups wait for each other.
        """
        return [run.task for run in self.timeline(lambda task: 1.0).runs]

    def timeline(self, seconds: Callable[[Task], float], transfer: float = 0.0) -> Timeline:
        """When each task runs, if a task takes that many `seconds` and its results another `transfer` seconds to the next group.

        Raises MeshError if groups wait for each other.
        """
        ends: dict[Task, float] = {}
        free = [0.0] * self.groups
        done = [0] * self.groups
        runs: list[Run] = []
        while any(position < len(order) for position, order in zip(done, self.orders, strict=True)):
            ready = []
            for group, order in enumerate(self.orders):
                if done[group] < len(order):
                    task = order[done[group]]
                    start = max((self._arrival(ends, task, needed, transfer) for needed in self.waits_for(task)), default=0.0)
                    ready.append((max(start, free[group]), group, task))
            start, group, task = min(ready)
            if start == inf:
                raise _deadlock(self, [task for _, _, task in ready], ends)
            free[group] = ends[task] = start + seconds(task)
            done[group] += 1
            runs.append(Run(task, group, start, ends[task]))
        return Timeline(tuple(sorted(runs, key=lambda run: run.start)), self.groups)

    def _arrival(self, ends: Mapping[Task, float], task: Task, needed: Task, transfer: float) -> float:
        return ends.get(needed, inf) + (transfer if needed.chunk % self.groups != task.chunk % self.groups else 0.0)

    def even_timeline(self) -> Timeline:
        """When each task runs, in units of time, if a forward pass takes one and a backward pass two: one of them for gradients
        of weights."""
        return self.timeline(lambda task: 2.0 if task.kind == "B" and not self.splits_weights else 1.0)

    def peak_live(self) -> tuple[int, ...]:
        """For each group, the most microbatches whose activations it holds at once, counted once for each chunk."""
        last: Kind = "W" if self.splits_weights else "B"
        peaks = []
        for order in self.orders:
            live = peak = 0
            for task in order:
                live += (task.kind == "F") - (task.kind == last)
                peak = max(peak, live)
            peaks.append(peak)
        return tuple(peaks)


class Run(NamedTuple):
    """A task on its group of devices, in seconds from the start of the first one."""

    task: Task
    group: int
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """The runs of all tasks, by start."""

    runs: tuple[Run, ...]
    groups: int

    @property
    def seconds(self) -> float:
        """From the start of the first task to the end of the last one."""
        return max((run.end for run in self.runs), default=0.0) - min((run.start for run in self.runs), default=0.0)

    @property
    def busy(self) -> tuple[float, ...]:
        """For each group, the seconds in which it runs tasks."""
        return tuple(sum(run.end - run.start for run in self.runs if run.group == group) for group in range(self.groups))

    @property
    def bubble(self) -> float:
        """The share of all groups' time in which they run nothing."""
        whole = self.seconds * self.groups
        return 1.0 - sum(self.busy) / whole if whole else 0.0


def gpipe(groups: int, microbatches: int) -> Schedule:
    """All microbatches forward, then all backward."""
    orders = (_all("F", microbatches, group) + _all("B", microbatches, group) for group in range(groups))
    return Schedule("gpipe", groups, microbatches, tuple(map(tuple, orders)))


def one_forward_one_backward(groups: int, microbatches: int) -> Schedule:
    """1F1B: a group goes backward as soon as it can: group `k` of `g` holds activations of at most `g - k` microbatches."""
    orders = []
    for group in range(groups):
        first = min(groups - group - 1, microbatches)
        orders.append(_alternating(_all("F", microbatches, group), _all("B", microbatches, group), first))
    return Schedule("1f1b", groups, microbatches, tuple(orders))


def interleaved(groups: int, microbatches: int, chunks: int) -> Schedule:
    """1F1B in which each group has several chunks: rounds of as many microbatches as there are groups pass them in turn.

    Raises MeshError unless microbatches and chunks are multiples of the groups.
    """
    if chunks % groups or microbatches % groups:
        raise MeshError(
            f"error: the schedule 'interleaved' needs numbers of chunks and microbatches that {groups} groups of devices divide, "
            f"found {chunks} chunks and {microbatches} microbatches\n  hint: mark a multiple of {groups} stages, or choose '1f1b'"
        )
    own = chunks // groups
    rounds = range(0, microbatches, groups)
    orders = []
    for group in range(groups):
        turns = [(turn, first + each) for first in rounds for turn in range(own) for each in range(groups)]
        forward = [Task("F", microbatch, group + groups * turn) for turn, microbatch in turns]
        backward = [Task("B", microbatch, group + groups * (own - 1 - turn)) for turn, microbatch in turns]
        first = 2 * (groups - group - 1) + (own - 1) * groups if own > 1 else groups - group - 1
        orders.append(_alternating(forward, backward, min(first, len(forward))))
    return Schedule("interleaved", chunks, microbatches, tuple(orders))


def zero_bubble(groups: int, microbatches: int) -> Schedule:
    """1F1B in which group `k` of `g` computes gradients of weights `k` microbatches later, so that it waits less for those after
    it: ZB-H1 of Qi et al., "Zero Bubble Pipeline Parallelism". Each group holds activations of at most `g` microbatches."""
    orders = []
    for group in range(groups):
        first = min(groups - group - 1, microbatches)
        order = _all("F", microbatches, group)[:first]
        for each in range(microbatches):
            ahead = each + first
            order += [Task("F", ahead, group)] if ahead < microbatches else []
            order += [Task("B", each, group), *([Task("W", each - group, group)] if each >= group else [])]
        orders.append((*order, *_all("W", microbatches, group)[max(microbatches - group, 0) :]))
    return Schedule("zero-bubble", groups, microbatches, tuple(orders))


def _all(kind: Kind, microbatches: int, chunk: int) -> list[Task]:
    return [Task(kind, microbatch, chunk) for microbatch in range(microbatches)]


def _alternating(forward: Sequence[Task], backward: Sequence[Task], first: int) -> tuple[Task, ...]:
    """`first` tasks forward, then one forward and one backward in turn, then the rest backward."""
    pairs = zip(forward[first:], backward, strict=False)
    paired = len(forward) - first
    return (*forward[:first], *(task for pair in pairs for task in pair), *backward[paired:])


NAMES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
"""The schedules that have a name."""

STACKED = "stacked"
"""All stages at the same time, as one SPMD program, whose microbatches pass the stages in the order of `gpipe` (`stacked`)."""

FORMS = (*NAMES, STACKED)
"""What a pipeline may be asked for by name."""


def check_name(name: str) -> None:
    """Raises MeshError for a name that no form of a pipeline has."""
    if name not in FORMS:
        raise MeshError(f"error: schedule is {name!r}, expected one of {', '.join(FORMS)}, or a Schedule")


def named(name: str, groups: int, chunks: int, microbatches: int) -> Schedule:
    """The schedule of that name. Raises MeshError for an unknown name, and for numbers that the schedule does not have."""
    if name == STACKED:
        raise MeshError(f"error: the schedule {STACKED!r} is one SPMD program, and no order of tasks of each stage")
    check_name(name)
    if name == "interleaved":
        return interleaved(groups, microbatches, chunks)
    if chunks != groups:
        raise MeshError(
            f"error: the schedule {name!r} has one stage on each of {groups} groups of devices, found {chunks} stages"
            f"\n  hint: choose 'interleaved', or stages={chunks}"
        )
    simple = {"gpipe": gpipe, "1f1b": one_forward_one_backward, "zero-bubble": zero_bubble}
    return simple[name](groups, microbatches)


def formula(name: str, groups: int, microbatches: int, chunks: int | None = None) -> float:
    """The bubble of a named schedule by formula, as a share of all groups' time, if all chunks take equally long, a backward pass
    twice as long as a forward one, and each half of it as long as that."""
    turns = (chunks or groups) // groups
    if name == "zero-bubble":
        return (groups - 1) / (3 * microbatches + groups - 1)
    return (groups - 1) / (turns * microbatches + groups - 1)


def _check_tasks(schedule: Schedule) -> None:
    """Raises MeshError unless each group has its own tasks, each once, and in order."""
    kinds: tuple[Kind, ...] = ("F", "B", "W") if schedule.splits_weights else ("F", "B")
    for group, order in enumerate(schedule.orders):
        own = range(group, schedule.chunks, schedule.groups)
        expected = {Task(kind, each, chunk) for kind in kinds for chunk in own for each in range(schedule.microbatches)}
        if foreign := [task for task in order if task not in expected]:
            raise MeshError(f"error: schedule {schedule.name!r}: group {group} has the {foreign[0]}, which is not its own")
        if len(order) != len(expected):
            missing = sorted(expected - set(order))
            what = f"lacks the {missing[0]}" if missing else "has a task twice"
            raise MeshError(f"error: schedule {schedule.name!r}: group {group} {what}")
        reached: dict[tuple[str, int], int] = {}
        for task in order:
            if task.microbatch != reached.get((task.kind, task.chunk), 0):
                raise MeshError(
                    f"error: schedule {schedule.name!r}: group {group} has the {task} before that of an earlier microbatch"
                    "\n  hint: microbatches pass a chunk in order, since each adds to the gradients of those before it"
                )
            reached[task.kind, task.chunk] = task.microbatch + 1


def _deadlock(schedule: Schedule, heads: Sequence[Task], ends: Mapping[Task, float]) -> MeshError:
    waiting = [
        f"group {task.chunk % schedule.groups} is at the {task}, which waits for the {needed}"
        for task in heads
        for needed in schedule.waits_for(task)
        if needed not in ends
    ]
    return MeshError(f"error: schedule {schedule.name!r} never ends:\n  " + "\n  ".join(waiting))
