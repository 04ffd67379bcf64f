"""The devices of a machine, divided among stages."""

from __future__ import annotations

import pytest

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import Mesh
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.pipelines.topology import target_of_stage, transfer_time


@pytest.mark.parametrize(
    ("machine", "stages", "own"),
    [
        ("v5p:4x4x4", 4, "v5p:1x4x4"),
        ("v5p:4x4x4", 2, "v5p:2x4x4"),
        ("v5p:4x4x4", 8, "v5p:1x2x4"),
        ("v5p:2x4x4x4", 2, "v5p:4x4x4"),
        ("v5p:2x4x4x4", 4, "v5p:2x4x4"),
        ("h100:1x4x8", 4, "h100:1x1x8"),
        ("neutral", 3, "neutral"),
        ("v5p", 3, "v5p"),
    ],
)
def test_the_devices_of_a_stage(machine: str, stages: int, own: str) -> None:
    assert target_of_stage(CompileTarget.of(machine), stages).name == own


@pytest.mark.parametrize(("machine", "stages"), [("v5p:4x4x4", 3), ("h100:1x4x8", 64), ("v5p:6x4x4", 4)])
def test_topologies_without_equal_parts(machine: str, stages: int) -> None:
    with pytest.raises(MeshError, match=f"cannot be divided into {stages} equal parts"):
        target_of_stage(CompileTarget.of(machine), stages)


def test_a_transfer_takes_the_links_in_between() -> None:
    target, mesh = CompileTarget.of("v5p:4x4x4"), Mesh("mesh", (16,))
    near, again = (transfer_time(target, mesh, 4, *ends, 1e9).seconds for ends in ((0, 1), (2, 1)))
    assert near == again == pytest.approx(1e9 / target.device.link.rate, rel=0.01)
    across = transfer_time(CompileTarget.of("v5p:2x4x4x4"), Mesh("mesh", (64,)), 2, 0, 1, 1e9).seconds
    assert across > near
