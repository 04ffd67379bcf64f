"""Public reports of faults in XLA's sharding: right here, and with no more bytes than XLA sends where XLA is right."""

from __future__ import annotations

import jax
import pytest

from tests.zoo import FAULTS
from tests.zoo.observe import RIGHT, all_of_xla, ours
from tests.zoo.table import PAGE, page, recorded


@pytest.mark.parametrize("name", FAULTS)
def test_equals_one_device_and_sends_what_the_table_says(name: str) -> None:
    found = ours(FAULTS[name])
    assert found.right
    assert found.scattered_bytes is not None
    if jax.__version__ == recorded()["jax"]:
        row = recorded()["rows"][name]
        assert round(found.scattered_bytes) == row["bytes"], "run python -m tests.zoo.table"
        theirs = row["xla_bytes"]
        assert not row["xla"].startswith(RIGHT) or theirs is None or row["bytes"] <= theirs


def test_the_page_is_what_is_on_record() -> None:
    """`python -m tests.zoo.table` writes both."""
    assert set(recorded()["rows"]) == set(FAULTS)
    assert PAGE.read_text() == page(recorded())


@pytest.mark.slow
def test_xla_does_what_the_table_says() -> None:
    record = recorded()
    if jax.__version__ != record["jax"]:
        pytest.skip(f"the record is of jax {record['jax']}")
    found = all_of_xla(FAULTS)
    assert {name: one.outcome for name, one in found.items()} == {name: row["xla"] for name, row in record["rows"].items()}
