"""Wrong programs are found: faults are put into partitioned ones at random."""

from __future__ import annotations

import random

import pytest

from tests.verification.faults import PROGRAMS, Breaker, Subject, inject, move_division, unguard

SEED = 0


@pytest.mark.parametrize("name", ["mlp_ws1d", "misc_fft2", "misc_cumsum", "masked_softmax"])
def test_every_fault_in_a_small_program_is_found(name: str) -> None:
    tally = inject([name], 8, SEED)
    assert tally.found.total() + tally.harmless.total() == 8
    assert tally.found.total() > 0
    assert not tally.missed


@pytest.mark.parametrize(("name", "kind"), [("masked_softmax", move_division), ("guarded_mean", unguard)])
def test_faults_that_only_a_row_of_nothing_shows_are_found(name: str, kind: Breaker) -> None:
    subject, rng = Subject(name), random.Random(SEED)
    broken = [module for site in subject.sites if site[1] is kind and (module := subject.broken(site, rng)) is not None]
    assert broken
    assert all(map(subject.is_found, broken))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_of_a_thousand_faults_none_is_missed(name: str) -> None:
    tally = inject([name], -(-1000 // len(PROGRAMS)), SEED)
    print(tally)
    assert tally.found.total() > 0
    assert not tally.missed
