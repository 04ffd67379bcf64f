"""Public reports of faults in XLA's sharding: right here, and with no more bytes than XLA sends where XLA is right."""

from __future__ import annotations

import jax
import pytest

from tests.zoo import FAULTS
from tests.zoo.observe import all_of_xla, ours
from tests.zoo.table import described, recorded, recorded_bytes, recorded_version

XLA, XLA_BYTES, BYTES = -3, -2, -1
"""Columns of the table."""


@pytest.mark.parametrize("name", FAULTS)
def test_equals_one_device_and_sends_what_the_table_says(name: str) -> None:
    found = ours(FAULTS[name])
    assert found.right
    assert found.scattered_bytes is not None
    if jax.__version__ == recorded_version():
        row = recorded()[name]
        assert f"{found.scattered_bytes:,.0f}" == row[BYTES], "run python -m tests.zoo.table"
        theirs = recorded_bytes(row[XLA_BYTES])
        assert not row[XLA].startswith("right") or theirs is None or found.scattered_bytes <= theirs


def test_the_table_describes_every_program() -> None:
    assert {name: row[:3] for name, row in recorded().items()} == {name: described(fault) for name, fault in FAULTS.items()}


@pytest.mark.slow
def test_xla_does_what_the_table_says() -> None:
    if jax.__version__ != recorded_version():
        pytest.skip(f"the table speaks of jax {recorded_version()}")
    found = all_of_xla(FAULTS)
    assert {name: one.outcome for name, one in found.items()} == {name: row[XLA] for name, row in recorded().items()}
