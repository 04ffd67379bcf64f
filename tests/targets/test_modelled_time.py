"""What the compiler for GPUs thinks that products take is near what they must take."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from meshbridge.read import files
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEER, PEERS
from meshbridge.tools.compare.figures import Modelled
from tests.targets.installed import target

pytestmark = pytest.mark.targets

PRODUCT = b"""sdy.mesh @m = <["x"=8]>
func.func @main(%a: tensor<4096x8192xbf16> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>},
                %b: tensor<8192x2048xbf16> {sdy.sharding = #sdy.sharding<@m, [{}, {"x"}]>})
    -> (tensor<4096x2048xbf16> {sdy.sharding = #sdy.sharding<@m, [{"x"}, {}]>}) {
  %c = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
      : (tensor<4096x8192xbf16>, tensor<8192x2048xbf16>) -> tensor<4096x2048xbf16>
  return %c : tensor<4096x2048xbf16>
}
"""


def test_products_take_what_a_tuned_library_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shards are 512 x 8192 and, gathered, 8192 x 2048: by Triton, untuned, it is some 1.5 ms."""
    chosen = target("gpu:h100:1x1x8")
    monkeypatch.delenv("XLA_FLAGS")  # they are for tests that run on CPUs
    (compared,) = command.compare_for(files.parse_program(PRODUCT, "product.mlir"), [chosen], without=PEERS)
    found = compared.figures[OURS]
    assert found.modelled is not None, found.unmodelled
    assert found.modelled.wasted is not None
    peak = chosen.machine.flops["bf16"]
    must = found.flops / peak * 1e6
    assert must < found.modelled.total - found.modelled.wasted < 4 * must


def test_a_loop_costs_its_products_with_gathers_or_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve products of 1024 x 1024 under scan, whose weights are gathered in each iteration, or all before the loop: the
    scheduler times that loop alone which has collectives. Both compute the same."""
    chosen = target("gpu:h100:1x1x8")
    monkeypatch.delenv("XLA_FLAGS")
    mesh = AbstractMesh((8,), ("x",))

    def computing(*, before: bool) -> Modelled:
        gathered = NamedSharding(mesh, P())

        def step(x: jax.Array, weights: jax.Array) -> jax.Array:
            def body(carried: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
                return jnp.tanh(carried @ (weight if before else jax.lax.with_sharding_constraint(weight, gathered))), None

            return jax.lax.scan(body, x, jax.lax.with_sharding_constraint(weights, gathered) if before else weights)[0]

        arguments = [
            jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(mesh, spec))
            for shape, spec in (((8192, 1024), P("x")), ((12, 1024, 1024), P(None, "x")))
        ]
        exported = jax.export.export(jax.jit(step), platforms=["cuda"])(*arguments)
        program = files.parse_program(exported.serialize(), "loop.jax_export")
        (compared,) = command.compare_for(program, [chosen], without=["xla-gspmd"])
        found = compared.figures[PEER].modelled
        assert found is not None
        return found

    inside, outside = (computing(before=before) for before in (False, True))
    assert inside.outside < 2  # a copy of the 2 MB that the loop carries
    assert inside.without_estimate == outside.without_estimate == 0
    loops = [inside.total - inside.wasted, outside.outside]
    assert loops[1] == pytest.approx(loops[0], rel=0.3)
