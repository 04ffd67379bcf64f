"""The topology that devices say, and where they are in it: devices that stand in for those of JAX."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshbridge.machines.machine import named
from meshbridge.runtime import devices
from meshbridge.runtime.located import UnlocatedError, locate
from tests.runtime.stand_ins import V5E, nodes, torus, transposed

UNEQUAL = [*torus(2, 2), *(SimpleNamespace(**{**vars(each), "id": each.id + 4, "slice_index": 1}) for each in torus(2, 4))]
V5P, PAIRS = torus(4, 4, 4, kind="TPU v5"), torus(2, 2, 1, kind="TPU7x", cores=2)


@pytest.mark.parametrize(
    ("used", "known", "machine", "expected"),
    [
        (V5E, V5E, "v5e", ("v5e:4x4", "*=y+x")),
        (transposed(V5E, 4), V5E, "v5e", ("v5e:4x4", "*=x+y")),
        (torus(4, 4, at=8), (), "v5e", ("v5e:4x4", "*=y+x")),
        (torus(4, 4, axes=2), (), "v5e", ("v5e:4x4", "*=y+x")),
        (V5E[8:], V5E, "v5e", ("v5e:4x4", "*=y:(2)2+x")),
        (V5E[::2], V5E, "v5e", ("v5e:4x4", "*=y+x:(1)2")),
        ([*V5E[4:8], *V5E[12:]], V5E, "v5e", ("v5e:4x4", "*=y:(1)2+x")),
        ([V5E[number] for number in (0, 1, 4, 7, 2, 3, 5, 6)], V5E[:8], "v5e", ("v5e:4x2", "*=x&y")),
        (V5E[8:], (), "v5e", ("v5e:4x2", "*=y+x")),
        (V5P, V5P, "v5p", ("v5p:4x4x4", "*=z+y+x")),
        (V5P[:32], V5P, "v5p", ("v5p:4x4x4", "*=z:(2)2+y+x")),
        (PAIRS, PAIRS, "7x", ("7x:2x2x1", "*=y+x+chip")),
        (PAIRS[::2], PAIRS, "7x", ("7x:2x2x1", "*=y+x")),
        (torus(2, 4, slices=2), (), "v5e", ("v5e:2x2x4", "*=dcn+y+x")),
        (transposed(torus(2, 4, slices=2), 2), (), "v5e", ("v5e:2x2x4", "*=y+x+dcn")),
        (torus(2, 4, slices=4)[8:24], torus(2, 4, slices=4), "v5e", ("v5e:2x2x4", "*=dcn+y+x")),
        (nodes(1), (), "h100", ("h100:1x1x8", "*=nvlink")),
        (nodes(4), (), "h100", ("h100:1x4x8", "*=infiniband+nvlink")),
        (transposed(nodes(4), 4), (), "h100", ("h100:1x4x8", "*=nvlink+infiniband")),
        (nodes(2)[:8], nodes(2), "h100", ("h100:1x1x8", "*=nvlink")),
        (nodes(2)[2:6], nodes(2), "h100", ("h100:1x1x8", "*=nvlink:(2)4")),
        (nodes(2, process_of=lambda node, place: 8 * node + place), (), "h100", ("h100:1x2x8", "*=infiniband+nvlink")),
        (nodes(2, slice_of=lambda *_: 0), (), "h100", ("h100:1x2x8", "*=infiniband+nvlink")),
        (nodes(2, 4, slice_of=lambda *_: None), (), "h100", ("h100:1x1x8", "*=nvlink")),
    ],
)
def test_where_devices_are(used: list[Any], known: list[Any], machine: str, expected: tuple[str, str]) -> None:
    assert locate(used, known, named(machine)) == expected


@pytest.mark.parametrize(
    ("used", "machine", "message"),
    [
        ([SimpleNamespace(platform="tpu", id=number) for number in range(4)], "v5e", "they have no coordinates x, y"),
        (torus(2, 2, 2), "v5e", "their coordinates have other axes than x, y"),
        (torus(2, 2, 1, cores=2), "v4", "they are 2 to a chip, expected 1"),
        (PAIRS[::2], "7x", "they are 1 to a chip, expected 2"),
        ([*V5E[:2], V5E[3]], "v5e", "their slices or nodes are no full blocks of one size: 3 within 4x1x1"),
        ([*V5E[:7], V5E[8]], "v5e", "their slices or nodes are no full blocks of one size: 8 within 4x3x1"),
        (UNEQUAL, "v5e", "their slices or nodes are no full blocks of one size: 4 within 2x2x1, 8 within 2x4x1"),
        (torus(32, 1), "v5e", "machine 'v5e:32x1': 32 devices along x, expected 16 at most"),
        (nodes(2)[4:], "h100", "their slices or nodes are no full blocks of one size: 4 within 4, 8 within 8"),
        (nodes(1, 16), "h100", "machine 'h100:1x1x16': 16 devices along nvlink, expected 8 at most"),
    ],
)
def test_devices_that_are_nowhere(used: list[Any], machine: str, message: str) -> None:
    with pytest.raises(UnlocatedError) as caught:
        locate(used, (), named(machine))
    assert message in str(caught.value)


@pytest.mark.parametrize("numbers", [(0, 1, 4, 6), (0, 1, 2), (0, 1, 3), (0, 5, 10, 15)])
def test_devices_that_are_no_grid_of_their_slice(numbers: tuple[int, ...]) -> None:
    with pytest.raises(UnlocatedError, match="in the order of the mesh they are no grid"):
        locate([V5E[number] for number in numbers], V5E, named("v5e"))


def test_what_is_chosen_for_them() -> None:
    assert devices.located(V5E) == devices.Chosen("v5e:4x4", "JAX runs on TPU v5 lite", "*=y+x")
    assert devices.located([*V5E[:7], V5E[8]]) == devices.Chosen(
        "v5e",
        "JAX runs on TPU v5 lite, planned for without a topology: "
        "their slices or nodes are no full blocks of one size: 8 within 4x3x1",
    )
    without = devices.located(V5E, but="it fits no link")
    assert without == devices.Chosen("v5e", "JAX runs on TPU v5 lite, planned for without a topology: it fits no link")
    assert devices.located(torus(2, kind="TPU v2")).name == "neutral"


def test_the_backend_says_which_other_devices_there_are() -> None:
    backend = SimpleNamespace(devices=lambda: V5P)
    some = [SimpleNamespace(**vars(device), client=backend) for device in V5P[:16]]
    assert devices.located(some)[::2] == ("v5p:4x4x4", "*=y+x")
