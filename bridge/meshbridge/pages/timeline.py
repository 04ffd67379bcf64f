"""The predicted step as what the page's script draws: a track for each resource."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from meshbridge.cost.step import PredictedStep, ScheduleSlice
from meshbridge.cost.trace import name_of, resources


def timeline(step: PredictedStep) -> dict[str, Any]:
    """`seconds` of the step; `tracks`: of each a name, lanes (loops stand in others), and slices: lane, number of the name in
    `names`, start and length in microseconds, executions."""
    names: dict[str, int] = {}
    numbers: dict[Hashable, int] = {}

    def number(part: ScheduleSlice) -> int:
        key = (part.name, part.location.attr, part.executions)  # to read a location takes long
        if (found := numbers.get(key)) is None:
            found = numbers[key] = names.setdefault(name_of(part), len(names))
        return found

    tracks = []
    for resource in resources(step):
        slices = [
            [lane, number(each), _rounded(each.start), _rounded(each.seconds), each.executions]
            for lane, each in _in_lanes(each for each in step.slices if each.resource == resource)
        ]
        if slices:
            tracks.append({"name": resource, "lanes": 1 + max(lane for lane, *_ in slices), "slices": slices})
    return {"seconds": step.seconds, "names": list(names), "tracks": tracks}


def _in_lanes(slices: Iterable[ScheduleSlice]) -> list[tuple[int, ScheduleSlice]]:
    """Slices in the order of their start, the longer ones first, each in the first lane that is free."""
    ends: list[float] = []
    found = []
    for each in sorted(slices, key=lambda each: (each.start, -each.seconds)):
        free = (lane for lane, end in enumerate(ends) if end <= each.start * (1 + 1e-9))
        lane = next(free, len(ends))
        ends[lane : lane + 1] = [each.start + each.seconds]
        found.append((lane, each))
    return found


def _rounded(seconds: float) -> float:
    return float(f"{seconds * 1e6:.7g}")
