"""Options of the whole pipeline: how plans are chosen, and how device groups are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshbridge.tools import cli
from tests.mesh_axes import needs_mesh_axes

ARTIFACT = Path(__file__).parents[1] / "testdata" / "gpt3.jax_export"


@pytest.mark.parametrize("resharding", ["cheapest", "exact"])
def test_partition_runs_with_either_way_of_choosing_plans(resharding: str, tmp_path: Path) -> None:
    output = tmp_path / "out.mlir"
    assert cli.main(["partition", str(ARTIFACT), "-o", str(output), "--resharding", resharding, "--machine", "bytes"]) == 0
    assert "stablehlo.reduce_scatter" in output.read_text()


@needs_mesh_axes
def test_groups_by_mesh_axes(tmp_path: Path) -> None:
    output = tmp_path / "out.mlir"
    assert cli.main(["partition", str(ARTIFACT), "-o", str(output), "--replica-groups", "mesh-axes"]) == 0
    assert "replica_group_mesh_axes" in output.read_text()
