"""Every op under every sharding: whatever is drawn, the partitioned program computes what one device computes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import jax
import pytest
from hypothesis import given, settings

from tests.operations import families
from tests.operations.cases import Case, check
from tests.operations.drawing import FAMILIES, batches

assert families.__all__

TOGETHER = 8
"""Cases in one program at most; hypothesis draws half as many on average."""
EXAMPLES = 500 if os.environ.get("MESHBRIDGE_EXAMPLES") == "long" else 12


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    """64-bit types, which JAX leaves out by default."""
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", FAMILIES)
def test_equals_unsharded(name: str) -> None:
    @settings(max_examples=-(-EXAMPLES // (TOGETHER // 2)))
    @given(drawn=batches(FAMILIES[name], TOGETHER))
    def run(drawn: tuple[tuple[int, ...], list[Case]]) -> None:
        mesh, cases = drawn
        check(cases, mesh)

    run()
