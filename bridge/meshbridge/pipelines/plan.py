"""A step of a pipeline as a list of calls and transfers, in the order in which they are dispatched.

Fragments read and return slots, each of which is written once in a step. What runs a step, what proves it and what predicts it
read the same list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from meshbridge.dialect.donation import DONOR
from meshbridge.ir.mlir import entries, ir, main_function, set_entries
from meshbridge.pipelines.fragments import Fragment, Source
from meshbridge.pipelines.schedules import Kind, Schedule, Task
from meshbridge.pipelines.sites import Site, SiteKind

SITE_KINDS: dict[Kind, SiteKind] = {"F": "forward", "B": "backward", "W": "weight"}
"""By kind of task, the kind of site that it computes."""


class Slot(NamedTuple):
    """A value on a group of devices. `microbatch` numbers values of a microbatch; for a carried value, it is the number of
    microbatches in it."""

    source: Source
    microbatch: int | None
    group: int


@dataclass(frozen=True, eq=False)
class Call:
    """Runs a fragment. `task` is None before and after the loop."""

    fragment: Fragment
    task: Task | None
    inputs: tuple[Slot, ...]
    outputs: tuple[Slot, ...]


@dataclass(frozen=True, eq=False)
class Send:
    """Transfers a value to another group of devices, which reads it as argument `argument` of `reader`."""

    slot: Slot
    target: Slot
    reader: Fragment
    argument: int


Step = Call | Send


@dataclass(frozen=True, eq=False)
class CallPlan:
    """The steps in order. The slots of arguments are there before the first one, those of results after the last one."""

    fragments: tuple[Fragment, ...]
    schedule: Schedule
    steps: tuple[Step, ...]
    results: tuple[Slot, ...]

    @cached_property
    def calls(self) -> tuple[Call, ...]:
        """The calls in order."""
        return tuple(step for step in self.steps if isinstance(step, Call))

    @cached_property
    def sends(self) -> tuple[Send, ...]:
        """The transfers in order."""
        return tuple(step for step in self.steps if isinstance(step, Send))

    @cached_property
    def arguments(self) -> dict[Slot, tuple[Fragment, int]]:
        """The slots of the program's arguments, each with a fragment that reads it, and its argument there."""
        slots: dict[Slot, tuple[Fragment, int]] = {}
        for call in self.calls:
            for number, slot in enumerate(call.inputs):
                if slot.source.kind == "argument":
                    slots.setdefault(slot, (call.fragment, number))
        return slots

    @cached_property
    def last_uses(self) -> tuple[tuple[Slot, ...], ...]:
        """For each step, the slots that no later step reads."""
        read: set[Slot] = set(self.results)
        freed: list[tuple[Slot, ...]] = []
        for step in reversed(self.steps):
            slots = dict.fromkeys((*step.inputs, *step.outputs) if isinstance(step, Call) else (step.slot, step.target))
            freed.append(tuple(slot for slot in slots if slot not in read))
            read.update(slots)
        return tuple(reversed(freed))


def plan(fragments: Sequence[Fragment], schedule: Schedule) -> CallPlan:
    """The steps of a schedule: fragments before the loop, tasks, fragments after it."""
    by_site = {fragment.site: fragment for fragment in fragments}
    tasks = [(Site(SITE_KINDS[task.kind], task.chunk), task) for task in schedule.dispatch_order()]
    calls = [
        *(_call(by_site, fragment, None, schedule) for fragment in fragments if fragment.site.kind == "pre"),
        *(_call(by_site, by_site[site], task, schedule) for site, task in tasks if site in by_site),
        *(_call(by_site, fragment, None, schedule) for fragment in fragments if fragment.site.kind == "post"),
    ]
    results = {slot.source.number: slot for call in calls for slot in call.outputs if slot.source.kind == "result"}
    in_order = tuple(results[number] for number in sorted(results))
    return CallPlan(tuple(fragments), schedule, tuple(_with_sends(calls)), in_order)


def _call(by_site: dict[Site, Fragment], fragment: Fragment, task: Task | None, schedule: Schedule) -> Call:
    microbatch = None if task is None else task.microbatch

    def slot(source: Source, *, written: bool) -> Slot:
        if source.kind == "state":
            before = 0 if fragment.site.kind == "pre" else schedule.microbatches
            count = before if microbatch is None else microbatch + written
            owner = source.site or fragment.site
            return Slot(source, count, fragment.group if written else by_site[owner].group)
        if source.kind == "value" and source.site is not None:
            return Slot(source, microbatch if source.site.per_microbatch else None, by_site[source.site].group)
        return Slot(source, None, fragment.group)

    inputs = tuple(slot(source, written=False) for source in fragment.inputs)
    return Call(fragment, task, inputs, tuple(slot(source, written=True) for source in fragment.outputs))


def _with_sends(calls: Sequence[Call]) -> Iterable[Step]:
    """The calls; after each, the transfers of what it returns to the groups that read it."""
    readers: dict[Slot, dict[int, tuple[Fragment, int]]] = defaultdict(dict)
    for call in calls:
        for number, slot in enumerate(call.inputs):
            if slot.group != call.fragment.group:
                readers[slot].setdefault(call.fragment.group, (call.fragment, number))
    for call in calls:
        group = call.fragment.group
        yield Call(call.fragment, call.task, tuple(slot._replace(group=group) for slot in call.inputs), call.outputs)
        for slot in call.outputs:
            for target, (fragment, argument) in readers[slot].items():
                yield Send(slot, slot._replace(group=target), fragment, argument)


def donate(plan: CallPlan, donated: Iterable[int]) -> None:
    """Lets the last fragment of a step that reads a donated argument of the program overwrite it, if it runs once in a step."""
    arguments = {Source("argument", number) for number in donated}
    last: dict[Slot, tuple[Fragment, int]] = {}
    for call in plan.calls:
        for number, slot in enumerate(call.inputs):
            if slot.source in arguments:
                last[slot] = (call.fragment, number)
    for fragment, number in last.values():
        if not fragment.site.per_microbatch:
            function = main_function(fragment.module)
            attributes = entries(function, "arg_attrs")
            with fragment.module.context:
                attributes[number][DONOR] = ir.BoolAttr.get(True)
                set_entries(function, "arg_attrs", attributes)
