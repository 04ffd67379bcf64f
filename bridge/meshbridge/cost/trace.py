"""The predicted step as a Chrome trace, JSON for Perfetto and `chrome://tracing`, with a track per resource."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from meshbridge.cost.step import COMPUTE, LOOPS, MEMORY, PredictedStep, ScheduleSlice
from meshbridge.ir.locations import location_at, scope_of, user_line


def chrome_trace(step: PredictedStep) -> str:
    """One process with a thread per resource, in the order compute, memory, links, loops, and a complete event per slice, in
    microseconds. A loop's body appears once."""
    tracks = {name: number for number, name in enumerate(resources(step), 1)}
    named = [_named("process_name", 0, step.target.text), *(_named("thread_name", tracks[name], name) for name in tracks)]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*named, *_events(step, tracks)]})


def resources(step: PredictedStep) -> tuple[str, ...]:
    """The resources in the order of their tracks: compute, memory, links, loops."""
    links = sorted({part.resource for part in step.slices} - {COMPUTE, MEMORY, LOOPS})
    return (COMPUTE, MEMORY, *links, LOOPS)


def _named(event: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": event, "pid": 1, "tid": track, "args": {"name": name}}


def _events(step: PredictedStep, tracks: dict[str, int]) -> Iterator[dict[str, Any]]:
    for part in sorted(step.slices, key=lambda part: (tracks[part.resource], part.start, -part.seconds)):
        at = {"pid": 1, "tid": tracks[part.resource], "ts": part.start * 1e6, "dur": part.seconds * 1e6}
        yield {"ph": "X", "name": name_of(part), "cat": part.resource, **at, "args": _said(part)}


def name_of(part: ScheduleSlice) -> str:
    """`dot_general model.py:42 x32`: the operation, the user's line, and its executions if more than one."""
    words = (part.name.partition(".")[2], user_line(part.location).short, f"x{part.executions}" if part.executions > 1 else "")
    return " ".join(filter(None, words))


def _said(part: ScheduleSlice) -> dict[str, object]:
    return {
        "operation": part.name,
        "location": str(location_at(part.location)),
        "module": scope_of(part.location),
        "executions": part.executions,
        "total_ms": part.executions * part.seconds * 1e3,
    }
