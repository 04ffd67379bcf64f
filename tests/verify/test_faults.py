"""Wrong programs are found: faults are put into partitioned ones at random."""

from __future__ import annotations

import pytest

from tests.verify.faults import PROGRAMS, inject

SEED = 0


@pytest.mark.parametrize("name", ["mlp_ws1d", "misc_fft2", "misc_cumsum"])
def test_every_fault_in_a_small_program_is_found(name: str) -> None:
    tally = inject([name], 8, SEED)
    assert tally.found.total() + tally.harmless.total() == 8
    assert tally.found.total() > 0
    assert not tally.missed


@pytest.mark.slow
@pytest.mark.long
def test_of_a_thousand_faults_one_at_most_is_missed() -> None:
    tally = inject(PROGRAMS, 1000, SEED)
    print(tally)
    assert tally.found.total() > 900
    assert len(tally.missed) <= 0.001 * (tally.found.total() + len(tally.missed))
