"""The comparison for people, as a table with a column per contestant, and for programs, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from math import isinf
from typing import Any

from meshbridge.analysis.ring import WIRE_BYTES
from meshbridge.text import size_text, table
from meshbridge.tools.compare.command import Comparison
from meshbridge.tools.compare.figures import Figures

SCHEMA = 1
"""Version of the JSON; it grows when a key changes its meaning or goes."""


def as_json(comparison: Comparison) -> str:
    """The comparison as docs/report.md describes it."""
    head = {"schema": SCHEMA, "devices": comparison.devices, "reference": comparison.reference, "remark": comparison.remark}
    contestants = {name: _plain(asdict(found)) for name, found in comparison.figures.items()}
    return json.dumps(head | {"contestants": contestants}, indent=2, allow_nan=False)


def _plain(figures: dict[str, Any]) -> dict[str, Any]:
    """JSON has no word for an infinite difference: it becomes the text `inf`."""
    return {key: "inf" if isinstance(value, float) and isinf(value) else value for key, value in figures.items()}


@dataclass(frozen=True)
class Row:
    """A heading and how to write a contestant's figure beside it."""

    heading: str
    text: Callable[[Figures], str]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:,.1f}"


def _difference(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def _of_kind(kind: str) -> Row:
    def text(found: Figures) -> str:
        wire = found.bytes_by_kind.get(kind)
        return "-" if wire is None else f"{size_text(wire)} in {found.count_by_kind[kind]}"

    return Row(f"  {kind}", text)


HEAD = (Row("wire bytes", lambda found: size_text(found.wire_bytes)),)
FOOT = (
    Row("  with reduce-scatters", lambda found: size_text(found.scattered_bytes)),
    Row("collectives", lambda found: f"{found.collectives:,}"),
    Row("  executed in one step", lambda found: f"{found.executed_collectives:,}"),
    Row("temporary bytes", lambda found: size_text(found.temporary_bytes)),
    Row("MFLOP", lambda found: f"{found.flops / 1e6:,.1f}"),
    Row("partition ms", lambda found: _seconds(found.partition_seconds)),
    Row("compile ms", lambda found: _seconds(found.compile_seconds)),
    Row("run ms", lambda found: _seconds(found.run_seconds)),
    Row("largest difference", lambda found: _difference(found.absolute_difference)),
    Row("  relative", lambda found: _difference(found.relative_difference)),
)


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The cells of the table, line by line: a heading, then one for each contestant."""
    every = comparison.figures.values()
    kinds = [_of_kind(kind) for kind in WIRE_BYTES if any(kind in found.bytes_by_kind for found in every)]
    for row in (*HEAD, *kinds, *FOOT):
        yield (row.heading, *("failed" if found.error else row.text(found) for found in every))


def print_table(comparison: Comparison) -> None:
    """Prints the table on standard output, and below it what needs saying."""
    print(table([("per device", *comparison.figures), *rows(comparison)], left={0}))
    for line in _remarks(comparison):
        print(line)


def _remarks(comparison: Comparison) -> Iterator[str]:
    if comparison.remark:
        instead = f"compared with {comparison.reference}" if comparison.reference else "compared with nothing"
        yield f"differences are {instead}: {comparison.remark}"
    for name, found in comparison.figures.items():
        if found.error:
            yield f"{name} failed: {found.error}"
        if found.unknown_loops:
            yield f"{name}: bodies of {', '.join(found.unknown_loops)} counted once, for want of a trip count"
