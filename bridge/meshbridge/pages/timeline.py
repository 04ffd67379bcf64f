"""The predicted step as data for the page's script: a track for each resource."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from meshbridge.cost.step import PredictedStep, ScheduleSlice
from meshbridge.cost.trace import name_of, resources


def timeline(step: PredictedStep) -> dict[str, Any]:
    """`seconds` of the step, `names`, `tracks` and `folds`. A track has a name, the number of lanes (loops are nested), and
    slices: lane, number in `names`, start and length in microseconds, executions. A fold is where a loop repeats its first
    iteration, which alone has slices: number in `names`, start, length, iterations."""
    names: dict[str, int] = {}
    numbers: dict[Hashable, int] = {}

    def number(part: ScheduleSlice) -> int:
        key = (part.name, part.location.attr, part.executions)  # reading a location is slow
        if (name_number := numbers.get(key)) is None:
            name_number = numbers[key] = names.setdefault(name_of(part), len(names))
        return name_number

    tracks = []
    for resource in resources(step):
        slices = [
            [lane, number(part), _rounded(part.start), _rounded(part.seconds), part.executions]
            for lane, part in _in_lanes(part for part in step.slices if part.resource == resource)
        ]
        if slices:
            tracks.append({"name": resource, "lanes": 1 + max(lane for lane, *_ in slices), "slices": slices})
    folds = [
        [number(part), *map(_rounded, (part.start + first, part.seconds - first)), part.iterations]
        for part in step.slices
        if part.iterations > 1 and (first := part.seconds / part.iterations)
    ]
    return {"seconds": step.seconds, "names": list(names), "tracks": tracks, "folds": folds}


def _in_lanes(slices: Iterable[ScheduleSlice]) -> list[tuple[int, ScheduleSlice]]:
    """Places slices, by start and then longest first, each in the first free lane."""
    ends: list[float] = []
    placed = []
    for part in sorted(slices, key=lambda part: (part.start, -part.seconds)):
        free = (lane for lane, end in enumerate(ends) if end <= part.start * (1 + 1e-9))
        lane = next(free, len(ends))
        ends[lane : lane + 1] = [part.start + part.seconds]
        placed.append((lane, part))
    return placed


def _rounded(seconds: float) -> float:
    return float(f"{seconds * 1e6:.7g}")
