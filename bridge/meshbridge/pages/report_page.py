"""A report as HTML: one file that needs no network, and the output of a notebook's cell.

Both are rendered from the report's JSON (docs/report-json.md). Templates escape all values; the page allows only its own
script, and no network.
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
"""The most source lines in a notebook; `to_html` has all."""


@dataclass(frozen=True)
class Figure:
    """A headline: a number, its name, and its parts."""

    value: str
    name: str
    detail: str = ""


@dataclass(frozen=True)
class Versus:
    """A table that compares this plan with those of other partitioners, one column each."""

    heading: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    "A heading, then a cell for each name."
    bars: tuple[tuple[str, float | None], ...]
    "The bars by name: wire bytes; None for a partitioner that failed."
    remarks: tuple[str, ...]


def report_page(
    report: Mapping[str, Any],
    *,
    name: str,
    remarks: Sequence[str] = (),
    step: PredictedStep | None = None,
    comparisons: Sequence[Versus] = (),
) -> str:
    """The page of a report, from its JSON: with the program's `name`, `remarks`, the timeline of a predicted `step`, and
    comparisons."""
    devices, script = Devices(report["mesh"]), text_of("page.js")
    return visible(
        templates()
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
            style=text_of("page.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


def notebook_page(report: Mapping[str, Any], *, remarks: Sequence[str] = ()) -> str:
    """The output of a notebook's cell: the headlines, and the source lines that send most."""
    lines = by_line(report["collectives"])
    shown = tuple(islice(lines, NOTEBOOK_LINES))
    return visible(
        templates()
        .get_template("notebook.html")
        .render(report=report, figures=tuple(headline(report)), remarks=remarks, lines=shown, more=sum(1 for _ in lines))
    )


def headline(report: Mapping[str, Any]) -> Iterator[Figure]:
    """The headline figures."""
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
        per_device = report["tokens_per_second"] / report["mesh"]["devices"]
        yield Figure(f"{report['tokens_per_second']:,.0f}", "tokens per second", f"{per_device:,.1f} per device")
    memory = report["memory"]
    parts = ", ".join(f"{part} {size_text(memory[part])}" for part in ("arguments", "results", "temporaries"))
    donated = f", less {size_text(memory['donated'])} of donated arguments" if memory["donated"] else ""
    yield Figure(size_text(memory["peak"]), "of memory", f"about, per device: {parts}{donated}")
    yield _work(report["work"])


def _work(work: Mapping[str, Any]) -> Figure:
    device, redundant = work["device"]["contractions"], work["redundant"]
    again = "" if redundant is None or not device else f", {max(redundant['contractions'], 0.0) / device:.1%} of them redundant"
    unit, name = next((entry for entry in _UNITS if device >= entry[0]), _UNITS[-1])
    return Figure(f"{device / unit:,.1f} {name}", "in products", f"per device and step{again}")


_UNITS = ((1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"), (1e3, "kFLOP"), (1.0, "FLOP"))


@cache
def templates() -> Environment:
    """The templates of pages, which escape all values."""
    environment = Environment(
        loader=PackageLoader("meshbridge.pages"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        size=size_text, time=time_text, share=lambda part: f"{part:.1%}", count=lambda number: f"{number:,}"
    )
    return environment


def text_of(name: str) -> str:
    """The content of a file beside the templates."""
    return (resources.files("meshbridge.pages") / "templates" / name).read_text("utf-8")
