"""Programs on several views of the same devices are partitioned on one mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from jax.lax import with_sharding_constraint as constrained
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.dialect.module_mesh import find_mesh, mesh_ops
from meshbridge.ir import mlir
from meshbridge.ir.mlir import OpError, ir
from meshbridge.read.unite_meshes import UniteMeshes
from tests.jitted.programs import W, X, check_same, on_one_device


def view(*axes: tuple[str, int]) -> Mesh:
    """Eight devices in order, under these axes."""
    names, sizes = zip(*axes, strict=True)
    return Mesh(np.array(jax.devices()[:8]).reshape(sizes), names, axis_types=(AxisType.Auto,) * len(names))


SQUARE, TALL, FLAT = view(("data", 2), ("model", 4)), view(("a", 4), ("b", 2)), view(("flat", 8))


def on(mesh: Mesh, *spec: Any) -> NamedSharding:
    return NamedSharding(mesh, P(*spec))


def summed_by_device(x: jax.Array) -> jax.Array:
    summed = jax.shard_map(lambda y: jax.lax.psum(y, "flat"), mesh=FLAT, in_specs=P("flat"), out_specs=P())
    return summed(constrained(x * 2, on(SQUARE, "model")))  # type: ignore[no-any-return]


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Sequence[NamedSharding], P]] = {
    "a flat view of rows": (
        lambda x, w: constrained(x @ w, on(FLAT, "flat")),
        lambda x, w: x @ w,
        (on(SQUARE, "data"), on(SQUARE)),
        P("flat"),
    ),
    "arguments on a flat view": (
        lambda x, w: constrained(x @ w, on(SQUARE, "data", "model")),
        lambda x, w: x @ w,
        (on(FLAT, "flat"), on(FLAT, None, "flat")),
        P("data", "model"),
    ),
    "axes that cut each other": (
        lambda x, w: constrained(x @ w, on(SQUARE, "data", "model")),
        lambda x, w: x @ w,
        (on(TALL, "a", "b"), on(TALL, "b", "a")),
        P("data", "model"),
    ),
    "three views": (
        lambda x, w: constrained(constrained(x @ w, on(SQUARE, "data", "model")), on(FLAT, None, "flat")),
        lambda x, w: x @ w,
        (on(TALL, "a", "b"), on(TALL, "b", "a")),
        P(None, "flat"),
    ),
    "axes of size 1": (
        lambda x, w: constrained(x @ w, on(view(("a", 8), ("one", 1)), "a", "one")),
        lambda x, w: x @ w,
        (on(SQUARE, "data"), on(SQUARE, None, "model")),
        P("a"),
    ),
    "a manual computation on another view": (
        lambda x, w: summed_by_device(x) @ w,
        lambda x, w: (x * 2).reshape(8, 2, 32).sum(0) @ w,
        (on(SQUARE, "data"), on(SQUARE)),
        P(),
    ),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_they_compute_what_one_device_computes(case: str) -> None:
    function, plain, given, wanted = PROGRAMS[case]
    found = meshbridge.jit(function, in_shardings=given)(X, W)
    check_same(found, on_one_device(plain, X, W))
    if wanted != P():
        assert found.sharding.spec == wanted


def test_exported_programs_too() -> None:
    function, plain, given, _ = PROGRAMS["a flat view of rows"]
    partitioned = meshbridge.partition(jax.jit(function, in_shardings=given), X, W)
    check_same(jax.jit(partitioned.call)(*map(jax.device_put, (X, W), given)), on_one_device(plain, X, W))


def united(*meshes: str) -> list[tuple[str, tuple[int, ...]]]:
    """The meshes that are left of these declarations, each with a sharding of its first axis."""
    module = ir.Module.parse("\n".join(meshes), mlir.context())
    UniteMeshes().run(module)
    return [(each.value.name, each.value.shape) for each in mesh_ops(module.body)]


def declared(name: str, *shape: int, devices: str = "") -> str:
    sizes = ", ".join(map(str, shape))
    ids = f", meshbridge.device_ids = array<i64: {devices}>" if devices else ""
    return (
        f'"mesh.mesh"() {{sym_name = "{name}", shape = array<i64: {sizes}>{ids}}} : () -> ()\n'
        f"func.func @on_{name}() {{\n"
        f'  %0 = "mesh.sharding"() {{mesh = @{name}, split_axes = #mesh.axisarray<[[0]]>, partial_axes = array<i16>, '
        f"static_sharded_dims_offsets = array<i64>, static_halo_sizes = array<i64>, operandSegmentSizes = array<i32: 0, 0>}}"
        f" : () -> !mesh.sharding\n  return }}"
    )


def test_meshes_that_are_no_views_of_the_same_devices_stay() -> None:
    assert united(declared("a", 8), declared("b", 2, 4)) == [("b", (2, 4))]
    assert united(declared("a", 4, 2), declared("b", 2, 4)) == [("a", (2, 2, 2))]
    assert united(declared("a", 4, 1), declared("b", 2, 2)) == [("a", (2, 2, 1))]
    assert united(declared("a", 2, 3), declared("b", 3, 2)) == [("a", (2, 3)), ("b", (3, 2))]
    assert united(declared("a", 8), declared("b", 4)) == [("a", (8,)), ("b", (4,))]
    assert united(declared("a", 2), declared("b", 2, devices="1, 0")) == [("a", (2,)), ("b", (2,))]
    assert united(declared("a", 1), declared("b", 2)) == [("a", (1,)), ("b", (2,))]


def test_axes_that_do_not_cut_each_other_are_refused_with_a_way_out() -> None:
    module = ir.Module.parse("\n".join((declared("a", 2, 3), declared("b", 3, 2))), mlir.context())
    with pytest.raises(
        OpError, match=r"(?s)@b \(0=3, 1=2\) is a second mesh beside @a \(0=2, 1=3\).*hint: these views of the same devices"
    ):
        find_mesh(module)
