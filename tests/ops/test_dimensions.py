"""An op computes a block of its result from the blocks that `operand_dims` names; `result_dim` leads back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshbridge.ir import mlir
from meshbridge.ir.mlir import ir, walk
from meshbridge.ops.dimensions import operand_dims, result_dim, result_dim_of_blocks, varies_along

PROGRAM = """
func.func @main(%a: tensor<4x6xf32>, %b: tensor<6x8xf32>, %s: tensor<f32>) {
  %dot = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : (tensor<4x6xf32>, tensor<6x8xf32>) -> tensor<4x8xf32>
  %transpose = stablehlo.transpose %dot, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %split = stablehlo.reshape %transpose : (tensor<8x4xf32>) -> tensor<2x4x4xf32>
  %unit = stablehlo.reshape %transpose : (tensor<8x4xf32>) -> tensor<8x1x4xf32>
  %repeat = stablehlo.broadcast_in_dim %transpose, dims = [0, 2] : (tensor<8x4xf32>) -> tensor<8x3x4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%repeat init: %zero) applies stablehlo.add across dimensions = [1]
         : (tensor<8x3x4xf32>, tensor<f32>) -> tensor<8x4xf32>
  %join = stablehlo.concatenate %sum, %transpose, dim = 0 : (tensor<8x4xf32>, tensor<8x4xf32>) -> tensor<16x4xf32>
  %slice = stablehlo.slice %join [0:16:2, 0:2] : (tensor<16x4xf32>) -> tensor<8x2xf32>
  %clamp = stablehlo.clamp %s, %slice, %s : (tensor<f32>, tensor<8x2xf32>, tensor<f32>) -> tensor<8x2xf32>
  %iota = stablehlo.iota dim = 0 : tensor<8x2xf32>
  %add = stablehlo.add %clamp, %iota : tensor<8x2xf32>
  %factor = stablehlo.cholesky %split : tensor<2x4x4xf32>
  return
}
"""

OPERAND_DIMS: dict[str, list[tuple[int | None, ...] | None]] = {
    "dot": [(0, None), (None, 1)],
    "transpose": [(1,), (0,)],
    "split": [None, None, (1,)],
    "unit": [(0,), None, (1,)],
    "repeat": [(0,), (None,), (1,)],
    "zero": [],
    "sum": [(0, None), (2, None)],
    "join": [None, (1, 1)],
    "slice": [None, None],
    "clamp": [(None, 0, None), (None, 1, None)],
    "iota": [(), ()],
    "add": [(0, 0), (1, 1)],
    "factor": [None, None, None],
}


@pytest.fixture(scope="module")
def ops() -> Iterator[dict[str, ir.Operation]]:
    module = ir.Module.parse(PROGRAM, mlir.context())
    body = [op for op in walk(module.operation) if op.name.startswith("stablehlo.") and op.parent.name == "func.func"]
    yield dict(zip(OPERAND_DIMS, body, strict=True))
    del module  # which holds the operations


@pytest.mark.parametrize("name", OPERAND_DIMS)
def test_dimensions_of_operands_and_back(name: str, ops: dict[str, ir.Operation]) -> None:
    rank = len(OPERAND_DIMS[name])
    assert [operand_dims(ops[name], dim) for dim in range(rank)] == OPERAND_DIMS[name]
    for dim, dims in enumerate(OPERAND_DIMS[name]):
        for operand, operand_dim in enumerate(dims or ()):
            if operand_dim is not None:
                assert result_dim(ops[name], operand, operand_dim) == dim


@pytest.mark.parametrize(
    ("name", "dim", "count", "expected"),
    [
        ("transpose", 1, 4, 0),
        ("split", 0, 2, 0),  # the 8 rows in 2 pieces are the 2 outer rows
        ("split", 0, 4, None),
        ("split", 1, 4, 2),
        ("repeat", 1, 2, 2),
        ("sum", 2, 2, 1),
        ("sum", 1, 3, None),
        ("slice", 0, 4, 0),  # every other row of each piece
        ("slice", 1, 2, None),
        ("add", 0, 8, 0),
        ("factor", 0, 2, None),
    ],
)
def test_pieces_of_a_dimension(name: str, dim: int, count: int, expected: int | None, ops: dict[str, ir.Operation]) -> None:
    assert result_dim_of_blocks(ops[name], dim, count) == expected


def test_what_varies_along_a_dimension(ops: dict[str, ir.Operation]) -> None:
    assert varies_along(ops["iota"].results[0], 0)
    assert not varies_along(ops["iota"].results[0], 1)
    assert not varies_along(ops["repeat"].results[0], 1)
    assert varies_along(ops["add"].results[0], 0)
