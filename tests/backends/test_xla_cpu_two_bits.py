"""Gathers of two-bit elements: XLA:CPU writes past their ends, so that they are sent as bytes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import PATIENCE

GATHERED = """
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
import meshbridge

mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
values = np.arange(8 * 16).reshape(8, 16) % 2
sharded = jax.device_put(values.astype(jax.numpy.{dtype}), NamedSharding(mesh, P("x")))
gathered = {jit}(lambda x: x, out_shardings=NamedSharding(mesh, P()))(sharded)
assert [[int(each) for each in row] for row in np.asarray(gathered)] == values.tolist()
print("as they were")
"""


def end_of(jit: str, dtype: str, patience: int = PATIENCE) -> str:
    """What a process prints that gathers on 8 devices; it may die, or hang for that many seconds."""
    code = GATHERED.format(jit=jit, dtype=dtype)
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=patience)
    except subprocess.TimeoutExpired:
        return "hangs"
    return done.stdout.strip() if done.returncode == 0 else f"ended with {done.returncode}"


@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_elements_arrive(dtype: str) -> None:
    assert end_of("meshbridge.jit", dtype) == "as they were"


def test_xla_gathers_packed_elements_wrongly() -> None:
    """If this fails for a new jaxlib, `send_two_bits_as_bytes` can go."""
    assert end_of("jax.jit", "int4") == "as they were"
    # What is written past the ends lets some processes hang.
    assert end_of("jax.jit", "int2", patience=120) != "as they were"
