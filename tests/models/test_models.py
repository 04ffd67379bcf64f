"""Training steps of models of other libraries, partitioned and run on 8 virtual devices: numbers and bytes.

`make test-models` runs each under one scheme, `make test-models-all` under all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from benchmarks.model_numbers import RECORD, measure
from testdata.models.catalogue import models
from testdata.models.model import SCHEMES, Model
from tests.documentation import PAGES, run_blocks

NAMES = list(dict.fromkeys(key.split()[0] for key in json.loads(RECORD.read_text())))
"""Those on record: the catalogue can be listed only where all libraries are installed."""

CASES = [
    pytest.param(name, scheme, marks=() if (index + turn) % len(SCHEMES) == 0 else pytest.mark.slow)
    for index, name in enumerate(NAMES)
    for turn, scheme in enumerate(SCHEMES)
]

# Other people's libraries warn of what they use of each other.
pytestmark = [pytest.mark.models, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def makers() -> dict[str, Callable[[], Model]]:
    """The catalogue. Skips where a library is missing."""
    try:
        return models()
    except ImportError as error:
        pytest.skip(f"{error}; `make test-models` has all")


def test_every_model_is_on_record(makers: dict[str, Callable[[], Model]]) -> None:
    assert set(NAMES) == set(makers)


@pytest.mark.parametrize(("name", "scheme"), CASES)
def test_model_equals_one_device_and_sends_no_more_than_xla(
    name: str, scheme: str, makers: dict[str, Callable[[], Model]]
) -> None:
    """By plans of the fewest bytes; the default's are right, too."""
    jax.clear_caches()
    numbers = measure(makers[name](), scheme)
    assert numbers.is_right, numbers
    assert numbers.fewest_bytes <= numbers.least_of_xla, numbers


def test_a_step_of_equinox_is_saved_as_its_tutorial_says(tmp_path: Path) -> None:
    """The page's other blocks run in `tests/test_docs.py`."""
    pytest.importorskip("equinox")
    name = "docs/tutorials/training-step.md"
    assert PAGES[name].count("<!-- not run: Equinox") == 1
    run_blocks(re.sub("<!-- not run: Equinox[^\n]*-->", "", PAGES[name]), Path(name).name, tmp_path)
