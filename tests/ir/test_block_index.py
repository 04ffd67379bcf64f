"""The index of a block says who computes and who reads a value, inside of regions too."""

from __future__ import annotations

from meshbridge.ir.block_index import BlockIndex
from meshbridge.ir.elements import tensor_bytes
from meshbridge.ir.mlir import context, ir, main_function, parse

TEXT = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %two = stablehlo.constant dense<2.0> : tensor<4xf32>
  %sum = stablehlo.add %x, %x : tensor<4xf32>
  %taken = "stablehlo.case"(%n) ({
    %inner = stablehlo.multiply %sum, %two : tensor<4xf32>
    stablehlo.return %inner : tensor<4xf32>
  }, {
    stablehlo.return %x : tensor<4xf32>
  }) : (tensor<i32>) -> tensor<4xf32>
  return %taken : tensor<4xf32>
}
"""


def test_makers_and_readers() -> None:
    """The branches read the sum, the constant and the argument for the case, which is one operation of the block."""
    module = parse(TEXT, "test.mlir", context())
    block = main_function(module).regions[0].blocks[0]
    index = BlockIndex(block)
    constant, add, case, end = index.operations
    assert [made.name for made in index.operations] == [
        "stablehlo.constant",
        "stablehlo.add",
        "stablehlo.case",
        "func.return",
    ]
    x, n = (index.values[argument] for argument in block.arguments)
    assert (add.operands, case.operands, end.operands) == ((x, x), (n,), case.results)
    assert [index.readers_of(value) for value in (x, n, *constant.results, *add.results, *case.results)] == [
        [1, 2],
        [2],
        [2],
        [2],
        [3],
    ]
    assert index.maker(x) is None
    assert index.maker(add.results[0]) is add
    assert index.values.tensor_bytes(x) == tensor_bytes(block.arguments[0]) == 16


def test_an_index_is_shared_with_its_analyses() -> None:
    """Inner blocks number outer values alike."""
    module = parse(TEXT, "test.mlir", context())
    block: ir.Block = main_function(module).regions[0].blocks[0]
    analyses: dict[type, object] = {}
    outer = BlockIndex.of(block, analyses)
    assert BlockIndex.of(block, analyses) is outer
    inner = BlockIndex.of(outer.operations[2].op.regions[0].blocks[0], analyses)
    assert inner.operations[0].operands == (outer.operations[1].results[0], outer.operations[0].results[0])
