"""The page of codebases is what is on record, and an error of a number is seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import codebases
from testdata.codebases.catalogue import CODEBASES, part

PAGE = Path(__file__).parents[2] / "docs" / "codebases.md"


def test_the_page_is_what_is_on_record(tmp_path: Path) -> None:
    """`python -m benchmarks.codebases --measured --page docs/codebases.md` writes it."""
    written = tmp_path / PAGE.name
    written.write_text(PAGE.read_text())
    codebases.write(written)
    assert written.read_text() == PAGE.read_text()


def test_at_least_ten_codebases_run_and_are_right() -> None:
    ran = codebases.recorded()
    assert len({name.partition(".")[0] for name in ran}) >= 10
    assert not [name for name, each in ran.items() if not each.is_right]


@pytest.mark.parametrize(
    ("one", "other", "is_right"),
    [
        (np.float32([1, 2]), np.float32([1, 2 + 1e-5]), True),
        (np.float32([1, 2]), np.float32([1, 2.01]), False),
        (np.float64([1, 2]), np.float64([1, 2 + 1e-5]), False),
        (np.float32([1, np.nan]), np.float32([1, np.nan]), True),
        (np.float32([1, np.nan]), np.float32([np.nan, 1]), False),
        (np.float32([1, np.inf]), np.float32([1, -np.inf]), False),
        (np.float32([1, 2]), np.float64([1, 2]), False),
        (np.int32([1, 2]), np.int32([1, 3]), False),
    ],
)
def test_what_counts_as_equal(one: np.ndarray, other: np.ndarray, is_right: bool) -> None:
    error, _ = codebases._largest_error({"x": one}, {"x": other})
    assert (error <= 1) == is_right


def test_the_parts_have_all_light_codebases() -> None:
    light = {name for name, each in CODEBASES.items() if each.is_light}
    assert set().union(*(part(number, 5) for number in range(5))) == light
    with pytest.raises(ValueError, match="2 parts of 3"):
        part(0, 2)
