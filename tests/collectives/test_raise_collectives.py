"""Collectives that users wrote in `shard_map` take part in the plan: bytes, and the numbers that `jax.jit` gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.analysis import hlo, hlo_communication
from tests.collectives.manual_programs import PROGRAMS


def _sharded(mesh: jax.sharding.Mesh, specs: Any) -> Any:
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda spec: isinstance(spec, P))


def _drawn(shapes: Any, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(0)
    is_shape = lambda shape: all(isinstance(size, int) for size in shape)  # noqa: E731
    return jax.tree.map(lambda shape: rng.standard_normal(shape).astype(dtype), shapes, is_leaf=is_shape)


def _check(found: Any, expected: Any) -> None:
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-5, atol=2e-5 * float(np.abs(other).max() + 1))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_send_what_they_must(mesh: jax.sharding.Mesh, name: str) -> None:
    program = PROGRAMS[name](mesh)
    shardings = {"in_shardings": _sharded(mesh, program.arguments), "out_shardings": _sharded(mesh, program.result)}
    jitted, arguments = jax.jit(program.function, **shardings), _drawn(program.shapes)
    report = meshbridge.report(jitted.lower(*arguments), machine="bytes")
    assert report.wire_bytes == program.wire_bytes, report.collectives
    compiled = jitted.lower(*arguments).compile()
    assert report.wire_bytes <= hlo_communication.communication(hlo.read(compiled.as_text())).scattered_bytes
    _check(meshbridge.jit(program.function, **shardings)(*arguments), compiled(*arguments))


def _differs(x: Any) -> Any:
    """A value that every device has its own of."""
    return x + lax.axis_index("model") + 10 * lax.axis_index("data")


UNTRUE: dict[str, Callable[[Any], Any]] = {
    "gathered slices of what differs": lambda x: lax.all_gather(
        lax.dynamic_slice_in_dim(_differs(x), lax.axis_index("model") * 2, 2, 0), "model", axis=0, tiled=True
    ),
    "a sum of what is gathered": lambda x: lax.psum(lax.all_gather(_differs(x), "data", axis=0, tiled=True)[:8], "model"),
    "a sum scaled by what differs": lambda x: lax.psum(lax.psum(x, "model") * lax.axis_index("model"), "data"),
    "a sum scaled by what differs along another axis": lambda x: lax.psum(_differs(x), "model") * (1 + lax.axis_index("data")),
    "a sum counted twice": lambda x: lax.psum(lax.psum(_differs(x), "model"), "model"),
    "a maximum of a maximum": lambda x: lax.pmax(lax.pmax(_differs(x), "model"), ("data", "model")),
    "a sum of infinities": lambda x: lax.psum(jnp.where(_differs(x) > 11, jnp.inf, x), ("data", "model")),
    "a sum of a value declared replicated": lambda x: lax.psum(x, ("data", "model")),
    "a sum of a sum over other axes": lambda x: lax.psum(lax.psum(_differs(x), "model"), ("data", "model")),
    "axes in another order": lambda x: lax.all_gather(_differs(x), ("model", "data"), axis=0, tiled=True)[10:18],
    "an exchange along one dimension": lambda x: lax.all_to_all(_differs(x), "model", 0, 0, tiled=True),
    "a piece of a neighbour": lambda x: jnp.tile(
        lax.dynamic_slice_in_dim(lax.psum(_differs(x), "model"), (lax.axis_index("model") + 1) % 4 * 2, 2, 0), (4, 1)
    ),
    "a piece written at the number of a neighbour": lambda x: lax.psum(
        lax.dynamic_update_slice_in_dim(jnp.zeros_like(x), _differs(x)[:2], (lax.axis_index("model") + 1) % 4 * 2, 0), "model"
    ),
    "a piece written into what is not zero": lambda x: lax.psum(
        lax.dynamic_update_slice_in_dim(x, _differs(x)[:2], lax.axis_index("model") * 2, 0), "model"
    ),
    "a piece written into zeros": lambda x: lax.psum(
        lax.dynamic_update_slice_in_dim(jnp.zeros_like(x), _differs(x)[:2], lax.axis_index("model") * 2, 0), ("data", "model")
    ),
    "a rotation backwards": lambda x: lax.ppermute(_differs(x), "model", [(number, (number - 1) % 4) for number in range(4)]),
    "a shift that ends": lambda x: lax.ppermute(_differs(x), "model", [(number, number + 1) for number in range(3)]),
    "bits": lambda x: lax.pmax(_differs(x) > 12, "model").astype(x.dtype),
    "integers": lambda x: lax.pmean(_differs(x).astype(jnp.int32), "model").astype(x.dtype),
    "a branch that some groups take": lambda x: lax.cond(
        lax.axis_index("data") == 1, lambda x: lax.psum(lax.psum(_differs(x), "model"), "model"), jnp.sin, x
    ),
    "a loop that some groups leave before": lambda x: lax.while_loop(
        lambda carry: carry[0] <= lax.axis_index("data"),
        lambda carry: (carry[0] + 1, carry[1] + lax.psum(jnp.sin(_differs(x)), "model")),
        (0, jnp.zeros_like(x)),
    )[1],
    "groups within an axis": lambda x: lax.psum(_differs(x), "model", axis_index_groups=[[0, 2], [1, 3]]),
}
"""By what they do with values that differ although their shardings say that they do not."""


@pytest.mark.parametrize("name", UNTRUE)
def test_nothing_is_taken_for_replicated_that_is_not(mesh: jax.sharding.Mesh, name: str) -> None:
    """Each device's own result, inside and after a border at which values are declared replicated."""

    def function(x: Any) -> Any:
        region = jax.shard_map(_differs, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
        body = UNTRUE[name]
        every = jax.shard_map(
            lambda x: (body(x), body(x)), mesh=mesh, in_specs=P(), out_specs=(P(("data", "model")), P()), check_vma=False
        )
        apart, alike = every(region(x))
        again = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P(), out_specs=P(("data", "model")), check_vma=False)
        return apart, again(alike)

    x = _drawn((8, 4)) * 4
    _check(meshbridge.jit(function, in_shardings=NamedSharding(mesh, P()))(x), jax.jit(function)(x))


def test_a_program_keeps_its_own_collectives_with_collectives_off(mesh: jax.sharding.Mesh) -> None:
    program = PROGRAMS["sum_of_a_sum"](mesh)
    jitted = jax.jit(program.function, in_shardings=_sharded(mesh, program.arguments))
    lowered = jitted.lower(*_drawn(program.shapes))
    text = str(meshbridge.partition(lowered, emit="mesh", collectives="off"))
    assert text.count("stablehlo.all_reduce") == 2
    assert "mesh.all_reduce" not in text


def test_reports_say_whose_a_raised_collective_is(mesh: jax.sharding.Mesh) -> None:
    program = PROGRAMS["sum_of_a_sum"](mesh)
    shardings = {"in_shardings": _sharded(mesh, program.arguments), "out_shardings": _sharded(mesh, program.result)}
    lowered = jax.jit(program.function, **shardings).lower(*_drawn(program.shapes))
    (found,) = meshbridge.report(lowered, machine="bytes").collectives
    assert (found.kind, found.axes, found.why, found.asked) == (
        "all_reduce",
        ("data", "model"),
        "the program's own",
        "your program",
    )
    assert "manual_programs.py" in str(found.location)


def test_a_maximum_keeps_what_is_no_number(mesh: jax.sharding.Mesh) -> None:
    """As StableHLO defines it; XLA's CPU backend loses it."""
    x = np.array([1.0, np.nan, 3.0, 2.0], np.float32)
    body = jax.shard_map(lambda x: lax.pmax(x, "model"), mesh=mesh, in_specs=P("model"), out_specs=P(), check_vma=False)
    assert np.isnan(meshbridge.jit(body, in_shardings=NamedSharding(mesh, P("model")))(x)).all()


def test_devices_in_another_order() -> None:
    """A mesh whose devices are not in order: groups list other numbers."""
    devices = np.array(jax.devices()).reshape(2, 2, 2).transpose(2, 0, 1).reshape(2, 4)
    mesh = jax.sharding.Mesh(devices, ("data", "model"))
    program = PROGRAMS["sum_that_is_sliced_inside"](mesh)
    shardings = {"in_shardings": _sharded(mesh, program.arguments), "out_shardings": _sharded(mesh, program.result)}
    arguments = _drawn(program.shapes)
    jitted = jax.jit(program.function, **shardings)
    assert meshbridge.report(jitted.lower(*arguments), machine="bytes").wire_bytes == program.wire_bytes
    _check(meshbridge.jit(program.function, **shardings)(*arguments), jitted(*arguments))
