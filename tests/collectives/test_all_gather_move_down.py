"""Chains of operations after all-gathers: computed on shards, where what comes out is no larger; and in linear work."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import meshbridge
from meshbridge import pipeline
from meshbridge.collectives.all_gather_move_down import AllGatherMoveDown
from meshbridge.dialect.assembly import read
from meshbridge.ir.mlir import context, ir
from tests.work import lines_run

ROWS, WIDTH = 16, 32


def normal(x: jax.Array, scale: jax.Array) -> jax.Array:
    """As models write norms: in float32, whatever they compute in else."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def scanned(x: jax.Array, scales: jax.Array, weights: jax.Array) -> jax.Array:
    """Layers of a norm and a product that needs all rows, which are sharded in between."""

    def layer(x: jax.Array, parameters: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        scale, weight = parameters
        return x + jnp.tanh(normal(placed(x, P(None, None)), scale) @ weight), None

    return jax.lax.scan(layer, x, (scales, weights))[0]


def placed(x: jax.Array, spec: P) -> jax.Array:
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh(), spec))


def mesh() -> Mesh:
    return jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))


def shardings() -> list[NamedSharding]:
    return [NamedSharding(mesh(), spec) for spec in (P("x", None), P(None, None), P(None, None, "x"))]


def exported() -> jax.export.Exported:
    shapes = ((ROWS, WIDTH), (3, WIDTH), (3, WIDTH, WIDTH))
    structs = [
        jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding) for shape, sharding in zip(shapes, shardings(), strict=True)
    ]
    return jax.export.export(jax.jit(scanned, out_shardings=shardings()[0]))(*structs)


@pytest.mark.parametrize("machine", ["neutral", "h100"])
def test_norms_of_rows_are_computed_where_the_rows_are(machine: str) -> None:
    program = exported()
    assert f"{ROWS}x{WIDTH}xf32" in program.mlir_module()
    assert f"{ROWS}x{WIDTH}xf32" not in meshbridge.partition(program, machine=machine).mlir_module()
    report = meshbridge.report(program, machine=machine)
    gathers = [each for each in report.collectives if each.kind == "all_gather"]
    assert [each.executions for each in gathers] == [3]


def test_the_same_numbers() -> None:
    program = exported()
    random = np.random.default_rng(0)
    values = [(random.normal(size=each.shape) / 4).astype(jnp.bfloat16) for each in program.in_avals]
    sharded = [jax.device_put(value, sharding) for value, sharding in zip(values, shardings(), strict=True)]
    found, expected = jax.jit(meshbridge.partition(program).call)(*sharded), scanned(*map(jnp.asarray, values))
    np.testing.assert_allclose(np.asarray(found, np.float32), np.asarray(expected, np.float32), rtol=0.02, atol=0.02)


def chains(count: int, length: int) -> ir.Module:
    """Gathers, each with a chain of operations after it that ends in less, and one that does not, on which all meet."""
    few, many = "tensor<2x8xbf16>", "tensor<16x8xbf16>"
    wide = many.replace("bf16", "f32")
    lines = []
    for n in range(count):
        lines += [
            f"%g{n} = mesh.all_gather %x{n} on @m mesh_axes = [0] gather_axis = 0 : {few} -> {many}",
            f"%w{n}_0 = stablehlo.convert %g{n} : ({many}) -> {wide}",
            *(f"%w{n}_{step + 1} = stablehlo.tanh %w{n}_{step} : {wide}" for step in range(length)),
            f"%n{n} = stablehlo.convert %w{n}_{length} : ({wide}) -> {many}",
            f"%s{n + 1} = stablehlo.add %s{n}, %n{n} : {many}",
            f"%h{n} = mesh.all_gather %y{n} on @m mesh_axes = [0] gather_axis = 0 : {few} -> {many}",
            f"%v{n} = stablehlo.convert %h{n} : ({many}) -> {wide}",
            f"%t{n + 1} = stablehlo.add %t{n}, %v{n} : {wide}",
        ]
    heads = ", ".join(f"%{name}{n}: {few}" for name in "xy" for n in range(count))
    body = "\n".join(lines)
    text = f"""
mesh.mesh @m(shape = 8)
func.func @main({heads}) -> ({many}, {wide}) {{
%s0 = stablehlo.constant dense<1.0> : {many}
%t0 = stablehlo.constant dense<1.0> : {wide}
{body}
return %s{count}, %t{count} : {many}, {wide}
}}"""
    return read(text, "chains.mlir", context())


@pytest.mark.parametrize("name", ["count", "length"])
def test_work_in_proportion_to_the_program(name: str) -> None:
    def lines(size: int) -> int:
        module = chains(**{"count": 2, "length": 4, name: size})
        return lines_run(partial(pipeline.run, (AllGatherMoveDown(),), module, verified="none"))

    lines(1)  # what is loaded once
    assert lines(300) < 3.3 * lines(100)
