"""Partial values stay partial through linear ops alone, and whoever reads them, or does not, gets no internal error."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import meshbridge
from meshbridge import partitioning, pipeline
from meshbridge.ir import mlir
from tests.operations.differential import Spec, device_mesh, run_sharded

X = np.random.default_rng(0).integers(0, 5, (8, 8, 4)).astype(np.int32)
K = np.full((4,), 7, np.int32)


def _later(left: jax.Array, right: jax.Array) -> jax.Array:
    """Neither a sum nor any other known reduction."""
    return jnp.where(left > right, left, right)


READERS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "division of integers": lambda s, k: lax.div(s, jnp.broadcast_to(k, s.shape)),
    "division by it": lambda s, k: lax.div(jnp.full_like(s, 1000), s + 1),
    "division of floats": lambda s, k: s.astype(np.float32) / 7,
    "sum from 5": lambda s, k: lax.reduce(s, np.int32(5), lax.add, (0,)),
    "sum from a value": lambda s, k: lax.reduce(s, k[0], lax.add, (0,)),
    "reduction by select": lambda s, k: lax.reduce(s, np.int32(0), _later, (0,)),
    "reduction of two values": lambda s, k: lax.reduce(
        (s, jnp.zeros_like(s)), (np.int32(0), np.int32(0)), lambda a, b: (_later(a[0], b[0]), a[1] + b[1]), (0,)
    )[0],
    "maximum": lambda s, k: jnp.max(s, 0),
    "product": lambda s, k: jnp.prod(s, 0),
    "square": lambda s, k: s * s,
    "remainder": lambda s, k: lax.rem(s, jnp.broadcast_to(k, s.shape)),
    "difference": lambda s, k: k - s,
    "padding": lambda s, k: lax.pad(s, np.int32(3), ((1, 1, 0), (0, 0, 0))),
    "reversal": lambda s, k: -s[::-1, 1:],
}


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_readers_of_a_partial_sum(reader: Callable[[jax.Array, jax.Array], jax.Array]) -> None:
    for spec in (Spec("b"), Spec(("a", "b"))):
        found, expected = run_sharded(lambda x, k: reader(jnp.sum(x, 0), k) + k[0], (X, K), device_mesh((2, 4)), (spec, Spec()))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


HEAD = """
sdy.mesh @m = <["x"=2, "y"=2]> {stablehlo.mesh = {axes = [{name = "x", size = 2}, {name = "y", size = 2}]}}
func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {"y"}]>}, %i: tensor<i32>) -> tensor<8x8xf32> {
  %f = stablehlo.constant dense<false> : tensor<i1>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %t = stablehlo.create_token : !stablehlo.token
  %p = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %s = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
"""
TAIL = "\n  return %x : tensor<8x8xf32>\n}"

USERS = {
    "nobody": "",
    "an op without results": "stablehlo.custom_call @print(%p, %s) : (tensor<8x8xf32>, tensor<f32>) -> ()",
    "an op that gives a token": "%u = stablehlo.custom_call @print(%s, %t) : (tensor<f32>, !stablehlo.token) -> !stablehlo.token",
    "an op of nothing": "stablehlo.custom_call @nothing() : () -> ()",
    "a branch without results": """"stablehlo.case"(%i) ({
      stablehlo.custom_call @print(%s) : (tensor<f32>) -> ()
      stablehlo.return
    }) : (tensor<i32>) -> ()""",
    "a branch that gives a token": """%r:2 = "stablehlo.case"(%i) ({
      stablehlo.return %t, %s : !stablehlo.token, tensor<f32>
    }, {
      %u = stablehlo.after_all %t : !stablehlo.token
      stablehlo.return %u, %z : !stablehlo.token, tensor<f32>
    }) : (tensor<i32>) -> (!stablehlo.token, tensor<f32>)""",
    "a loop that carries nothing": """"stablehlo.while"() ({
      stablehlo.return %f : tensor<i1>
    }, {
      stablehlo.custom_call @print(%s) : (tensor<f32>) -> ()
      stablehlo.return
    }) : () -> ()""",
    "a loop that carries a token": """%r:2 = "stablehlo.while"(%s, %t) ({
    ^bb0(%a: tensor<f32>, %b: !stablehlo.token):
      stablehlo.return %f : tensor<i1>
    }, {
    ^bb0(%a: tensor<f32>, %b: !stablehlo.token):
      %u = stablehlo.after_all %b : !stablehlo.token
      stablehlo.return %s, %u : tensor<f32>, !stablehlo.token
    }) : (tensor<f32>, !stablehlo.token) -> (tensor<f32>, !stablehlo.token)""",
    "a barrier beside a token": "%r:2 = stablehlo.optimization_barrier %s, %t : tensor<f32>, !stablehlo.token",
    "a barrier of nothing": '"stablehlo.optimization_barrier"() : () -> ()',
    "a tuple": "%r = stablehlo.tuple %s, %p : tuple<tensor<f32>, tensor<8x8xf32>>",
    "a manual computation without results": """
    sdy.manual_computation(%p) in_shardings=[<@m, [{"x"}, {}]>] out_shardings=[] manual_axes={"x"} (%l: tensor<4x8xf32>) {
      stablehlo.custom_call @print(%l) : (tensor<4x8xf32>) -> ()
      sdy.return
    } : (tensor<8x8xf32>) -> ()""",
    "a group": "sdy.sharding_group %s group_id = 0 : tensor<f32>",
}


@pytest.mark.parametrize("emit", ["annotated", "mesh", "local", "exported"])
@pytest.mark.parametrize("user", USERS.values(), ids=USERS.keys())
def test_users_without_results_or_tensors(user: str, emit: str) -> None:
    """Whatever reads a partial sum, the program is partitioned and reported."""
    module = mlir.parse(HEAD + user + TAIL, "users.mlir", mlir.context())
    assert meshbridge.report(module).wire_bytes >= 0
    partitioning.partition_module(module, pipeline.Options(emit=emit))
