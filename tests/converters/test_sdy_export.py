"""mesh -> sdy: what sdy can say comes back, what it cannot gets a diagnostic; a closed export leaves Shardy nothing to decide."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import _jax

from meshbridge import pipeline
from meshbridge.ir import mlir
from meshbridge.ir.mlir import OpError, ir
from meshbridge_converters import sdy

HEAD = '"mesh.mesh"() {sym_name = "m", shape = array<i64: 2, 4>} : () -> ()'


def sharding(split: str, rest: str = "", halos: str = "", offsets: str = "") -> str:
    return f""""mesh.sharding"() {{mesh = @m, split_axes = #mesh.axisarray<{split}>, static_halo_sizes = array<i64{halos}>,
      static_sharded_dims_offsets = array<i64{offsets}>, operandSegmentSizes = array<i32: 0, 0>{rest}}} : () -> !mesh.sharding"""


def parsed(body: str, result: str = "tensor<8x16xf32>") -> ir.Module:
    text = f"{HEAD}\nfunc.func @main(%arg0: tensor<8x16xf32>) -> {result} {{\n{body}\n}}"
    return mlir.parse(text, "input.mlir", mlir.context())


def exported(body: str, closed: bool = False) -> str:
    module = parsed(body)
    sdy.export_module(module, closed=closed)
    return str(module)


SHARD = '"mesh.shard"({}, {}) : (tensor<8x16xf32>, !mesh.sharding) -> tensor<8x16xf32>'
USE = '"mesh.shard"({}, {}) {{annotate_for_users}} : (tensor<8x16xf32>, !mesh.sharding) -> tensor<8x16xf32>'

ANNOTATED = f"""
  %s = {sharding("[[0], [1]]")}
  %0 = {SHARD.format("%arg0", "%s")}
  %t = {sharding("[[], [1]]")}
  %1 = {USE.format("%0", "%t")}
  %2 = stablehlo.tanh %1 : tensor<8x16xf32>
  %3 = {SHARD.format("%2", "%t")}
  %4 = {USE.format("%3", "%t")}
  %5 = stablehlo.tanh %4 {{meshbridge.note = 1 : i32}} : tensor<8x16xf32>
  %6 = {USE.format("%5", "%s")}
  return %6 : tensor<8x16xf32>"""


def test_axes_without_names_are_called_by_number() -> None:
    text = exported(ANNOTATED)
    assert 'sdy.mesh @m = <["0"=2, "1"=4]>' in text
    assert 'sdy.sharding = #sdy.sharding<@m, [{"0"}, {"1"}]>' in text


def test_mesh_to_sdy_to_mesh() -> None:
    module = parsed(ANNOTATED)
    sdy.export_module(module)
    sdy.import_module(module)
    # An unnamed use comes back with the name of the constraint that it became.
    text = re.sub(r', meshbridge.source = "sdy.sharding_constraint"', "", str(module))
    before = parsed(ANNOTATED)
    assert text == str(before)


def test_trailing_dimensions_may_be_left_out() -> None:
    body = f"%s = {sharding('[[1]]')}\n%0 = {SHARD.format('%arg0', '%s')}\nreturn %0 : tensor<8x16xf32>"
    assert '#sdy.sharding<@m, [{"1"}, {}]>' in exported(body)


def test_closed_leaves_nothing_open_and_repeats_nothing() -> None:
    text = exported(ANNOTATED.replace("{annotate_for_users}", "{annotate_for_users, meshbridge.open_dims = array<i64: 0>}"), True)
    assert text.count("sdy.sharding_constraint") == 1  # the reshard from %0 to %1
    assert "?" not in text
    assert "meshbridge" not in text


def test_shardy_adds_nothing_to_a_closed_export() -> None:
    module = mlir.parse(
        """sdy.mesh @m = <["x"=2, "y"=4]> {stablehlo.mesh = {axes = [{name = "x", size = 2}, {name = "y", size = 4}]}}
        func.func @main(%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {?}]>},
                        %arg1: tensor<16x32xf32> {sdy.sharding = #sdy.sharding<@m, [{}, {"y"}]>}) -> tensor<8x32xf32> {
          %0 = stablehlo.tanh %arg0 : tensor<8x16xf32>
          %1 = stablehlo.dot %0, %arg1 : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
          %2 = stablehlo.add %1, %1 : tensor<8x32xf32>
          return %2 : tensor<8x32xf32>
        }""",
        "input.mlir",
        mlir.context(),
    )
    mlir.run_stock_passes(module, "builtin.module(sdy-propagation-pipeline)")
    sdy.import_module(module)
    sdy.export_module(module, closed=True)
    closed = str(module)
    assert closed.count("sdy.sharding = ") == 6
    mlir.run_stock_passes(module, "builtin.module(sdy-propagation-pipeline)")
    assert re.sub(r" : i64", "", str(module)) == re.sub(r" : i64", "", closed)


UNSAYABLE = {
    "halos": (
        f"%s = {sharding('[[0], []]', halos=': 1, 1')}\n%0 = {SHARD.format('%arg0', '%s')}",
        "halo sizes [1, 1] have no counterpart in sdy",
    ),
    "offsets": (
        f"%s = {sharding('[[0], []]', offsets=': 0, 3, 8')}\n%0 = {SHARD.format('%arg0', '%s')}",
        "sharded dimension offsets [0, 3, 8] have no counterpart in sdy",
    ),
    "kind": (
        f"%s = {sharding('[[], []]', ', partial_axes = array<i16: 0>, partial_type = #mesh.partial<max>')}\n"
        f"%0 = {SHARD.format('%arg0', '%s')}",
        "partial = max has no counterpart in sdy",
    ),
    "collective": (
        """%s = stablehlo.constant dense<0> : tensor<i32>
        %0 = "mesh.all_reduce"(%arg0) {mesh = @m, mesh_axes = array<i16: 0>} : (tensor<8x16xf32>) -> tensor<8x16xf32>""",
        "'mesh.all_reduce' op has no counterpart in sdy",
    ),
    "unknown mesh": (
        f"%s = {sharding('[[0], []]').replace('@m', '@q')}\n%0 = {SHARD.format('%arg0', '%s')}",
        "names the unknown mesh @q",
    ),
    "sharding from elsewhere": (
        f'%s = "mesh.get_sharding"(%arg0) : (tensor<8x16xf32>) -> !mesh.sharding\n%0 = {SHARD.format("%arg0", "%s")}',
        "'mesh.get_sharding' op has no counterpart in sdy",
    ),
}


@pytest.mark.parametrize(("body", "message"), UNSAYABLE.values(), ids=UNSAYABLE.keys())
def test_what_sdy_cannot_say(body: str, message: str) -> None:
    with pytest.raises(OpError) as caught:
        exported(body + "\nreturn %0 : tensor<8x16xf32>")
    assert message in str(caught.value)
    assert re.match(r"[^:]*:[3-7]:\d+: error: ", str(caught.value))


def test_closed_export_runs_in_jax() -> None:
    """Loops with carried values that never change: XLA takes them out of the loop, whatever the loop is annotated with."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def layers(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), x.sum()), x, weights)[0]

    rows, columns = NamedSharding(mesh, P("data")), NamedSharding(mesh, P(None, None, "model"))
    jitted = jax.jit(layers, in_shardings=(rows, columns))
    x, weights = np.ones((8, 16), np.float32), np.linspace(-1, 1, 3 * 256, dtype=np.float32).reshape(3, 16, 16)
    exported = export.export(jitted)(x, weights)
    module = mlir.parse(exported.mlir_module(), "layers.mlir", mlir.context())
    for step in pipeline.build(pipeline.Options(emit="annotated")).passes:
        step.run(module)
    sdy.export_module(module, closed=True)
    portable = _jax.mlir.serialize_portable_artifact(str(module), "1.0.0", True)
    closed = dataclasses.replace(exported, mlir_module_serialized=portable)
    arguments = jax.device_put(x, rows), jax.device_put(weights, columns)
    np.testing.assert_allclose(jax.jit(closed.call)(*arguments), jitted(*arguments), rtol=1e-5, atol=1e-5)
