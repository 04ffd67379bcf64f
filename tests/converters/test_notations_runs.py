"""Programs with manual computations, groups, barriers and sub-axes run partitioned as XLA runs them, from either notation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge.ir import mlir
from tests.converters import jax_programs as programs

ARGUMENT = np.linspace(-1, 2, 128, dtype=np.float32).reshape(8, 16)
"""Its sums are far from 0, so that what branches on their signs branches alike however they are rounded."""


def manual_in_the_middle(mesh: Mesh, x: jax.Array) -> jax.Array:
    """Values come in and go out in other shardings than the manual computation's, and what it leaves open is used."""
    y = lax.with_sharding_constraint(jnp.tanh(x @ x.T), NamedSharding(mesh, P(None, "data")))

    def body(y: jax.Array, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = lax.psum(y * (lax.axis_index("model") + 1), "model")
        return total, lax.all_gather(z, "model", tiled=True)

    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=(P("model"), P("model")), out_specs=(P(), P()), axis_names={"model"}, check_vma=False
    )
    total, whole = mapped(y, jnp.sin(y))
    return lax.with_sharding_constraint(whole, NamedSharding(mesh, P("data", "model"))) + jnp.concatenate([total] * 4)


def manual_in_a_loop(mesh: Mesh, x: jax.Array) -> jax.Array:
    """A ring of permutes, one step per iteration."""
    shift = [(i, (i + 1) % 4) for i in range(4)]
    turn = jax.shard_map(
        lambda x: lax.ppermute(x, "model", shift) * 0.5, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data", "model")
    )
    return lax.fori_loop(0, 3, lambda _, x: turn(x) + 1, x)


PROGRAMS = [*programs.PROGRAMS[:-1], manual_in_the_middle, manual_in_a_loop]


@pytest.mark.parametrize("shardy", [True, False], ids=["shardy", "gspmd"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_equals_xla(program: Callable[[Mesh, jax.Array], jax.Array], shardy: bool) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, P("data"))
    jitted = jax.jit(partial(program, mesh), in_shardings=rows)
    expected = jitted(ARGUMENT)
    with jax._src.config.use_shardy_partitioner(shardy):
        exported = export.export(jax.jit(partial(program, mesh), in_shardings=rows))(programs.X)
    partitioned = meshbridge.partition(exported)
    np.testing.assert_allclose(jax.jit(partitioned.call)(jax.device_put(ARGUMENT, rows)), expected, rtol=1e-5, atol=1e-5)
    local = meshbridge.compile(exported)(ARGUMENT)
    np.testing.assert_allclose(local, expected, rtol=1e-5, atol=1e-5)


EXPERTS = """
  sdy.mesh @mesh = <["x"=8]> {stablehlo.mesh = {axes = [{name = "x", size = 8}]}}
  func.func @main(%tokens: tensor<4x16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)4}, {"x":(4)2}, {}]>},
                  %experts: tensor<4x8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)4}, {}, {}]>})
      -> (tensor<4x16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x":(1)4}, {"x":(4)2}, {}]>}) {
    %0 = stablehlo.dot_general %tokens, %experts, batching_dims = [0] x [0], contracting_dims = [2] x [1]
      : (tensor<4x16x8xf32>, tensor<4x8x8xf32>) -> tensor<4x16x8xf32>
    %1 = sdy.propagation_barrier %0 allowed_direction=NONE : tensor<4x16x8xf32>
    %2 = stablehlo.tanh %1 : tensor<4x16x8xf32>
    return %2 : tensor<4x16x8xf32>
  }"""


def test_four_experts_on_an_axis_of_eight() -> None:
    """The RFC's virtual axis: 8 devices are 4 x 2, experts along the 4, tokens along the 2; nothing needs to move."""
    module = mlir.parse(EXPERTS, "experts.mlir", mlir.context())
    compiled = meshbridge.compile(module)
    random = np.random.default_rng(0)
    tokens, experts = random.normal(size=(4, 16, 8)).astype(np.float32), random.normal(size=(4, 8, 8)).astype(np.float32)
    (found,) = compiled(tokens, experts)
    np.testing.assert_allclose(found, np.tanh(tokens @ experts), rtol=1e-5, atol=1e-5)
    assert "all-" not in compiled.hlo_text()
    assert compiled.mesh.shape == (4, 2)


def _ring(x: jax.Array, axis: str) -> jax.Array:
    size = lax.axis_size(axis)
    return lax.ppermute(x, axis, [(i, (i + 1) % size) for i in range(size)])


A = "axis"
"""Stands for the axis that a collective runs along."""

COLLECTIVES: dict[str, tuple[Callable[..., jax.Array], P, P]] = {
    "psum": (lax.psum, P(A), P()),
    "pmax": (lax.pmax, P(A), P()),
    "pmean": (lax.pmean, P(A), P()),
    "all_gather": (partial(lax.all_gather, axis=1, tiled=True), P(None, A), P()),
    "all_to_all": (partial(lax.all_to_all, split_axis=1, concat_axis=0, tiled=True), P(A), P(None, A)),
    "psum_scatter": (partial(lax.psum_scatter, scatter_dimension=1, tiled=True), P(A), P(None, A)),
    "ppermute": (_ring, P(A), P(A)),
    "axis_index": (lambda x, axis: x * lax.axis_index(axis), P(A), P(A)),
}


@pytest.mark.parametrize("partly", [True, False], ids=["one axis manual", "all axes manual"])
@pytest.mark.parametrize("axis", ["data", "model"])
@pytest.mark.parametrize(("collective", "into", "out"), COLLECTIVES.values(), ids=COLLECTIVES.keys())
def test_every_collective_of_jax(collective: Callable[..., jax.Array], into: P, out: P, axis: str, partly: bool) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    specs = [P(*(axis if entry == A else entry for entry in spec)) for spec in (into, out)]
    names = {"axis_names": {axis}} if partly else {}
    body = jax.shard_map(
        lambda x: collective(x, axis), mesh=mesh, in_specs=specs[0], out_specs=specs[1], check_vma=False, **names
    )

    def program(x: jax.Array) -> jax.Array:
        x = lax.with_sharding_constraint(jnp.tanh(x), NamedSharding(mesh, P("model", "data")))
        return jnp.sin(body(x))

    rows = NamedSharding(mesh, P("data"))
    argument = np.linspace(-1, 1, 16 * 32, dtype=np.float32).reshape(16, 32)
    jitted = jax.jit(program, in_shardings=rows)
    exported = export.export(jitted)(argument)
    expected = jitted(argument)
    called = jax.jit(meshbridge.partition(exported).call)(jax.device_put(argument, rows))
    np.testing.assert_allclose(called, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(meshbridge.compile(exported)(argument), expected, rtol=1e-5, atol=1e-5)
