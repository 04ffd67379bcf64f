"""A report as HTML: one file that needs no network, and what a notebook shows of it.

Both are drawn from the report's JSON (docs/report.md): what they show, a program can read. Templates escape all that they are
given; the page allows no script but its own, and no network.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from meshbridge.cost.step import PredictedStep
from meshbridge.pages.communication import by_line
from meshbridge.pages.pictures import Devices
from meshbridge.pages.timeline import timeline
from meshbridge.text import size_text, time_text, visible

NOTEBOOK_LINES = 12
"""Source lines that a notebook shows; `to_html` has all."""


@dataclass(frozen=True)
class Figure:
    """A headline: a number, what it is, and what it consists of."""

    value: str
    name: str
    detail: str = ""


@dataclass(frozen=True)
class Versus:
    """The program beside what others make of it, as a table with a column for each."""

    heading: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    "Of each a heading, then a cell for each name."
    bars: tuple[tuple[str, float | None], ...]
    "By name, what is drawn as bars: wire bytes; None for who failed."
    remarks: tuple[str, ...]


def report_page(
    report: Mapping[str, Any],
    *,
    name: str,
    remarks: Sequence[str] = (),
    step: PredictedStep | None = None,
    comparisons: Sequence[Versus] = (),
) -> str:
    """The page of a report that is read from its JSON: of the program of some `name`, with `remarks` on what deserves a look, the
    timeline of a predicted `step`, and comparisons."""
    devices, script = Devices(report["mesh"]), _text("page.js")
    return visible(
        _templates()
        .get_template("report.html")
        .render(
            name=name,
            report=report,
            figures=tuple(headline(report)),
            modules=report["modules"],
            remarks=remarks,
            comparisons=comparisons,
            mesh=devices.picture(),
            held={side: tuple(devices.sharded(report[side], side[:-1])) for side in ("arguments", "results")},
            lines=tuple(by_line(report["collectives"])),
            kinds=tuple(report["by_kind"]),
            timeline=None if step is None else timeline(step),
            style=_text("page.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def notebook_page(report: Mapping[str, Any], *, remarks: Sequence[str] = ()) -> str:
    """The headlines and the source lines that send most, for a cell of a notebook."""
    lines = by_line(report["collectives"])
    shown = tuple(islice(lines, NOTEBOOK_LINES))
    return visible(
        _templates()
        .get_template("notebook.html")
        .render(report=report, figures=tuple(headline(report)), remarks=remarks, lines=shown, more=sum(1 for _ in lines))
    )


def headline(report: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures that stand first."""
    started = sum(kind["executions"] for kind in report["by_kind"].values())
    yield Figure(size_text(report["wire_bytes"]), "on the wire", "per device and step")
    yield Figure(
        f"{started:,}", f"collective{'' if started == 1 else 's'} executed", f"{len(report['collectives']):,} in the program"
    )
    if report["seconds"] is not None:
        exposed = f"{time_text(report['exposed_seconds'])} of it exposed communication"
        yield Figure(time_text(report["seconds"]), f"predicted step on {report['machine']}", exposed)
    if report["mfu"] is not None:
        yield Figure(f"{report['mfu']:.1%}", "MFU", "model FLOPs utilisation of the predicted step")
    if report["tokens_per_second"] is not None:
        each = report["tokens_per_second"] / report["mesh"]["devices"]
        yield Figure(f"{report['tokens_per_second']:,.0f}", "tokens per second", f"{each:,.1f} per device")
    memory = report["memory"]
    parts = ", ".join(f"{part} {size_text(memory[part])}" for part in ("arguments", "results", "temporaries"))
    yield Figure(size_text(memory["peak"]), "of memory", f"about, per device: {parts}")
    yield _work(report["work"])


def _work(work: Mapping[str, Any]) -> Figure:
    device, redundant = work["device"]["contractions"], work["redundant"]
    again = "" if redundant is None or not device else f", {max(redundant['contractions'], 0.0) / device:.1%} of them redundant"
    unit, name = next((each for each in _UNITS if device >= each[0]), _UNITS[-1])
    return Figure(f"{device / unit:,.1f} {name}", "in products", f"per device and step{again}")


_UNITS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1.0, "FLOP"))


@cache
def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader("meshbridge.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    found.filters.update(size=size_text, time=time_text, share=lambda part: f"{part:.1%}", count=lambda number: f"{number:,}")
    return found


def _text(name: str) -> str:
    return (resources.files("meshbridge.pages") / "templates" / name).read_text("utf-8")
