"""The golden file: figures by row, and what has changed of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from rich.table import Table

from benchmarks.table import geometric_mean
from tests.plans.figures import Figures

FILE = Path(__file__).parent / "golden.json"

STAGES = ("partitioned", "optimised", "lowered")


def read(path: Path = FILE) -> dict[str, Figures]:
    """The figures on record, by the keys of their rows."""
    found = json.loads(path.read_text()) if path.exists() else {}
    return {key: Figures(**figures | {"passes": tuple(figures["passes"])}) for key, figures in found.items()}


def write(rows: Mapping[str, Figures], path: Path = FILE) -> None:
    """Puts figures on record, a line for each row. The file appears whole or not at all."""
    lines = [f"{json.dumps(key)}: {json.dumps(asdict(rows[key]))}" for key in sorted(rows)]
    beside = path.with_name(f"{path.name}.partly")
    beside.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    beside.replace(path)


@dataclass(frozen=True)
class Change:
    """A row of which the plan is another one: None on the side where there is no such row."""

    key: str
    before: Figures | None
    after: Figures | None

    @property
    def first(self) -> str:
        """The first stage that differs, or what else does."""
        if self.before is None:
            return "new"
        if self.after is None:
            return "gone"
        apart = [stage for stage, *pair in zip(STAGES, self.before.hashes, self.after.hashes, strict=True) if pair[0] != pair[1]]
        others = [each.name for each in fields(Figures) if getattr(self.before, each.name) != getattr(self.after, each.name)]
        return (apart or others)[0]


def changes(before: Mapping[str, Figures], after: Mapping[str, Figures]) -> list[Change]:
    """The rows that differ, by key."""
    keys = sorted({*before, *after})
    return [Change(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]


def compared(before: Mapping[str, Figures], after: Mapping[str, Figures]) -> list[Change]:
    """The rows of both sides, whether or not they differ."""
    return [Change(key, before[key], after[key]) for key in sorted({*before} & {*after})]


FIGURES = (
    ("wire MB", "wire_bytes", 1e6),
    ("collectives", "collectives", 1),
    ("step ms", "seconds", 1e-3),
    ("temporaries MB", "temporary_bytes", 1e6),
)
"""Headings, fields, and the unit of each figure that people compare."""


def table(found: Sequence[Change]) -> Table:
    """A line for each change, figures before → after, and the geometric mean of their ratios in the last line."""
    shown = Table("row", "first changed", *(heading for heading, *_ in FIGURES), box=None)
    for change in found:
        shown.add_row(change.key, change.first, *(_pair(change, name, unit) for _, name, unit in FIGURES))
    shown.add_row("after / before", f"{len(found)} rows", *(_mean(found, name) for _, name, _ in FIGURES))
    return shown


def _pair(change: Change, name: str, unit: float) -> str:
    texts = [_text(None if side is None else getattr(side, name), unit) for side in (change.before, change.after)]
    return texts[0] if texts[0] == texts[1] else " → ".join(texts)


def _text(value: float | None, unit: float) -> str:
    return "" if value is None else f"{value / unit:,.4g}"


def _mean(found: Sequence[Change], name: str) -> str:
    ratios = list(ratios_of(found, name))
    return f"{geometric_mean(ratios):.4f}" if ratios else ""


def ratios_of(found: Sequence[Change], name: str) -> Iterator[float]:
    """After over before, where both are known and positive."""
    for change in found:
        pair = [None if side is None else getattr(side, name) for side in (change.before, change.after)]
        if all(pair):
            yield pair[1] / pair[0]
