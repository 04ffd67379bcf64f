"""Builders make what the text says: each result's type is inferred, and the whole verifies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshbridge.dialect import build, verifier
from meshbridge.dialect.assembly import read, write
from meshbridge.ir.mlir import context, ir
from meshbridge.ir.sharding import DYNAMIC, Mesh, Sharding
from tests.dialect.programs import FORMS, program

CONTEXT = context()
M0, MD, DEEP = Mesh("m0", (2, 4)), Mesh("md", (4, DYNAMIC)), Mesh("deep", (2, 2, 4))
Values = list[ir.Value[Any]]
Make = Callable[[Values], object]

CASES: list[tuple[str, Make]] = [
    (FORMS["mesh_shape"][0], lambda v: build.mesh_shape(M0)),
    (FORMS["mesh_shape"][1], lambda v: build.mesh_shape(DEEP, (2, 0))),
    (FORMS["process_multi_index"][1], lambda v: build.process_multi_index(M0, (1,))),
    (FORMS["process_linear_index"][0], lambda v: build.process_linear_index(M0)),
    (FORMS["neighbors_linear_indices"][0], lambda v: build.neighbors_linear_indices(M0, [v[1], v[1]], (1,))),
    (FORMS["sharding"][1], lambda v: build.sharding(Sharding("deep", ((0, 1), (2,))))),
    (FORMS["sharding"][2], lambda v: build.sharding(Sharding("m0", ((0,),), (1,), "max"))),
    (FORMS["shard"][0], lambda v: build.shard(v[0], v[3])),
    (
        FORMS["shard"][1],
        lambda v: build.shard(v[0], v[3], annotate_for_users=True, extras={"test.note": ir.DenseI64ArrayAttr.get([1])}),
    ),
    (FORMS["get_sharding"][0], lambda v: build.get_sharding(v[0])),
    (FORMS["shard_shape"][0], lambda v: build.shard_shape([8, DYNAMIC], v[3], v[1])),
    (FORMS["all_gather"][0], lambda v: build.all_gather(v[0], M0, mesh_axes=[1], gather_axis=1)),
    (FORMS["all_gather"][1], lambda v: build.all_gather(v[0], M0, mesh_axes=[], gather_axis=1)),
    (FORMS["all_gather"][2], lambda v: build.all_gather(v[0], MD, mesh_axes=[1], gather_axis=0)),
    (
        FORMS["all_reduce"][1],
        lambda v: build.all_reduce(v[0], M0, mesh_axes=[1, 0], reduction="max", element_type=ir.F64Type.get()),
    ),
    (FORMS["all_slice"][0], lambda v: build.all_slice(v[0], M0, mesh_axes=[1], slice_axis=1)),
    (FORMS["all_to_all"][0], lambda v: build.all_to_all(v[0], M0, mesh_axes=[1], split_axis=0, concat_axis=1)),
    (FORMS["broadcast"][0], lambda v: build.broadcast(v[0], M0, mesh_axes=[0, 1], root=[1, v[1]])),
    (FORMS["gather"][0], lambda v: build.gather(v[0], M0, mesh_axes=[0], gather_axis=0, root=[1])),
    (
        FORMS["reduce"][0],
        lambda v: build.reduce(v[0], M0, mesh_axes=[0], root=[1], reduction="min", element_type=ir.F64Type.get()),
    ),
    (FORMS["reduce"][1], lambda v: build.reduce(v[0], M0, mesh_axes=[0], root=[v[1]])),
    (
        FORMS["reduce_scatter"][0],
        lambda v: build.reduce_scatter(v[0], M0, mesh_axes=[0], scatter_axis=0, reduction="max", element_type=ir.F64Type.get()),
    ),
    (FORMS["scatter"][0], lambda v: build.scatter(v[0], M0, mesh_axes=[0], scatter_axis=0, root=[1])),
    (FORMS["send"][0], lambda v: build.send(v[0], M0, mesh_axes=[0], destination=[v[1]])),
    (FORMS["recv"][0], lambda v: build.recv(v[0], M0, mesh_axes=[0, 1], source=[0, 2])),
    (FORMS["recv"][1], lambda v: build.recv(v[0], M0, mesh_axes=[0, 1])),
    (FORMS["shift"][0], lambda v: build.shift(v[0], M0, mesh_axes=[0, 1], shift_axis=1, offset=-2, rotate=True)),
    (FORMS["permute"][0], lambda v: build.permute(v[0], M0, mesh_axes=[0, 1], target_axes=[1, 0])),
    (FORMS["update_halo"][0], lambda v: build.update_halo(v[0], M0, split_axes=((), (1,)), halo_sizes=[1, v[2]])),
]


@pytest.mark.parametrize(
    ("line", "make"), CASES, ids=[line.split("mesh.")[1].split()[0] + str(n) for n, (line, _) in enumerate(CASES)]
)
def test_builder_makes_what_the_text_says(line: str, make: Make) -> None:
    module = read(program(), "a.mlir", CONTEXT)
    block = module.body.operations[5].regions[0].blocks[0]
    with CONTEXT, ir.Location.unknown(), ir.InsertionPoint(block.operations[0]):
        make(list(block.arguments))
    assert write(module).strip() == program(line).strip()
    assert [error for error in verifier.diagnostics(module) if "to match it" not in str(error)] == []


def test_mesh_declares_names_and_devices() -> None:
    module = read("", "a.mlir", CONTEXT)
    mesh = Mesh("m", (2, 2), ("x", "y"), (0, 2, 1, 3))
    with CONTEXT, ir.Location.unknown(), ir.InsertionPoint(module.body):
        op = build.mesh(mesh)
    assert op.opview.value == mesh
    assert 'mesh.mesh @m(shape = 2x2) {meshbridge.axis_names = ["x", "y"]' in write(module)


def test_what_does_not_divide_is_refused() -> None:
    module = read(program(), "a.mlir", CONTEXT)
    block = module.body.operations[5].regions[0].blocks[0]
    with (
        CONTEXT,
        ir.Location.unknown(),
        ir.InsertionPoint(block.operations[0]),
        pytest.raises(ValueError, match="dimension 0 of size 4 does not divide by 8"),
    ):
        build.all_slice(block.arguments[0], M0, mesh_axes=[0, 1], slice_axis=0)
