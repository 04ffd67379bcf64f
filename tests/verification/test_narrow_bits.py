"""Maxima of narrow floats over devices go by way of integers, and are maxima all the same."""

from __future__ import annotations

import numpy as np
import pytest

from meshbridge import partitioning
from meshbridge.dialect import assembly
from meshbridge.ir import mlir
from meshbridge.read import formats
from meshbridge.verification import narrow_bits
from meshbridge.verification.field import PRIMES, Field
from meshbridge.verification.verdict import verify

FIELD = Field(PRIMES[0], 3)

REDUCTION = """
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<16x3xKIND> {sdy.sharding = #sdy.sharding<@mesh, [{"y", "x"}, {}]>})
    -> (tensor<3xKIND> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}) {
  %init = stablehlo.constant dense<INIT> : tensor<KIND>
  %0 = stablehlo.reduce(%x init: %init) applies stablehlo.OP across dimensions = [0]
      : (tensor<16x3xKIND>, tensor<KIND>) -> tensor<3xKIND>
  return %0 : tensor<3xKIND>
}
"""


@pytest.mark.parametrize("unsigned", [False, True])
def test_bits_are_read_back(unsigned: bool) -> None:
    x = FIELD.random("x", (1000,))
    bits = narrow_bits.from_floats(FIELD, x, unsigned=unsigned)
    assert np.array_equal(narrow_bits.to_floats(FIELD, bits), x)


def test_signed_bits_compare_as_positive_numbers_do() -> None:
    x = np.sort(np.abs(FIELD.order(FIELD.random("x", (1000,)))))
    bits = narrow_bits.from_floats(FIELD, FIELD.at_place(x), unsigned=False)
    assert (np.diff(bits) >= 0).all()


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize(
    ("kind", "least", "greatest"),
    [("f64", "0xFFF0000000000000", "0x7FF0000000000000"), ("f32", "0xFF800000", "0x7F800000"), ("bf16", "0xFF80", "0x7F80"),
     ("f16", "0xFC00", "0x7C00"), ("f8E5M2", "0xFC", "0x7C")],
)  # fmt: skip
def test_maxima_over_devices(kind: str, least: str, greatest: str, op: str) -> None:
    init = least if op == "maximum" else greatest
    text = REDUCTION.replace("KIND", kind).replace("OP", op).replace("INIT", init)
    source = assembly.read(text, "reduction.mlir", mlir.context())
    partitioned = formats.copy_module(source)
    partitioning.partition_module(partitioned)
    names = {each.name for each in mlir.walk_all(partitioned)}
    assert "stablehlo.bitcast_convert" in names  # the way that the test is about
    assert verify(source, partitioned).equal
    for each in mlir.walk_all(partitioned):  # bits in place of keys: negative ones run the other way
        if each.name == "stablehlo.xor":
            each.results[0].replace_all_uses_with(each.operands[0])
    assert not verify(source, partitioned).equal
