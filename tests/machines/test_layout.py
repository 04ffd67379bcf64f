"""Which links of a machine the axes of a mesh are on."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from jax._src import mesh_utils

from meshbridge.ir.mlir import MeshError
from meshbridge.ir.sharding import Mesh
from meshbridge.machines import layout, target
from meshbridge.machines.layout import Placement
from tests.machines.examples import placed


def parts_of(placement: Placement) -> list[list[tuple[str, int, int]]]:
    """Of each axis, name of the dimension, size and stride of each part."""
    return [[(part.dimension.name, part.size, part.stride) for part in parts] for parts in placement.parts]


def positions(placement: Placement) -> np.ndarray:
    """The number of the device at each position of the mesh: its coordinates, the last of which changes fastest."""
    names = [dimension.name for dimension in placement.dimensions]
    sizes = [dimension.size for dimension in placement.dimensions]
    found = np.zeros((), np.int64)
    for parts in placement.parts:
        along = np.zeros(1, np.int64)
        for part in parts:
            step = part.stride * prod(sizes[names.index(part.dimension.name) + 1 :])
            along = (along[:, None] + np.arange(part.size) * step).ravel()
        found = found[..., None] + along
    return found


@pytest.mark.parametrize(
    ("machine", "shape"),
    [
        ("v5e:4x8", (4, 8)),
        ("v5e:16x16", (16, 16)),
        ("v5p:4x4x8", (4, 4, 8)),
        ("v5p:2x4x8", (2, 4, 8)),
        ("v5p:4x12x4", (4, 12, 4)),
        ("7x:2x2x4", (2, 2, 4, 2)),
    ],
)
def test_within_a_slice_axes_lie_as_jax_places_them(machine: str, shape: tuple[int, ...]) -> None:
    devices = prod(shape)
    divisors = [each for each in range(1, devices + 1) if devices % each == 0]
    for mesh in (sizes for rank in (1, 2, 3) for sizes in product(divisors, repeat=rank) if prod(sizes) == devices):
        expected, _ = mesh_utils._create_device_mesh_for_nd_torus(
            np.arange(devices).reshape(shape), mesh, allow_split_physical_axes=True
        )
        found = positions(layout.place(Mesh("m", mesh), target.of_machine(machine)))
        np.testing.assert_array_equal(found, expected, str(mesh))


def test_nodes_of_gpus_are_row_major() -> None:
    """As `jax.make_mesh` leaves devices that have no coordinates."""
    for machine in ("h100:1x4x8", "h100:2x2x8", "a100:1x8x4"):
        for sizes in ((32,), (4, 8), (8, 4), (2, 2, 8), (2, 8, 2), (16, 2)):
            found = positions(layout.place(Mesh("m", sizes), target.of_machine(machine)))
            np.testing.assert_array_equal(found.ravel(), np.arange(32))


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (placed("v5p:2x4x4x4", data=2, model=64), [[("dcn", 2, 1)], [("x", 4, 1), ("y", 4, 1), ("z", 4, 1)]]),
        (placed("v5p:2x4x4x4", data=8, model=16), [[("dcn", 2, 1), ("z", 4, 1)], [("x", 4, 1), ("y", 4, 1)]]),
        (placed("v5p:2x4x4x4", "model=dcn", data=64, model=2), [[("x", 4, 1), ("y", 4, 1), ("z", 4, 1)], [("dcn", 2, 1)]]),
        (placed("v5p:4x4x4", "model=z", data=16, model=4), [[("x", 4, 1), ("y", 4, 1)], [("z", 4, 1)]]),
        (placed("v5e:4x8", "data=x+y,model=y", data=8, model=4), [[("x", 4, 1), ("y", 2, 4)], [("y", 4, 1)]]),
        (placed("v5e:4x8", "data=y,model=x+y", data=4, model=8), [[("y", 4, 2)], [("x", 4, 1), ("y", 2, 1)]]),
        (placed("h100:1x4x8", "model=nvlink,data=infiniband", model=8, data=4), [[("nvlink", 8, 1)], [("infiniband", 4, 1)]]),
        (placed("7x:2x2x1", "model=chip", data=4, model=2), [[("x", 2, 1), ("y", 2, 1)], [("chip", 2, 1)]]),
        (placed("cpu8:8", data=2, model=4), [[("memory", 2, 4)], [("memory", 4, 1)]]),
        (placed("v5e:1x1", data=1), [[]]),
        (placed("v5e:4x4", "*=y+x", data=4, model=4), [[("y", 4, 1)], [("x", 4, 1)]]),
        (placed("v5e:4x4", "*=x+y", data=2, model=8), [[("x", 2, 2)], [("x", 2, 1), ("y", 4, 1)]]),
        (placed("v5e:4x4", "*=x&y", data=16), [[("x", 4, 1), ("y", 4, 1)]]),
        (placed("v5e:4x4", "*=x&y", data=16, model=1), [[("x", 4, 1), ("y", 4, 1)], []]),
        (
            placed("v5e:4x4", "*=y:(1)2+x:(1)2+y:(2)2+x:(2)2", data=4, model=4),
            [[("y", 2, 2), ("x", 2, 2)], [("y", 2, 1), ("x", 2, 1)]],
        ),
        (placed("v5p:4x4x4", "*=z:(2)2+y+x", data=4, model=8), [[("z", 2, 1), ("y", 2, 2)], [("y", 2, 1), ("x", 4, 1)]]),
        (placed("v5p:2x2x2x1", "*=x+y+dcn", data=4, model=2), [[("x", 2, 1), ("y", 2, 1)], [("dcn", 2, 1)]]),
        (placed("h100:1x1x8", "*=nvlink:(2)4", data=2, model=2), [[("nvlink", 2, 2)], [("nvlink", 2, 1)]]),
    ],
)
def test_layouts(placement: Placement, expected: list[list[tuple[str, int, int]]]) -> None:
    assert parts_of(placement) == expected


def test_axes_that_are_several_to_the_dialect() -> None:
    """Digits of a user's axis take parts of what the axis takes."""
    mesh = Mesh("m", (2, 4, 2, 2), ("data", "model"), digits=(2, 2))
    found = layout.place(mesh, target.of_machine("h100:1x4x8"))
    assert parts_of(found) == [
        [("infiniband", 2, 2)],
        [("infiniband", 2, 1), ("nvlink", 2, 4)],
        [("nvlink", 2, 2)],
        [("nvlink", 2, 1)],
    ]
    with pytest.raises(MeshError, match="mesh axis 'data' is split in 2, which 3 devices along infiniband cannot be"):
        layout.place(Mesh("m", (2, 3, 4), ("data", "model"), digits=(2, 1)), target.of_machine("h100:1x3x8"))


def test_devices_that_a_mesh_lists() -> None:
    """Its positions are those of the devices of these numbers."""
    of, columns = target.of_machine("v5e:2x4", "*=y+x"), (0, 2, 4, 6, 1, 3, 5, 7)
    assert parts_of(layout.place(Mesh("m", (2, 4), device_ids=columns), of)) == [[("x", 2, 1)], [("y", 4, 1)]]
    for ids, layout_text in (((0, 1, 2, 3, 5, 7, 6, 4), "*=y+x"), (columns, "*=y&x")):
        with pytest.raises(layout.OrderError):
            layout.place(Mesh("m", (8,), device_ids=ids), target.of_machine("v5e:2x4", layout_text))


def test_a_layout_of_all_axes_holds_for_axes_that_are_several_to_the_dialect() -> None:
    """Within an axis of the user's it is no matter in which order the devices go."""
    found = layout.place(Mesh("m", (2, 2, 2), ("data",), digits=(3,)), target.of_machine("v5e:2x4", "*=y&x"))
    assert parts_of(found) == [[("y", 2, 2)], [("y", 2, 1)], [("x", 2, 1)]]


def test_parts_next_to_each_other_are_one() -> None:
    placement = placed("v5e:16x16", a=4, b=4, c=16)
    assert parts_of(placement)[:2] == [[("y", 4, 4)], [("y", 4, 1)]]
    (whole,) = placement.across((0, 1))
    assert (whole.size, whole.stride, whole.ring) == (16, 1, True)
    (inner,), (outer,) = placement.across((1,)), placement.across((0,))
    assert (inner.ring, outer.ring) == (False, True)


@pytest.mark.parametrize(
    ("machine", "rings"),
    [
        ("v5e:8x16", {"x": False, "y": True}),
        ("v5p:4x4x8", {"x": True, "y": True, "z": True}),
        ("v5p:2x4x4", {"x": False, "y": False, "z": False}),
        ("h100:1x1x8", {"nvlink": False}),
    ],
)
def test_rings(machine: str, rings: dict[str, bool]) -> None:
    found = layout.dimensions(target.of_machine(machine))
    assert {each.name: each.ring for each in found if each.name in rings} == rings


@pytest.mark.parametrize(
    ("machine", "layout_text", "sizes", "message"),
    [
        ("v5e:2x4", "", {"x": 4}, "mesh @m has 4 devices, machine 'v5e:2x4' has 8"),
        ("v5e:2x4", "data", {"data": 8}, "expected a layout AXIS=LINK,…, each axis once, as in data=dcn,model=ici, found 'data'"),
        ("v5e:2x4", "data=x,data=y", {"data": 8}, "each axis once"),
        ("v5e:2x4", "batch=x", {"data": 8}, "layout of 'batch': mesh @m has no such axis, expected one of data"),
        ("v5e:2x4", "data=nvlink", {"data": 8}, "machine 'v5e:2x4' has no 'nvlink', expected one of dcn, ici, x, y"),
        ("v5e:2x4", "data=y", {"data": 8}, "mesh axis 'data' of 8 devices does not fit where its layout says: what is left is"),
        ("v5e:2x4", "data=dcn", {"data": 2, "model": 4}, "mesh axis 'data' of 2 devices does not fit where its layout says"),
        ("h100:1x3x8", "", {"a": 4, "b": 6}, "mesh axis 'b' of 6 devices does not fit machine 'h100:1x3x8': what is left is"),
        ("h100:1x1x16", "", {"a": 16}, "machine 'h100:1x1x16': 16 devices along nvlink, expected 8 at most"),
        ("v5e:32x1", "", {"a": 32}, "machine 'v5e:32x1': 32 devices along x, expected 16 at most"),
        ("v5e:2x4", "*=y", {"a": 8}, "layout of '*': expected the 8 devices of mesh @m, found 4"),
        ("v5e:2x4", "*=y+x,a=x", {"a": 8}, "layout of '*': it is one of all axes, expected no other beside it"),
        ("v5e:2x4", "*=y+z", {"a": 8}, "layout of '*': expected one of dcn, x, y, or a part of it as in x:(2)4, found 'z'"),
        ("v5e:2x4", "*=y:2+x", {"a": 8}, "or a part of it as in x:(2)4, found 'y:2'"),
        ("v5e:2x4", "*=y:(1)3+x", {"a": 6}, "'y:(1)3' is no part of the 4 devices along y of 'v5e:2x4'"),
        ("v5e:2x4", "*=y+y:(1)2", {"a": 8}, "layout of '*': y:(1)2 and y are the same devices of machine 'v5e:2x4'"),
        ("v5e:2x4", "*=y&x", {"a": 4, "b": 2}, "an axis of mesh @m ends within y and x, through which devices go in no order"),
        ("v5e:3x4", "*=x+y", {"a": 2, "b": 6}, "mesh @m is split in 2, which 3 devices along x cannot be"),
        ("cpu8:16", "", {"a": 16}, "16 devices along memory, expected 8 at most"),
    ],
)
def test_what_does_not_fit(machine: str, layout_text: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(MeshError) as caught:
        placed(machine, layout_text, **sizes)
    assert message in str(caught.value)
    assert str(caught.value).startswith("error: ")


def test_placing_does_not_list_devices() -> None:
    """A mesh of a million devices is placed in no more steps than one of eight."""
    placement = placed("h100:1024x128x8", data=1024, fsdp=128, model=8)
    assert parts_of(placement) == [[("infiniband", 1024, 128)], [("infiniband", 128, 1)], [("nvlink", 8, 1)]]
