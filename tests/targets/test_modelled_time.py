"""What the compiler for GPUs thinks that products take is near what they must take."""

from __future__ import annotations

import pytest

from meshbridge.read import files
from meshbridge.tools.compare import command
from meshbridge.tools.compare.contestants import OURS, PEERS
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
