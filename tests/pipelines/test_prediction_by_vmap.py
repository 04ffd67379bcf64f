"""The table of `docs/pipelines.md` beside a pipeline by `jax.vmap` is what predictions are today."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.house import ROOT
from tests.pipelines import vmap_table


@pytest.mark.slow
def test_the_table_is_up_to_date() -> None:
    devices = f"import jax; jax.config.update('jax_num_cpu_devices', {vmap_table.DEVICES})"
    code = f"{devices}; from tests.pipelines import vmap_table; print(vmap_table.table())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in vmap_table.PAGE.read_text(), f"outdated, run: {vmap_table.COMMAND}"


def test_the_least_possible() -> None:
    """Of a stage between two others: eight microbatches of 2,048 tokens and as many numbers of two bytes, in two directions."""
    assert vmap_table.least_bytes() == 2 * 8 * 2048 * 2048 * 2
