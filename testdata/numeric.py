"""Single operations that run along a split dimension: running sum, sort, two-dimensional Fourier transform."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from testdata.program import Argument, Program
from testdata.ring import Term

DEVICES = 8
AXES = (("x", DEVICES),)
ROWS, COLUMNS = 64, 4096
GRID = 256
COLUMN_SPLIT, ROW_SPLIT = P(None, "x"), P("x", None)


def cumsum() -> Program:
    """Running sum along the split dimension."""
    plan = (Term("all-gather", DEVICES, DEVICES * ROWS * 4, 1, "each shard's total per row"),)
    return Program("misc_cumsum", AXES, _cumsum, (Argument((ROWS, COLUMNS), COLUMN_SPLIT),), COLUMN_SPLIT, plan)


def sort() -> Program:
    """Rows sorted along the split dimension."""
    plan = (Term("all-to-all", DEVICES, ROWS * COLUMNS * 4 // DEVICES, 2, "to split along the rows, and back"),)
    return Program("misc_sort", AXES, _sort, (Argument((ROWS, COLUMNS), COLUMN_SPLIT),), COLUMN_SPLIT, plan)


def fft2() -> Program:
    """Two-dimensional complex Fourier transform of a row-split array."""
    plan = (Term("all-to-all", DEVICES, GRID * GRID * 8 // DEVICES, 2, "rows to columns, and back"),)
    return Program("misc_fft2", AXES, jnp.fft.fft2, (Argument((GRID, GRID), ROW_SPLIT, element="complex64"),), ROW_SPLIT, plan)


def _cumsum(x: jax.Array) -> jax.Array:
    return jnp.cumsum(x, axis=1)


def _sort(x: jax.Array) -> jax.Array:
    return jnp.sort(x, axis=1)
