"""The RFC's two walk-throughs, in the canonical spelling: five stages, the RFC's communication, the right numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import meshbridge
from meshbridge import partitioning, pipeline
from meshbridge.cost.communication import communication
from meshbridge.dialect import assembly
from meshbridge.ir.mlir import context, ir

FOLDER = Path(__file__).parents[2] / "testdata" / "walkthrough"
NAMES = ["mlp_1d_weight_stationary", "mlp_1d_weight_stationary_with_sharding_on_operation"]


def _module(name: str) -> ir.Module:
    path = FOLDER / f"{name}.mlir"
    return assembly.read(path.read_text(), str(path), context())


@pytest.mark.parametrize("name", NAMES)
def test_communication_is_the_rfcs(name: str) -> None:
    """One all-gather of the input, one reduce-scatter of the output, nothing else."""
    module = _module(name)
    partitioning.partition_module(module, pipeline.Options(emit="mesh"))
    assert [collective.kind for collective in communication(module).collectives] == ["all_gather", "reduce_scatter"]


@pytest.mark.parametrize("name", NAMES)
def test_runs(name: str) -> None:
    """The partitioned program computes relu(x @ w1) @ w2."""
    rng = np.random.default_rng(0)
    x, w1, w2 = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 8), (8, 32), (32, 8)))
    (got,) = meshbridge.compile(_module(name))(x, w1, w2)
    np.testing.assert_allclose(np.asarray(got), np.maximum(x @ w1, 0) @ w2, rtol=1e-5, atol=1e-5)
