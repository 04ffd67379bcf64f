"""Writes `docs/xla-faults.md`: public reports of faults in XLA's sharding, what XLA does with them today, and what is done here.
What was observed is on record in `recorded.json`; the page shows the programs on which XLA fails or sends more.

From the repository's root, with the newest jax that is supported: `python -m tests.zoo.table`.
"""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path
from typing import TypedDict

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from tests.zoo import FAULTS, Fault
from tests.zoo.observe import RIGHT, WRONG, Observation, all_of_xla, ours

PAGE = Path(__file__).parents[2] / "docs" / "xla-faults.md"
RECORD = Path(__file__).parent / "recorded.json"


class Row(TypedDict):
    """What XLA does with a program, in words, its wire bytes where it gives any, and the bytes here."""

    xla: str
    xla_bytes: float | None
    bytes: float


class Record(TypedDict):
    """The version of jax that was observed, and a row for each program."""

    jax: str
    rows: dict[str, Row]


_TEXT = """# Faults of XLA's sharding

Public reports of programs that XLA partitions wrongly, refuses, or lets send what they need not, each as a small program of our
own in `tests/zoo`. Every one is partitioned here, on virtual CPU devices, and compared with the function on one device:
all results are right, and `tests/zoo/test_zoo.py` holds that and the bytes.

Written by `python -m tests.zoo.table`. XLA's column is what jax {version} does with the program on the CPU backend with its
default partitioner, Shardy; many reports are of other versions and backends. Bytes are what one device puts on the wire in one
run (ring model), counted in the compiled HLO, with an all-reduce that is only sliced counted as a reduce-scatter.
*rematerializes* means that XLA warns of an involuntary full rematerialization.

{summary}

| program | report | what it shows | XLA | XLA's bytes | bytes here |
|---|---|---|---|---:|---:|
"""


def page(record: Record) -> str:
    """The whole page."""
    rows = record["rows"]
    shown = [name for name in FAULTS if not _is_equal(rows[name])]
    text = _TEXT.format(version=record["jax"], summary=_summary(rows))
    table = "".join(f"| {' | '.join(_cells(FAULTS[name], rows[name]))} |\n" for name in shown)
    others = ", ".join(f"`{name}`" for name in FAULTS if name not in shown)
    return f"{text}{table}\n{textwrap.fill(_OTHERS + others, 130, break_on_hyphens=False)}.\n"


_OTHERS = "Right in XLA of today, with as many bytes (reports and what each shows: `tests/zoo`): "


def _is_equal(row: Row) -> bool:
    """Whether XLA is right, and sends no more."""
    return row["xla"] == RIGHT and (row["xla_bytes"] is None or row["xla_bytes"] <= row["bytes"])


def _cells(fault: Fault, row: Row) -> list[str]:
    report = f"[{fault.issue}]({fault.url})" if fault.issue else "none found"
    return [f"`{fault.name}`", report, fault.shows, row["xla"], _bytes(row["xla_bytes"]), _bytes(row["bytes"])]


def _bytes(count: float | None) -> str:
    return "" if count is None else f"{count:,.0f}"


def _summary(rows: dict[str, Row]) -> str:
    bad = [row for row in rows.values() if not row["xla"].startswith(RIGHT)]
    wrong = sum(row["xla"].startswith(WRONG) for row in bad)
    less = sum(row["xla"].startswith(RIGHT) and (row["xla_bytes"] or 0) > row["bytes"] for row in rows.values())
    return (
        f"Of {len(rows)} programs, XLA computes wrong numbers in {wrong}, ends in an abort or an error in {len(bad) - wrong}, "
        f"and sends more than is sent here in {less} of the others."
    )


def recorded() -> Record:
    """What is on record."""
    found: Record = json.loads(RECORD.read_text())
    return found


def observed() -> Record:
    """What XLA and meshbridge do now."""
    xla, here = all_of_xla(FAULTS), {name: ours(fault) for name, fault in FAULTS.items()}
    return {"jax": jax.__version__, "rows": {name: _row(xla[name], here[name]) for name in FAULTS}}


def _row(xla: Observation, here: Observation) -> Row:
    assert here.scattered_bytes is not None
    return {"xla": xla.outcome, "xla_bytes": _rounded(xla.scattered_bytes), "bytes": round(here.scattered_bytes)}


def _rounded(count: float | None) -> float | None:
    return None if count is None else round(count)


if __name__ == "__main__":
    os.chdir(PAGE.parents[1])
    RECORD.write_text(json.dumps(observed(), indent=1) + "\n")
    PAGE.write_text(page(recorded()))
