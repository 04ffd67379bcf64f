"""What is written does not grow with the mesh, where groups are named by mesh axes; and names the devices that lists would."""

from __future__ import annotations

import re
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lowering import COLLECTIVES, MESHES, PERMUTES, program
from meshbridge.ir.digits import Digits, axes_of, axis_digits, group_size, prime_digits
from meshbridge.ir.groups import Groups, read_digits
from meshbridge.ir.mlir import context, ir, walk_all
from meshbridge.ir.sharding import Mesh
from meshbridge.lowering.lower_collectives import LowerCollectives
from meshbridge.verification.layout import groups_by_axes
from tests.mesh_axes import needs_mesh_axes


def without_numbers(text: str) -> str:
    """A longer row of digits is written as one of them."""
    return re.sub(r"(\D{8,40}?)(?:, \1)+", r"\1", re.sub(r"\d+", "n", text))


@needs_mesh_axes
def test_the_same_text_on_8_and_on_65536_devices() -> None:
    texts = []
    for mesh in MESHES:
        module = program(mesh, COLLECTIVES, 42)
        LowerCollectives(replica_groups="mesh-axes").run(module)
        texts.append(str(module))
    assert len(texts[2]) < 4 * len(texts[0])  # 16 digits instead of 3
    assert texts[1].count("\n") == texts[2].count("\n")
    assert without_numbers(texts[1]) == without_numbers(texts[2])


SHAPES = ((2, 4), (8,), (4, 4), (6, 4), (4, 6), (3, 8), (2, 1, 8), (12, 5))


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Mesh, Digits]:
    """A mesh, its devices in order or their digits transposed, and some of its axes, or factors of them, in any order."""
    shape = draw(st.sampled_from(SHAPES))
    mesh = Mesh("m", shape)
    if draw(st.booleans()):
        line = draw(st.permutations(prime_digits(mesh)))
        position = np.arange(mesh.size)
        ids = sum(digit.of(position) * group_size(tuple(line[place + 1 :])) for place, digit in enumerate(line)).tolist()
        mesh = Mesh("m", shape, device_ids=() if ids == sorted(ids) else tuple(ids))
    every = draw(st.permutations(prime_digits(mesh)))
    factors = tuple(every[: draw(st.integers(1, len(every)))])
    whole = axis_digits(mesh, tuple(draw(st.permutations(range(mesh.rank)))[: draw(st.integers(1, mesh.rank))]))
    return mesh, draw(st.sampled_from([factors, whole]))


@needs_mesh_axes
@given(grouped())
def test_groups_by_axes_are_those_of_lists(drawn: tuple[Mesh, Digits]) -> None:
    """Read by the evaluator, which shares nothing with what writes them, and back by what reads them for reports."""
    mesh, digits = drawn
    with context():
        named, listed = (Groups(spelling=each).collective(mesh, digits)["replica_groups"] for each in ("mesh-axes", "dense"))
        assert not isinstance(named, ir.DenseElementsAttr)
        assert sorted(groups_by_axes(named, {})) == sorted(np.array(listed).tolist())
        assert sorted(np.array(Groups(spelling="dense").respelled(mesh, named)).tolist()) == sorted(np.array(listed).tolist())
        assert axes_of(mesh, read_digits(named, mesh) or ()) == tuple(dict.fromkeys(d.axis for d in digits if d.radix > 1))


@pytest.mark.parametrize("shape", [(2, 2, 2), (2,), (3, 2)])
def test_groups_are_lists_where_another_mesh_may_have_as_many_axes(shape: tuple[int, ...]) -> None:
    with context():
        mesh = Mesh("m", shape)
        written = Groups(spelling="mesh-axes").collective(mesh, axis_digits(mesh, (0,)))["replica_groups"]
        assert isinstance(written, ir.DenseElementsAttr)


def test_positions_are_arithmetic_where_the_order_of_devices_transposes_digits() -> None:
    """By the same ops for any number of devices, but for constants, of which equal ones are one; a table of all devices only
    where no arithmetic gives their order."""
    written = []
    for shape in ((4, 4, 4), (16, 32, 64)):
        grid = np.arange(prod(shape)).reshape(shape[::-1])
        mesh = Mesh("m", shape, device_ids=tuple(grid.T.ravel().tolist()))
        module = program(mesh, COLLECTIVES[-1:], 7)
        LowerCollectives().run(module)
        written.append([op.name for op in walk_all(module) if op.name != "stablehlo.constant"])
    assert written[0] == written[1]
    assert "stablehlo.dynamic_slice" not in written[0]


@pytest.mark.parametrize("emits", [COLLECTIVES, PERMUTES])
def test_dense_groups_are_written_once(emits: tuple[object, ...]) -> None:
    """Equal groups are one attribute, however many collectives share them."""
    module = program(MESHES[1], emits, 84)  # type: ignore[arg-type]
    LowerCollectives().run(module)
    names = ("replica_groups", "source_target_pairs")
    block = module.body.operations[1].regions[0].blocks[0]
    attrs = [op.operation.attributes[name] for op in block.operations for name in names if name in op.operation.attributes]
    assert len(set(attrs)) < len(attrs) / 2
