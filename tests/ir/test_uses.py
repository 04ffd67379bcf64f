"""Who defines and who uses a value, on one small function."""

from __future__ import annotations

import pytest

from meshbridge.ir.mlir import context, ir
from meshbridge.ir.uses import (
    block_of,
    defining_name,
    defining_op,
    erase_dead,
    forward_slice,
    has_one_use,
    is_argument,
    look_through,
    sole_user,
)

TEXT = """
func.func @main(%x: tensor<4xf32>, %stop: tensor<i1>) -> (tensor<2x2xf32>, tensor<4xf32>) {
  %0 = stablehlo.convert %x : tensor<4xf32>
  %1 = stablehlo.reshape %0 : (tensor<4xf32>) -> tensor<2x2xf32>
  %2 = stablehlo.tanh %1 : tensor<2x2xf32>
  %3 = stablehlo.negate %x : tensor<4xf32>
  %4:2 = stablehlo.while(%a = %2, %go = %stop) : tensor<2x2xf32>, tensor<i1>
    cond { stablehlo.return %go : tensor<i1> }
    do {
      %5 = stablehlo.add %a, %1 : tensor<2x2xf32>
      stablehlo.return %5, %go : tensor<2x2xf32>, tensor<i1>
    }
  return %4#0, %3 : tensor<2x2xf32>, tensor<4xf32>
}
"""


@pytest.fixture
def module() -> ir.Module:
    return ir.Module.parse(TEXT, context())


@pytest.fixture
def ops(module: ir.Module) -> dict[str, ir.Operation]:
    """The operations of the function, by their names without a dialect. They live as long as `module`."""
    (function,) = module.body.operations
    operations = [view.operation for view in function.regions[0].blocks[0].operations]
    return {op.name.split(".")[-1]: op for op in operations}


def test_definitions(ops: dict[str, ir.Operation]) -> None:
    argument = ops["convert"].operands[0]
    assert is_argument(argument)
    assert defining_op(argument) is None
    assert defining_name(argument) == ""
    assert block_of(argument) == ops["convert"].block
    result = ops["tanh"].results[0]
    assert not is_argument(result)
    assert defining_op(result) == ops["tanh"]
    assert defining_name(result) == "stablehlo.tanh"
    assert block_of(result) == ops["tanh"].block


def test_look_through(ops: dict[str, ir.Operation]) -> None:
    value = ops["tanh"].operands[0]
    assert look_through(value, ("stablehlo.reshape",)) == ops["convert"].results[0]
    assert look_through(value, ("stablehlo.reshape", "stablehlo.convert")) == ops["convert"].operands[0]
    assert look_through(value, ("stablehlo.convert",)) == value


def test_sole_user(ops: dict[str, ir.Operation]) -> None:
    assert sole_user(ops["convert"].results[0]) == ops["reshape"]
    assert sole_user(ops["reshape"].results[0]) is None  # the loop's body uses it, too
    assert sole_user(ops["while"].results[1]) is None  # nothing does
    assert has_one_use(ops["negate"].results[0])


def test_forward_slice(ops: dict[str, ir.Operation]) -> None:
    first, last = ops["reshape"], ops["return"]
    assert forward_slice([first]) == [first, ops["tanh"], ops["while"], last]
    assert forward_slice([first], until=ops["while"]) == [first, ops["tanh"], ops["while"]]
    assert forward_slice([first], exclude={ops["while"]}) == [first, ops["tanh"]]
    assert len(forward_slice([first], limit=1)) < 4


def test_erase_dead(ops: dict[str, ir.Operation]) -> None:
    block, negate = ops["return"].block, ops["negate"]
    ops["return"].operands[1] = ops["convert"].operands[0]
    erase_dead([ops["tanh"], negate])
    assert [view.operation.name for view in block.operations].count("stablehlo.negate") == 0
    assert [view.operation.name for view in block.operations].count("stablehlo.tanh") == 1
