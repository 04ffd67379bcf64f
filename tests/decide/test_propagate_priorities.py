"""Priorities of sdy annotations: who is heard first decides a conflict, as in Shardy itself."""

from __future__ import annotations

from itertools import permutations

import pytest

from meshbridge.dialect.attributes import axis_array
from meshbridge.dialect.ops import OPTION
from meshbridge.ir.mlir import context, ir, parse, run_stock_passes, walk_all
from meshbridge.partitioning import partition_module
from meshbridge.pipeline import Options

CHAIN = """
sdy.mesh @m = <["a"=2, "b"=4]>
func.func @main(
    %x: tensor<32x64xf32> {{sdy.sharding = #sdy.sharding<@m, [{{"a"}}{rows}, {{}}]>}},
    %y: tensor<64x48xf32> {{sdy.sharding = #sdy.sharding<@m, [{{}}, {{"a"}}{columns}]>}},
    %z: tensor<32x48xf32> {{sdy.sharding = #sdy.sharding<@m, [{{"b"}}{other}, {{}}]>}}) -> tensor<32x48xf32> {{
  %0 = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<32x64xf32>, tensor<64x48xf32>) -> tensor<32x48xf32>
  %1 = stablehlo.add %0, %z : tensor<32x48xf32>
  %2 = stablehlo.tanh %1 : tensor<32x48xf32>
  return %2 : tensor<32x48xf32>
}}
"""


def _program(priorities: tuple[int, ...]) -> ir.Module:
    rows, columns, other = (f"p{priority}" if priority else "" for priority in priorities)
    return parse(CHAIN.format(rows=rows, columns=columns, other=other), "chain", context())


def _split_by_shardy(module: ir.Module) -> tuple[tuple[int, ...], ...]:
    """How Shardy splits what `tanh` computes."""
    run_stock_passes(module, "builtin.module(sdy-propagation-pipeline)")
    tanh = next(op for op in walk_all(module) if op.name == "stablehlo.tanh")
    text = str(tanh.attributes["sdy.sharding"])
    dims = text[text.index("[{") + 1 : text.rindex("}]")].split("}, {")
    return tuple(tuple("ab".index(name) for name in dim if name in "ab") for dim in dims)


@pytest.mark.parametrize(
    "priorities", [*permutations(range(3)), *permutations(range(1, 4)), (0, 1, 1), (1, 0, 0), (2, 0, 2), (5, 3, 4)], ids=str
)
def test_first_heard_decides(priorities: tuple[int, ...]) -> None:
    """Three annotations that cannot all be followed: the split of the result is what Shardy makes of them in this order."""
    wanted = _split_by_shardy(_program(priorities))
    ours = _program(priorities)
    partition_module(ours, Options(emit="annotated"))
    tanh = next(op for op in walk_all(ours) if op.name == "stablehlo.tanh")
    assert axis_array(tanh.attributes[OPTION]) == wanted


def test_annotations_stay() -> None:
    """What is hidden for a while comes back: arguments are sharded as the user says, whatever the priorities."""
    module = _program((2, 0, 1))
    partition_module(module, Options(emit="local"))
    main = next(op.operation for op in module.body.operations if op.operation.name == "func.func")
    shapes = [tuple(ir.RankedTensorType(argument.type).shape) for argument in main.regions[0].blocks[0].arguments]
    assert shapes == [(16, 64), (64, 24), (8, 48)]
