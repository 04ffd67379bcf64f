"""The topology that a jitted function is planned for: that of its devices, which stand in for TPUs here."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshbridge.ir.mlir import MeshError, ir
from meshbridge.jitted.plans import Planning
from meshbridge.runtime import lowerings
from tests.runtime.stand_ins import V5E, torus, transposed

RING = [0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4]
"""How `jax.make_mesh` goes through 4 by 4 chips along one axis."""


def program(*sizes: int) -> ir.Module:
    """A product whose gather takes longer along some axes of a slice than along others."""
    names = "abc"[: len(sizes)]
    mesh = AbstractMesh(sizes, tuple(names))
    rows, columns = NamedSharding(mesh, P(tuple(names))), NamedSharding(mesh, P(None, names[-1]))
    step = jax.jit(lambda x, w: jnp.tanh(x @ w).sum(), in_shardings=(rows, columns))
    operands = jax.ShapeDtypeStruct((768, 96), jnp.float32), jax.ShapeDtypeStruct((96, 960), jnp.float32)
    return lowerings.module(step.trace(*operands).lower(lowering_platforms=("tpu",)))


@pytest.mark.parametrize(
    ("sizes", "devices", "machine", "why"),
    [
        ((4, 4), V5E, "v5e:4x4", ""),
        ((16,), [V5E[number] for number in RING], "v5e:4x4", ""),
        ((2, 4), V5E[8:], "v5e:4x2", ""),
        ((2, 2, 4), torus(2, 4, slices=2), "v5e:2x2x4", ""),
        ((4, 4), [V5E[number] for number in RING], "v5e", "an axis of mesh @mesh ends within x and y"),
        ((2, 6), torus(3, 4), "v5e:3x4", ""),
        ((4, 3), torus(3, 4), "v5e:3x4", ""),
        ((6, 2), torus(3, 4), "v5e", "mesh @mesh is split in 6, which 4 devices along y cannot be"),
        ((3, 4), torus(3, 4), "v5e", "mesh @mesh is split in 3, which 4 devices along y cannot be"),
        ((2, 2), [SimpleNamespace(**{**vars(each), "coords": None}) for each in V5E[:4]], "v5e", "they have no coordinates"),
    ],
)
def test_the_report_names_the_topology(sizes: tuple[int, ...], devices: Any, machine: str, why: str) -> None:
    report = Planning().report_of(partial(program, *sizes), devices)
    assert report.machine == machine
    assert report.why_machine.startswith("JAX runs on TPU v5 lite")
    assert (", planned for without a topology: " in report.why_machine) == bool(why)
    assert why in report.why_machine


def test_a_plan_is_for_the_links_that_its_axes_are_on() -> None:
    """Slices are inside out where the devices are listed so: then it is the inner axis whose gathers take long."""
    slices, seconds = torus(2, 4, slices=2), dict[str, float]()
    for name, devices in (("outer", slices), ("inner", transposed(slices, 2))):
        report = Planning().report_of(partial(program, 2, 8), devices)
        assert report.machine == "v5e:2x2x4"
        seconds[name] = report.step.seconds
    assert seconds["outer"] != seconds["inner"]


def test_what_a_user_names_counts() -> None:
    planning = Planning({"machine": "v5e:4x4", "layout": "a=x"})
    options = planning.on(V5E)
    assert (options.target.name, options.target.layout) == ("v5e:4x4", "a=x")
    assert Planning({"machine": "neutral"}).report_of(partial(program, 4, 4), V5E).why_machine == ""
    with pytest.raises(MeshError, match="ends within x and y"):
        Planning({"machine": "v5e:4x4", "layout": "*=x&y"}).report_of(partial(program, 4, 4), V5E)
