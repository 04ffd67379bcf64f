"""The table of schedules in docs/pipelines.md."""

from __future__ import annotations

import re

import pytest

from meshbridge.pipelines import schedules
from tests.pipelines import table


def shown() -> dict[str, list[str]]:
    """The cells of the page, by schedule."""
    rows = re.findall(
        r"^\| `([\w-]+)` \| (.*) \|$",
        table.PAGE.read_text().partition("schedules: begin")[2].partition("schedules: end")[0],
        re.M,
    )
    return {name: cells.split(" | ") for name, cells in rows}


def test_bubbles_by_formula_and_simulated() -> None:
    assert tuple(shown()) == schedules.NAMES
    for name, (formula, simulated, *_) in shown().items():
        chunks = table.LAYERS if name == "interleaved" else table.STAGES
        schedule = schedules.named(name, table.STAGES, chunks, table.MICROBATCHES)
        assert formula == f"{schedules.formula(name, table.STAGES, table.MICROBATCHES, chunks):.1%}"
        assert simulated == f"{schedule.even_timeline().bubble:.1%}"


@pytest.mark.slow
def test_the_table_is_up_to_date() -> None:
    assert table.PAGE.read_text() == table.refreshed(), f"outdated, run: {table.COMMAND}"
