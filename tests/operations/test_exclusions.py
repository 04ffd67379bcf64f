"""Faults of XLA for which the drawn families leave something out: each is shown, so that a mended one is noticed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.operations import exclusions, families
from tests.operations.drawing import FAMILIES
from tests.operations.exclusions import EXCLUSIONS, FINITE, REFUSED_BY_XLA
from tests.operations.interpreter import evaluate
from tests.versions import RUNS_SCAN

assert families.__all__

PAGE = Path(__file__).parents[2] / "docs" / "propagation.md"


def by_xla_and_by_specification(function: Callable[..., Any], *values: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The results of XLA on one device, and those of the StableHLO interpreter."""
    flat = jax.jit(lambda *given: jax.tree.leaves(function(*given)))
    return [np.asarray(result) for result in flat(*values)], evaluate(flat.lower(*values).as_text(), values)


def test_functions_that_xla_does_not_compile() -> None:
    for name, dtype in sorted(REFUSED_BY_XLA):
        with pytest.raises(jax.errors.JaxRuntimeError, match="failed to legalize"):
            jax.jit(getattr(lax, name))(np.ones(3, jnp.dtype(dtype)))


def test_windows_of_two_leave_their_padding_out() -> None:
    def function(x: Any, y: Any) -> Any:
        start = (np.float32(1), np.int32(0))
        return lax.reduce_window((x, y), start, lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])), (2,), (1,), ((1, 1),))

    (found, _), (specified, _) = by_xla_and_by_specification(function, np.ones(4, np.float32), np.arange(4, dtype=np.int32))
    np.testing.assert_array_equal(specified, [3, 3, 3, 3, 3])
    np.testing.assert_array_equal(found, [2, 3, 3, 3, 2])


def test_windows_of_one_do_too() -> None:
    """Drawn as XLA has it: a partitioned program computes the same."""
    window = lambda x: lax.reduce_window(x, jnp.asarray(np.float32(1)), lax.add, (2,), (1,), ((1, 1),))  # noqa: E731
    (found,), (specified,) = by_xla_and_by_specification(window, np.ones(4, np.float32))
    np.testing.assert_array_equal(specified, [3, 3, 3, 3, 3])
    np.testing.assert_array_equal(found, [2, 3, 3, 3, 2])


def test_reductions_over_one_element_drop_their_initial_value() -> None:
    """Drawn as XLA has it: a partitioned program computes the same."""
    reduction = lambda x: lax.reduce(x, np.float32(3), lax.add, (0,))  # noqa: E731
    (found,), (specified,) = by_xla_and_by_specification(reduction, np.ones((1, 4), np.float32))
    np.testing.assert_array_equal(specified, [4] * 4)
    np.testing.assert_array_equal(found, [1] * 4)


def test_convolutions_skip_windows_of_padding() -> None:
    """Why convolutions are drawn without NaN."""

    def function(x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(x, w, (1,), ((0, 2),), lhs_dilation=(2,))

    (found,), (specified,) = by_xla_and_by_specification(
        function, np.ones((1, 1, 5), np.float32), np.full((1, 1, 2), np.nan, np.float32)
    )
    assert np.isnan(specified).all()
    assert not np.isnan(found).all()


def _named(entries: Sequence[exclusions.Exclusion]) -> list[str]:
    return [entry.fault for entry in entries]


def test_every_exclusion_is_of_a_family_shows_a_fault_and_is_documented() -> None:
    newer = set() if RUNS_SCAN else {"scan_op"}
    assert {entry.family for entry in EXCLUSIONS} | set(FINITE) <= set(FAMILIES) | newer
    assert not [fault for fault in _named(EXCLUSIONS) if fault not in globals()]
    page = PAGE.read_text()
    for entry in EXCLUSIONS:
        assert f"| `{entry.family}` | {entry.what} | {entry.reason} |" in page
    for family, reason in FINITE.items():
        assert f"| `{family}` | NaN and infinities | {reason} |" in page
