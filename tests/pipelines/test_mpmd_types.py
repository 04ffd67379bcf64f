"""Types and attributes of Shardy's MPMD dialect: read as they are written."""

from __future__ import annotations

import pytest

from meshbridge.ir.mlir import context, ir
from meshbridge.pipelines.mpmd_types import MeshTensor, meshes_of, topology_attr

TYPES = [
    '!mpmd.mesh_tensor<"m1", tensor<4x8xf32>>',
    '!mpmd.mesh_tensor<"m1", tensor<4xcomplex<f32>>>',
    '!mpmd.mesh_tensor<"a/cpu", tensor<f32>, sharding=<@mesh, []>>',
    '!mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<@mesh, [{"x":(1)2, ?}p1, {}], replicated={"y"}>>',
    '!mpmd.mesh_tensor<"m1", tensor<4x8xf32>, sharding=<mesh<["x"=2]>, [{"x"}, {}], unreduced={"y"}>, memory_kind="device">',
    '!mpmd.mesh_tensor<"m1", tensor<4x8xf32>, memory_kind="pinned_host">',
]


@pytest.mark.parametrize("text", TYPES)
def test_a_type_is_written_as_it_is_read(text: str) -> None:
    with context():
        kind = ir.Type.parse(text)
        fields = MeshTensor.of(kind)
        assert fields is not None
        assert fields.type == kind
        assert (fields.memory_kind is not None) == ("memory_kind" in text)
        assert (fields.sharding is not None) == ("sharding" in text)
        assert MeshTensor.of(fields.tensor) is None


def test_a_topology_is_written_as_it_is_read() -> None:
    text = '#mpmd.topology<<"a" : <["x"=2, "y"=4]>>, <"b" : <["x"=2], device_ids=[1, 0]>>, <"c" : <[]>>>'
    with context():
        topology = ir.Attribute.parse(text)
        meshes = meshes_of(topology)
        assert [str(mesh) for mesh in meshes.values()] == [
            '#sdy.mesh<["x"=2, "y"=4]>',
            '#sdy.mesh<["x"=2], device_ids=[1, 0]>',
            "#sdy.mesh<[]>",
        ]
        assert topology_attr(meshes) == topology
