"""Collectives over all devices of a slice that are written in two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshbridge.ir.digits import Digit, axis_digits, divided, group_size, groups_along
from meshbridge.ir.sharding import Mesh
from meshbridge.machines import machine
from meshbridge.machines.compile_target import CompileTarget
from meshbridge.machines.stages import inner_sizes
from tests.lowering.cases import OPERATIONS
from tests.lowering.harness import run

TEMPLATE = Path(machine.__file__).parent / "template.toml"


@pytest.mark.parametrize(
    ("name", "devices", "topology", "sizes"),
    [
        ("v5p", 64, (), {"all_gather": 4, "reduce_scatter": 4}),
        ("v5p", 128, (4, 4, 8), {"all_gather": 4, "reduce_scatter": 4}),
        ("v5p", 8, (), {"reduce_scatter": 2}),  # 2x2x2 are no rings
        ("v5p", 4, (2, 2, 1), {"reduce_scatter": 2}),
        ("v5p", 7, (), {}),
        ("v5p", 1, (), {}),
        ("v5e", 8, (), {}),
        ("v5e", 16, (), {"reduce_scatter": 4}),
        ("v5e", 16, (2, 8), {}),
        ("7x", 128, (), {"all_gather": 8}),
        ("h100", 8, (), {}),
    ],
)
def test_what_is_written_in_two(name: str, devices: int, topology: tuple[int, ...], sizes: dict[str, int]) -> None:
    assert inner_sizes(machine.named(name), devices, topology) == sizes


@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=3), st.data())
def test_digits_divide_into_those_of_outer_and_inner_groups(shape: list[int], data: st.DataObject) -> None:
    mesh = Mesh("m", tuple(shape))
    digits = axis_digits(mesh, tuple(data.draw(st.permutations(range(len(shape))))))
    inner = data.draw(st.sampled_from([size for size in range(1, mesh.size + 1) if mesh.size % size == 0]))
    outer, within = divided(digits, inner)
    assert group_size(within) == (inner if outer or inner == mesh.size else mesh.size)
    assert np.array_equal(groups_along(mesh, (*outer, *within)), groups_along(mesh, digits))


def test_digits_that_end_nowhere_near_are_not_divided() -> None:
    assert divided((Digit(0, 3, 4), Digit(1, 4, 1)), 6) == ((), (Digit(0, 3, 4), Digit(1, 4, 1)))


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter", "all_reduce", "gather"])
@settings(max_examples=settings.default.max_examples // 10, deadline=None)
@given(data=st.data())
def test_two_collectives_do_what_one_does(operation: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("machine") / "two_stage.toml"
    at_once = (
        TEMPLATE.read_text().replace("devices_per_chip = 2", "devices_per_chip = 1").replace("launch = 1e-6", "launch = 1e-18")
    )
    path.write_text(at_once.replace("wrap_multiple = 4", "wrap_multiple = 2"))
    mesh = data.draw(st.sampled_from([Mesh("m", shape) for shape in ((8,), (2, 4), (4, 2), (2, 2, 2))]))
    expected = [data.draw(OPERATIONS[operation](mesh)) for _ in range(8)]
    for each, found in zip(expected, run([each.case for each in expected], target=CompileTarget.of(str(path))), strict=True):
        each.check(found)
