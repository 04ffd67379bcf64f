"""A pipeline's report as HTML: a picture of its schedule, and its tables. One file that needs no network, and has no script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meshbridge.pages.report_page import templates, text_of
from meshbridge.text import time_text, visible

WIDTH, ROW = 1140.0, 28
"""The size of the picture, and of the row of a stage, in pixels."""

KINDS = {"F": "forward", "B": "backward", "W": "gradients of weights"}


@dataclass(frozen=True)
class Bar:
    """A task in the picture. Positions are in pixels."""

    kind: str
    number: int
    "That of the microbatch."
    stage: int
    left: float
    width: float
    title: str


def pipeline_page(report: Mapping[str, Any], *, name: str, headline: str) -> str:
    """The page of a pipeline's report, from its JSON. Templates escape all values."""
    rendered = (
        templates()
        .get_template("pipeline.html")
        .render(
            name=name,
            headline=headline,
            report=report,
            bars=tuple(_bars(report)),
            kinds=KINDS,
            width=WIDTH,
            row=ROW,
            style=text_of("page.css"),
        )
    )
    return visible(rendered)


def _bars(report: Mapping[str, Any]) -> Iterator[Bar]:
    runs = report["runs"]
    begin = min((start for _, _, start, _ in runs), default=0.0)
    scale = WIDTH / max((end - begin for *_, end in runs), default=1.0)
    for (kind, microbatch, chunk), stage, start, end in runs:
        if end > start:
            took = time_text(end - start) if report["seconds"] is not None else f"{end - start:g} units"
            title = f"{KINDS[kind]}, microbatch {microbatch}, chunk {chunk}: {took}"
            yield Bar(kind, microbatch, stage, scale * (start - begin), scale * (end - start), title)
