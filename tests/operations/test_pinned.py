"""Cases that once computed wrong numbers or were refused, whatever a property test draws today."""

from __future__ import annotations

import jax
import pytest

from tests.operations.cases import check
from tests.operations.pinned import CASES


@pytest.mark.parametrize("name", CASES)
def test_equals_unsharded(name: str) -> None:
    mesh_shape, case = CASES[name]
    with jax.enable_x64(True):
        check([case], mesh_shape)
